"""`threewalls upgrade --check`, and upgrades of a database that is in use."""

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Engine, inspect, select, text
from sqlmodel import SQLModel

from app.cli import main
from app.runs.queries import RunQuery, find_runs, get_run
from app.settings import Settings
from app.storage.database import alembic_config, make_engine, migrate, read_session
from app.storage.upgrade import plan_upgrade
from app.storage.verdicts import current_verdict
from tests.conftest import forget_settings
from tests.embedded.processes import wait_for
from tests.services.postgres_server import Postgres
from tests.storage.earlier import Rows, database_of, read_rows

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index"),
]
REVISION = "0056"
"""`revision_0056.json.gz` has the rows of this revision after nine uploads: a stack with a regression, a failed run, a
waiting run, and a second project."""


@pytest.fixture(scope="module")
def rows() -> Rows:
    return read_rows("revision_0056.json.gz")


@pytest.fixture
def engine(empty_database: Settings, rows: Rows) -> Iterator[Engine]:
    with database_of(empty_database, REVISION, rows) as engine:
        yield engine


def _stored(engine: Engine, name: str) -> list[dict[str, Any]]:
    table = SQLModel.metadata.tables[name]
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(select(table)).mappings()]


def test_a_check_names_what_is_pending_and_changes_nothing(
    empty_database: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = inspect(engine).get_table_names(), _schemas(engine)
    plan = plan_upgrade(empty_database)
    assert (plan.revision, plan.migrations[0].revision) == (REVISION, "0046")
    assert plan.newest == plan.migrations[-1].revision
    every = [step for migration in plan.migrations for step in migration.steps]
    steps = {(step.action, step.table): step for step in every}
    assert ("create table", "run_label") in steps
    assert steps["change table", "segment"].rows == 9
    is_sqlite = engine.dialect.name == "sqlite"
    assert (("copy table", "run") in steps) == is_sqlite  # PostgreSQL alters it in place
    if is_sqlite:
        assert steps["copy table", "run"].rows == 9
        assert max(step.count for step in every if (step.action, step.table) == ("build index", "run")) > 20
    assert plan.derived_runs == 9
    assert (inspect(engine).get_table_names(), _schemas(engine)) == before
    assert plan_upgrade(empty_database) == plan  # it left nothing behind

    monkeypatch.setenv("THREEWALLS_DATA_DIR", str(empty_database.data_dir))
    monkeypatch.setenv("THREEWALLS_DATABASE_URL", empty_database.database_url)
    forget_settings()
    for words in (["upgrade", "--check"], ["upgrade"], ["upgrade", "--check"]):
        assert main(words) == 0
    shown = capsys.readouterr().out
    assert "run_label" in shown
    assert "Nothing to migrate" in shown
    assert plan_upgrade(empty_database).migrations == ()
    forget_settings()


def _schemas(engine: Engine) -> list[str]:
    return inspect(engine).get_schema_names()


def test_an_empty_database_has_all_migrations_pending(empty_database: Settings) -> None:
    with warnings.catch_warnings(action="error"):
        plan = plan_upgrade(empty_database)
    assert (plan.revision, plan.migrations[0].revision, plan.seconds) == ("", "0001", 0)


def test_every_row_of_an_earlier_revision_is_kept_and_read_as_before(
    empty_database: Settings, engine: Engine, rows: Rows
) -> None:
    migrate(empty_database)
    for name, values in rows.items():
        if name in ("run_value", "stack", "standing_board"):  # derived again, and renamed inside its documents
            continue
        keys = [column.name for column in SQLModel.metadata.tables[name].primary_key.columns]
        shared = [{column: row[column] for column in values[0]} for row in _stored(engine, name)]
        assert _sorted(shared, keys) == _sorted(values, keys), name
    verdicts = {row["id"]: row["verdict"] for row in rows["run"]}
    assert {"regression", "failed", "no_baseline", ""} <= {*verdicts.values()}
    with read_session(engine) as session:
        assert {run.id for run in find_runs(session, RunQuery(page_size=100)).items} == verdicts.keys()
        for run_id, decision in verdicts.items():
            assert get_run(session, run_id).id == run_id
            verdict = current_verdict(session, run_id)
            assert (verdict.document.decision if verdict else "") == decision
    # New data was derived from the existing rows.
    tagged = [
        row["run_id"] for row in _stored(engine, "run_label") if (row["field"], row["value"]) == ("tag", "nightly")
    ]
    assert sorted(tagged) == sorted(verdicts)


def test_rows_that_a_worker_has_claimed_stay_claimed(engine: Engine) -> None:
    config = alembic_config(engine)
    command.upgrade(config, "0067")
    with engine.execution_options(writes=True).begin() as connection:
        connection.execute(text("UPDATE run SET work = CASE WHEN id % 2 = 0 THEN 'held' ELSE 'waiting' END"))
    for revision, claimed in (("0068", "claimed"), ("0067", "held")):
        (command.upgrade if claimed == "claimed" else command.downgrade)(config, revision)
        with engine.connect() as connection:
            works = {row.id: row.work for row in connection.execute(text("SELECT id, work FROM run"))}
        assert works == {run_id: "waiting" if run_id % 2 else claimed for run_id in works}


def _sorted(rows: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(row[key]) for key in keys])


def test_postgresql_builds_indexes_while_others_write(postgres_server: Postgres, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, database_url=postgres_server.url(postgres_server.new_database()))
    engine = make_engine(settings)
    command.upgrade(alembic_config(engine), "0024")
    plan = plan_upgrade(settings)
    built = [step for migration in plan.migrations for step in migration.steps if step.action == "build index"]
    assert {step.blocks for step in built if step.table == "run"} == {"nothing"}

    change = text("UPDATE run SET name = name")
    errors: list[Exception] = []

    def upgrade() -> None:
        try:
            migrate(settings)
        except Exception as error:
            errors.append(error)

    two = [threading.Thread(target=upgrade) for _ in range(2)]  # the second waits for the first
    with engine.begin() as writer:
        writer.execute(change)  # holds its lock on `run` until the end of the transaction
        for thread in two:
            thread.start()
        wait_for(lambda: _is_building(engine), "the first index")
        with engine.begin() as other:  # would queue behind a lock on the table
            other.execute(text("SET LOCAL lock_timeout = '100ms'"))
            other.execute(change)
    for thread in two:
        thread.join(300)
    assert errors == []
    assert plan_upgrade(settings).migrations == ()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM pg_index WHERE NOT indisvalid")).scalar_one() == 0
    engine.dispose()


def _is_building(engine: Engine) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%' AND wait_event_type = 'Lock'"
    with engine.connect() as connection:
        return bool(connection.execute(text(waiting)).scalar_one())
