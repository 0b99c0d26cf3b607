"""A database that version 0.1 wrote keeps all its rows, on both databases, up and down.

`version_0_1.json.gz` holds the rows of revision 0020 after version 0.1 received, processed and judged 12 uploads: a
stack with a regression, a rerun, a run with a correction, a failed run, and one that waits in another project.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, MetaData, insert, select, text
from sqlmodel import Session, SQLModel

from app.runs.queries import RunQuery, find_runs, get_run
from app.settings import Settings
from app.storage.database import alembic_config, make_engine, migrate, read_session
from app.storage.tables import RESULT_COLUMNS
from app.storage.tokens import find_token
from app.storage.verdicts import current_verdict
from tests.services.postgres_server import Postgres

REVISION = "0020"
Rows = Mapping[str, list[dict[str, Any]]]


def _value(stored: Any) -> Any:
    match stored:
        case {"time": str(time)} if len(stored) == 1:
            return datetime.fromisoformat(time)
        case {"base64": str(text)} if len(stored) == 1:
            return base64.b64decode(text)
    return stored


@pytest.fixture(scope="module")
def rows_of_0_1() -> Rows:
    tables = json.loads(gzip.decompress(Path(__file__).with_name("version_0_1.json.gz").read_bytes()))
    return {
        name: [{column: _value(stored) for column, stored in row.items()} for row in rows]
        for name, rows in tables.items()
    }


@pytest.fixture(params=["sqlite", "postgresql"])
def settings_of_0_1(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if request.param == "sqlite":
        return Settings(data_dir=tmp_path)
    server: Postgres = request.getfixturevalue("postgres_server")
    return Settings(data_dir=tmp_path, database_url=server.url(server.new_database()))


@pytest.fixture
def engine_of_0_1(settings_of_0_1: Settings, rows_of_0_1: Rows) -> Iterator[Engine]:
    engine = make_engine(settings_of_0_1)
    command.upgrade(alembic_config(engine), REVISION)
    tables = MetaData()
    tables.reflect(engine)
    with engine.execution_options(writes=True).begin() as connection:
        connection.execute(tables.tables["heartbeat"].delete())  # the migration makes this row
        for name, rows in rows_of_0_1.items():
            connection.execute(insert(tables.tables[name]), rows)
    yield engine
    engine.dispose()


def _stored(connection: Connection, tables: MetaData, name: str, key: str = "") -> list[dict[str, Any]]:
    table = tables.tables[name]
    rows = connection.execute(select(table).order_by(*(table.c[key],) if key else table.primary_key.columns))
    return [{column: _aware(value) for column, value in row.items()} for row in rows.mappings()]


def _aware(value: Any) -> Any:
    return value.replace(tzinfo=value.tzinfo or UTC) if isinstance(value, datetime) else value


def _sorted(rows: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [row[key] for key in keys])


def test_every_row_is_kept_and_can_be_taken_back(
    settings_of_0_1: Settings, engine_of_0_1: Engine, rows_of_0_1: Rows
) -> None:
    migrate(settings_of_0_1)
    with engine_of_0_1.connect() as connection:
        stored = {name: _stored(connection, SQLModel.metadata, name) for name in rows_of_0_1}
        results = {row.pop("run_id"): row for row in _stored(connection, SQLModel.metadata, "run_result")}
    stored["run"] = [row | results[row["id"]] for row in stored["run"]]
    for name, rows in rows_of_0_1.items():
        keys = [column.name for column in SQLModel.metadata.tables[name].primary_key.columns]
        shared = [{column: row[column] for column in rows[0]} for row in stored[name]]
        assert _sorted(shared, keys) == _sorted(rows, keys), name
    assert {*rows_of_0_1["run"][0]} >= RESULT_COLUMNS

    command.downgrade(alembic_config(engine_of_0_1), REVISION)
    before = MetaData()
    before.reflect(engine_of_0_1)
    with engine_of_0_1.connect() as connection:
        assert _stored(connection, before, "run", "id") == _sorted(rows_of_0_1["run"], ["id"])
    migrate(settings_of_0_1)


def test_runs_verdicts_and_tokens_are_read_as_before(
    settings_of_0_1: Settings, engine_of_0_1: Engine, rows_of_0_1: Rows
) -> None:
    migrate(settings_of_0_1)
    with read_session(engine_of_0_1) as session:
        listed = {run.id: run for run in find_runs(session, RunQuery(page_size=100)).items}
        for row in rows_of_0_1["run"]:
            run = get_run(session, row["id"])
            assert {name: value.value for name, value in run.contract.items()} == {
                name: tuple(entry["value"]) if isinstance(entry["value"], list) else entry["value"]
                for name, entry in row["contract"].items()
            }
            assert listed[run.id].outcome == (row["health"].get("outcome") or "")
            assert [slice_.file for slice_ in run.slices] == [slice_["file"] for slice_ in row["slices"]]
            verdict = current_verdict(session, run.id)
            assert (verdict.document.decision if verdict else "") == row["verdict"]
        assert _commit_times(session) == {
            row["id"]: datetime.fromisoformat(stated) if (stated := row["metadata_stated"].get("commit_time")) else None
            for row in rows_of_0_1["run"]
        }
        valid = [find_token(session, row["digest"]) is not None for row in rows_of_0_1["token"]]
    assert valid == [row["revoked_at"] is None for row in rows_of_0_1["token"]]
    assert {True, False} == {*valid}


def test_outcomes_that_no_column_had_come_from_the_documents(
    settings_of_0_1: Settings, engine_of_0_1: Engine, rows_of_0_1: Rows
) -> None:
    with engine_of_0_1.execution_options(writes=True).begin() as connection:
        connection.execute(text("UPDATE run SET outcome = ''"))
    migrate(settings_of_0_1)
    with engine_of_0_1.connect() as connection:
        outcomes = [row["outcome"] for row in _stored(connection, SQLModel.metadata, "run")]
    assert outcomes == [row["outcome"] for row in _sorted(rows_of_0_1["run"], ["id"])]
    assert {"completed", "failed"} <= {*outcomes}


def _commit_times(session: Session) -> dict[int, datetime | None]:
    run = SQLModel.metadata.tables["run"]
    return {row.id: row.commit_time for row in session.execute(select(run.c.id, run.c.commit_time))}
