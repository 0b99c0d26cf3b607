"""What was found in the files of a run, stored so that figures can be recomputed without reading the files again.

A changed window rule needs the values of each iteration, which are the run's series, and a few kilobytes of other
facts: stated values, memory lines, events. Reading a 1 GB log again takes seconds; reading this takes milliseconds. A
stored reading is valid for exactly the files it came from and for one version of `reading`.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
import structlog
import zstandard
from sqlalchemy import JSON, Column, ColumnElement, Select, and_, bindparam, case, func, select
from sqlmodel import Field, Session, SQLModel, col

from app.domain.definitions import DEFINITION_VERSION, DEFINITIONS
from app.domain.documents.document import Document
from app.domain.performance.health import LOSS_NAMES
from app.domain.run import FloatArray, LineExample, LogEvent, LogProblem, MemoryReport, ParsedLog, Slice
from app.domain.verdict.record import Losses, losses_of
from app.storage import audit
from app.storage.json_text import frozen, to_json
from app.storage.runs import RunFile, entries_of, get_run, stored_contract
from app.storage.tables import PROCESSED, ReadingRow, RunRow, SeriesRow, owned_by, select_any, time_column, utc_now

# --- One metric of one run as a blob: float64, byte-shuffled, zstd.
#
# Shuffling groups similar bytes of neighbouring values, so that exponents and high mantissa bytes compress.
# Reading 10 metrics x 1,000 iterations takes 0.2 ms and 58 kB this way; as SQL rows it takes 43 ms.

_LEVEL = 3


def pack_series(values: FloatArray) -> bytes:
    """Return the blob of a column. NaN is preserved."""
    shuffled = np.ascontiguousarray(np.asarray(values, dtype="<f8")).view(np.uint8).reshape(-1, 8).T
    return zstandard.ZstdCompressor(level=_LEVEL).compress(np.ascontiguousarray(shuffled).tobytes())


def unpack_series(blob: bytes) -> FloatArray:
    """Return the column of a blob that `pack` made."""
    return next(unpack_all([blob]))


def unpack_all(blobs: Iterable[bytes]) -> Iterator[FloatArray]:
    """Yield the columns of several blobs with one decompressor, because creating one takes longer than using it."""
    decompressor = zstandard.ZstdDecompressor()
    return (_unshuffled(decompressor.decompress(blob)) for blob in blobs)


def _unshuffled(text: bytes) -> FloatArray:
    shuffled = np.frombuffer(text, dtype=np.uint8)
    return np.ascontiguousarray(shuffled.reshape(8, -1).T).view("<f8").reshape(-1).astype(np.float64)


log = structlog.get_logger(__name__)
MAX_METRIC_NAME = 100
"""Maximum length of a column's name in the table of series."""
_RECORDS: Mapping[str, type[Any]] = {
    "memory": MemoryReport,
    "events": LogEvent,
    "problems": LogProblem,
    "slices": Slice,
    "not_understood": LineExample,
}
_PLAIN = (
    "trainer", "segment_starts", "total_iterations", "log_interval", "line_count", "unrecognised_lines", "first_lines",
    "last_lines", "truncated", "files", "process_lines",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredReading:
    """A reading: `log` with the series of its documents, `documents` without them. `warnings` concern the files."""

    log: ParsedLog
    documents: tuple[Document, ...]
    warnings: tuple[str, ...]


def save(session: Session, run_id: int, files: Sequence[RunFile], reading: StoredReading, read_as: str = "") -> None:
    """Store what was found in `files`. The series of the run are stored separately, with its figures.

    `read_as`: the stated description of the step lines.
    """
    version = DEFINITIONS["reading"]
    session.add(ReadingRow(run_id=run_id, files=_fingerprint(files, read_as), version=version, blob=pack(reading)))


def load(session: Session, run_id: int, files: Sequence[RunFile], read_as: str = "") -> StoredReading | None:
    """Return the reading of exactly these files; None if none is stored or another version of the reader made it."""
    blob = session.execute(_stored(run_id, files, read_as)).scalar_one_or_none()
    if blob is None:
        return None
    rows = session.execute(select_any(SeriesRow.metric, SeriesRow.blob).where(col(SeriesRow.run_id) == run_id))
    try:
        return unpack(blob, {row.metric: unpack_series(row.blob) for row in rows})
    except (ValueError, KeyError, TypeError, zstandard.ZstdError) as error:
        # The files still exist, so a damaged reading costs time but no figures.
        log.warning("reading_unreadable", run_id=run_id, error=repr(error))
        return None


def arguments_of(session: Session, run_id: int, files: Sequence[RunFile]) -> dict[str, Any]:
    """Return the arguments that the log of a run states; empty when no reading of exactly these files is stored."""
    blob = session.execute(_stored(run_id, files)).scalar_one_or_none()
    try:
        stored = {} if blob is None else json.loads(zstandard.ZstdDecompressor().decompress(blob))["arguments"]
    except (ValueError, KeyError, zstandard.ZstdError) as error:
        log.warning("reading_unreadable", run_id=run_id, error=repr(error))
        return {}
    return {name: frozen(value) for name, value in stored.items()}


def _stored(run_id: int, files: Sequence[RunFile], read_as: str = "") -> Select[Any]:
    return select_any(ReadingRow.blob).where(
        col(ReadingRow.run_id) == run_id,
        col(ReadingRow.files) == _fingerprint(files, read_as),
        col(ReadingRow.version) == DEFINITIONS["reading"],
    )


def _fingerprint(files: Sequence[RunFile], read_as: str) -> str:
    """Return a hash of the stored objects, which are named by their content, and of all that decides their reading."""
    known_of_them = [[file.kind, file.name, file.document, file.cut, *file.keys] for file in files]
    known_of_them += [[read_as]] if read_as else []
    return hashlib.sha256(json.dumps(known_of_them).encode()).hexdigest()


def pack(reading: StoredReading) -> bytes:
    log = reading.log
    document: dict[str, Any] = {name: getattr(log, name) for name in _PLAIN}
    document |= {name: [asdict(record) for record in getattr(log, name)] for name in _RECORDS}
    document |= {
        "columns": list(log.columns),
        "stated": to_json(log.stated),
        "arguments": dict(log.arguments),
        "documents": [
            {"kind": source.kind, "stated": to_json(source.stated), "facts": dict(source.facts)}
            for source in reading.documents
        ],
        "warnings": reading.warnings,
    }
    text = json.dumps(document, default=_number, separators=(",", ":"))
    return zstandard.ZstdCompressor(level=_LEVEL).compress(text.encode())


def unpack(blob: bytes, columns: Mapping[str, FloatArray]) -> StoredReading:
    document = json.loads(zstandard.ZstdDecompressor().decompress(blob))
    lines = columns.get("log_line", np.empty(0))
    plain: dict[str, Any] = {name: frozen(document[name]) for name in _PLAIN}
    records: dict[str, Any] = {
        name: tuple(kind(**entries_of(kind, record)) for record in document[name]) for name, kind in _RECORDS.items()
    }
    log = ParsedLog(
        **plain,
        **records,
        columns={name: columns[name[:MAX_METRIC_NAME]] for name in document["columns"]},
        line_numbers=lines.astype(np.int64),
        stated=stored_contract(document["stated"]),
        arguments={name: frozen(value) for name, value in document["arguments"].items()},
    )
    documents = tuple(
        Document(entry["kind"], stored_contract(entry["stated"]), {}, entry["facts"]) for entry in document["documents"]
    )
    return StoredReading(log, documents, tuple(document["warnings"]))


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not part of a reading")


# --- Facts that users stated about a run. All statements are stored; the newest one of a fact counts.
#
# They change no key and no figure and are used by the rules only.


class StatedFactRow(SQLModel, table=True):
    """One statement; `removed` withdraws the earlier ones."""

    __tablename__ = "stated_fact"

    id: int | None = Field(default=None, primary_key=True)
    run_id: int = Field(sa_column=owned_by("run.id", index=True))
    name: str = Field(max_length=100)
    value: Any = Field(default=None, sa_column=Column(JSON(none_as_null=False), nullable=False))
    removed: bool = False
    author: str = Field(max_length=100)
    note: str = Field(default="", max_length=1000)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(nullable=False))


