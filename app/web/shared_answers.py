"""Answer identical requests that wait at the same time with one answer, so that a crowd costs as little as a few."""

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.storage.visible import visible_projects

PATIENCE_SECONDS = 5.0
"""How long a request waits for the identical one in front of it before it is handled on its own."""

_OF_THE_CONNECTION = (b"connection", b"x-request-id", b"traceparent", b"tracestate", b"sec-fetch-user")
"""Headers that no handler reads."""

_OF_THE_ROUTE = ("route", "root_path")
"""What the router adds to the scope and the log line of a request reads."""


@dataclass(frozen=True, slots=True)
class _Answer:
    start: Message
    body: Message
    route: dict[str, Any]


class SharedAnswersMiddleware:
    """Handle identical GET requests of the same caller one after the other, and those that wait with one answer.

    A request never gets an answer that another request began to compute before it arrived, so everything that was
    saved before it arrived is in its answer. Answers that are streamed, set cookies or report an error are not shared.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: dict[object, asyncio.Event] = {}
        self._next: dict[object, asyncio.Future[_Answer | None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or b"wait=" in scope["query_string"]:
            await self._app(scope, receive, send)
            return
        key = _key(scope)
        if key in self._next:
            answer = await asyncio.shield(self._next[key])
            if answer is None:
                await self._app(scope, receive, send)
                return
            scope.update(answer.route)
            # Outer middlewares add headers of their own
            await send({**answer.start, "headers": list(answer.start["headers"])})
            await send(answer.body)
            return
        waiting: asyncio.Future[_Answer | None] | None = None
        if key in self._running:
            waiting = self._next[key] = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._running[key].wait()
            except TimeoutError:
                pass
            except asyncio.CancelledError:
                waiting.set_result(None)
                raise
            finally:
                del self._next[key]
        await self._handle(key, waiting, scope, receive, send)

    async def _handle(
        self, key: object, waiting: "asyncio.Future[_Answer | None] | None", scope: Scope, receive: Receive, send: Send
    ) -> None:
        ended = self._running[key] = asyncio.Event()
        start: Message = {}

        def release(answer: _Answer | None) -> None:
            ended.set()
            if self._running.get(key) is ended:
                del self._running[key]
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

        async def shared(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = {**message, "headers": list(message["headers"])}
            elif not ended.is_set():
                whole = message["type"] == "http.response.body" and not message.get("more_body", False)
                route = {name: scope[name] for name in _OF_THE_ROUTE if name in scope}
                release(_Answer(start, message, route) if whole and _may_be_shared(start) else None)
            await send(message)

        try:
            await self._app(scope, receive, shared)
        finally:
            release(None)


def _may_be_shared(start: Message) -> bool:
    return start["status"] < 400 and all(name.lower() != b"set-cookie" for name, _ in start["headers"])


def _key(scope: Scope) -> object:
    """Return what an answer depends on: the caller by credentials, address and visible projects, and the request."""
    headers = tuple(header for header in scope["headers"] if header[0] not in _OF_THE_CONNECTION)
    address = (scope["client"] or ("",))[0]
    return visible_projects(), address, scope["scheme"], scope["path"], scope["query_string"], headers
