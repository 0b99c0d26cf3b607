"""Exports of Nsight Systems as one file for each table (parquet or Arrow): made the SQLite export that we read."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.domain.profiles.trace import UnusableProfile

SUFFIXES = (".parquet", ".arrow", ".feather")
_ROWS = 20_000
_MAX_ROWS = 50_000_000
_WANTED = (
    "StringIds",
    "META_DATA_EXPORT",
    "NVTX_EVENTS",
    "DIAGNOSTIC_EVENT",
    "TARGET_INFO_GPU",
    "TARGET_INFO_SESSION_START_TIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
)
"""Other tables hold nothing that we read, or the command line and environment of the job."""


def is_wanted(name: str) -> bool:
    """Return whether a file `TABLE.parquet` is one of the tables to read."""
    stem, dot, suffix = name.rpartition(".")
    return f"{dot}{suffix.lower()}" in SUFFIXES and stem in _WANTED


def write_export(tables: Mapping[str, Path], target: Path) -> None:
    """Write the tables (by their file names) to an SQLite file. Raises UnusableProfile, also without pyarrow."""
    try:
        import pyarrow  # noqa: PLC0415  an extra
    except ImportError:
        raise UnusableProfile(
            "Tables as parquet or Arrow need the package pyarrow on the server: pip install 'threewalls[parquet]'. "
            "Or export the report with nsys export --type sqlite."
        ) from None
    connection = sqlite3.connect(target)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for name, path in tables.items():
            try:
                _copy(connection, name.rpartition(".")[0], path)
            except (pyarrow.ArrowException, OSError, ValueError, OverflowError, sqlite3.Error) as error:
                raise UnusableProfile(f"{name} cannot be read: {str(error)[:200]}.") from None
        connection.commit()
    finally:
        connection.close()


def _copy(connection: sqlite3.Connection, table: str, path: Path) -> None:
    columns, batches = _batches(path)
    columns = [column for column in columns if column.isidentifier()]
    if not columns:
        return
    listed = ", ".join(f'"{column}"' for column in columns)
    connection.execute(f'CREATE TABLE "{table}" ({listed})')
    marks = ", ".join("?" * len(columns))
    written = 0
    for batch in batches:
        batch.validate(full=True)  # offsets of a damaged file would lead outside the memory
        written += batch.num_rows
        if written > _MAX_ROWS:
            raise UnusableProfile(f"{table} has more than {_MAX_ROWS:,} rows. Export fewer steps.")
        values = (batch.column(column).to_pylist() for column in columns)
        rows = zip(*values, strict=True)
        connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', map(_storable, rows))  # noqa: S608  our tables


def _storable(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return values as SQLite takes them; integers beyond 64 bits and nested values become NULL."""
    return tuple(
        value
        if isinstance(value, str | bytes | float) or (isinstance(value, int) and -(2**63) <= value < 2**63)
        else None
        for value in row
    )


def _batches(path: Path) -> tuple[list[str], Iterator[Any]]:
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet  # noqa: PLC0415

        file = parquet.ParquetFile(path)
        return list(file.schema_arrow.names), file.iter_batches(_ROWS)
    from pyarrow import ipc  # noqa: PLC0415

    reader = ipc.open_file(str(path))
    return list(reader.schema.names), (reader.get_batch(at) for at in range(reader.num_record_batches))
