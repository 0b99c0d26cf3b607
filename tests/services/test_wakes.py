"""Wake-ups of the scaled mode, through a real Redis: without them, these tests would fail after minutes."""

import subprocess
from collections.abc import Iterator

import anyio
import pytest
from redis import Redis

from app import wakes
from app.settings import get_settings
from tests.services.redis_server import START_SECONDS, free_port, running_redis, start_redis


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    with running_redis(free_port()) as address:
        monkeypatch.setenv("THREEWALLS_BROKER_URL", address)
        get_settings.cache_clear()
        yield int(address.rsplit(":", 1)[1].split("/")[0])
    get_settings.cache_clear()


async def woken(run_id: int) -> None:
    """Wait for a run that is processed again and again, because a message without a subscriber is lost."""
    async with anyio.create_task_group() as group:

        async def process() -> None:
            while True:
                await anyio.to_thread.run_sync(wakes.processed, run_id)
                await anyio.sleep(0.05)

        group.start_soon(process)
        with wakes.Waiting(run_id) as waiting, anyio.fail_after(START_SECONDS):
            await waiting.wait(2 * START_SECONDS)
        group.cancel_scope.cancel()


@pytest.mark.usefixtures("port")
def test_a_processed_run_wakes_its_request() -> None:
    anyio.run(woken, 7)


def test_wake_ups_arrive_again_after_redis_restarted(port: int) -> None:
    async def restart() -> None:
        await woken(1)
        redis = await anyio.to_thread.run_sync(restarted, port)
        try:
            await woken(2)
        finally:
            redis.kill()
            redis.wait()

    anyio.run(restart)


def restarted(port: int) -> subprocess.Popen[bytes]:
    with Redis(port=port) as client:
        client.shutdown(nosave=True)
    return start_redis(port)
