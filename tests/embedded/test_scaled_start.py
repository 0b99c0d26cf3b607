"""A web server with a broker of its own begins on a database of its version, and says what is wrong with another."""

from pathlib import Path

import pytest
from alembic import command

from app.errors import Unavailable
from app.settings import Settings
from app.storage.database import alembic_config, make_engine, require_migrated
from tests.embedded.processes import START_SECONDS, start
from tests.services.postgres_server import Postgres
from tests.services.redis_server import free_port


def test_a_database_without_tables_is_named(
    tmp_path: Path, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREEWALLS_BROKER_URL", f"redis://127.0.0.1:{free_port()}/0")  # asked for the first upload only
    monkeypatch.setenv("THREEWALLS_DATABASE_URL", postgres_server.url(postgres_server.new_database()))
    process = start("serve", tmp_path / "data", "--port", "0")
    output, _ = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 3
    assert "The database has no tables yet" in output
    assert "threewalls migrate" in output
    assert "Traceback" not in output


def test_an_earlier_version_is_refused_and_a_later_one_will_do(settings: Settings) -> None:
    require_migrated(settings)
    engine = make_engine(settings)
    command.downgrade(alembic_config(engine), "-1")
    with pytest.raises(Unavailable, match=r"tables of an earlier version.*threewalls migrate"):
        require_migrated(settings)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    require_migrated(settings)
    engine.dispose()


def test_a_database_that_is_away_is_named_without_its_password() -> None:
    away = Settings(database_url=f"postgresql+psycopg://threewalls:hidden@127.0.0.1:{free_port()}/threewalls")
    with pytest.raises(Unavailable, match=r"@127\.0\.0\.1:\d+/threewalls does not answer: .*refused") as refused:
        require_migrated(away)
    assert "hidden" not in refused.value.detail
