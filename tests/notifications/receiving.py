"""A real receiver: an HTTP server in a thread that records requests and answers as configured."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HELD_SECONDS = 60


@dataclass
class Got:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """`answers`: statuses of the next requests, then 200; 400 to requests that contain the bytes of `refuses`.

    `released`: until it is set, no request is answered.
    """

    port: int = 0
    got: list[Got] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    refuses: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)
    came: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.released.set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=abc"

    @property
    def ids(self) -> list[str]:
        return [item.headers["webhook-id"] for item in self.got]


@contextmanager
def receiving(port: int = 0, certificate: Path | None = None) -> Iterator[Receiver]:
    """`certificate`: a folder with `cert.pem` and `key.pem`."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append(Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            receiver.came.set()
            receiver.released.wait(HELD_SECONDS)
            bad = receiver.refuses and receiver.refuses in body
            self.send_response(400 if bad else receiver.answers.pop(0) if receiver.answers else 200)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:  # the client has disconnected
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
