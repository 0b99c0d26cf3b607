"""When a worker last did something. Tasks write it, so a worker that runs but takes no messages is noticed, too."""

from datetime import datetime, timedelta

from sqlalchemy import Engine, update
from sqlmodel import Session, col

from app.settings import Settings
from app.storage.database import transaction
from app.storage.runs import aware
from app.storage.tables import HeartbeatRow, select_any, utc_now

BEAT_SECONDS = 5
_MISSED_SWEEPS = 3
_SLACK_SECONDS = 15
"""Longer than a beat waits for SQLite's write lock."""


def beat(engine: Engine) -> None:
    """Note that a worker is at work now."""
    with transaction(engine) as session:
        session.execute(update(HeartbeatRow).where(col(HeartbeatRow.name) == "worker").values(seen_at=utc_now()))


def silent_since(session: Session, settings: Settings) -> datetime | None:
    """Return when a worker last did something, if that is too long ago for one to be running; else None.

    An idle worker sweeps every `sweep_seconds`. A time in the future is one from before the clock was set back.
    """
    now = utc_now()
    patience = timedelta(seconds=_MISSED_SWEEPS * settings.sweep_seconds + _SLACK_SECONDS)
    seen_at = aware(session.execute(select_any(HeartbeatRow.seen_at)).scalar_one())
    return min(seen_at, now) if abs(now - seen_at) > patience else None
