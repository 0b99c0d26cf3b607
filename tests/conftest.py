"""The service on a database that the migrations built, for every test that goes through its door."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app import queue
from app.main import create_app
from app.settings import Settings, get_settings
from app.storage.database import migrate
from app.storage.log_files import LogFiles
from app.storage.visible import see_every_project
from tests.embedded.processes import Running, running
from workers import tasks

pytest_plugins = ["tests.services.fixtures"]

os.environ.setdefault("THREEWALLS_PASSWORD_MEMORY_MIB", "1")  # a hundred log-ins of tests cost a second, not ten
see_every_project()  # what tests read and make themselves; each request begins with no project visible

OPEN_TO = ("testserver",)
"""Tests that are about something else need no log-ins; those of `tests/access` make their own application."""


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty migrated SQLite database, made once for all processes, to be copied."""
    shared = tmp_path_factory.getbasetemp()
    if shared.name.startswith("popen-"):
        shared = shared.parent
    folder = shared / "migrated"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            migrate(Settings(data_dir=shared / "migrating"))
            (shared / "migrating").rename(folder)
    return folder / "threewalls.db"


@pytest.fixture
def settings(tmp_path: Path, migrated_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The process's settings: the embedded mode in a folder of this test, its database migrated."""
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(migrated_file, folder / "threewalls.db")
    monkeypatch.setenv("THREEWALLS_DATA_DIR", str(folder))
    forget_settings()
    yield get_settings()
    forget_settings()


@pytest.fixture(scope="module")
def module_settings(tmp_path_factory: pytest.TempPathFactory, migrated_file: Path) -> Iterator[Settings]:
    """The same for a whole module, whose tests share what is costly to make."""
    folder = tmp_path_factory.mktemp("data")
    shutil.copy(migrated_file, folder / "threewalls.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("THREEWALLS_DATA_DIR", str(folder))
        forget_settings()
        yield get_settings()
        forget_settings()


@pytest.fixture
def app(settings: Settings) -> Iterator[FastAPI]:
    app = create_app(settings, open_to=OPEN_TO)
    yield app
    app.state.engine.dispose()


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    """Speaks HTTP to the application; a defect is an answer, as it is to a real client."""
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def engine(app: FastAPI) -> Engine:
    engine: Engine = app.state.engine
    return engine


@pytest.fixture
def log_files(app: FastAPI) -> LogFiles:
    log_files: LogFiles = app.state.log_files
    return log_files


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`threewalls serve` with its worker, shared by the tests of one process: let each make its own project."""
    with running("serve", tmp_path_factory.mktemp("served") / "data") as house:
        yield house


def forget_settings() -> None:
    """What a process makes once from its settings."""
    if tasks._engine.cache_info().currsize:
        tasks._engine().dispose()
    for made_once in (get_settings, queue.get_celery, tasks._engine, tasks._log_files):
        made_once.cache_clear()
