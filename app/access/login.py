"""A name and a password become a session. What is wrong of the two is told to nobody, and takes as long to find out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Self, TypeVar, TypeVarTuple

import structlog
from anyio import CapacityLimiter, to_thread
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.access import passwords
from app.domain.access.passwords import AT_ONCE, step_of_code
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange
from app.settings import Settings
from app.storage import audit, users
from app.storage.database import read_session, transaction
from app.storage.runs import aware
from app.storage.tables import UserRow, utc_now

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
    users.forget_expired(session)
    row.last_login_at = utc_now()
    row.password_hash = fresh_hash or row.password_hash
    session.add(row)
    audit.record(
        session, who=row.name, subject="account", subject_id=row.id or 0, action="logged in",
        after={"address": came_from.address},
    )  # fmt: skip
    return users.start_session(session, row.id or 0, idle, address=came_from.address, agent=came_from.agent)


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
        users.end_session(session, session_id)
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


# --- Passwords are checked in threads of their own: however many log-ins wait, no other request waits for a thread.

T = TypeVar("T")
Args = TypeVarTuple("Args")

_THREADS = CapacityLimiter(AT_ONCE)


async def with_password(function: Callable[[*Args], T], *args: *Args) -> T:
    """What the function makes of these; it looks at a password, which takes a tenth of a second of a processor."""
    return await to_thread.run_sync(function, *args, limiter=_THREADS)


# --- A person chooses a password: the old one proves that it is the person, and all other browsers are logged out.

_INPUTS = ("old", "new", "again")
_MOST_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class PasswordForm:
    """What was typed is not shown again; only what is wrong with it, by input."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, sent: Mapping[str, object]) -> Self:
        return cls({name: str(sent.get(name, ""))[:_MOST_CHARACTERS] for name in _INPUTS})

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: InvalidChange) -> Self:
        return replace(self, errors={wrong.field: wrong.message for wrong in error.errors})


def change_own_password(engine: Engine, settings: Settings, user_id: int, form: PasswordForm, came_from: From) -> str:
    """What the cookie of the one session that stays holds. Raises InvalidChange."""
    old, new = form.values["old"], form.values["new"]
    with read_session(engine) as session:
        row = users.get_user(session, user_id)
    if not passwords.is_right(old, row.password_hash, settings.password_memory_mib):
        raise _refused("old", "is not your password")
    if wrong := passwords.problem_with(new, row.name):
        raise _refused("new", wrong)
    if new == old:
        raise _refused("new", "must be another one than before")
    if new != form.values["again"]:
        raise _refused("again", "is not the same as above")
    fresh = passwords.hashed(new, settings.password_memory_mib)
    with transaction(engine) as session:
        row = users.get_user(session, user_id)
        row.password_hash, row.must_change_password, row.password_ends_at = fresh, False, None
        session.add(row)
        audit.record(session, who=row.name, subject="account", subject_id=user_id, action="password set")
        users.end_sessions_of(session, user_id)
        return users.start_session(
            session, user_id, settings.session_idle, address=came_from.address, agent=came_from.agent
        )


def _refused(name: str, message: str) -> InvalidChange:
    return InvalidChange("The password was not changed.", (FieldError(name, message),))
