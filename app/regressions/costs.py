"""What regressions cost now: of each member with its factors for people, and kept in the rows for lists."""

from datetime import datetime

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.cost import Cost, total_cost
from app.domain.triage import ACTIVE
from app.regressions.read_models import Regression
from app.storage.judging_tables import RegressionMemberRow, RegressionRow
from app.storage.slowdown_cost import member_cost


def costs_of(session: Session, found: Regression, now: datetime) -> dict[int, Cost]:
    """By the run of the member."""
    regression = session.get_one(RegressionRow, found.id)
    return {member.run_id: member_cost(session, regression, member, now) for member in _members(session, found.id)}


def refresh_costs(session: Session, now: datetime) -> int:
    """Of what nobody has closed: a stack that runs no more is judged no more, and its cost ends all the same. How many
    became different.
    """
    standing = select(RegressionRow).where(col(RegressionRow.state).in_((*ACTIVE, "expected")))
    rows = session.execute(standing.order_by(col(RegressionRow.id)).with_for_update(skip_locked=True)).scalars().all()
    return sum(_refresh(session, row, now) for row in rows)


def _refresh(session: Session, regression: RegressionRow, now: datetime) -> bool:
    before = regression.gpu_hours_per_day
    members = _members(session, regression.id or 0)
    for member in members:
        member.gpu_hours_per_day = member_cost(session, regression, member, now).gpu_hours_per_day
    regression.gpu_hours_per_day = total_cost([member.gpu_hours_per_day for member in members])
    return regression.gpu_hours_per_day != before


def _members(session: Session, regression_id: int) -> list[RegressionMemberRow]:
    chosen = select(RegressionMemberRow).where(col(RegressionMemberRow.regression_id) == regression_id)
    return list(session.execute(chosen.order_by(col(RegressionMemberRow.run_id))).scalars())
