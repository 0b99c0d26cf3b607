"""The work that a run's row asks for: to be read, once for any number of changes since.

`wanted` counts the changes (an append, a correction, another default). A worker notes it when it begins; if it has
grown by the time it ends, the run waits again. So at most one reading is pending, however many changes there are.
"""

from datetime import datetime, timedelta
from typing import Any, Literal, cast

from sqlalchemy import ColumnElement, CursorResult, and_, case, or_, update
from sqlmodel import Session, col

from app.settings import Settings
from app.storage.tables import RunRow, utc_now

Work = Literal["", "waiting", "held"]

REST = 4
"""A run that grows is read again after so many times what its last reading took, so that others have their turn."""

SHORT_SECONDS = 1.0
"""A reading that takes less needs no rest."""


def ask_to_read(session: Session, *conditions: ColumnElement[bool], due_at: datetime | None = None) -> int:
    """Have the runs that meet all `conditions` read (again), from `due_at` on, else now. Returns how many."""
    idle = col(RunRow.work) == ""
    statement = update(RunRow).where(*conditions)
    statement = statement.values(
        wanted=RunRow.wanted + 1,
        work=case((idle, "waiting"), else_=RunRow.work),
        attempts=case((idle, 0), else_=RunRow.attempts),
        lease_until=case((idle, due_at or utc_now()), else_=RunRow.lease_until),
    )
    done = session.execute(statement.execution_options(synchronize_session=False))
    return cast("CursorResult[Any]", done).rowcount


def rest(read_seconds: float) -> timedelta:
    """How long a run waits after a reading that took so long, until it is read again."""
    return timedelta(seconds=REST * read_seconds if read_seconds >= SHORT_SECONDS else 0)


def rested_at(run: RunRow) -> datetime:
    """When a run that grows may be read again: at once, or later when it is long and was read just now."""
    now = utc_now()
    return now if run.processed_at is None else max(now, run.processed_at + rest(run.read_seconds))


def is_abandoned(now: datetime, settings: Settings) -> ColumnElement[bool]:
    """Its worker was given up: the lease is over, or was made before the clock was set back."""
    longest = now + timedelta(seconds=2 * settings.lease_seconds)
    return and_(col(RunRow.work) == "held", or_(col(RunRow.lease_until) < now, col(RunRow.lease_until) > longest))


def is_due(now: datetime, settings: Settings) -> ColumnElement[bool]:
    """It waits, and the time has come, or is further away than any rest: the clock was set back."""
    longest = now + timedelta(seconds=2 * (REST + 1) * settings.task_hard_limit_seconds)
    return and_(
        col(RunRow.work) == "waiting",
        or_(col(RunRow.lease_until).is_(None), col(RunRow.lease_until) <= now, col(RunRow.lease_until) > longest),
    )
