"""A run as it is read: the values that pages and the API show, and how they come out of the rows."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select
from sqlmodel import Session, col

from app.domain.run import FloatArray, Metric, Stated, SteadyState
from app.storage.tables import ProjectRow, RunFileRow, RunRow

ENDED_BADLY = ("failed", "out_of_memory", "not_finite")
"""Outcomes of a job that ended in an error, also when it printed iterations before and its run is `ready`."""


@dataclass(frozen=True, slots=True)
class RunListItem:
    """One row of the list. `outcome` is how the job itself ended (`health.outcome`), empty until it is known;
    `evidence` is what that was seen in.
    """

    id: int
    name: str
    project: str
    generated: bool
    purpose: str
    branch: str
    commit: str
    created_at: datetime
    status: str
    error: str | None
    outcome: str
    evidence: str
    model: str | None
    gpu: str | None
    gpus: int | None
    dispatcher: str | None
    evidence_level: str
    semantic_class: str
    provisional: bool
    metrics: Mapping[str, Metric | None]


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of a list: `page` counts from 1, `total` is over all pages."""

    items: tuple[RunListItem, ...]
    total: int
    page: int
    page_size: int

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.page_size))

    @property
    def first(self) -> int:
        """Number of the first row shown, from 1; 0 when there is none."""
        return (self.page - 1) * self.page_size + 1 if self.items else 0

    @property
    def last(self) -> int:
        return self.first + len(self.items) - 1 if self.items else 0


@dataclass(frozen=True, slots=True)
class RunFile:
    """An uploaded file. `size_bytes` is decompressed, `object_key` is where `log_files` keeps it."""

    kind: str
    name: str
    position: int
    size_bytes: int
    sha256: str
    object_key: str


@dataclass(frozen=True, slots=True)
class RunDetail:
    """All of a run but its series and its lines. Times are aware, in UTC."""

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

    @property
    def done(self) -> bool:
        return self.status in ("ready", "failed")

    @property
    def log_files(self) -> tuple[RunFile, ...]:
        return tuple(file for file in self.files if file.kind == "log")


@dataclass(frozen=True, slots=True)
class RunState:
    """What a page that waits for a run asks again and again."""

    id: int
    status: str
    attempts: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Series:
    """Columns of one length by name, NaN where nothing was printed, `iteration` first; units by the same names."""

    columns: Mapping[str, FloatArray]
    units: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """The values that the select boxes of the list offer."""

    projects: tuple[str, ...]
    models: tuple[str, ...]
    gpus: tuple[str, ...]
    dispatchers: tuple[str, ...]
    branches: tuple[str, ...]


_LIST_COLUMNS = (
    RunRow.id, RunRow.name, RunRow.purpose, RunRow.branch, RunRow.commit, RunRow.created_at, RunRow.status,
    RunRow.error, RunRow.model, RunRow.gpu, RunRow.gpus, RunRow.dispatcher, RunRow.evidence_level,
    RunRow.semantic_class, RunRow.provisional, RunRow.metrics, RunRow.health,
    ProjectRow.slug, ProjectRow.generated,
)  # fmt: skip
"""The contract and the warnings stay behind: a list of 50 runs would read megabytes of JSON for them."""


def list_runs() -> Select[Any]:
    """The select of list rows, to be narrowed and ordered by conditions on RunRow and ProjectRow."""
    return _joined(select(*_LIST_COLUMNS))  # type: ignore[call-overload]


def count_runs(session: Session, *conditions: ColumnElement[bool]) -> int:
    counted: int = session.execute(_joined(select(func.count(col(RunRow.id)))).where(*conditions)).scalar_one()
    return counted


def latest_runs(session: Session, limit: int, *conditions: ColumnElement[bool]) -> tuple[RunListItem, ...]:
    """The newest runs that meet all `conditions`."""
    rows = session.execute(list_runs().where(*conditions).order_by(col(RunRow.id).desc()).limit(limit))
    return tuple(list_item(row) for row in rows)


def _joined(statement: Select[Any]) -> Select[Any]:
    return statement.select_from(RunRow).join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)


def list_item(row: Row[Any]) -> RunListItem:
    return RunListItem(
        id=row.id, name=row.name, project=row.slug, generated=row.generated, purpose=row.purpose, branch=row.branch,
        commit=row.commit, created_at=aware(row.created_at), status=row.status, error=row.error,
        outcome=str((row.health or {}).get("outcome") or ""),
        evidence=str((row.health or {}).get("evidence") or ""), model=row.model, gpu=row.gpu, gpus=row.gpus,
        dispatcher=row.dispatcher, evidence_level=row.evidence_level, semantic_class=row.semantic_class,
        provisional=row.provisional, metrics=_metrics(row.metrics),
    )  # fmt: skip


def detail(row: RunRow, project: ProjectRow, files: tuple[RunFile, ...]) -> RunDetail:
    assert row.id is not None  # noqa: S101  # a row that was read has its key
    return RunDetail(
        id=row.id, name=row.name, project=project.slug, generated=project.generated, purpose=row.purpose,
        branch=row.branch, commit=row.commit, ci_url=row.ci_url, tags=tuple(row.tags),
        created_at=aware(row.created_at), processed_at=aware(row.processed_at) if row.processed_at else None,
        status=row.status, attempts=row.attempts, error=row.error, warnings=tuple(row.warnings),
        trainer=row.trainer, contract=_contract(row.contract), unknown=tuple(row.unknown), stack_key=row.stack_key,
        config_key=row.config_key, provisional=row.provisional, steady_state=_steady_state(row.steady_state),
        metrics=_metrics(row.metrics), health=row.health, evidence_level=row.evidence_level,
        semantic_class=row.semantic_class, definition_version=row.definition_version,
        metadata_stated=row.metadata_stated, files=files,
    )  # fmt: skip


def run_file(row: RunFileRow) -> RunFile:
    return RunFile(row.kind, row.name, row.position, row.size_bytes, row.sha256, row.object_key)


def _metrics(stored: Mapping[str, Any]) -> dict[str, Metric | None]:
    return {name: Metric(**_known(Metric, value)) if value else None for name, value in (stored or {}).items()}


def _contract(stored: Mapping[str, Any]) -> dict[str, Stated]:
    return {
        name: Stated(_frozen(entry["value"]), entry["source"], entry.get("detail", ""))
        for name, entry in (stored or {}).items()
    }


def _steady_state(stored: Mapping[str, Any] | None) -> SteadyState | None:
    if not stored:
        return None
    return SteadyState(**(_known(SteadyState, stored) | {"reasons": tuple(stored.get("reasons", ()))}))


def _known(kind: type[Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that `kind` has a field for: a row of an older or newer definition may hold others."""
    return {f.name: stored[f.name] for f in fields(kind) if f.name in stored}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def aware(time: datetime) -> datetime:
    """SQLite gives times back without a zone; all of them were written in UTC."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
