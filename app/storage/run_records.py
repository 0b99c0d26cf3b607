"""A run as it is read: the values that pages and the API show, and how they come out of the rows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.definitions import DEFINITIONS, changes
from app.domain.run import (
    UNKNOWN_STEP,
    Activity,
    DispatcherAvailability,
    Failure,
    FloatArray,
    LineExample,
    Metric,
    Slice,
    Stated,
    SteadyState,
    Timer,
    Value,
)
from app.storage import findings
from app.storage.findings import frozen, known
from app.storage.tables import PROCESSED, AmendmentRow, ProjectRow, RunFileRow, RunRow, SegmentRow

ENDED_BADLY = ("failed", "out_of_memory", "not_finite")
"""Outcomes of a job that ended in an error, also when it printed iterations before and its run is `ready`."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """An uploaded file. `size_bytes` is decompressed, `keys` are the objects in which `log_files` keeps it.

    `document` is what its content was recognised as, empty for a log. `sha256` is empty when it grew in pieces, `cut`
    is the compression of one that ended early.
    """

    kind: str
    name: str
    position: int
    size_bytes: int
    sha256: str
    keys: tuple[str, ...]
    document: str = ""
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Amendment:
    """A correction of one contract field. `removed`: what the run itself says counts again."""

    field: str
    value: Value
    removed: bool
    old_value: Value
    old_source: str
    author: str
    note: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Judged:
    """`verdict_id`: of the current verdict, 0 until there is one. `waiting`: its stack is judged, or will be."""

    verdict_id: int
    waiting: bool


NOT_JUDGED = Judged(0, waiting=False)


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A person left the run out of every baseline and ranking."""

    reason: str
    by: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class RunDetail:
    """All of a run but its series and its lines. Times are aware, in UTC.

    `reception`: whole, receiving, complete or incomplete. `updating`: it is shown as last read, and will be read again.
    `ordered_at`: its place in the history of its stack. `verdict`: the current one, empty until it was judged.
    `uploaded_by`: the person or token; empty where nobody logs in.
    `commit_url`, `compare_url`: the project's templates of links (`domain/commit_links.py`).
    """

    id: int
    name: str
    project: str
    generated: bool
    purpose: str
    branch: str
    commit: str
    ci_url: str
    tags: tuple[str, ...]
    created_at: datetime
    uploaded_by: str
    processed_at: datetime | None
    status: str
    attempts: int
    error: str | None
    warnings: tuple[str, ...]
    trainer: str
    contract: Mapping[str, Stated]
    unknown: tuple[str, ...]
    stack_key: str
    config_key: str
    provisional: bool
    steady_state: SteadyState | None
    metrics: Mapping[str, Metric | None]
    health: Mapping[str, Any]
    evidence_level: str
    semantic_class: str
    definition_version: int
    metadata_stated: Mapping[str, Any]
    files: tuple[RunFile, ...]
    reception: str = "whole"
    heard_at: datetime | None = None
    updating: bool = False
    definitions: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    activity: Mapping[str, Activity] = field(default_factory=dict)
    availability: tuple[DispatcherAvailability, ...] = ()
    timers: tuple[Timer, ...] = ()
    fair_for_timing: bool = True
    not_understood: tuple[LineExample, ...] = ()
    slices: tuple[Slice, ...] = ()
    amendments: tuple[Amendment, ...] = ()
    project_id: int = 0
    ordered_at: datetime | None = None
    verdict: str = ""
    quarantine: Quarantine | None = None
    commit_url: str = ""
    compare_url: str = ""
    judged: Judged = NOT_JUDGED

    @property
    def receiving(self) -> bool:
        """More of its logs is to come."""
        return self.reception == "receiving"

    @property
    def done(self) -> bool:
        return self.status in PROCESSED

    @property
    def step_lines(self) -> tuple[LineExample, ...]:
        """Lines of an unread log that look like steps."""
        return tuple(example for example in self.not_understood if example.kind == UNKNOWN_STEP)

    @property
    def log_files(self) -> tuple[RunFile, ...]:
        return tuple(file for file in self.files if file.kind == "log")


@dataclass(frozen=True, slots=True)
class RunState:
    """What a page that waits for a run asks again and again. `processed_at` changes with every new reading."""

    id: int
    status: str
    attempts: int
    created_at: datetime
    processed_at: datetime | None = None
    receiving: bool = False
    updating: bool = False
    judged: Judged = NOT_JUDGED


@dataclass(frozen=True, slots=True)
class Series:
    """Columns of one length by name, NaN where nothing was printed, `iteration` first; units by the same names."""

    columns: Mapping[str, FloatArray]
    units: Mapping[str, str]


