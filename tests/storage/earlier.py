"""Databases of earlier revisions, with rows that the versions of their time stored."""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alembic import command
from sqlalchemy import Engine, MetaData, insert

from app.settings import Settings
from app.storage.database import alembic_config, make_engine

Rows = Mapping[str, list[dict[str, Any]]]
_MADE_BY_MIGRATIONS = {"heartbeat", "ranking_prior"}


def read_rows(file_name: str) -> Rows:
    """Return the rows of each table."""
    tables = json.loads(gzip.decompress(Path(__file__).with_name(file_name).read_bytes()))
    return {
        name: [{column: _value(stored) for column, stored in row.items()} for row in rows]
        for name, rows in tables.items()
    }


def _value(stored: Any) -> Any:
    match stored:
        case {"time": str(time)} if len(stored) == 1:
            at = datetime.fromisoformat(time)
            return at.replace(tzinfo=at.tzinfo or UTC)
        case {"base64": str(content)} if len(stored) == 1:
            return base64.b64decode(content)
    return stored


@contextmanager
def database_of(settings: Settings, revision: str, rows: Rows) -> Iterator[Engine]:
    """Make the tables of the revision, with these rows."""
    engine = make_engine(settings)
    command.upgrade(alembic_config(engine), revision)
    tables = MetaData()
    tables.reflect(engine)
    with engine.execution_options(writes=True).begin() as connection:
        for name in _MADE_BY_MIGRATIONS & tables.tables.keys():
            connection.execute(tables.tables[name].delete())
        for name, values in rows.items():
            connection.execute(insert(tables.tables[name]), values)
    yield engine
    engine.dispose()
