"""Identical requests that wait at the same time share one answer, and no other requests do."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from app.storage.visible import seeing
from app.web.dependencies import COMPUTING
from app.web.shared_answers import SharedAnswersMiddleware

Handler = Callable[[Scope], Awaitable[Response]]


class Service:
    """An application whose answers wait until `let_go`; `saved` is what they read."""

    def __init__(self, answer: Handler | None = None) -> None:
        self.handled: Counter[str] = Counter()
        self.saved = 0
        self.gate = asyncio.Event()
        self.answer = answer
        self.app = SharedAnswersMiddleware(self.handle)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.handled[scope["path"]] += 1
        scope["route"] = "a route"
        read = self.saved
        await self.gate.wait()
        response = await self.answer(scope) if self.answer else PlainTextResponse(str(read))
        await response(scope, receive, send)

    async def get(self, path: str = "/", method: str = "GET", visible: int = 1, **headers: str) -> str:
        scope: Scope = {
            "type": "http", "method": method, "path": path, "query_string": b"", "scheme": "http",
            "client": ("127.0.0.1", 1), "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        }  # fmt: skip
        messages: list[Message] = []

        async def receive() -> Message:
            return await asyncio.Event().wait() and {}  # the client stays

        async def send(message: Message) -> None:
            messages.append(message)

        with seeing(frozenset({visible})):
            await self.app(scope, receive, send)
        assert scope["route"] == "a route"
        messages[0]["headers"].append((b"x-request-id", b"1"))  # as the frame does: a shared list would grow
        assert sum(name == b"x-request-id" for name, _ in messages[0]["headers"]) == 1
        return b"".join(message["body"] for message in messages[1:]).decode()


async def together(service: Service, requests: list[Awaitable[str]]) -> list[str]:
    """Start the requests, let all arrive, then let the service answer."""
    tasks: list[asyncio.Future[str]] = [asyncio.ensure_future(request) for request in requests]
    await settled()
    service.gate.set()
    return await asyncio.gather(*tasks)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_crowd_is_answered_by_two_computations() -> None:
    async def crowd() -> None:
        service = Service()
        assert await together(service, [service.get() for _ in range(50)]) == ["0"] * 50
        assert service.handled["/"] == 2  # the first one, and one for all that came meanwhile

    asyncio.run(crowd())


def test_an_answer_has_what_was_saved_before_its_request() -> None:
    async def later() -> None:
        service = Service()
        early = asyncio.ensure_future(service.get())
        await settled()
        service.saved = 1
        assert await together(service, [service.get(), service.get()]) == ["1", "1"]
        assert await early == "0"

    asyncio.run(later())


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/other"},
        {"method": "POST"},
        {"visible": 2},
        {"cookie": "session=other"},
        {"authorization": "Bearer b"},
    ],
)
def test_different_requests_share_nothing(other: dict[str, Any]) -> None:
    async def two() -> None:
        service = Service()
        waiting = {"path": "/", "method": "GET", "visible": 1, "cookie": "session=mine"}
        requests = [service.get(**waiting), service.get(**waiting), service.get(**{**waiting, **other})]
        await together(service, requests)
        assert service.handled.total() == 3

    asyncio.run(two())


async def _stream(_: Scope) -> Response:
    async def parts() -> Any:
        yield b"1"
        yield b"2"

    return StreamingResponse(parts())


async def _error(_: Scope) -> Response:
    return PlainTextResponse("12", status_code=500)


async def _cookie(_: Scope) -> Response:
    return PlainTextResponse("12", headers={"Set-Cookie": "a=b"})


@pytest.mark.parametrize("answer", [_stream, _error, _cookie])
def test_streams_errors_and_cookies_are_not_shared(answer: Handler) -> None:
    async def crowd() -> None:
        service = Service(answer)
        assert await together(service, [service.get() for _ in range(5)]) == ["12"] * 5
        assert service.handled["/"] == 5

    asyncio.run(crowd())


def test_a_request_that_fails_or_goes_away_holds_up_no_other() -> None:
    async def fail(_: Scope) -> Response:
        raise ValueError

    async def broken() -> None:
        service = Service(fail)
        tasks = [asyncio.ensure_future(service.get()) for _ in range(4)]
        await settled()
        tasks[1].cancel()  # it waits for its turn, and two wait for its answer
        await settled()
        service.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ValueError, asyncio.CancelledError, ValueError, ValueError]

    asyncio.run(broken())


def test_a_request_waits_for_an_identical_one_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.web.shared_answers.PATIENCE_SECONDS", 0.01)

    async def hanging() -> None:
        service = Service()
        tasks = [asyncio.ensure_future(service.get()) for _ in range(2)]
        while service.handled["/"] < 2:
            await asyncio.sleep(0.005)
        service.gate.set()
        assert await asyncio.gather(*tasks) == ["0", "0"]

    asyncio.run(hanging())


def test_requests_that_wait_for_their_turn_share_an_answer() -> None:
    async def busy() -> None:
        service = Service()
        others = [service.get(f"/{number}") for number in range(int(COMPUTING.total_tokens))]
        assert await together(service, [*others, *(service.get() for _ in range(50))]) == ["0"] * (len(others) + 50)
        assert service.handled["/"] == 1
        assert COMPUTING.borrowed_tokens == 0

    asyncio.run(busy())


def test_a_busy_service_answers_static_files_and_checks_at_once() -> None:
    async def busy() -> None:
        service = Service()
        others = [service.get(f"/{number}") for number in range(2 * int(COMPUTING.total_tokens))]
        tasks = [asyncio.ensure_future(request) for request in [*others, service.get("/healthz")]]
        await settled()
        assert (service.handled["/healthz"], service.handled.total()) == (1, COMPUTING.total_tokens + 1)
        service.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(busy())