@dataclass(frozen=True, slots=True)
class StatedFact:
    """A stated fact with its author and time."""

    name: str
    value: Any
    removed: bool
    author: str
    note: str
    at: datetime


def state_facts(session: Session, run_id: int, facts: Mapping[str, object], *, author: str, note: str) -> None:
    """Record the statements; None withdraws one. The rules are evaluated again for the run. Raises NotFound."""
    row = get_run(session, run_id, lock=True)
    before = in_force(statements_of(session, run_id))
    for name, value in facts.items():
        session.add(
            StatedFactRow(run_id=run_id, name=name, value=value, removed=value is None, author=author, note=note)
        )
    row.rules_asked = ""
    audit.record(
        session, who=author, subject="run", subject_id=run_id, action="facts", project_id=row.project_id,
        before={name: before[name].value if name in before else None for name in facts}, after=facts, note=note,
    )  # fmt: skip


def statements_of(session: Session, run_id: int) -> tuple[StatedFact, ...]:
    """Return all statements, newest first."""
    rows = session.execute(
        select(StatedFactRow).where(col(StatedFactRow.run_id) == run_id).order_by(col(StatedFactRow.id).desc())
    ).scalars()
    return tuple(StatedFact(r.name, r.value, r.removed, r.author, r.note, r.created_at) for r in rows)


