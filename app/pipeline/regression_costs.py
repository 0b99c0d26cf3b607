"""Current costs of regressions: per member with their factors for pages, and stored in the rows for lists."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import exists, or_, select
from sqlmodel import Session, col

from app.domain.performance.cost import Cost, stored_cost, total_cost
from app.domain.verdict.triage import ACTIVE, NOT_CLOSED, Proposal
from app.storage import audit
from app.storage.tables import RegressionMemberRow, RegressionRow, RunRow, utc_now
from app.storage.verdicts import IS_CLAIM, Costs


def costs_of(session: Session, regression_id: int, now: datetime) -> dict[int, Cost]:
    """Return the stored cost of each member with its factors, by its run."""
    regression = session.get_one(RegressionRow, regression_id)
    costs = Costs(session, now)
    return {
        member.run_id: stored_cost(costs.of_member(regression, member), member.gpu_hours_per_day)
        for member in _members(session, regression_id)
    }


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
_SILENT = f"None of its stacks ran in the last {SILENT_DAYS} days."


def _propose_stale(
    session: Session, regression: RegressionRow, members: Sequence[RegressionMemberRow], now: datetime
) -> None:
    """Propose to close a regression as stale while none of its stacks runs, unless a user declined this.

    No run shows that it is over. So a regression is proposed as fixed only if the runs of all members are back.
    """
    if not members or (regression.proposal == "fixed" and all(member.proposal == "fixed" for member in members)):
        return
    recent = select(col(RunRow.id)).where(
        col(RunRow.project_id) == regression.project_id,
        col(RunRow.stack_key).in_({member.stack_key for member in members}),
        col(RunRow.ordered_at) >= now - timedelta(days=SILENT_DAYS),
    )
    if session.execute(recent.limit(1)).first() is not None:
        if regression.proposal == "stale":
            _set_proposal(session, regression, "", "Its stacks run again.")
    elif regression.state in ACTIVE and regression.proposal != "stale":
        events = audit.events(session, "regression", regression.id or 0)
        newest = next((event for event in events if "proposal" in {**event.before, **event.after}), None)
        if newest is None or newest.action != "proposal_declined" or newest.before.get("proposal") != "stale":
            _set_proposal(session, regression, "stale", _SILENT)


def _set_proposal(session: Session, regression: RegressionRow, proposal: Proposal, note: str) -> None:
    before = {"proposal": regression.proposal}
    regression.proposal, regression.changed_at = proposal, utc_now()
    audit.record(
        session, who=audit.SERVICE, subject="regression", subject_id=regression.id or 0,
        action="proposal_made" if proposal else "proposal_withdrawn", project_id=regression.project_id, before=before,
        after={"proposal": proposal}, note=note,
    )  # fmt: skip


def _refresh(session: Session, regression: RegressionRow, costs: Costs) -> bool:
    before = regression.gpu_hours_per_day
    members = _members(session, regression.id or 0)
    _propose_stale(session, regression, members, costs.clock_of(regression.project_id))
    for member in members:
        member.gpu_hours_per_day = costs.of_member(regression, member).gpu_hours_per_day
    regression.gpu_hours_per_day = total_cost([member.gpu_hours_per_day for member in members])
    return regression.gpu_hours_per_day != before


def _members(session: Session, regression_id: int) -> list[RegressionMemberRow]:
    chosen = select(RegressionMemberRow).where(col(RegressionMemberRow.regression_id) == regression_id)
    return list(session.execute(chosen.order_by(col(RegressionMemberRow.run_id))).scalars())
