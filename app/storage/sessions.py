"""Browsers that are logged in. A cookie holds a random id, its row is found by the id's SHA-256."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlmodel import Session, col

from app.domain.access.secrets import digest, new_session_id
from app.storage.access_changes import OF_NO_ACCOUNT
from app.storage.access_tables import SessionRow
from app.storage.run_records import aware
from app.storage.tables import utc_now


@dataclass(frozen=True, slots=True)
class KnownSession:
    id: str
    user_id: int
    created_at: datetime
    confirmed_at: datetime
    seen_at: datetime
    expires_at: datetime


def start_session(session: Session, user_id: int, idle: timedelta, *, address: str = "", agent: str = "") -> str:
    """A new session, and what its cookie holds. It ends when it is not used for `idle`."""
    secret, now = new_session_id(), utc_now()
    session.add(
        SessionRow(
            id=digest(secret), user_id=user_id, created_at=now, seen_at=now, expires_at=now + idle,
            address=address[:100], agent=agent[:300],
        )
    )  # fmt: skip
    return secret


def find_session(session: Session, session_id: str) -> KnownSession | None:
    """By the SHA-256 of what the cookie holds; None when it is over."""
    row = session.get(SessionRow, session_id)
    if row is None or aware(row.expires_at) <= utc_now():
        return None
    return KnownSession(
        row.id, row.user_id, aware(row.created_at), aware(row.confirmed_at), aware(row.seen_at), aware(row.expires_at)
    )


def note_seen(session: Session, known: KnownSession, idle: timedelta, longest: timedelta) -> None:
    """Prolong a session that is used, until it is as old as `longest`."""
    now = utc_now()
    session.execute(
        update(SessionRow)
        .where(col(SessionRow.id) == known.id)
        .values(seen_at=now, expires_at=min(now + idle, known.created_at + longest)),
        execution_options={OF_NO_ACCOUNT: True, "synchronize_session": False},
    )


def confirm(session: Session, session_id: str) -> None:
    """Its person has shown the password again."""
    row = session.get_one(SessionRow, session_id)
    row.confirmed_at = utc_now()
    session.add(row)


def end_session(session: Session, session_id: str) -> None:
    session.execute(delete(SessionRow).where(col(SessionRow.id) == session_id))


def end_sessions_of(session: Session, user_id: int, *, but: str = "") -> None:
    """All sessions of a person, but the one with this id."""
    session.execute(delete(SessionRow).where(col(SessionRow.user_id) == user_id, col(SessionRow.id) != but))


def forget_expired(session: Session) -> None:
    expired = delete(SessionRow).where(col(SessionRow.expires_at) <= utc_now())
    session.execute(expired, execution_options={OF_NO_ACCOUNT: True, "synchronize_session": False})


def sessions_of(session: Session, user_id: int) -> list[SessionRow]:
    """Newest use first."""
    chosen = select(SessionRow).where(col(SessionRow.user_id) == user_id, col(SessionRow.expires_at) > utc_now())
    return list(session.execute(chosen.order_by(col(SessionRow.seen_at).desc())).scalars())
