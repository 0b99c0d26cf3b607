"""Current costs of regressions: per member with their factors for pages, and stored in the rows for lists."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import exists, or_, select
from sqlmodel import Session, col

from app.domain.performance.cost import Cost, total_cost
from app.domain.verdict.triage import ACTIVE, NOT_CLOSED
from app.storage import audit
from app.storage.tables import RegressionMemberRow, RegressionRow, RunRow, utc_now
from app.storage.verdicts import IS_CLAIM, Costs


def costs_of(session: Session, regression_id: int, now: datetime) -> dict[int, Cost]:
    """Return the cost of each member, by its run."""
    regression = session.get_one(RegressionRow, regression_id)
    costs = Costs(session, now)
    return {member.run_id: costs.of_member(regression, member) for member in _members(session, regression_id)}


def refresh_costs(session: Session, now: datetime) -> int:
    """Recompute the costs of regressions that are not closed or not confirmed as fixed.

    A stack that no longer runs is no longer judged, so its cost would stay.

    Return how many changed.
    """
    claimed = exists().where(col(RegressionMemberRow.regression_id) == col(RegressionRow.id), IS_CLAIM)
    active = select(RegressionRow).where(or_(col(RegressionRow.state).in_(NOT_CLOSED), claimed))
    rows = session.execute(active.order_by(col(RegressionRow.id)).with_for_update(skip_locked=True)).scalars().all()
    costs = Costs(session, now)
    return sum(_refresh(session, row, costs) for row in rows)


SILENT_DAYS = 30
_ENDED = f"None of its stacks ran in the last {SILENT_DAYS} days."


def _propose_ended(
    session: Session, regression: RegressionRow, members: Sequence[RegressionMemberRow], now: datetime
) -> None:
    """Propose a regression as fixed when all its stacks have ended without a successor; once, as users may decline."""
    if regression.proposal or regression.state not in ACTIVE or not members:
        return
    since = now - timedelta(days=SILENT_DAYS)
    recent = select(col(RunRow.id)).where(
        col(RunRow.project_id) == regression.project_id,
        col(RunRow.stack_key).in_({member.stack_key for member in members}),
        col(RunRow.ordered_at) >= since,
    )
    if session.execute(recent.limit(1)).first() is not None:
        return
    if any(event.note == _ENDED for event in audit.events(session, "regression", regression.id or 0)):
        return
    regression.proposal, regression.changed_at = "fixed", utc_now()
    audit.record(
        session, who=audit.SERVICE, subject="regression", subject_id=regression.id or 0, action="proposal_made",
        project_id=regression.project_id, before={"proposal": ""}, after={"proposal": "fixed"}, note=_ENDED,
    )  # fmt: skip


def _refresh(session: Session, regression: RegressionRow, costs: Costs) -> bool:
    before = regression.gpu_hours_per_day
    members = _members(session, regression.id or 0)
    _propose_ended(session, regression, members, costs.clock_of(regression.project_id))
    for member in members:
        member.gpu_hours_per_day = costs.of_member(regression, member).gpu_hours_per_day
    regression.gpu_hours_per_day = total_cost([member.gpu_hours_per_day for member in members])
    return regression.gpu_hours_per_day != before


def _members(session: Session, regression_id: int) -> list[RegressionMemberRow]:
    chosen = select(RegressionMemberRow).where(col(RegressionMemberRow.regression_id) == regression_id)
    return list(session.execute(chosen.order_by(col(RegressionMemberRow.run_id))).scalars())
