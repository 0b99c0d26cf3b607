"""Sessions: commits in one place, waiting writers, time zones; unusable databases."""

import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from sqlmodel import select

from app.cli import main
from app.settings import Settings
from app.storage.database import make_engine, only_maintainer, read_session, transaction
from app.storage.tables import ProjectRow, RunFileRow
from tests.conftest import forget_settings


def test_a_transaction_commits_at_its_end(engine: Engine) -> None:
    with transaction(engine) as session:
        session.add(ProjectRow(slug="a"))
    with read_session(engine) as session:
        assert session.exec(select(ProjectRow.slug)).all() == ["a"]


def test_a_transaction_that_raises_leaves_nothing(engine: Engine) -> None:
    def fail() -> None:
        with transaction(engine) as session:
            session.add(ProjectRow(slug="a"))
            session.flush()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        fail()
    with read_session(engine) as session:
        assert session.exec(select(ProjectRow)).all() == []


def test_a_read_session_stores_nothing(engine: Engine) -> None:
    with transaction(engine) as session:
        session.add(ProjectRow(slug="a"))
    with read_session(engine) as session:
        session.exec(select(ProjectRow)).one().slug = "b"
        session.add(ProjectRow(slug="c"))
    with read_session(engine) as session:
        assert session.exec(select(ProjectRow.slug)).all() == ["a"]


def test_transactions_that_read_and_then_write_wait_for_each_other(engine: Engine) -> None:
    with transaction(engine) as session:
        session.add(ProjectRow(slug="0"))

    def count_up() -> None:
        for _ in range(20):
            with transaction(engine) as session:
                project = session.exec(select(ProjectRow)).one()
                project.slug = str(int(project.slug) + 1)

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with read_session(engine) as session:
        assert session.exec(select(ProjectRow.slug)).one() == "80"


def test_times_come_back_aware_and_in_utc(engine: Engine) -> None:
    written = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
    with transaction(engine) as session:
        session.add(ProjectRow(slug="a", created_at=written))
    with read_session(engine) as session:
        assert session.exec(select(ProjectRow.created_at)).one() == written


@pytest.mark.parametrize(("durable", "synchronous"), [(True, 2), (False, 1)])
def test_acknowledged_data_is_synced_to_disk(engine: Engine, durable: bool, synchronous: int) -> None:
    for _ in range(2):  # connections are used again
        with transaction(engine, durable=durable) as session:
            assert session.execute(text("PRAGMA synchronous")).scalar_one() == synchronous
        with transaction(engine, durable=not durable) as session:
            assert session.execute(text("PRAGMA synchronous")).scalar_one() == 3 - synchronous


def test_sqlite_checks_foreign_keys(engine: Engine) -> None:
    def add_orphan() -> None:
        with transaction(engine) as session:
            session.add(RunFileRow(run_id=99, kind="log", name="a", size_bytes=1, sha256=""))

    with pytest.raises(IntegrityError):
        add_orphan()


def test_postgresql_does_not_wait_forever(postgres_url: str, settings: Settings) -> None:
    engine = make_engine(settings.model_copy(update={"database_url": postgres_url}))
    with read_session(engine) as session:
        assert session.execute(text("SHOW lock_timeout")).scalar() == "15s"
        assert session.execute(text("SHOW statement_timeout")).scalar() == "1min"
    engine.dispose()


def test_postgresql_keeps_the_plans_of_statements_that_requests_repeat(postgres_url: str, settings: Settings) -> None:
    engine = make_engine(settings.model_copy(update={"database_url": postgres_url}))
    prepared = 0
    for _ in range(10):
        with read_session(engine) as session:
            session.execute(text("SELECT 1"))
            prepared = session.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar_one()
    assert prepared == 2
    engine.dispose()


def of_a_later_version(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")


def of_another_program(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE bookmark (id INTEGER PRIMARY KEY)")


def of_another_program_with_migrations(file: Path) -> None:
    of_another_program(file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('ae1027a6acf')")


def cut_to(share: float) -> Callable[[Path], None]:
    def cut(file: Path) -> None:
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])

    return cut


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "later": (of_a_later_version, "later version"),
    "foreign": (of_another_program, "bookmark"),
    "foreign with migrations": (of_another_program_with_migrations, "bookmark"),
    "half": (cut_to(0.5), "is truncated"),
    "last page gone": (cut_to(0.999), "is truncated"),
    "header only": (cut_to(0.0001), "is truncated"),
    "text": (lambda file: file.write_text("no database\n" * 1000), "damaged"),
    "a header, then zeros": (
        lambda file: file.write_bytes(file.read_bytes()[:100] + bytes(file.stat().st_size)),
        "damaged",
    ),
    "folder": (as_folder, "does not answer"),
}


def test_databases_that_cannot_be_used_are_refused_in_a_sentence(
    migrated_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for number, (name, (damage, reason)) in enumerate(WRONG.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / "threewalls.db"
        shutil.copy(migrated_file, file)
        damage(file)
        before = file.read_bytes() if file.is_file() else b""
        monkeypatch.setenv("THREEWALLS_DATA_DIR", str(folder))
        for command in ("migrate", "serve", "verify"):
            forget_settings()
            code = main([command, "--data", str(folder), *(["--port", "0"] if command == "serve" else [])])
            output = capsys.readouterr()
            if name == "later" and command == "verify":
                continue  # another process may have that version, which reads what this one needs
            if code != 3 or reason not in output.err or "Traceback" in output.err:
                wrong.append(f"{name}: {command} ended with {code}: {output.err[-300:]}")
            if file.is_file() and file.read_bytes() != before:
                wrong.append(f"{name}: {command} changed it")
    forget_settings()
    assert wrong == [], "\n".join(wrong)


def test_one_worker_at_a_time_maintains_a_postgresql_database(postgres_url: str) -> None:
    first, second = (make_engine(Settings(database_url=postgres_url)) for _ in range(2))
    with only_maintainer(first) as earlier, only_maintainer(second) as later:
        assert (earlier, later) == (True, False)
    with only_maintainer(second) as afterwards:
        assert afterwards
    first.dispose()
    second.dispose()
