"""Engines and sessions for SQLite and PostgreSQL; `transaction` is the one place that commits."""

import errno
import fcntl
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.pool import NullPool
from sqlmodel import Session

from app.errors import DiskFull, Overloaded, Unavailable
from app.settings import RESOURCES, Settings
from app.storage import json_text

if TYPE_CHECKING:  # Importing Alembic takes 0.2 s, and a worker never migrates
    from alembic.config import Config
    from alembic.script import ScriptDirectory


CONNECTIONS = 50
"""Maximum connections per process: the web server has 40 threads and reads up to 10 requests at a time."""

_POOL: Mapping[str, Any] = {
    "pool_use_lifo": True,  # prepared statements and caches belong to a connection: reuse the newest
    "pool_size": 10,
    "max_overflow": CONNECTIONS - 10,
    "pool_timeout": 1,  # seconds: an exhausted pool is a bug, and waiting for it blocks a thread
}

_BUSY_TIMEOUT_MS = 15_000
"""How long a writer waits for SQLite's only write lock."""

_MIGRATION_LOCK = 0x3A115
"""The PostgreSQL advisory lock of a migrating process; an arbitrary constant."""

_MAINTENANCE_LOCK = 0x3A116
"""The PostgreSQL advisory lock of the worker that maintains the database."""

_LOCK_POLL_SECONDS = 0.2

_POSTGRESQL_OPTIONS = "-c lock_timeout=15s -c statement_timeout=60s -c idle_in_transaction_session_timeout=60s"


def make_engine(settings: Settings) -> Engine:
    """Return an engine for these settings. Create it once per process, after forking; it connects on first use."""
    url = make_url(settings.resolved_database_url)
    if url.get_backend_name() == "sqlite":
        if url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(
            url,
            json_serializer=json_text.column_text,
            json_deserializer=json_text.column_value,
            hide_parameters=True,  # logged errors must not reveal stored values
            connect_args={"check_same_thread": False},
            **_POOL,
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(
        url,
        json_serializer=json_text.column_text,
        json_deserializer=json_text.column_value,
        hide_parameters=True,
        pool_pre_ping=True,
        **_POOL,
        connect_args={"connect_timeout": 5, "application_name": "threewalls", "options": _POSTGRESQL_OPTIONS},
    )


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # BEGIN is sent explicitly, see _begin_sqlite
    for pragma in (
        f"busy_timeout={_BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails immediately if another one wrote in between, whatever the
    # busy timeout. One that takes the write lock at its start waits its turn.
    options = connection.get_execution_options()
    writes = options.get("writes", False)
    if writes:
        synchronous = "FULL" if options.get("durable") else "NORMAL"
        if connection.info.get("synchronous") != synchronous:
            _execute_sqlite(connection, f"PRAGMA synchronous={synchronous}")
            connection.info["synchronous"] = synchronous
    _execute_sqlite(connection, "BEGIN IMMEDIATE" if writes else "BEGIN")


def _execute_sqlite(connection: Connection, statement: str) -> None:
    """Execute a statement without SQLAlchemy's part of it, which takes longer than SQLite's."""
    driver: Any = connection.connection.driver_connection
    try:
        driver.execute(statement)
    except sqlite3.Error as error:
        raise DBAPIError.instance(statement, None, error, sqlite3.Error, dialect=connection.dialect) from error


@contextmanager
def transaction(engine: Engine, *, durable: bool = False) -> Iterator[Session]:
    """Open a session that commits at the end of the block and rolls back on an exception.

    A commit survives the death of any process. On SQLite a power failure may lose the last commits, which is acceptable
    for work that is repeated; `durable` waits for the disk, for everything acknowledged to a client. PostgreSQL always
    waits.
    """
    writing = engine.execution_options(writes=True, durable=durable)
    with Session(writing, expire_on_commit=False) as session, session.begin():
        yield session


@contextmanager
def read_session(engine: Engine) -> Iterator[Session]:
    """Open a session for reading: one snapshot, nothing is stored. Raises if used after the block."""
    with Session(engine, expire_on_commit=False, close_resets_only=False, info={"is_snapshot": True}) as session:
        yield session
        # A rollback, with which closing would end the transaction, makes psycopg drop the prepared statements of the
        # connection. Without its objects, the session has nothing to write.
        session.expunge_all()
        session.commit()


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ListPage(Generic[Item]):
    """One page of a list.

    `page` counts from 1. `total` covers all pages and is a lower bound unless `is_exact`. `before` and `after` are the
    cursors of the adjacent pages; empty at an end and for lists without cursors.
    """

    items: tuple[Item, ...]
    total: int
    page: int
    page_size: int
    is_exact: bool = field(default=True, kw_only=True)
    before: str = field(default="", kw_only=True)
    after: str = field(default="", kw_only=True)

    @classmethod
    def cut(cls, items: Sequence[Item], page: int, page_size: int) -> Self:
        """Return one page of `items`. A page past the end is empty, with the true total."""
        return cls(tuple(items[(page - 1) * page_size : page * page_size]), len(items), page, page_size)

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.page_size))

    @property
    def has_next(self) -> bool:
        return bool(self.after) or (self.is_exact and self.page < self.pages)

    @property
    def first(self) -> int:
        """Return the number of the first row shown, from 1; 0 if there is none."""
        return (self.page - 1) * self.page_size + 1 if self.items else 0

    @property
    def last(self) -> int:
        return self.first + len(self.items) - 1 if self.items else 0


