"""What was found in the files of a run, kept so that its figures can be computed again without reading them again.

A changed window rule needs the values of each iteration, which are the run's series, and a few kilobytes of other
facts: what was stated, memory lines, events. Reading a log of 1 GB again takes seconds and all its bytes; this takes
milliseconds. What is kept counts for the very files that it was read from, and for one version of `reading`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import structlog
import zstandard
from sqlalchemy import delete, select
from sqlmodel import Session, col

from app.domain.definitions import DEFINITIONS
from app.domain.documents import Document
from app.domain.run import FloatArray, LineExample, LogEvent, MemoryReport, ParsedLog, Problem, Slice
from app.storage import series
from app.storage.findings import frozen, known, stated
from app.storage.run_records import RunFile
from app.storage.tables import ReadingRow, SeriesRow

log = structlog.get_logger(__name__)

_LEVEL = 3
MAX_METRIC_NAME = 100
"""Of a column's name, what the table of series takes."""
_RECORDS: Mapping[str, type[Any]] = {
    "memory": MemoryReport,
    "events": LogEvent,
    "problems": Problem,
    "slices": Slice,
    "not_understood": LineExample,
}
_PLAIN = (
    "trainer", "segment_starts", "total_iterations", "log_interval", "line_count", "unrecognised_lines", "first_lines",
    "last_lines", "truncated", "files", "process_lines",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """`log` with the series of the documents in it, `documents` without theirs; `warnings` are about the files."""

    log: ParsedLog
    documents: tuple[Document, ...]
    warnings: tuple[str, ...]


def save(session: Session, run_id: int, files: Sequence[RunFile], reading: Reading) -> None:
    """Keep what was found in `files`; the series of the run are kept beside it, as its figures are."""
    session.execute(delete(ReadingRow).where(col(ReadingRow.run_id) == run_id))
    version = DEFINITIONS["reading"]
    session.add(ReadingRow(run_id=run_id, files=_fingerprint(files), version=version, blob=pack(reading)))


def load(session: Session, run_id: int, files: Sequence[RunFile]) -> Reading | None:
    """What was found in exactly these files; None when nothing is kept, or another version of the reader found it."""
    kept = session.execute(
        select(ReadingRow.blob).where(  # type: ignore[call-overload]
            col(ReadingRow.run_id) == run_id,
            col(ReadingRow.files) == _fingerprint(files),
            col(ReadingRow.version) == DEFINITIONS["reading"],
        )
    ).scalar_one_or_none()
    if kept is None:
        return None
    rows = session.execute(select(SeriesRow.metric, SeriesRow.blob).where(col(SeriesRow.run_id) == run_id))  # type: ignore[call-overload]
    try:
        return unpack(kept, {row.metric: series.unpack(row.blob) for row in rows})
    except (ValueError, KeyError, TypeError, zstandard.ZstdError) as error:
        # The files are there: a defect of what is kept costs time, no figures.
        log.warning("reading_unreadable", run_id=run_id, error=repr(error))
        return None


def _fingerprint(files: Sequence[RunFile]) -> str:
    """Of the stored objects, which are named by their content, and of what was known of the files."""
    known_of_them = [[file.kind, file.name, file.document, file.cut, *file.keys] for file in files]
    return hashlib.sha256(json.dumps(known_of_them).encode()).hexdigest()


def pack(reading: Reading) -> bytes:
    found = reading.log
    document: dict[str, Any] = {name: getattr(found, name) for name in _PLAIN}
    document |= {name: [asdict(one) for one in getattr(found, name)] for name in _RECORDS}
    document |= {
        "columns": list(found.columns),
        "stated": {name: asdict(one) for name, one in found.stated.items()},
        "arguments": dict(found.arguments),
        "documents": [
            {"kind": one.kind, "stated": {name: asdict(s) for name, s in one.stated.items()}, "facts": dict(one.facts)}
            for one in reading.documents
        ],
        "warnings": reading.warnings,
    }
    text = json.dumps(document, default=_number, separators=(",", ":"))
    return zstandard.ZstdCompressor(level=_LEVEL).compress(text.encode())


def unpack(blob: bytes, kept: Mapping[str, FloatArray]) -> Reading:
    document = json.loads(zstandard.ZstdDecompressor().decompress(blob))
    lines = kept.get("log_line", np.empty(0))
    plain: dict[str, Any] = {name: frozen(document[name]) for name in _PLAIN}
    records: dict[str, Any] = {
        name: tuple(kind(**known(kind, one)) for one in document[name]) for name, kind in _RECORDS.items()
    }
    found = ParsedLog(
        **plain,
        **records,
        columns={name: kept[name[:MAX_METRIC_NAME]] for name in document["columns"]},
        line_numbers=lines.astype(np.int64),
        stated={name: stated(one) for name, one in document["stated"].items()},
        arguments={name: frozen(value) for name, value in document["arguments"].items()},
    )
    documents = tuple(
        Document(one["kind"], {name: stated(s) for name, s in one["stated"].items()}, {}, one["facts"])
        for one in document["documents"]
    )
    return Reading(found, documents, tuple(document["warnings"]))


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is nothing that a reading holds")
