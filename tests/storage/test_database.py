"""What every session relies on: one place commits, writers wait for each other, times keep their zone."""

import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from sqlmodel import select

from app.settings import Settings
from app.storage.database import make_engine, read_session, transaction
from app.storage.tables import ProjectRow, RunFileRow


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
def test_what_is_acknowledged_waits_for_the_disk(engine: Engine, durable: bool, synchronous: int) -> None:
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
