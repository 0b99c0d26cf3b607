"""A name and a password become a session. What is wrong of the two is told to nobody, and takes as long to find out."""

from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.access import passwords
from app.domain.access.second_factor import step_of_code
from app.domain.text import one_line
from app.settings import Settings
from app.storage import audit, sessions, users
from app.storage.access_tables import UserRow
from app.storage.database import read_session, transaction
from app.storage.run_records import aware
from app.storage.tables import utc_now

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class From:
    """Where an attempt comes from, as far as it can be told."""

    address: str = ""
    agent: str = ""


class FirstPasswordEndedError(Exception):
    """It was the right password, but one that somebody else set too long ago."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What was typed. `code`: of the authenticator app, for an account that has one."""

    name: str
    password: str = field(repr=False)
    code: str = field(repr=False)


def log_in(engine: Engine, settings: Settings, shown: Credentials, came_from: From) -> str | None:
    """Return what the cookie of the new session holds, or None. Either is on record. Raises FirstPasswordEndedError."""
    name, password = shown.name, shown.password
    memory = settings.password_memory_mib
    with read_session(engine) as session:
        row = users.find_user(session, name)
    kept = row.password_hash if row is not None and row.disabled_at is None else ""
    if not passwords.is_right(password, kept, memory) or row is None:
        _refuse(engine, name, row, came_from)
        return None
    # Slow, so it is done before the transaction takes SQLite's write lock.
    fresh = passwords.hashed(password, memory) if passwords.is_outdated(kept, memory) else None
    if row.password_ends_at is not None and aware(row.password_ends_at) <= utc_now():
        _refuse(engine, name, row, came_from)
        raise FirstPasswordEndedError
    if row.totp_secret and not _take_code(engine, row.id or 0, shown.code):
        _refuse(engine, name, row, came_from)
        return None
    with transaction(engine) as session:
        return begin(session, users.get_user(session, row.id or 0), settings.session_idle, came_from, fresh_hash=fresh)


def begin(session: Session, row: UserRow, idle: timedelta, came_from: From, *, fresh_hash: str | None = None) -> str:
    """A session for somebody who proved to be that person, by a password or an identity provider."""
    sessions.forget_expired(session)
    row.last_login_at = utc_now()
    row.password_hash = fresh_hash or row.password_hash
    session.add(row)
    audit.record(
        session, who=row.name, subject="account", subject_id=row.id or 0, action="logged in",
        after={"address": came_from.address},
    )  # fmt: skip
    return sessions.start_session(session, row.id or 0, idle, address=came_from.address, agent=came_from.agent)


def _take_code(engine: Engine, user_id: int, code: str) -> bool:
    """Return whether the code is right; no other log-in takes it again. The row is locked: two may come at once."""
    with transaction(engine) as session:
        row = session.get_one(UserRow, user_id, with_for_update=True)
        step = step_of_code(row.totp_secret, code, utc_now(), after=row.totp_step)
        if step is None:
            return False
        row.totp_step = step
        session.add(row)
    return True


def log_out(engine: Engine, session_id: str, user_id: int, name: str) -> None:
    with transaction(engine) as session:
        sessions.end_session(session, session_id)
        audit.record(session, who=name, subject="account", subject_id=user_id, action="logged out")


def _refuse(engine: Engine, name: str, row: UserRow | None, came_from: From) -> None:
    """The name that was tried is not recorded unless it is an account's: it may be a password in the wrong field."""
    log.warning("login_refused", account=row.id if row else None, address=came_from.address)
    with transaction(engine) as session:
        audit.record(
            session, who=audit.SERVICE, subject="account", subject_id=(row.id or 0) if row else "unknown",
            action="log-in refused", after={"address": came_from.address, "name": row.name if row else ""},
            note="" if row else f"a name of {len(one_line(name))} characters that no account has",
        )  # fmt: skip
