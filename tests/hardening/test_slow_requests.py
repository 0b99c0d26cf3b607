"""Requests that do not come hold nothing for long, and keep nobody out meanwhile. Real sockets."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from app.access.guards import SlowBodyMiddleware
from app.domain.access.principal import Anonymous, Everyone, Principal
from app.web.identity import Access, put
from tests.embedded.processes import Running, running

SECONDS = 1.0
LOG_IN = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
UPLOAD = b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("THREEWALLS_REQUEST_SECONDS", str(SECONDS))
        with running("serve", tmp_path_factory.mktemp("slow") / "data") as made:
            yield made


def connect(house: Running) -> socket.socket:
    host, port = house.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=300)


def rest(connection: socket.socket) -> bytes:
    """What comes until the service closes it."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_a_head_that_does_not_come_is_not_waited_for(house: Running) -> None:
    silent, begun = connect(house), connect(house)
    begun.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
    assert rest(silent) == b""
    assert rest(begun) == b""


def test_bytes_that_trickle_in_win_no_time(house: Running) -> None:
    """Also those of a body whose request was answered long ago."""
    head, late = connect(house), connect(house)
    head.sendall(b"GET /healthz HTTP/1.1\r\n")
    late.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
    with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012  at last
        for _ in range(300):
            head.sendall(b"A: b\r\n")
            time.sleep(0.02)
    with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012
        for _ in range(300):
            late.sendall(b"x")
            time.sleep(0.02)
    head.close()
    late.close()


def test_a_body_that_does_not_come_is_ended_and_health_is_answered_meanwhile(house: Running) -> None:
    held = [connect(house) for _ in range(100)]
    for one in held:
        one.sendall(LOG_IN + b"Content-Length: 1000\r\n\r\nname=")
    with connect(house) as well:
        well.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert well.recv(65_536).startswith(b"HTTP/1.1 200")
    assert {rest(one).split(b" ", 2)[1] for one in held} == {b"408"}


def test_a_slow_upload_that_goes_on_is_waited_for(house: Running) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="log"; filename="train.log"\r\n\r\n'
    pieces = [part, *[b"another line of a log\n" * 100] * 8, b"\r\n--x--\r\n"]
    with connect(house) as slow:
        slow.sendall(UPLOAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % sum(map(len, pieces)))
        for piece in pieces:
            slow.sendall(piece)
            time.sleep(0.25)
        answer = b"".join(iter(lambda: slow.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 202"), answer


def test_the_service_takes_as_many_files_as_it_may(house: Running) -> None:
    limits = Path(f"/proc/{house.process.pid}/limits").read_text()
    soft, hard = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3:5]
    assert int(soft) == min(int(hard), 16_384) or int(soft) > 16_384


@pytest.mark.parametrize("who", [Anonymous(), Everyone()])
def test_only_who_is_known_earns_time_by_what_came(who: Principal) -> None:
    pieces = [b"x" * 1000] * 20

    async def receive() -> Message:
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": pieces.pop(), "more_body": bool(pieces)}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async def handler(_scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive())["more_body"]:
            pass

    scope: Scope = {"type": "http", "headers": []}
    put(scope, Access(who))
    asked = SlowBodyMiddleware(handler, seconds=0.2)(scope, receive, send)
    if isinstance(who, Everyone):
        asyncio.run(asked)
        assert not pieces
        return
    with pytest.raises(HTTPException) as refused:
        asyncio.run(asked)
    assert refused.value.status_code == 408
