"""Fixtures for the real servers, each started once for all processes of a test run, by the first that needs it.

They run until the janitor ends them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.services import run
from tests.services.postgres_server import Postgres, start_postgres
from tests.services.redis_server import free_port, start_redis
from tests.services.s3_server import S3Server, running_s3

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from app.settings import Settings


@pytest.fixture(scope="session")
def postgres_server() -> Postgres:
    return Postgres(run.once("postgres", lambda: start_postgres(run.folder() / "postgres")))


@pytest.fixture(scope="session")
def migrated_template(postgres_server: Postgres) -> str:
    """Name of an empty migrated database, to be copied."""
    from app.settings import Settings
    from app.storage.database import migrate

    def make() -> str:
        name = postgres_server.new_database()
        migrate(Settings(database_url=postgres_server.url(name)))
        return name

    return str(run.once("migrated", make))


@pytest.fixture
def postgres_url(postgres_server: Postgres, migrated_template: str) -> str:
    """A migrated database of this test's own."""
    return postgres_server.url(postgres_server.new_database(migrated_template))


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> str:
    """A broker URL with a database of this process's own."""

    def make() -> int:
        port = free_port()
        start_redis(port).returncode = 0  # the janitor ends it: else Python reports it as forgotten
        return port

    name = getattr(request.config, "workerinput", {}).get("workerid", "gw0")
    return f"redis://127.0.0.1:{run.once('redis', make)}/{int(name.removeprefix('gw')) + 1}"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> "Settings":
    """Settings of a database without tables, of each kind in turn."""
    from app.settings import Settings

    if request.param == "sqlite":
        return Settings(data_dir=tmp_path)
    server: Postgres = request.getfixturevalue("postgres_server")
    return Settings(data_dir=tmp_path, database_url=server.url(server.new_database()))


@pytest.fixture(params=["sqlite", "postgresql"])
def migrated_database(request: pytest.FixtureRequest, tmp_path: Path) -> "Settings":
    """A copy of a database that was migrated once, of each kind in turn."""
    from app.settings import Settings

    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_file"), tmp_path)
        return Settings(data_dir=tmp_path)
    return Settings(data_dir=tmp_path, database_url=request.getfixturevalue("postgres_url"))


@pytest.fixture
def migrated_engine(migrated_database: "Settings") -> "Iterator[Engine]":
    from app.storage.database import make_engine

    engine = make_engine(migrated_database)
    yield engine
    engine.dispose()