def migrate(settings: Settings) -> str:
    """Migrate the database to the newest revision and return it. Processes that start together wait for the first.

    Raises Unavailable if the database does not answer, is damaged, has a later version or belongs to another program.
    """
    from alembic import command  # noqa: PLC0415

    engine = make_engine(settings)
    try:
        with explained(engine), _only_one_at_a_time(engine):
            _check_whole(engine)
            upgradable_revision(engine)
            command.upgrade(alembic_config(engine), "head")
            return migration_scripts(engine).get_current_head() or ""
    finally:
        engine.dispose()


def require_migrated(settings: Settings) -> None:
    """Raise Unavailable if the database is unusable, empty or has an earlier version. A later version is accepted."""
    engine = make_engine(settings)
    try:
        with explained(engine):
            _check_whole(engine)
            revision = current_revision(engine)
    finally:
        engine.dispose()
    scripts = migration_scripts(engine)
    earlier = {script.revision for script in scripts.walk_revisions()} - set(scripts.get_heads())
    if revision is None or revision in earlier:
        what = "has no tables yet" if revision is None else "has the tables of an earlier version"
        raise Unavailable(f"The database {what}. Run `threewalls migrate`, then start again.")


def upgradable_revision(engine: Engine) -> str | None:
    """Return the revision of the tables; None without tables.

    Raises Unavailable if a later version made them, or another program.
    """
    revision = current_revision(engine)
    if revision is not None and revision not in {
        script.revision for script in migration_scripts(engine).walk_revisions()
    }:
        raise Unavailable(
            f"The database {_place(engine)} was migrated by a later version of Threewalls (revision "
            f"{revision}). Use that version, or restore a backup from before its upgrade."
        )
    return revision


def current_revision(engine: Engine) -> str | None:
    """Return the revision of the tables; None without tables. Raises Unavailable if they belong to another program."""
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415

    path = engine.url.database
    reader = engine
    if engine.dialect.name == "sqlite" and path and path != ":memory:":
        if not Path(path).exists():
            return None
        # Opening it with our settings would switch another program's file to WAL.
        file = engine.url.set(database=f"file:{quote(path)}", query={"mode": "ro", "uri": "true"})
        reader = create_engine(file, poolclass=NullPool)
    with reader.connect() as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
        tables = set(inspect(connection).get_table_names()) - {"alembic_version"}
    # PostgreSQL databases may be shared with a program that uses other names.
    others = tables if engine.dialect.name == "sqlite" else tables & {"run", "project"}
    if others and (revision is None or not {"run", "project"} <= tables):
        raise Unavailable(
            f"The database {_place(engine)} has tables that are not Threewalls' ({', '.join(sorted(others)[:3])}). "
            "Check its address; nothing was changed."
        )
    return revision


