"""Cost of the access check per request: `python -m bench.access`. Compares each request with and without the check.

A viewer of a hundred projects requests a run of one of them over ASGI, without a network. Behind the check, a stub
answers. The figures are CPU time of the process and its threads, so other work on the machine does not count. Requests
alternate, so cache effects are the same for all. The default rate limits are on.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from fastapi import FastAPI
from sqlmodel import select
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.check import AccessMiddleware
from app.access.credentials import NAME
from app.access.routes import route_table
from app.domain.access.principal import Role
from app.domain.access.principal import Scope as TokenScope
from app.main import create_app
from app.settings import Settings
from app.storage import tokens, users
from app.storage.database import make_engine, migrate, transaction
from app.storage.tables import ProjectRow
from app.storage.visible import see_every_project

LIMIT_MS = 0.2
ROUNDS, REQUESTS = 60, 40
PATH = "/api/v1/runs/7"
"""Path that a stub answers, so that only the check is measured."""

Ask = Callable[[], Awaitable[None]]


async def stub(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b"{}"})


def asking(app: ASGIApp, headers: dict[str, str], *, of: FastAPI) -> Ask:
    sent = [(name.lower().encode(), value.encode()) for name, value in ({"host": "localhost"} | headers).items()]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        assert message.get("status", 200) == 200, message

    async def ask() -> None:
        scope = {
            "type": "http", "method": "GET", "path": PATH, "raw_path": PATH.encode(), "query_string": b"",
            "headers": list(sent), "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1),
            "http_version": "1.1", "root_path": "", "state": {}, "app": of,
        }  # fmt: skip
        await app(scope, receive, send)

    return ask


def prepared(settings: Settings) -> tuple[FastAPI, str, str]:
    """Return the application, a token and the value of a cookie, for a viewer of a hundred projects."""
    from tests.builders import make_run  # noqa: PLC0415  after the settings are the bench's own

    app = create_app(settings)
    with transaction(app.state.engine) as session:
        for _ in range(7):
            make_run(session, project="bench", name=f"run {_}")
        project = session.exec(select(ProjectRow.id)).one() or 0
        user = users.create_user(session, "viewer", by="bench")
        others = [ProjectRow(slug=f"p{number}") for number in range(99)]
        session.add_all(others)
        session.flush()
        for project_id in (project, *(other.id or 0 for other in others)):
            users.set_role(session, project_id=project_id, user_id=user.id, role=Role.VIEWER, by="bench")
        token = tokens.make_token(session, project_id=project, name="ci", scopes=list(TokenScope), by="bench")[1]
        return app, token, users.start_session(session, user.id, timedelta(hours=1))


async def measured(asks: dict[str, Ask]) -> dict[str, list[float]]:
    """Return the CPU milliseconds per request by name: one figure per round."""
    times_by_name: dict[str, list[float]] = {name: [] for name in asks}
    for ask in asks.values():
        await ask()
    for _ in range(ROUNDS):
        for name, ask in asks.items():
            began = time.process_time()
            for _ in range(REQUESTS):
                await ask()
            times_by_name[name].append((time.process_time() - began) / REQUESTS * 1000)
    return times_by_name


def main() -> None:
    see_every_project()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), log_level="error", requests_per_minute=10**9)
        migrate(settings)
        app, token, secret = prepared(settings)
        table = route_table(app)
        options = {"settings": settings, "table": table}
        closed = AccessMiddleware(stub, engine=make_engine(settings), open_to=None, **options)
        opened = AccessMiddleware(stub, engine=make_engine(settings), open_to=(), **options)
        times_by_name = asyncio.run(
            measured({
                "no check": asking(stub, {}, of=app),
                "no log-ins": asking(opened, {}, of=app),
                "token": asking(closed, {"Authorization": f"Bearer {token}"}, of=app),
                "session": asking(closed, {"Cookie": f"{NAME}={secret}"}, of=app),
            })
        )  # fmt: skip
    bare = statistics.median(times_by_name["no check"])
    worst = 0.0
    print(f"{'':12}{'ms a request':>14}{'added ms':>12}{'of the limit':>14}   (limit {LIMIT_MS} ms)")
    for name, times in times_by_name.items():
        added = statistics.median(times) - bare
        worst = max(worst, added)
        print(f"{name:12}{statistics.median(times):14.4f}{added:12.4f}{added / LIMIT_MS:13.0%}")
    assert worst <= LIMIT_MS, f"the check adds {worst:.3f} ms, over {LIMIT_MS} ms"


if __name__ == "__main__":
    main()