def in_force(statements: tuple[StatedFact, ...]) -> dict[str, StatedFact]:
    """Return the statements in use, by fact."""
    newest: dict[str, StatedFact] = {}
    for statement in statements:
        newest.setdefault(statement.name, statement)
    return {name: statement for name, statement in newest.items() if not statement.removed}


# --- Losses by iteration, read from the series alone for comparisons.

_LOSSES: Select[Any] = select_any(SeriesRow.run_id, SeriesRow.metric, SeriesRow.blob).where(
    col(SeriesRow.run_id).in_(bindparam("run_ids", expanding=True)),
    col(SeriesRow.metric).in_(("iteration", *LOSS_NAMES)),
)


def losses_of_runs(session: Session, names: Sequence[str]) -> dict[str, Losses]:
    """Return losses by run name; empty for runs without losses."""
    columns: dict[str, dict[str, FloatArray]] = {str(int(name)): {} for name in names}
    if columns:
        rows = session.execute(_LOSSES, {"run_ids": [int(name) for name in columns]}).all()
        for row, values in zip(rows, unpack_all(row.blob for row in rows), strict=True):
            columns[str(row.run_id)][row.metric] = values
    return {name: losses_of(column) for name, column in columns.items()}


# --- Progress of recomputing figures after a change of the definitions. It is derived from the rows themselves, so
# that killed processes lose nothing.


@dataclass(frozen=True, slots=True)
class Progress:
    """Runs by the state of their figures.

    `failed` keep older figures permanently. `since`: when the first run was computed by the current definitions.
    """

    current: int
    waiting: int
    failed: int
    since: datetime | None

    @property
    def total(self) -> int:
        return self.current + self.waiting + self.failed


def is_current() -> ColumnElement[bool]:
    # Runs of a later version were computed by a newer Threewalls, so this version leaves them as they are.
    return col(RunRow.definition_version) >= DEFINITION_VERSION


def has_old_figures() -> ColumnElement[bool]:
    return and_(col(RunRow.definition_version) > 0, col(RunRow.definition_version) < DEFINITION_VERSION)


def is_outdated() -> ColumnElement[bool]:
    """Return the condition for runs that still have to be recomputed by these definitions."""
    return and_(
        col(RunRow.definition_version) < DEFINITION_VERSION,
        col(RunRow.recompute_failed) < DEFINITION_VERSION,
        col(RunRow.status).in_(PROCESSED),
    )


def could_not_be_computed() -> ColumnElement[bool]:
    """Return the condition for runs whose recomputation failed: they keep older figures and cannot be baselines."""
    return and_(has_old_figures(), col(RunRow.recompute_failed) >= DEFINITION_VERSION)


def outdated_projects() -> Select[Any]:
    """Return the projects with runs that still have to be recomputed. None of their stacks is judged until then.

    The whole project waits, because verdicts also use other stacks of the project (launch-to-launch variation,
    single-field contrasts), and recomputed keys may move a run to another stack.
    """
    chosen: Select[Any] = select_any(RunRow.project_id).where(is_outdated())
    return chosen


def progress(session: Session) -> Progress:
    counted = select(
        func.count(case((is_current(), 1))),
        func.count(case((is_outdated(), 1))),
        func.count(case((could_not_be_computed(), 1))),
        func.min(case((is_current(), RunRow.processed_at))),
    )
    current, waiting, failed, since = session.execute(counted).one()
    return Progress(current, waiting, failed, since)
