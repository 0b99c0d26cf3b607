"""What the first page shows: what is being processed, what failed and why, what came in last."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlmodel import Session, col

from app.storage.run_records import ENDED_BADLY, RunListItem, count_runs, latest_runs
from app.storage.tables import RunRow

NEWEST = 12
FAILED = 6
DAYS = 7

_OUTCOME = col(RunRow.health)["outcome"].as_string()
_ENDED_BADLY: ColumnElement[bool] = or_(col(RunRow.status) == "failed", _OUTCOME.in_(ENDED_BADLY))


@dataclass(frozen=True, slots=True)
class Overview:
    """`by_status` counts all runs; `recent` and `recent_failed` those of the last `days` days."""

    by_status: Mapping[str, int]
    recent: int
    recent_failed: int
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
        recent_failed=count_runs(session, since, _ENDED_BADLY),
        days=DAYS,
        newest=latest_runs(session, NEWEST),
        failed=latest_runs(session, FAILED, _ENDED_BADLY),
    )


def _statuses(session: Session) -> list[tuple[str, int]]:
    grouped: Any = select(col(RunRow.status), func.count()).group_by(col(RunRow.status))
    return [(status, count) for status, count in session.execute(grouped)]
