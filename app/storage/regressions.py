"""What every page may ask about regressions: how many are open, and what they cost."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.storage.judging_tables import RegressionRow

NEEDS_SOMEBODY = "open"
"""The state in which nobody has looked at a regression yet."""


@dataclass(frozen=True, slots=True)
class OpenRegressions:
    """`gpu_hours_per_day` adds up the known costs, None when there is none; `without_cost` counts the others."""

    count: int
    gpu_hours_per_day: float | None
    without_cost: int


def open_regressions(session: Session) -> OpenRegressions:
    """For the navigation and the overview: one select over an indexed state."""
    found = session.execute(
        select(
            func.count(),
            func.sum(col(RegressionRow.gpu_hours_per_day)),
            func.count(col(RegressionRow.gpu_hours_per_day)),
        ).where(col(RegressionRow.state) == NEEDS_SOMEBODY)
    ).one()
    return OpenRegressions(found[0], found[1], found[0] - found[2])
