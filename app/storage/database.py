"""Engines and sessions for SQLite and PostgreSQL; `transaction` is the one place that commits."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError
from sqlmodel import Session

from app.errors import Unavailable
from app.settings import RESOURCES, Settings
from app.storage import json_column

_BUSY_TIMEOUT_MS = 15_000
"""How long a writer waits for SQLite's one write lock before it gives up."""

_MIGRATION_LOCK = 0x3A115
"""The PostgreSQL advisory lock that a migrating process holds; any constant number does."""

_POSTGRESQL_OPTIONS = "-c lock_timeout=15s -c statement_timeout=60s -c idle_in_transaction_session_timeout=60s"


def make_engine(settings: Settings) -> Engine:
    """An engine for these settings. Make it after a fork, once a process; it connects when it is first used."""
    url = make_url(settings.resolved_database_url)
    if url.get_backend_name() == "sqlite":
        if url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(
            url,
            json_serializer=json_column.dumps,
            hide_parameters=True,  # an error that is logged must not tell what was kept
            connect_args={"check_same_thread": False},
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(
        url,
        json_serializer=json_column.dumps,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=40,  # as many as the threads that serve requests
        connect_args={"connect_timeout": 5, "application_name": "threewalls", "options": _POSTGRESQL_OPTIONS},
    )


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we send BEGIN ourselves, see _begin_sqlite
    for pragma in (
        f"busy_timeout={_BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later is refused at once when another wrote in between, whatever
    # the busy timeout; one that takes the write lock at its start waits its turn.
    options = connection.get_execution_options()
    writes = options.get("writes", False)
    if writes:
        connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if options.get('durable') else 'NORMAL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def transaction(engine: Engine, *, durable: bool = False) -> Iterator[Session]:
    """A session that commits at the end of the block, or rolls back when it raises.

    A commit survives the death of any process. A power cut may take SQLite's last ones along, which is fine for what a
    worker does again; `durable` waits for the disk, for what is acknowledged to a client. PostgreSQL always waits.
    """
    writing = engine.execution_options(writes=True, durable=durable)
    with Session(writing, expire_on_commit=False) as session, session.begin():
        yield session


@contextmanager
def read_session(engine: Engine) -> Iterator[Session]:
    """A session for reading: one snapshot, nothing is committed."""
    with Session(engine, expire_on_commit=False) as session:
        yield session


def migrate(settings: Settings) -> None:
    """Bring the database to the newest revision. Processes that start together wait for the first of them."""
    engine = make_engine(settings)
    try:
        with _only_one_at_a_time(engine):
            command.upgrade(alembic_config(engine), "head")
    finally:
        engine.dispose()


def require_migrated(settings: Settings) -> None:
    """Raises Unavailable when the database does not answer, is empty or of an earlier version. A later one will do."""
    engine = make_engine(settings)
    try:
        with engine.connect() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
    except OperationalError as error:
        where = engine.url.render_as_string(hide_password=True)
        raise Unavailable(f"The database {where} does not answer: {str(error.orig).strip()}") from error
    finally:
        engine.dispose()
    script = ScriptDirectory.from_config(alembic_config(engine))
    earlier = {one.revision for one in script.walk_revisions()} - set(script.get_heads())
    if found is None or found in earlier:
        what = "has no tables yet" if found is None else "has the tables of an earlier version"
        raise Unavailable(f"The database {what}. Bring it to this version's, then start again: threewalls migrate")


def alembic_config(engine: Engine) -> Config:
    """Alembic's configuration for this engine, for `migrate` and for tests of the migrations."""
    config = Config()
    config.set_main_option("script_location", str(RESOURCES / "migrations"))
    config.attributes["engine"] = engine
    return config


@contextmanager
def _only_one_at_a_time(engine: Engine) -> Iterator[None]:
    if engine.dialect.name == "sqlite":
        with Path(f"{engine.url.database}.migrate-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    else:
        with engine.connect() as connection:
            # Waiting for the other process is the point, however long its migration takes.
            for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
                connection.execute(text(f"SET {name} = 0"))
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION_LOCK})
            yield  # the lock goes with the connection
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _MIGRATION_LOCK})
