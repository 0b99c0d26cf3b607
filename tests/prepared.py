"""The initial state of many tests of a file, created once per process and then copied as a whole database."""

import pickle
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import Engine

T = TypeVar("T")

_prepared: dict[str, tuple[sqlite3.Connection, bytes]] = {}


def prepared(engine: Engine, make: Callable[[], T]) -> T:
    """Return what `make` returned when it filled an empty database; `engine` then contains what it wrote.

    Each `make` is identified by its qualified name and may write only to the database of `engine`. On PostgreSQL it is
    called each time.
    """
    if engine.dialect.name != "sqlite":
        return make()
    name = f"{make.__module__}.{make.__qualname__}"
    path = Path(str(engine.url.database))
    if name not in _prepared:
        value = make()
        copy = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as source:
            source.backup(copy)
        _prepared[name] = copy, pickle.dumps(value)
        return value
    copy, value_bytes = _prepared[name]
    engine.dispose()
    with closing(sqlite3.connect(path)) as target:
        copy.backup(target)
    value_again: T = pickle.loads(value_bytes)  # noqa: S301  # our own, of a moment ago
    return value_again
