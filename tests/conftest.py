"""The service on a migrated database, for every test that uses its public interface."""

import gc
import hashlib
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.services import run

if TYPE_CHECKING:  # domain tests do not wait for the import of the application
    from fastapi import FastAPI
    from sqlalchemy import Engine
    from sqlmodel import Session
    from starlette.testclient import TestClient

    from app.settings import Settings
    from app.storage.log_files import LogFiles
    from tests.access.belongings import Belongings
    from tests.access.people import Teams
    from tests.embedded.processes import Running

pytest_plugins = ["tests.services.fixtures"]

SERVERS = {"server", "guarded_server", "migrated_file", "postgres_server", "redis_server", "s3_server", "chromium"}
"""Fixtures whose tests `make test-fast` leaves out; tests that start a server themselves have the mark `server`."""

os.environ.setdefault("THREEWALLS_PASSWORD_MEMORY_MIB", "1")  # a hundred log-ins of tests cost a second, not ten

OPEN_TO = ("testserver",)
"""Tests that are about something else need no log-ins; those of `tests/access` make their own application."""


def pytest_configure(config: pytest.Config) -> None:
    # Imports create a million permanent objects; scanning them repeatedly would take a third of the garbage collection.
    gc.disable()
    run.begin(config)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("numprocesses", None):  # only its processes collect
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """In a clean checkout, let each xdist process rewrite the asserts of its share of the files.

    Rewriting all would take eight processor seconds. Each starts at a different file and finds the others' results.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    root = session.config.rootpath
    paths = [session.config.invocation_params.dir / argument.partition("::")[0] for argument in session.config.args]
    files = sorted(file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path]))
    begin = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for file in files[begin:] + files[:begin]:
        with suppress(Exception, pytest.skip.Exception):  # the collection reports it
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


LONG_FILES = (
    "soak/test_samples.py",
    "storage/test_migrations.py",
    "services/test_scaled_mode.py",
    "services/test_recompute.py",
    "demo/test_seed.py",
    "delivery/test_ci_job.py",
    "web/test_plans.py",
    "contract/test_api.py",
    "pipeline/test_regressions.py",
    "storage/test_backup.py",
    "storage/test_upgrade.py",
    "client/test_import.py",
)
"""Files of which each takes a process 20 seconds and more: they begin first, so that the processes end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    begins = {name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: begins.get("/".join(item.path.parts[-2:]), len(begins)))
    for item in items:
        if SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker("server")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000)  # garbage collection would take a twentieth of the test run
    gc.enable()
    if visible := sys.modules.get("app.storage.visible"):  # a test imported it
        visible.see_every_project()  # for data that tests read directly; each request begins with no project


def pytest_unconfigure(config: pytest.Config) -> None:
    run.end(config)


@pytest.fixture(scope="session")
def migrated_file() -> Path:
    """An empty migrated SQLite database, created once for all processes and then copied."""

    from app.settings import Settings
    from app.storage.database import migrate

    def make() -> str:
        settings = Settings(data_dir=run.folder() / "migrated")
        migrate(settings)
        return str(settings.data_dir / "threewalls.db")

    return Path(run.once("migrated-sqlite", make))


@pytest.fixture
def migrated_data(tmp_path: Path, migrated_file: Path) -> Path:
    """A data folder for a service of a test's own: to migrate costs it a second."""
    (folder := tmp_path / "data").mkdir()
    shutil.copy(migrated_file, folder)
    return folder


@pytest.fixture(scope="session")
def event_loop() -> Iterator[None]:
    """One event loop for all clients of this process, without its own thread: tests/in_process.py."""
    from tests.in_process import answering_in_process

    with answering_in_process():
        yield


@pytest.fixture(scope="session")
def compiled_once() -> None:
    """Compile SQL once for all SQLite engines of this process; templates and the API's document once in the whole run.

    SQLAlchemy caches compiled statements per dialect object, and each engine has its own: compiling them again takes a
    quarter of the processor time of page and task tests. The document takes a second per application.
    """
    from fastapi import applications
    from fastapi.openapi.utils import get_openapi
    from fastapi.routing import iter_route_contexts
    from jinja2 import FileSystemBytecodeCache
    from sqlalchemy import Engine, create_engine

    from app.storage import database, json_text
    from app.web.templating import environment

    (templates := run.folder() / "templates").mkdir(exist_ok=True)
    environment().bytecode_cache = FileSystemBytecodeCache(str(templates))
    first = create_engine(
        "sqlite://",
        json_serializer=json_text.column_text,
        json_deserializer=json_text.column_value,
        query_cache_size=5000,
    )
    first.connect().close()  # the dialect reads the version of the library

    def share(*arguments: Any, **options: Any) -> Engine:
        engine = create_engine(*arguments, **options)
        if engine.dialect.name == "sqlite" and "json_serializer" in options:
            engine.dialect = first.dialect
            engine._compiled_cache = first._compiled_cache
        return engine

    def describe(**options: Any) -> Any:
        calls = [f"{sorted(call.methods or ())} {call.path}" for call in iter_route_contexts(options["routes"])]
        digest = hashlib.sha256(" ".join(calls).encode()).hexdigest()
        return run.once(f"openapi-{digest}", lambda: get_openapi(**options))

    database.create_engine = share
    applications.get_openapi = describe  # type: ignore[attr-defined]


