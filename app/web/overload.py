"""Refuses requests at once, 503 with `Retry-After`, while too many wait already: a queue that grows answers nobody.

What counts are requests that wait for a thread or for their turn to read, not those that send a log or wait for a run.
"""

from anyio import to_thread
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import Overloaded
from app.web.error_pages import answer_error
from app.web.request_session import READING

_ALWAYS_ANSWERED = "/healthz"


class OverloadMiddleware:
    """`most`: requests that may wait, some seconds of work."""

    def __init__(self, app: ASGIApp, most: int = 200) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == _ALWAYS_ANSWERED or _waiting() < self._most:
            await self._app(scope, receive, send)
            return
        refused = Overloaded("Too many requests wait for this service. Nothing was kept. Try again in a moment.")
        await answer_error(Request(scope), refused)(scope, receive, send)


def _waiting() -> int:
    limiters = (to_thread.current_default_thread_limiter(), READING)
    return sum(limiter.statistics().tasks_waiting for limiter in limiters)
