"""Overload, a locked database and one that is away: 503 with `Retry-After`, never 500."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.storage import database
from tests.conftest import OPEN_TO
from tests.runs.uploading import LOG, assert_problem, upload

AWAY = "postgresql+psycopg://nobody@127.0.0.1:9/none"
PAGE = {"Accept": "text/html"}


@contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """Another program holds the database's one write lock."""
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


def test_what_would_wait_too_long_is_refused_at_once_and_health_is_answered(app: FastAPI) -> None:
    go_on = threading.Event()
    app.add_api_route("/slow", lambda: go_on.wait(60))
    with TestClient(app) as client, ThreadPoolExecutor(300) as readers:
        asked = [readers.submit(client.get, "/slow") for _ in range(300)]
        refused, _ = wait(asked, 60, FIRST_COMPLETED)  # nothing else ends while all threads are busy
        alive = client.get("/healthz")
        go_on.set()
        statuses = {answer.result(60).status_code for answer in asked}
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
    client.get("/")  # what the check remembers needs no connection
    monkeypatch.setattr(app.state.engine.pool, "_timeout", 0.05)
    connections = [app.state.engine.connect() for _ in range(database.CONNECTIONS)]
    answer = client.get("/api/v1/runs")
    for connection in connections:
        connection.close()
    assert_problem(answer, 503, "connections")
    assert client.get("/api/v1/runs").status_code == 200


def test_a_mistake_in_a_statement_is_no_fault_of_the_database(app: FastAPI, client: TestClient) -> None:
    with closing(sqlite3.connect(app.state.settings.data_dir / "threewalls.db")) as other:
        other.execute("ALTER TABLE experiment RENAME TO away")
    answer = client.get("/api/v1/experiments", headers={"X-Request-ID": "abc-1"})
    assert_problem(answer, 500, "abc-1")
