"""Fixtures for the real servers, each started once for all tests that need it."""

from collections.abc import Iterator

import pytest

from app.settings import Settings
from app.storage.database import migrate
from tests.services.postgres_server import Postgres, running_postgres
from tests.services.redis_server import free_port, running_redis
from tests.services.s3_server import S3Server, running_s3


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_template(postgres_server: Postgres) -> str:
    """Name of an empty migrated database, to be copied."""
    name = postgres_server.new_database()
    migrate(Settings(database_url=postgres_server.url(name)))
    return name


@pytest.fixture
def postgres_url(postgres_server: Postgres, migrated_template: str) -> str:
    """A migrated database of this test's own."""
    return postgres_server.url(postgres_server.new_database(migrated_template))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    with running_redis(free_port()) as url:
        yield url


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server