def _check_whole(engine: Engine) -> None:
    """Raise Unavailable if an SQLite file is shorter than its header says; reads would fail only later."""
    path = Path(engine.url.database or "")
    if engine.dialect.name != "sqlite" or not path.is_file():
        return
    size, log = path.stat().st_size, path.with_name(f"{path.name}-wal")
    if log.is_file() and log.stat().st_size:  # the missing part may be in the WAL
        return
    with path.open("rb") as file:
        header = file.read(100)
    if size == 0 or not header.startswith(b"SQLite format 3\0"):
        return
    page_bytes = int.from_bytes(header[16:18]) or 1
    pages = int.from_bytes(header[28:32])
    if len(header) < 100 or size < pages * (65_536 if page_bytes == 1 else page_bytes):
        raise Unavailable(
            f"The database {_place(engine)} is truncated: it has {size:,} of {pages * page_bytes:,} bytes. "
            "Restore a backup."
        )


@contextmanager
def explained(engine: Engine) -> Iterator[None]:
    """Convert database errors to sentences. Errors of a faulty migration are not converted."""
    try:
        yield
    except DatabaseError as error:
        is_damaged = type(error.orig) is sqlite3.DatabaseError
        if is_damaged:
            raise Unavailable(
                f"The database {_place(engine)} is damaged or not a database: {error.orig}. Restore a backup."
            ) from error
        if error.statement is None:
            raise Unavailable(f"The database {_place(engine)} does not answer: {str(error.orig).strip()}") from error
        raise


def _place(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=True)


def migration_scripts(engine: Engine) -> "ScriptDirectory":
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    return ScriptDirectory.from_config(alembic_config(engine))


def alembic_config(engine: Engine) -> "Config":
    """Return Alembic's configuration for this engine, for `migrate` and tests of migrations."""
    from alembic.config import Config  # noqa: PLC0415

    config = Config(stdout=sys.stdout)  # Alembic's default is the stream at import time
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
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            # Polled: building an index online waits for all statements that began before it, and one that waits for
            # the lock would be such a statement.
            while not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _MIGRATION_LOCK}).scalar():
                time.sleep(_LOCK_POLL_SECONDS)
            yield  # the lock ends with the connection
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _MIGRATION_LOCK})


@contextmanager
def only_maintainer(engine: Engine) -> Iterator[bool]:
    """Yield whether no other worker maintains the database now. On SQLite there is only one worker."""
    if engine.dialect.name == "sqlite":
        yield True
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        is_ours = bool(
            connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _MAINTENANCE_LOCK}).scalar()
        )
        try:
            yield is_ours
        finally:
            if is_ours:  # the connection returns to the pool, and the lock with it
                connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _MAINTENANCE_LOCK})


# --- Temporary database and disk errors. All others are unexpected.

_POSTGRESQL_DISK_FULL = "53100"


def fault_of(error: Exception) -> Unavailable | None:
    """Return the error to answer with; None for an unexpected one."""
    full = away = False
    if isinstance(error, NoConnectionError):  # of the pool
        return Overloaded("All connections to the database are in use. Try again in a moment.")
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    elif isinstance(error, DBAPIError) and isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        full = code == sqlite3.SQLITE_FULL
        # SQLite reports statement errors as operational, too.
        away = isinstance(error, OperationalError) and code != sqlite3.SQLITE_ERROR
    elif isinstance(error, DBAPIError):
        full = getattr(error.orig, "sqlstate", None) == _POSTGRESQL_DISK_FULL
        away = isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    if full:
        return DiskFull("The disk of the service is full or read-only. Tell the administrator, and try again later.")
    return Unavailable("The database did not answer, or is locked. Try again in a moment.") if away else None
