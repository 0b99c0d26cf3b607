"""Run the migrations on a live database, for `app.storage.database.migrate` and for `alembic` in development."""

import warnings

from alembic import context
from sqlalchemy import Engine, inspect, text
from sqlmodel import SQLModel

import app.storage.readings  # fills the metadata
import app.storage.tables  # noqa: F401  # fills the metadata
from app.settings import get_settings
from app.storage import derived
from app.storage.database import make_engine

LOCK_TIMEOUT = "5s"
"""A migration that cannot have its lock gives up rather than queue every query behind itself."""
STATEMENT_TIMEOUT = "10min"


def run_migrations(engine: Engine) -> None:
    # Outside a transaction, because SQLite cannot turn off foreign keys inside one. Batch operations copy whole tables.
    with engine.execution_options(writes=True).connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.connection.execute("PRAGMA foreign_keys=OFF")
        else:
            connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
            connection.execute(text(f"SET statement_timeout = '{STATEMENT_TIMEOUT}'"))
            connection.commit()
        context.configure(
            connection=connection,
            target_metadata=SQLModel.metadata,
            render_as_batch=True,
            compare_type=True,
            compare_server_default=True,
            transaction_per_migration=True,
            include_name=lambda name, *_: not (name or "").startswith(derived.NOT_IN_METADATA),
        )
        with context.begin_transaction(), warnings.catch_warnings():
            # SQLAlchemy does not reflect indexes on expressions on SQLite, so `alembic check` skips them.
            warnings.filterwarnings("ignore", "Skipped unsupported reflection of expression-based index")
            context.run_migrations()
        connection.commit()
        with connection.begin():
            if inspect(connection).has_table("run_label"):  # the newest table that triggers write
                derived.install(connection)
        connection.invalidate()  # do not reuse a connection with these pragmas and timeouts


run_migrations(context.config.attributes.get("engine") or make_engine(get_settings()))
