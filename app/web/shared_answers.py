"""Compute few answers at a time, and one for all identical requests that wait: a crowd costs as little as a few."""

import asyncio
from dataclasses import dataclass
from typing import Any

from anyio import CapacityLimiter, WouldBlock
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.storage.visible import visible_projects

PATIENCE_SECONDS = 5.0
"""How long a request waits for an identical one, and for its turn, before it is handled anyway.
"""

_OF_THE_CONNECTION = (b"connection", b"x-request-id", b"traceparent", b"tracestate", b"sec-fetch-user")
"""Headers that no handler reads."""

_OF_THE_ROUTE = ("route", "root_path")
"""Keys that the router adds to the scope and that the log line of a request reads."""


_NOT_COMPUTED = ("/static/", "/healthz", "/readyz", "/metrics")


@dataclass(frozen=True, slots=True)
class _Answer:
    start: Message
    body: Message
    route: dict[str, Any]


@dataclass(eq=False, slots=True)
class _Computation:
    """The computation of an answer for all identical requests that wait. `has_turn`: one of the `turns` is taken."""

    answer: "asyncio.Future[_Answer | None]"
    turns: CapacityLimiter
    has_turn: bool = False

    async def begin(self) -> None:
        try:
            self.turns.acquire_on_behalf_of_nowait(self)  # does not yield to other tasks
        except WouldBlock:
            await self.turns.acquire_on_behalf_of(self)
        self.has_turn = True

    def end(self, answer: _Answer | None) -> None:
        if self.has_turn:
            self.has_turn = False
            self.turns.release_on_behalf_of(self)
        if not self.answer.done():
            self.answer.set_result(answer)


class SharedAnswersMiddleware:
    """Handle a few GET requests at a time, and identical ones of the same caller that wait with one answer.

    A request never gets an answer that another request began to compute before it arrived, so everything that was
    saved before it arrived is in its answer. Answers that are streamed, set cookies or report an error are not shared.
    `turns`: how many are computed at a time. More would share the interpreter and all end late.
    """

    def __init__(self, app: ASGIApp, turns: CapacityLimiter) -> None:
        self._app = app
        self._turns = turns
        self._running: dict[object, asyncio.Event] = {}
        self._next: dict[object, asyncio.Future[_Answer | None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_read(scope):
            await self._app(scope, receive, send)
            return
        key = _key(scope)
        if key in self._next:
            answer = await asyncio.shield(self._next[key])
            if answer is None:
                await self._app(scope, receive, send)
                return
            scope.update(answer.route)
            # Outer middlewares add their own headers
            await send({**answer.start, "headers": list(answer.start["headers"])})
            await send(answer.body)
            return
        turn = _Computation(asyncio.get_running_loop().create_future(), self._turns)
        self._next[key] = turn.answer
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                if key in self._running:
                    await self._running[key].wait()
                await turn.begin()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            turn.end(None)
            raise
        finally:
            del self._next[key]
        await self._handle(key, turn, scope, receive, send)

    async def _handle(self, key: object, turn: "_Computation", scope: Scope, receive: Receive, send: Send) -> None:
        ended = self._running[key] = asyncio.Event()
        start: Message = {}

        def release(answer: _Answer | None) -> None:
            ended.set()
            if self._running.get(key) is ended:
                del self._running[key]
            turn.end(answer)

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


def _is_read(scope: Scope) -> bool:
    """Return whether the request is answered by computing, without waiting for a change or sending a file."""
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and b"wait=" not in scope["query_string"]
        and not scope["path"].startswith(_NOT_COMPUTED)
    )


def _may_be_shared(start: Message) -> bool:
    return start["status"] < 400 and all(name.lower() != b"set-cookie" for name, _ in start["headers"])


def _key(scope: Scope) -> object:
    """Return what an answer depends on: the caller by credentials, address and visible projects, and the request."""
    headers = tuple(header for header in scope["headers"] if header[0] not in _OF_THE_CONNECTION)
    address = (scope["client"] or ("",))[0]
    return visible_projects(), address, scope["scheme"], scope["path"], scope["query_string"], headers
