"""The migrations build what the models say, on both databases, up and down, however many processes start at once."""

from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Engine, inspect, text
from sqlmodel import col, select

from app.domain.access.principal import Scope
from app.settings import Settings
from app.storage.database import alembic_config, make_engine, migrate, read_session, transaction
from app.storage.tables import ProjectRow, RunRow, StoredObjectRow
from app.storage.tokens import make_token
from tests.builders import make_run
from tests.services.postgres_server import Postgres


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
    assert works == ["waiting", "held", ""]
    assert [tuple(segment) for segment in segments] == [(7, "ab/abc.zst")] * 3
    assert [(kept.key, kept.touched_at.tzinfo is not None) for kept in objects] == [("ab/abc.zst", True)]
    command.downgrade(alembic_config(engine), "0001")
    with read_session(engine) as session:
        assert session.execute(text("SELECT object_key FROM run_file")).scalars().all() == ["ab/abc.zst"] * 3


def test_of_earlier_runs_it_is_said_which_token_brought_them(empty_database: Settings, engine: Engine) -> None:
    migrate(empty_database)
    with transaction(engine) as session:
        runs = [make_run(session, project="moe", name=name) for name in ("a", "b")]
        project = session.get_one(RunRow, runs[0]).project_id
        token, _ = make_token(session, project_id=project, name="n" * 100, scopes=[Scope.UPLOAD], by="mia")
        session.get_one(RunRow, runs[1]).token_id = token.id
    command.downgrade(alembic_config(engine), "0016")
    migrate(empty_database)
    with read_session(engine) as session:
        said = session.exec(select(RunRow.uploaded_by).order_by(col(RunRow.id))).all()
    assert list(said) == ["", f"token {'n' * 94}"]


def test_projects_that_differ_by_case_get_names_and_keys_of_their_own(empty_database: Settings, engine: Engine) -> None:
    migrate(empty_database)
    with transaction(engine) as session:
        runs = [make_run(session, project=slug) for slug in ("moe", "c", "other")]
        session.get_one(RunRow, runs[0]).idempotency_key = session.get_one(RunRow, runs[1]).idempotency_key = "job-1"
        session.get_one(RunRow, runs[1]).token_id = 7
    command.downgrade(alembic_config(engine), "0017")
    with transaction(engine) as session:
        session.execute(text("UPDATE project SET slug = 'MoE' WHERE slug = 'c'"))
        session.execute(text("UPDATE project SET slug = 'MoE-2' WHERE slug = 'other'"))
        session.execute(text("UPDATE run SET definition_version = 1"))
    migrate(empty_database)
    with read_session(engine) as session:
        rows = session.exec(
            select(ProjectRow.slug, RunRow.definition_version, RunRow.idempotency_key).join(RunRow)
        ).all()
    told = {slug: (version, key) for slug, version, key in rows}
    assert {slug: version for slug, (version, _) in told.items()} == {"moe": 1, "MoE-3": 0, "MoE-2": 1}
    assert told["moe"][1] != told["MoE-3"][1]
    assert told["MoE-2"][1] is None


def test_migrating_again_changes_nothing(empty_database: Settings, engine: Engine) -> None:
    migrate(empty_database)
    migrate(empty_database)
    assert "run" in inspect(engine).get_table_names()


def test_processes_that_start_together_wait_for_the_first(empty_database: Settings) -> None:
    process = get_context("spawn").Process(target=migrate_in_three_processes, args=(empty_database,))
    process.start()
    process.join()
    assert process.exitcode == 0


def migrate_in_three_processes(settings: Settings) -> None:
    """Fork them from a process that imported what each of them needs, and has no thread."""
    processes = [get_context("fork").Process(target=migrate, args=(settings,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