@contextmanager
def settings_in(folder: Path, migrated_file: Path, patched: pytest.MonkeyPatch) -> "Iterator[Settings]":
    """Make the embedded mode in this folder the settings of the process, with a migrated database."""
    from app.settings import get_settings
    from app.storage.visible import see_every_project

    see_every_project()
    shutil.copy(migrated_file, folder / "threewalls.db")
    patched.setenv("THREEWALLS_DATA_DIR", str(folder))
    forget_settings()
    yield get_settings()
    forget_settings()


@pytest.fixture
def settings(
    tmp_path: Path, migrated_file: Path, event_loop: None, compiled_once: None, monkeypatch: pytest.MonkeyPatch
) -> "Iterator[Settings]":
    folder = tmp_path / "data"
    folder.mkdir()
    with settings_in(folder, migrated_file, monkeypatch) as settings:
        yield settings


@pytest.fixture(scope="module")
def module_settings(
    tmp_path_factory: pytest.TempPathFactory, migrated_file: Path, event_loop: None, compiled_once: None
) -> "Iterator[Settings]":
    """The same for a whole module, whose tests share expensive data."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patched, settings_in(folder, migrated_file, patched) as settings:
        yield settings


@pytest.fixture
def app(settings: "Settings") -> "Iterator[FastAPI]":
    from app.main import create_app

    app = create_app(settings, open_to=OPEN_TO)
    yield app
    app.state.engine.dispose()


@pytest.fixture
def client(app: "FastAPI") -> "TestClient":
    """Send HTTP requests to the application; an internal error is an answer, as for a real client."""
    from tests.pages import PageClient

    return PageClient(app, raise_server_exceptions=False)


@pytest.fixture
def engine(app: "FastAPI") -> "Engine":
    engine: Engine = app.state.engine
    return engine


@pytest.fixture
def teams(settings: "Settings") -> "Iterator[Teams]":
    """A service that asks for log-ins, with two projects and their users, and a public project."""
    from app.main import create_app
    from tests.access.people import Teams, make_teams
    from tests.prepared import prepared

    app = create_app(settings)

    def make() -> tuple[int, int, int, dict[str, int], dict[str, str]]:
        teams = make_teams(app)
        return teams.ours, teams.theirs, teams.public, dict(teams.users), dict(teams.tokens)

    yield Teams(app, *prepared(app.state.engine, make), app.state.engine)
    app.state.engine.dispose()


@pytest.fixture
def ours(teams: "Teams") -> "Belongings":
    """One of everything that belongs to the first project."""
    from app.storage.database import transaction
    from tests.access.belongings import make_belongings
    from tests.access.people import OURS

    with transaction(teams.engine) as session:
        return make_belongings(session, OURS)


@pytest.fixture
def session(engine: "Engine") -> "Iterator[Session]":
    """A session that may write; the test commits."""
    from sqlmodel import Session

    with Session(engine.execution_options(writes=True), expire_on_commit=False) as session:
        yield session


@pytest.fixture(params=["sqlite", "postgresql"])
def either_settings(request: pytest.FixtureRequest, settings: "Settings") -> "Settings":
    """Settings with each database in turn."""
    if request.param == "postgresql":
        return settings.model_copy(update={"database_url": request.getfixturevalue("postgres_url")})
    return settings


@pytest.fixture
def either_engine(either_settings: "Settings") -> Iterator["Engine"]:
    from app.storage.database import make_engine

    engine = make_engine(either_settings)
    yield engine
    engine.dispose()


@pytest.fixture
def log_files(app: "FastAPI") -> "LogFiles":
    log_files: LogFiles = app.state.log_files
    return log_files


@pytest.fixture(scope="session")
def server(migrated_file: Path) -> "Running":
    """`threewalls serve` with its worker, shared by all processes of the run: each test must create its own project."""
    return served("server", migrated_file)


@pytest.fixture(scope="session")
def guarded_server(migrated_file: Path) -> "Running":
    """The same with log-ins and the administrator `root`; `tests.embedded.guarded` adds users."""
    from tests.embedded.guarded import add_administrator

    return served("guarded", migrated_file, add_administrator)


def served(name: str, migrated_file: Path, prepare: Callable[[Path], None] = lambda _: None) -> "Running":
    from tests.embedded.processes import Running, serve_for_the_run

    def make() -> tuple[str, int, str]:
        data = run.folder() / name
        data.mkdir()
        shutil.copy(migrated_file, data)
        prepare(data)
        house = serve_for_the_run(data)
        return str(house.data), house.pid, house.address

    data, pid, address = run.once(f"serving-{name}", make)
    return Running(Path(data), pid, address)


def forget_settings() -> None:
    """Objects that a process creates once from its settings."""
    from app import queue
    from app.settings import get_settings
    from workers import tasks

    if tasks._engine.cache_info().currsize:
        tasks._engine().dispose()
    for made_once in (get_settings, queue.get_celery, tasks._engine, tasks._log_files):
        made_once.cache_clear()
