"""Common parts of servers that implement a forge's API: a thread, configurable faults, a list of violations."""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Fault:
    """Answers of requests that fit. `done`: the request was carried out all the same, and its answer lost."""

    method: str
    path: str
    answer: Answer
    times: int = 1
    done: bool = False


class Forge:
    """`base` is set when it listens. `wrong`: requests that the documentation does not allow."""

    def __init__(self) -> None:
        self.base = ""
        self.lock = threading.RLock()
        self.asked: list[Request] = []
        self.wrong: list[str] = []
        self.faults: list[Fault] = []
        self.listed_together: threading.Barrier | None = None
        self.lists = 0

    def answer(self, request: Request) -> Answer:
        raise NotImplementedError

    def taken(self, request: Request) -> Answer:
        with self.lock:
            self.asked.append(request)
            fault = next((item for item in self.faults if item.times and self._fits(item, request)), None)
            if fault is None:
                answer = self.answer(request)
            else:
                fault.times -= 1
                if fault.done:
                    self.answer(request)
                answer = fault.answer
            is_list = request.method == "GET" and "page" in request.query
            self.lists += is_list
            first = is_list and self.listed_together is not None and self.lists <= self.listed_together.parties
        if self.listed_together is not None and first:
            self.listed_together.wait(30)  # no client continues before all have read
        return answer

    def calls(self, method: str, path: str) -> list[Request]:
        return [item for item in self.asked if item.method == method and re.search(path, item.path)]

    def refuse(self, status: int, why: str) -> Answer:
        """For requests that no careful client sends."""
        self.wrong.append(why)
        return Answer(status, {"message": why})

    def checked(self, body: Any, required: Mapping[str, type], optional: Mapping[str, type]) -> str:
        """Return what is wrong with a body; empty if nothing is."""
        if not isinstance(body, dict):
            return "the body is no JSON object"
        types = {**required, **optional}
        for name in required:
            if name not in body:
                return f"{name} is missing"
        for name, value in body.items():
            if name not in types or not isinstance(value, types[name]):
                return f"{name} is not known, or of another type"
        return ""

    def page_of(self, entries: list[Any], request: Request) -> Answer:
        page, size = int(request.query.get("page", 1)), int(request.query.get("per_page", 30))
        if not 1 <= size <= 100 or page < 1:
            return self.refuse(422, "per_page is 1 to 100")
        shown = entries[(page - 1) * size : page * size]
        more = len(entries) > page * size
        link = {"Link": f'<{self.base}/elsewhere?page={page + 1}>; rel="next"'} if more else {}
        return Answer(200, shown, link)

    @staticmethod
    def _fits(fault: Fault, request: Request) -> bool:
        return fault.method == request.method and re.search(fault.path, request.path) is not None


class _Server(ThreadingHTTPServer):
    request_queue_size = 64
    forge: Forge


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _handle(self) -> None:
        address = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, address.path, dict(parse_qsl(address.query)), headers, body)
        answer = self.server.forge.taken(request)
        body, is_raw = answer.body, isinstance(answer.body, bytes)
        sent = body if is_raw else b"" if body is None else json.dumps(body).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if sent:
            self.send_header("Content-Type", "text/html" if is_raw else "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


F = TypeVar("F", bound=Forge)


@contextmanager
def listening(forge: F, root: str = "") -> Iterator[F]:
    """`root`: path of the API below the address."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.forge, server.daemon_threads = forge, True
    forge.base = f"http://127.0.0.1:{server.server_address[1]}{root}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield forge
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
