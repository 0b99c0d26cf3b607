"""For which runs each rule fired: kept when a run was read, replaced when it is read or the rules are others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from sqlalchemy import CursorResult, delete, func, insert, or_, select, update
from sqlmodel import Session, col

from app.storage.experiment_tables import RuleFiringRow
from app.storage.run_records import aware
from app.storage.tables import ProjectRow, RunRow, utc_now

_DONE = ("ready", "failed")


@dataclass(frozen=True, slots=True)
class FiredIn:
    """A run in which a rule fired."""

    run_id: int
    name: str
    project: str
    status: str
    ordered_at: datetime


def keep_firings(
    session: Session, run_id: int, rules: Sequence[str], version: str, *, processed_at: datetime | None
) -> bool:
    """Put the rules that fired in place of earlier ones. False when the run was read again since `processed_at`.

    `version`: of all rules that were asked (`rules_in_force.py`). It locks the run's row, so that of two who ask the
    same run the later one replaces what the earlier one wrote.
    """
    unchanged = col(RunRow.processed_at).is_(None) if processed_at is None else col(RunRow.processed_at) == processed_at
    asked = update(RunRow).where(col(RunRow.id) == run_id, unchanged).values(rules_asked=version)
    done = session.execute(asked.execution_options(synchronize_session=False))
    if cast("CursorResult[Any]", done).rowcount == 0:
        return False
    session.execute(delete(RuleFiringRow).where(col(RuleFiringRow.run_id) == run_id))
    if rules:
        now = utc_now()
        session.execute(
            insert(RuleFiringRow), [{"run_id": run_id, "rule_id": rule[:100], "fired_at": now} for rule in rules]
        )
    return True


def due(session: Session, version: str, most: int) -> Sequence[int]:
    """Runs that were read and not asked these rules yet, the newest first."""
    other = or_(col(RunRow.rules_asked) < version, col(RunRow.rules_asked) > version)  # by the index
    chosen = select(RunRow.id).where(other, col(RunRow.status).in_(_DONE)).order_by(col(RunRow.id).desc())  # type: ignore[call-overload]
    return cast("Sequence[int]", session.execute(chosen.limit(most)).scalars().all())


def is_due(session: Session, run_id: int, version: str) -> bool:
    """True when the run was read and not asked these rules yet."""
    asked = select(RunRow.rules_asked).where(col(RunRow.id) == run_id, col(RunRow.status).in_(_DONE))  # type: ignore[call-overload]
    found = session.execute(asked).scalar_one_or_none()
    return found is not None and found != version


def waiting(session: Session, version: str) -> int:
    """How many runs are still to be asked."""
    other = or_(col(RunRow.rules_asked) < version, col(RunRow.rules_asked) > version)
    count = select(func.count()).select_from(RunRow).where(other, col(RunRow.status).in_(_DONE))
    return int(session.execute(count).scalar_one())


def fired_counts(session: Session, project_id: int | None = None) -> Mapping[str, int]:
    """By rule: in how many runs it fired. `project_id` None: of all projects that the caller sees."""
    counted = (
        select(RuleFiringRow.rule_id, func.count())  # type: ignore[call-overload]
        .join(RunRow, col(RunRow.id) == RuleFiringRow.run_id)  # tells whose it is (`visible.py`)
        .group_by(col(RuleFiringRow.rule_id))
    )
    if project_id is not None:
        counted = counted.where(col(RunRow.project_id) == project_id)
    return {row[0]: row[1] for row in session.execute(counted)}


def last_fired(session: Session, rule: str, most: int, project_id: int | None = None) -> tuple[FiredIn, ...]:
    """The runs in which a rule fires, the newest first."""
    chosen = (
        select(RunRow.id, RunRow.name, RunRow.status, RunRow.ordered_at, ProjectRow.slug)  # type: ignore[call-overload]
        .join(RuleFiringRow, col(RuleFiringRow.run_id) == RunRow.id)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RuleFiringRow.rule_id) == rule)
        .order_by(col(RuleFiringRow.run_id).desc())
        .limit(most)
    )
    if project_id is not None:
        chosen = chosen.where(col(RunRow.project_id) == project_id)
    return tuple(
        FiredIn(row.id, row.name, row.slug, row.status, aware(row.ordered_at)) for row in session.execute(chosen)
    )
