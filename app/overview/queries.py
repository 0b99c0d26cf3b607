"""What the first page shows: what is being processed, what failed and why, what came in last."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlmodel import Session, col

from app.storage.run_list import RunListItem, count_runs, latest_runs
from app.storage.run_records import ENDED_BADLY
from app.storage.tables import RunRow

NEWEST = 12
FAILED = 6
DAYS = 7

_OUTCOME = col(RunRow.health)["outcome"].as_string()
_ENDED_BADLY: ColumnElement[bool] = _OUTCOME.in_(ENDED_BADLY)
_WITHOUT_FIGURE: ColumnElement[bool] = col(RunRow.status) == "failed"


@dataclass(frozen=True, slots=True)
class Overview:
    """`by_status` and `by_outcome` (those that ended badly) count all runs, as the list filters them.

    `recent` counts the runs of the last `days` days: those that ended badly, and the others that gave no figure.
    """

    by_status: Mapping[str, int]
    by_outcome: Mapping[str, int]
    recent: int
    recent_ended_badly: int
    recent_without_figure: int
    days: int
    newest: tuple[RunListItem, ...]
    failed: tuple[RunListItem, ...]

    @property
    def total(self) -> int:
        return sum(self.by_status.values())

    @property
    def waiting(self) -> int:
        return self.by_status.get("received", 0) + self.by_status.get("processing", 0)


def overview(session: Session, now: datetime) -> Overview:
    """The state of the house at `now` (aware)."""
    since = col(RunRow.created_at) >= now - timedelta(days=DAYS)
    return Overview(
        by_status=Counter(dict(_statuses(session))),
        recent=count_runs(session, since),
        by_outcome={name: count_runs(session, _OUTCOME.in_((name,))) for name in ENDED_BADLY},
        recent_ended_badly=count_runs(session, since, _ENDED_BADLY),
        recent_without_figure=count_runs(
            session, since, _WITHOUT_FIGURE, func.coalesce(_OUTCOME, "").not_in(ENDED_BADLY)
        ),
        days=DAYS,
        newest=latest_runs(session, NEWEST),
        failed=latest_runs(session, FAILED, or_(_WITHOUT_FIGURE, _ENDED_BADLY)),
    )


def _statuses(session: Session) -> list[tuple[str, int]]:
    grouped: Any = select(col(RunRow.status), func.count()).group_by(col(RunRow.status))
    return [(status, count) for status, count in session.execute(grouped)]
