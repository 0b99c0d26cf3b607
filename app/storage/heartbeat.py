"""The time of a worker's last activity. Tasks write it, so that workers that receive no messages are noticed too."""

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
"""Longer than a heartbeat waits for SQLite's write lock."""
_SEEN_AT = select_any(HeartbeatRow.seen_at).where(col(HeartbeatRow.name) == "worker")


def beat(engine: Engine) -> None:
    """Store the current time as a worker's last activity."""
    with transaction(engine) as session:
        session.execute(update(HeartbeatRow).where(col(HeartbeatRow.name) == "worker").values(seen_at=utc_now()))


def last_seen(session: Session) -> datetime:
    """Return when a worker was last active."""
    return aware(session.execute(_SEEN_AT).scalar_one())


def silent_since(session: Session, settings: Settings) -> datetime | None:
    """Return the last activity if it is too old for a worker to be running; else None.

    An idle worker sweeps every `sweep_seconds`. A time in the future was written before the clock was set back.
    """
    now = utc_now()
    patience = timedelta(seconds=_MISSED_SWEEPS * settings.sweep_seconds + _SLACK_SECONDS)
    seen_at = last_seen(session)
    return min(seen_at, now) if abs(now - seen_at) > patience else None
