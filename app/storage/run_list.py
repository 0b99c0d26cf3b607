"""Runs as lists show them: the columns that are read, and nothing of what makes a run large."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select
from sqlmodel import Session, col

from app.domain.run import Metric
from app.storage.run_records import aware, metrics_of
from app.storage.tables import ProjectRow, RunRow


@dataclass(frozen=True, slots=True)
class RunListItem:
    """One row of the list. `outcome` is how the job itself ended (`health.outcome`), empty until it is known;
    `evidence` is what that was seen in. `verdict` is the current one, empty until it was judged; its change is of step
    time. `quarantine` is a person's reason to leave it out of everything, else empty.
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
    verdict: str = ""
    verdict_delta_pct: float | None = None
    quarantine: str = ""


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
    RunRow.semantic_class, RunRow.provisional, RunRow.metrics, RunRow.health, RunRow.verdict,
    RunRow.verdict_delta_pct, RunRow.quarantine,
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
        provisional=row.provisional, metrics=metrics_of(row.metrics), verdict=row.verdict,
        verdict_delta_pct=row.verdict_delta_pct, quarantine=row.quarantine,
    )  # fmt: skip
