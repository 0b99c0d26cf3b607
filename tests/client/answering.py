"""A small HTTP server whose answers a test writes down beforehand."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """`status` 0 closes the connection without an answer; a `body` of bytes is sent unchanged, others as JSON."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Answering:
    """`asked` contains (method, path, headers, body) of every request."""

    url: str
    answers: list[Answer]
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def answering(*answers: Answer) -> Iterator[Answering]:
    """Yield the answers in order, and repeat the last one."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            house.asked.append((self.command, self.path, dict(self.headers), body))
            answer = house.answers[min(len(house.asked), len(house.answers)) - 1]
            if answer.status == 0:
                self.close_connection = True
                return
            sent = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            headers = {"Content-Type": "application/json", "Content-Length": str(len(sent)), **answer.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = _answer  # noqa: N815  names of the standard library

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    house = Answering(f"http://127.0.0.1:{server.server_address[1]}", list(answers))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield house
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
