"""Compute few answers at a time, and one answer for all identical requests that wait."""

import asyncio
from dataclasses import dataclass
from typing import Any

from anyio import CapacityLimiter, WouldBlock
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.storage.visible import visible_projects

PATIENCE_SECONDS = 5.0
"""Maximum time that a request waits for an identical one, and for its turn."""

_IGNORED_HEADERS = (b"connection", b"x-request-id", b"traceparent", b"tracestate", b"sec-fetch-user")
"""Headers that no handler reads."""

_ROUTE_KEYS = ("route", "root_path")
"""Keys that the router adds to the scope and that the log line needs."""


_NOT_COMPUTED = ("/static/", "/healthz", "/readyz", "/metrics")


@dataclass(frozen=True, slots=True)
class _Answer:
    start: Message
    body: Message
    route: dict[str, Any]


@dataclass(eq=False, slots=True)
class _Computation:
    """The computation of an answer for all identical requests that wait. `has_turn`: it has taken one of `turns`."""

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
    """Handle few GET requests at a time, and give identical waiting requests of a caller the same answer.

    A request never gets an answer whose computation began before the request arrived, so its answer includes everything
    that was saved before. Answers that are streamed, set cookies or report an error are not shared. `turns`: number of
    concurrent computations. More of them would share the interpreter, and all would be late.
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
            # A copy, because outer middlewares add headers
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
                route = {name: scope[name] for name in _ROUTE_KEYS if name in scope}
                release(_Answer(start, message, route) if whole and _may_be_shared(start) else None)
            await send(message)

        try:
            await self._app(scope, receive, shared)
        finally:
            release(None)


def _is_read(scope: Scope) -> bool:
    """Return whether the answer is computed, rather than waiting for a change or sending a file."""
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and b"wait=" not in scope["query_string"]
        and not scope["path"].startswith(_NOT_COMPUTED)
    )


def _may_be_shared(start: Message) -> bool:
    return start["status"] < 400 and all(name.lower() != b"set-cookie" for name, _ in start["headers"])


def _key(scope: Scope) -> object:
    """Return everything on which an answer depends: the request, and the caller's credentials, address and projects."""
    headers = tuple(header for header in scope["headers"] if header[0] not in _IGNORED_HEADERS)
    address = (scope["client"] or ("",))[0]
    return visible_projects(), address, scope["scheme"], scope["path"], scope["query_string"], headers
