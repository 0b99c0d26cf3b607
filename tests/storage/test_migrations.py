"""Migrations produce the tables of the models, up and down, and keep every row of version 0.1, on both databases."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic import command
from sqlalchemy import Connection, Engine, MetaData, inspect, text
from sqlmodel import Session, SQLModel, col, select

from app.domain.access.principal import Scope
from app.runs.queries import RunQuery, find_runs, get_run
from app.settings import Settings
from app.storage.database import alembic_config, make_engine, migrate, read_session, transaction
from app.storage.tables import RESULT_COLUMNS, ProjectRow, RunRow, SavedViewRow, StoredObjectRow
from app.storage.tokens import find_token, make_token
from app.storage.verdicts import current_verdict
from tests.builders import make_run
from tests.services.postgres_server import Postgres
from tests.storage.earlier import Rows, database_of, read_rows


@pytest.fixture
def engine(empty_database: Settings) -> Iterator[Engine]:
    engine = make_engine(empty_database)
    yield engine
    engine.dispose()


def test_models_and_migrations_agree_and_every_revision_can_be_taken_back(
    migrated_database: Settings, migrated_engine: Engine
) -> None:
    command.check(alembic_config(migrated_engine))
    command.downgrade(alembic_config(migrated_engine), "base")
    assert set(inspect(migrated_engine).get_table_names()) <= {"alembic_version"}
    migrate(migrated_database)
    migrate(migrated_database)  # again: it changes nothing
    command.check(alembic_config(migrated_engine))


def test_runs_of_the_first_version_keep_their_files_and_their_work(empty_database: Settings, engine: Engine) -> None:
    command.upgrade(alembic_config(engine), "0001")
    texts = "'r', 'ci', '', '', '', '[]', '2026-11-20 12:00:00'"
    columns = 'name, purpose, branch, "commit", ci_url, tags, created_at'
    rest = "'{}', 0, '[]', '', '{}', '[]', '', '', :yes, '{}', '{}', '', '', 0"
    names = (
        "metadata_stated, attempts, warnings, trainer, contract, unknown, stack_key, config_key, provisional, metrics, "
        "health, evidence_level, semantic_class, definition_version"
    )
    with transaction(engine) as session:
        session.execute(
            text("INSERT INTO project (id, slug, generated, created_at) VALUES (1, 'p', :no, '2026-11-20 12:00:00')"),
            {"no": False},
        )
        for run_id, status in enumerate(("received", "processing", "ready"), 1):
            session.execute(
                text(
                    f"INSERT INTO run (id, project_id, content_key, status, {columns}, {names})"  # noqa: S608
                    f" VALUES (:id, 1, :status, :status, {texts}, {rest})"
                ),
                {"id": run_id, "status": status, "yes": True},
            )
            session.execute(
                text(
                    "INSERT INTO run_file (run_id, kind, name, position, size_bytes, sha256, object_key)"
                    " VALUES (:id, 'log', 'train.log', 0, 7, 'abc', 'ab/abc.zst')"
                ),
                {"id": run_id},
            )
    migrate(empty_database)
    with read_session(engine) as session:
        works = session.execute(text("SELECT work FROM run ORDER BY id")).scalars().all()
        segments = session.execute(text("SELECT size_bytes, object_key FROM segment")).all()
        objects = session.exec(select(StoredObjectRow)).all()
    assert works == ["waiting", "claimed", ""]
    assert [tuple(segment) for segment in segments] == [(7, "ab/abc.zst")] * 3
    assert [(item.key, item.touched_at.tzinfo is not None) for item in objects] == [("ab/abc.zst", True)]
    command.downgrade(alembic_config(engine), "0001")
    with read_session(engine) as session:
        assert session.execute(text("SELECT object_key FROM run_file")).scalars().all() == ["ab/abc.zst"] * 3


def test_earlier_runs_name_the_token_that_uploaded_them(migrated_database: Settings, migrated_engine: Engine) -> None:
    with transaction(migrated_engine) as session:
        runs = [make_run(session, project="moe", name=name) for name in ("a", "b")]
        project = session.get_one(RunRow, runs[0]).project_id
        token, _ = make_token(session, project_id=project, name="n" * 100, scopes=[Scope.UPLOAD], by="mia")
        session.get_one(RunRow, runs[1]).token_id = token.id
    command.downgrade(alembic_config(migrated_engine), "0016")
    migrate(migrated_database)
    with read_session(migrated_engine) as session:
        rows = session.exec(select(RunRow.uploaded_by).order_by(col(RunRow.id))).all()
    assert list(rows) == ["", f"token {'n' * 94}"]


def test_saved_views_by_badge_filter_by_verdict(migrated_database: Settings, migrated_engine: Engine) -> None:
    command.downgrade(alembic_config(migrated_engine), "0087")
    with transaction(migrated_engine) as session:
        project = session.get_one(RunRow, make_run(session, project="moe")).project_id
        for name, query in (("slower", "badge=regression&gpu=H100"), ("words", "q=badge%3Dregression")):
            session.add(SavedViewRow(project_id=project, name=name, query=query))
    migrate(migrated_database)
    with read_session(migrated_engine) as session:
        queries = session.exec(select(SavedViewRow.query).order_by(col(SavedViewRow.id))).all()
    assert list(queries) == ["verdict=regression&gpu=H100", "q=badge%3Dregression"]


def test_projects_that_differ_by_case_get_names_and_keys_of_their_own(
    migrated_database: Settings, migrated_engine: Engine
) -> None:
    with transaction(migrated_engine) as session:
        runs = [make_run(session, project=slug) for slug in ("moe", "c", "other")]
        session.get_one(RunRow, runs[0]).idempotency_key = session.get_one(RunRow, runs[1]).idempotency_key = "job-1"
        session.get_one(RunRow, runs[1]).token_id = 7
    command.downgrade(alembic_config(migrated_engine), "0017")
    with transaction(migrated_engine) as session:
        session.execute(text("UPDATE project SET slug = 'MoE' WHERE slug = 'c'"))
        session.execute(text("UPDATE project SET slug = 'MoE-2' WHERE slug = 'other'"))
        session.execute(text("UPDATE run SET definition_version = 1"))
    migrate(migrated_database)
    with read_session(migrated_engine) as session:
        rows = session.exec(
            select(ProjectRow.slug, RunRow.definition_version, RunRow.idempotency_key).join(RunRow)
        ).all()
    projects = {slug: (version, key) for slug, version, key in rows}
    assert {slug: version for slug, (version, _) in projects.items()} == {"moe": 1, "MoE-3": 0, "MoE-2": 1}
    assert projects["moe"][1] != projects["MoE-3"][1]
    assert projects["MoE-2"][1] is None


def test_processes_that_start_together_wait_for_the_first(tmp_path: Path, postgres_server: Postgres) -> None:
    url = postgres_server.url(postgres_server.new_database())
    databases = (Settings(data_dir=tmp_path), Settings(data_dir=tmp_path, database_url=url))
    process = get_context("spawn").Process(target=migrate_in_three_processes, args=databases)
    process.start()
    process.join()
    assert process.exitcode == 0


def migrate_in_three_processes(*databases: Settings) -> None:
    """Fork them from a process without threads that has imported their modules."""
    for settings in databases:
        processes = [get_context("fork").Process(target=migrate, args=(settings,)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0], settings.database_url


# `version_0_1.json.gz` holds the rows of revision 0020 after version 0.1 received, processed and judged 12 uploads: a
# stack with a regression, a rerun, a run with a correction, a failed run, and one that waits in another project.
REVISION = "0020"


@pytest.fixture(scope="module")
def rows_of_0_1() -> Rows:
    return read_rows("version_0_1.json.gz")


@pytest.fixture
def engine_of_0_1(empty_database: Settings, rows_of_0_1: Rows) -> Iterator[Engine]:
    with database_of(empty_database, REVISION, rows_of_0_1) as engine:
        yield engine


def _stored(connection: Connection, tables: MetaData, name: str, key: str = "") -> list[dict[str, Any]]:
    table = tables.tables[name]
    rows = connection.execute(sqlalchemy.select(table).order_by(*(table.c[key],) if key else table.primary_key.columns))
    return [{column: _aware(value) for column, value in row.items()} for row in rows.mappings()]


def _aware(value: Any) -> Any:
    return value.replace(tzinfo=value.tzinfo or UTC) if isinstance(value, datetime) else value


def _sorted(rows: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [row[key] for key in keys])


def _with_present_names(board: dict[str, Any]) -> dict[str, Any]:
    document = json.dumps(board["document"])
    for old, new in {"duels": "comparisons", "duel": "comparison", "glimpses": "unranked_results"}.items():
        document = document.replace(f'"{old}":', f'"{new}":')
    return board | {"document": json.loads(document)}


def test_every_row_is_kept_read_as_before_and_can_be_taken_back(
    empty_database: Settings, engine_of_0_1: Engine, rows_of_0_1: Rows
) -> None:
    migrate(empty_database)
    assert_runs_verdicts_and_tokens_are_read_as_before(engine_of_0_1, rows_of_0_1)
    with engine_of_0_1.connect() as connection:
        stored = {name: _stored(connection, SQLModel.metadata, name) for name in rows_of_0_1}
        results = {row.pop("run_id"): row for row in _stored(connection, SQLModel.metadata, "run_result")}
    stored["run"] = [row | results[row["id"]] for row in stored["run"]]
    for name, rows in rows_of_0_1.items():
        keys = [column.name for column in SQLModel.metadata.tables[name].primary_key.columns]
        shared = [{column: row[column] for column in rows[0]} for row in stored[name]]
        wanted = [_with_present_names(row) for row in rows] if name == "standing_board" else rows
        assert _sorted(shared, keys) == _sorted(wanted, keys), name
    assert {*rows_of_0_1["run"][0]} >= RESULT_COLUMNS

    command.downgrade(alembic_config(engine_of_0_1), REVISION)
    before = MetaData()
    before.reflect(engine_of_0_1)
    with engine_of_0_1.connect() as connection:
        assert _stored(connection, before, "run", "id") == _sorted(rows_of_0_1["run"], ["id"])
    migrate(empty_database)


def assert_runs_verdicts_and_tokens_are_read_as_before(engine: Engine, rows_of_0_1: Rows) -> None:
    with read_session(engine) as session:
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
    empty_database: Settings, engine_of_0_1: Engine, rows_of_0_1: Rows
) -> None:
    with engine_of_0_1.execution_options(writes=True).begin() as connection:
        connection.execute(text("UPDATE run SET outcome = ''"))
    migrate(empty_database)
    with engine_of_0_1.connect() as connection:
        outcomes = [row["outcome"] for row in _stored(connection, SQLModel.metadata, "run")]
    assert outcomes == [row["outcome"] for row in _sorted(rows_of_0_1["run"], ["id"])]
    assert {"completed", "failed"} <= {*outcomes}


def _commit_times(session: Session) -> dict[int, datetime | None]:
    run = SQLModel.metadata.tables["run"]
    return {row.id: row.commit_time for row in session.execute(sqlalchemy.select(run.c.id, run.c.commit_time))}
