"""Many log-ins at once, each of which takes a processor and much memory, are no way to stop the service."""

import asyncio

import httpx2
from anyio import to_thread

from app.settings import Settings
from tests.access.people import SAME_ORIGIN, Teams

THREADS = 3
LOG_INS = 12  # more than the threads that requests share


def test_whoever_reads_does_not_wait_for_them(teams: Teams, settings: Settings) -> None:
    teams.app.state.settings = settings.model_copy(update={"password_memory_mib": 64})  # as expensive as it comes

    async def waiting_once_it_was_read() -> int:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        transport = httpx2.ASGITransport(teams.app, client=("192.0.2.7", 4711))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            token = {"Authorization": f"Bearer {teams.tokens['token:read']}"}
            await client.get("/api/v1/runs", headers=token)  # what is found out once only
            log_ins = [
                asyncio.create_task(
                    client.post(
                        "/login", data={"name": f"somebody-{n}", "password": "wrong horse"}, headers=SAME_ORIGIN
                    )
                )
                for n in range(LOG_INS)
            ]
            await asyncio.wait(log_ins, return_when=asyncio.FIRST_COMPLETED)
            read = await client.get("/api/v1/runs", headers=token)
            waiting = sum(not one.done() for one in log_ins)
            answers = await asyncio.gather(*log_ins)
        assert read.status_code == 200
        assert {one.status_code for one in answers} == {422}
        return waiting

    assert asyncio.run(waiting_once_it_was_read()) > THREADS
