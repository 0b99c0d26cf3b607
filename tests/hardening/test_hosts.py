"""The Host header is what a client makes up: it becomes no link, no redirect and no page of another name."""

import socket

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.conftest import OPEN_TO
from tests.embedded.processes import Running

ALLOWED = "threewalls.example, *.lab.example"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("threewalls.example", 200),
        ("THREEWALLS.example:8443", 200),
        ("a.b.lab.example", 200),
        ("localhost:8000", 200),
        ("[::1]:8000", 200),
        ("lab.example", 400),
        ("evil.example", 400),
        ("threewalls.example.evil.example", 400),
        ("threewalls.example@evil.example", 400),
        ('x"><script>alert(1)</script>', 400),
        ("", 400),
    ],
)
def test_it_answers_at_its_own_names_only(settings: Settings, host: str, status: int) -> None:
    app = create_app(settings.model_copy(update={"allowed_hosts": ALLOWED}))
    client = TestClient(app, headers={"Host": host})
    answer = client.get("/login")
    assert answer.status_code == status
    assert client.get("/healthz").status_code == 200
    if status == 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert not host or host not in answer.text
    app.state.engine.dispose()


@pytest.mark.parametrize("host", ['x"onload=x', "a b", "a/../b", "a,b", "a\\b", "[x]", "a:b:c"])
def test_what_is_no_name_is_refused_without_a_list_too(settings: Settings, host: str) -> None:
    app = create_app(settings, open_to=OPEN_TO)
    assert TestClient(app, headers={"Host": host}).get("/").status_code == 400
    app.state.engine.dispose()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz/..%0d%0aX-Injected:1 HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /login?next=%0d%0aX-Injected:1 HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /runs?page=2%0d%0aX-Injected:1 HTTP/1.1\r\nHost: localhost\r\nHX-Request: true\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: a\x0bb\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n",
    ],
)
def test_no_line_break_and_no_other_name_becomes_a_header(server: Running, head: bytes) -> None:
    port = int(server.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(head + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    headers = answer.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert headers[0].startswith(b"http/1.1 ")
    assert not [line for line in headers if line.startswith(b"x-injected")]
    assert b"evil.example" not in b"\r\n".join(headers)
