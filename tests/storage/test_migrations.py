"""The migrations build what the models say, on both databases, up and down, however many processes start at once."""

from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Engine, inspect

from app.settings import Settings
from app.storage.database import alembic_config, make_engine, migrate
from tests.services.postgres_server import Postgres

pytestmark = pytest.mark.xdist_group("services")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if request.param == "sqlite":
        return Settings(data_dir=tmp_path)
    server: Postgres = request.getfixturevalue("postgres_server")
    return Settings(data_dir=tmp_path, database_url=server.url(server.new_database()))


@pytest.fixture
def engine(empty_database: Settings) -> Iterator[Engine]:
    engine = make_engine(empty_database)
    yield engine
    engine.dispose()


def test_models_and_migrations_agree(empty_database: Settings, engine: Engine) -> None:
    migrate(empty_database)
    command.check(alembic_config(engine))


def test_every_revision_can_be_taken_back_and_made_again(empty_database: Settings, engine: Engine) -> None:
    migrate(empty_database)
    command.downgrade(alembic_config(engine), "base")
    assert set(inspect(engine).get_table_names()) <= {"alembic_version"}
    migrate(empty_database)
    command.check(alembic_config(engine))


def test_migrating_again_changes_nothing(empty_database: Settings, engine: Engine) -> None:
    migrate(empty_database)
    migrate(empty_database)
    assert "run" in inspect(engine).get_table_names()


def test_processes_that_start_together_wait_for_the_first(empty_database: Settings) -> None:
    context = get_context("spawn")
    processes = [context.Process(target=migrate, args=(empty_database,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
