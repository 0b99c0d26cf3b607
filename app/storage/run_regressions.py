"""Which regressions a run belongs to: those that it made, and those that stand at its level already."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, or_, select
from sqlmodel import Session, col

from app.storage.judging_tables import RegressionMemberRow, RegressionRow

_CLOSED = ("fixed", "invalid")


@dataclass(frozen=True, slots=True)
class RunRegression:
    """`made_by_it`: the run is a member; otherwise it is as slow as one that made it, or its stack is."""

    id: int
    state: str
    cause: str
    metric: str
    assignee: str
    gpu_hours_per_day: float | None
    made_by_it: bool


def regressions_of(
    session: Session, run_id: int, stack_key: str, config_key: str, *, also_standing: bool
) -> tuple[RunRegression, ...]:
    """Newest first. `also_standing`: those of its stack and configuration, too, that nobody has closed."""
    member, row = col(RegressionMemberRow.run_id), RegressionRow
    concerned: Any = member == run_id
    if also_standing:
        same = and_(
            col(RegressionMemberRow.stack_key) == stack_key,
            col(RegressionMemberRow.config_key) == config_key,
            col(row.state).not_in(_CLOSED),
        )
        concerned = or_(concerned, same)
    rows = session.execute(
        select(RegressionRow, RegressionMemberRow.run_id)  # type: ignore[call-overload]
        .join(RegressionMemberRow, col(RegressionMemberRow.regression_id) == col(row.id))
        .where(concerned)
        .order_by(col(row.id).desc())
    ).all()
    return _one_each(rows, run_id)


def _one_each(rows: Sequence[Any], run_id: int) -> tuple[RunRegression, ...]:
    made = {row.id for row, member in rows if member == run_id}
    found = {row.id: row for row, _ in rows}
    return tuple(
        RunRegression(
            row.id, row.state, row.cause, row.metric, row.assignee, row.gpu_hours_per_day, made_by_it=row.id in made
        )
        for row in found.values()
    )
