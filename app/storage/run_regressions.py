"""Which regressions a run belongs to: those that it made, and those that explain its alarms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam, delete, or_, select
from sqlmodel import Session, col

from app.storage.judging_tables import RegressionMemberRow, RegressionRow, RunAlarmRow

_AT_ONCE = 500
_ALARMS: Select[Any] = select(RunAlarmRow.run_id, RunAlarmRow.metric, RunAlarmRow.regression_id).where(  # type: ignore[call-overload]
    col(RunAlarmRow.run_id).in_(bindparam("run_ids", expanding=True))
)


@dataclass(frozen=True, slots=True)
class RunRegression:
    """`made_by_it`: the run is a member; otherwise it stands at the level of the one that is."""

    id: int
    state: str
    cause: str
    metric: str
    assignee: str
    gpu_hours_per_day: float | None
    made_by_it: bool


def regressions_of(session: Session, run_id: int) -> tuple[RunRegression, ...]:
    """Newest first."""
    made = select(RegressionMemberRow.regression_id).where(  # type: ignore[call-overload]
        col(RegressionMemberRow.run_id) == run_id
    )
    own = set(session.execute(made).scalars())
    explains = select(RunAlarmRow.regression_id).where(col(RunAlarmRow.run_id) == run_id)  # type: ignore[call-overload]
    chosen = select(RegressionRow).where(or_(col(RegressionRow.id).in_(own), col(RegressionRow.id).in_(explains)))
    rows = session.execute(chosen.order_by(col(RegressionRow.id).desc())).scalars()
    return tuple(
        RunRegression(
            row.id or 0, row.state, row.cause, row.metric, row.assignee, row.gpu_hours_per_day, made_by_it=row.id in own
        )
        for row in rows
    )


def keep_alarms(session: Session, found: Mapping[int, Mapping[str, int]]) -> None:
    """Of each run, by metric, the regression that explains its alarm. A run without alarms has an empty entry."""
    runs = sorted(found)
    for start in range(0, len(runs), _AT_ONCE):
        some = runs[start : start + _AT_ONCE]
        known = _kept(session, some)
        wanted = {(run, metric): regression for run in some for metric, regression in found[run].items()}
        changed = {run for run, _ in {*known.items(), *wanted.items()} - (known.items() & wanted.items())}
        if not changed:
            continue
        others = {run for run, _ in changed}
        session.execute(delete(RunAlarmRow).where(col(RunAlarmRow.run_id).in_(others)))
        session.add_all(
            RunAlarmRow(run_id=run, metric=metric, regression_id=regression)
            for (run, metric), regression in wanted.items()
            if run in others
        )
        session.flush()


def _kept(session: Session, runs: Sequence[int]) -> dict[tuple[int, str], int]:
    rows = session.execute(_ALARMS, {"run_ids": runs})
    return {(row.run_id, row.metric): row.regression_id for row in rows}
