"""Progress of recomputing figures after a change of the definitions.

It is derived from the rows themselves, so that killed processes lose nothing.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, select
from sqlmodel import Session, col

from app.domain.definitions import DEFINITION_VERSION
from app.storage.runs import aware
from app.storage.tables import PROCESSED, RunRow, select_any


@dataclass(frozen=True, slots=True)
class Progress:
    """Runs by the state of their figures.

    `failed` keep older figures for good. `since`: when the first run was computed by the current definitions.
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
    return Progress(current, waiting, failed, aware(since) if since else None)
