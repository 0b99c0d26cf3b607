"""Which runs have figures of an earlier version of the definitions, and how far their computing again has come.

Told from the rows themselves, so that nothing is lost whatever is killed.
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
    """Runs by how their figures stand to the current definitions.

    `failed` keep older figures for good. `since`: when the first run was computed by these definitions.
    """

    current: int
    waiting: int
    failed: int
    since: datetime | None

    @property
    def total(self) -> int:
        return self.current + self.waiting + self.failed

    @property
    def done_pct(self) -> float:
        """Of those that can be computed; 100 when there is none."""
        possible = self.current + self.waiting
        return 100 * self.current / possible if possible else 100.0


def is_current() -> ColumnElement[bool]:
    # A run of a later version is one that a newer Threewalls computed; an older one leaves it as it is.
    return col(RunRow.definition_version) >= DEFINITION_VERSION


def has_old_figures() -> ColumnElement[bool]:
    return and_(col(RunRow.definition_version) > 0, col(RunRow.definition_version) < DEFINITION_VERSION)


def is_outdated() -> ColumnElement[bool]:
    """It was read, and is to be computed again: once, for these definitions."""
    return and_(
        col(RunRow.definition_version) < DEFINITION_VERSION,
        col(RunRow.recompute_failed) < DEFINITION_VERSION,
        col(RunRow.status).in_(PROCESSED),
    )


def could_not_be_computed() -> ColumnElement[bool]:
    """It keeps older figures, is no baseline and waits for nothing."""
    return and_(has_old_figures(), col(RunRow.recompute_failed) >= DEFINITION_VERSION)


def outdated_projects() -> Select[Any]:
    """Ids of projects with runs that are still to be computed again. None of their stacks is judged until then.

    The whole project, not the stack: what a verdict rests on beside its own stack (how much launches of the family
    vary, single-field contrasts) comes from the project's other stacks, and under new keys a run may turn out to belong
    to any of them.
    """
    chosen: Select[Any] = select_any(RunRow.project_id).where(is_outdated())
    return chosen


def is_project_outdated(session: Session, project_id: int) -> bool:
    chosen = outdated_projects().where(col(RunRow.project_id) == project_id)
    return session.execute(chosen.limit(1)).first() is not None


def progress(session: Session) -> Progress:
    counted = select(
        func.count(case((is_current(), 1))),
        func.count(case((is_outdated(), 1))),
        func.count(case((could_not_be_computed(), 1))),
        func.min(case((is_current(), RunRow.processed_at))),
    )
    current, waiting, failed, since = session.execute(counted).one()
    return Progress(current, waiting, failed, aware(since) if since else None)
