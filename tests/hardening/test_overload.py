"""Slow requests, overload and a locked database: bounded, 503 with `Retry-After`, one connection per request."""

import asyncio
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from app.access.guards import SlowBodyMiddleware
from app.domain.access.principal import Anonymous, Everyone, Principal
from app.main import create_app
from app.settings import Settings
from app.storage import database
from app.storage.database import transaction
from app.web.identity import Access, put
from tests.conftest import OPEN_TO
from tests.embedded.processes import Running, running
from tests.runs.uploading import LOG, assert_problem, upload

SECONDS = 1.0
LOG_IN = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
UPLOAD = b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("THREEWALLS_REQUEST_SECONDS", str(SECONDS))
        with running("serve", tmp_path_factory.mktemp("slow") / "data") as server:
            yield server


def connect(house: Running) -> socket.socket:
    host, port = house.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=300)


def rest(connection: socket.socket) -> bytes:
    """Return the received bytes until the service closes the connection."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_missing_headers_end_in_a_timeout(house: Running) -> None:
    silent, begun = connect(house), connect(house)
    begun.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
    assert rest(silent) == b""
    assert rest(begun) == b""


def test_slow_bytes_do_not_extend_the_timeout(house: Running) -> None:
    """Including those of a body whose request was answered long ago."""
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


def test_a_missing_body_ends_in_a_timeout_while_health_checks_are_answered(house: Running) -> None:
    connections = [connect(house) for _ in range(100)]
    for item in connections:
        item.sendall(LOG_IN + b"Content-Length: 1000\r\n\r\nname=")
    with connect(house) as well:
        well.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert well.recv(65_536).startswith(b"HTTP/1.1 200")
    assert {rest(item).split(b" ", 2)[1] for item in connections} == {b"408"}


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
def test_only_authenticated_callers_extend_the_timeout_by_sending(who: Principal) -> None:
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
    call = SlowBodyMiddleware(handler, seconds=0.2)(scope, receive, send)
    if isinstance(who, Everyone):
        asyncio.run(call)
        assert not pieces
        return
    with pytest.raises(HTTPException) as refused:
        asyncio.run(call)
    assert refused.value.status_code == 408


AWAY = "postgresql+psycopg://nobody@127.0.0.1:9/none"
PAGE = {"Accept": "text/html"}


@contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """Another program holds the only write lock of the database."""
    with closing(sqlite3.connect(settings.data_dir / "threewalls.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_128_readers_at_once_are_all_answered(app: FastAPI, client: TestClient) -> None:
    upload(client, LOG)
    paths = ["/api/v1/runs", "/api/v1/runs/1", "/api/v1/regressions", "/runs", "/regressions"]
    with TestClient(app) as many, ThreadPoolExecutor(128) as readers:  # one event loop for all of them
        statuses = set(readers.map(lambda path: many.get(path, headers=PAGE).status_code, paths * 64))
    assert statuses == {200}


def test_requests_that_would_wait_too_long_are_refused_immediately_and_health_is_answered(app: FastAPI) -> None:
    go_on = threading.Event()
    app.add_api_route("/slow", lambda: go_on.wait(300))
    with TestClient(app) as client, ThreadPoolExecutor(300) as readers:
        requests = [readers.submit(client.get, f"/slow?{number}") for number in range(300)]
        refused, _ = wait(requests, 300, FIRST_COMPLETED)  # nothing else ends while all threads are busy
        alive = client.get("/healthz")
        go_on.set()
        statuses = {answer.result(300).status_code for answer in requests}
        afterwards = client.get("/api/v1/runs")
    answer = refused.pop().result()
    assert_problem(answer, 503, "overloaded", "Nothing was saved")
    assert int(answer.headers["retry-after"]) > 0
    assert (alive.status_code, statuses, afterwards.status_code) == (200, {200, 503}, 200)


@pytest.mark.parametrize("path", ["/", "/api/v1/runs", "/runs/1", "/login", "/nothing", "/api/v1/whoami"])
@pytest.mark.parametrize("open_to", [OPEN_TO, None], ids=["open", "log-ins"])
def test_without_a_database_the_answer_is_503(settings: Settings, path: str, open_to: tuple[str, ...] | None) -> None:
    away = settings.model_copy(update={"database_url": AWAY})
    client = TestClient(create_app(away, open_to=open_to), raise_server_exceptions=False)
    for headers in ({"Accept": "application/json"}, PAGE, {"Authorization": "Bearer tw_of-nobody"}):
        answer = client.get(path, headers=headers, follow_redirects=False)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")


def test_a_locked_database_is_503_and_the_upload_passes_later(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_MS", 100)
    client = TestClient(create_app(settings, open_to=OPEN_TO), raise_server_exceptions=False)
    with locked(settings):
        refused = upload(client, LOG)
        assert client.get("/api/v1/runs").json()["total"] == 0
    assert_problem(refused, 503, "locked")
    assert refused.headers["retry-after"] == "30"
    assert upload(client, LOG).status_code == 202


def test_a_pool_that_is_used_up_is_503(app: FastAPI, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.get("/")  # cached results of the check need no connection
    monkeypatch.setattr(app.state.engine.pool, "_timeout", 0.05)
    connections = [app.state.engine.connect() for _ in range(database.CONNECTIONS)]
    answer = client.get("/api/v1/runs")
    for connection in connections:
        connection.close()
    assert_problem(answer, 503, "connections")
    assert client.get("/api/v1/runs").status_code == 200


def test_a_mistake_in_a_statement_is_not_a_database_failure(app: FastAPI, client: TestClient) -> None:
    with closing(sqlite3.connect(app.state.settings.data_dir / "threewalls.db")) as other:
        other.execute("ALTER TABLE experiment RENAME TO away")
    answer = client.get("/api/v1/experiments", headers={"X-Request-ID": "abc-1"})
    assert_problem(answer, 500, "abc-1")


def test_a_count_that_cannot_be_read_is_not_shown_as_none(client: TestClient, app: FastAPI) -> None:
    with transaction(app.state.engine) as session:
        session.execute(text("ALTER TABLE regression RENAME TO away"))
    page = client.get("/glossary", headers=PAGE)
    assert page.status_code == 200
    assert "not counted" in page.text
