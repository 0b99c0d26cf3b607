"""The work that a run's row asks for: to be read, once for any number of changes since.

`wanted` counts the changes (an append, a correction, another default). A worker notes it when it begins; if it has
grown by the time it ends, the run waits again. So at most one reading is pending, however many changes there are.
"""

from datetime import datetime, timedelta
from typing import Any, Literal, cast

from sqlalchemy import ColumnElement, CursorResult, and_, case, or_, update
from sqlmodel import Session, col

from app.storage.tables import RunRow, utc_now

Work = Literal["", "waiting", "held"]

REST = 4
"""A run that grows is read again after so many times what its last reading took, so that others have their turn."""


def ask_to_read(session: Session, *conditions: ColumnElement[bool], ring_at: datetime | None = None) -> int:
    """Have the runs that meet all `conditions` read (again), from `ring_at` on if nobody rings before. How many."""
    idle = col(RunRow.work) == ""
    statement = update(RunRow).where(*conditions)
    statement = statement.values(
        wanted=RunRow.wanted + 1,
        work=case((idle, "waiting"), else_=RunRow.work),
        attempts=case((idle, 0), else_=RunRow.attempts),
        lease_until=case((idle, ring_at), else_=RunRow.lease_until),
    )
    done = session.execute(statement.execution_options(synchronize_session=False))
    return cast("CursorResult[Any]", done).rowcount


def rested_at(run: RunRow) -> datetime:
    """When a run that grows may be read again: at once, or later when it is long and was read just now."""
    now = utc_now()
    return now if run.processed_at is None else max(now, run.processed_at + timedelta(seconds=REST * run.read_seconds))


def is_claimable(now: datetime) -> ColumnElement[bool]:
    """Waits, or its worker was given up."""
    return or_(col(RunRow.work) == "waiting", and_(col(RunRow.work) == "held", col(RunRow.lease_until) < now))


def is_due(now: datetime) -> ColumnElement[bool]:
    """Nobody rang for it lately, or its worker was given up."""
    return and_(
        col(RunRow.work) != "",
        or_(col(RunRow.lease_until).is_(None), col(RunRow.lease_until) < now),
    )