def detail(
    row: RunRow, project: ProjectRow, files: tuple[RunFile, ...], amendments: tuple[Amendment, ...] = ()
) -> RunDetail:
    assert row.id is not None  # noqa: S101  # a row that was read has its key
    return RunDetail(
        id=row.id, name=row.name, project=project.slug, generated=project.generated, purpose=row.purpose,
        branch=row.branch, commit=row.commit, ci_url=row.ci_url, tags=tuple(row.tags),
        created_at=aware(row.created_at), uploaded_by=row.uploaded_by,
        processed_at=aware(row.processed_at) if row.processed_at else None, status=row.status, attempts=row.attempts,
        error=row.error, warnings=_warnings(row), trainer=row.trainer, contract=_contract(row.contract),
        unknown=tuple(row.unknown), stack_key=row.stack_key, config_key=row.config_key, provisional=row.provisional,
        steady_state=_steady_state(row.steady_state), metrics=metrics_of(row.metrics), health=row.health,
        evidence_level=row.evidence_level, semantic_class=row.semantic_class,
        definition_version=row.definition_version, metadata_stated=row.metadata_stated, files=files,
        reception=row.reception,
        heard_at=aware(row.heard_at) if row.heard_at else None, updating=is_updating(row.status, row.work),
        definitions=row.definitions, fair_for_timing=row.fair_for_timing, amendments=amendments,
        project_id=row.project_id, ordered_at=aware(row.ordered_at), verdict=row.verdict, quarantine=_quarantine(row),
        commit_url=project.commit_url, compare_url=project.compare_url,
        **findings.read(row),
    )  # fmt: skip


def _quarantine(row: RunRow) -> Quarantine | None:
    if not row.quarantine:
        return None
    return Quarantine(row.quarantine, row.quarantined_by, aware(row.quarantined_at) if row.quarantined_at else None)


def _warnings(row: RunRow) -> tuple[str, ...]:
    """Those of the reading, behind what is wrong with the figures as a whole."""
    if not row.recompute_error:
        return tuple(row.warnings)
    changed = changes(row.definitions, DEFINITIONS)
    behind = f"Its figures are of earlier definitions ({changed}) and in no baseline: they could not be computed again."
    return (f"{behind} {row.recompute_error}", *row.warnings)


def is_updating(status: str, work: str) -> bool:
    return status in PROCESSED and work != ""


def run_file(row: RunFileRow, keys: tuple[str, ...]) -> RunFile:
    return RunFile(row.kind, row.name, row.position, row.size_bytes, row.sha256, keys, row.document, row.cut)


def files_of(session: Session, run_id: int) -> tuple[RunFile, ...]:
    """The files of a run in their order, each with the objects that hold it."""
    rows = session.execute(
        select(RunFileRow)
        .where(col(RunFileRow.run_id) == run_id)
        .order_by(col(RunFileRow.position), col(RunFileRow.id))
    ).scalars()
    pieces = session.execute(
        select(SegmentRow.file_id, SegmentRow.object_key)  # type: ignore[call-overload]
        .join(RunFileRow, col(RunFileRow.id) == SegmentRow.file_id)
        .where(col(RunFileRow.run_id) == run_id)
        .order_by(col(SegmentRow.file_id), col(SegmentRow.position))
    )
    keys: dict[int, tuple[str, ...]] = {}
    for piece in pieces:
        keys[piece.file_id] = (*keys.get(piece.file_id, ()), piece.object_key)
    return tuple(run_file(row, keys.get(row.id or 0, ())) for row in rows)


def amendment(row: AmendmentRow) -> Amendment:
    return Amendment(
        row.field, frozen(row.value), row.removed, frozen(row.old_value), row.old_source, row.author, row.note,
        aware(row.created_at),
    )  # fmt: skip


def metrics_of(stored: Mapping[str, Any]) -> dict[str, Metric | None]:
    return {name: _metric(value) for name, value in (stored or {}).items()}


def _metric(stored: Mapping[str, Any] | None) -> Metric | None:
    """None, "unknown", for a figure without a finite value; an end of the interval that is no number is NaN."""
    if not stored or not math.isfinite(value := _number(stored.get("value"))):
        return None
    n = _number(stored.get("n"))
    return Metric(
        value=value,
        ci_low=_number(stored.get("ci_low")),
        ci_high=_number(stored.get("ci_high")),
        n=int(n) if math.isfinite(n) else 0,
        note=str(stored.get("note") or ""),
    )


def _number(stored: Any) -> float:
    """NaN for what is no number: a row may be of another definition, or of a writer with a defect."""
    return stored if isinstance(stored, int | float) else math.nan


def _contract(stored: Mapping[str, Any]) -> dict[str, Stated]:
    return {name: findings.stated(entry) for name, entry in (stored or {}).items()}


def _steady_state(stored: Mapping[str, Any] | None) -> SteadyState | None:
    if not stored:
        return None
    found = {name: math.nan if value is None else value for name, value in known(SteadyState, stored).items()}
    return SteadyState(**(found | {"reasons": tuple(stored.get("reasons", ()))}))


def aware(time: datetime) -> datetime:
    """SQLite gives times back without a zone; all of them were written in UTC."""
    if time.tzinfo is UTC:  # it comes so from a column, and histories have hundreds of them
        return time
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
