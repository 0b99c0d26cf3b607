"""Log-in: a name with a password, or an identity from the provider, becomes a session. Every attempt is audited."""

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Self, TypeVar, TypeVarTuple

import structlog
from anyio import CapacityLimiter, to_thread
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.domain.access import passwords
from app.domain.access.passwords import AT_ONCE, step_of_code
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange
from app.settings import Settings
from app.storage import audit, users
from app.storage.database import read_session, transaction
from app.storage.tables import UserRow, utc_now

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class From:
    """Where an attempt comes from: the client's address and its user agent."""

    address: str = ""
    agent: str = ""


class FirstPasswordEndedError(Exception):
    """The password is right, but an administrator set it too long ago."""


@dataclass(frozen=True, slots=True)
class LogInCredentials:
    """What a user typed. `code`: from the authenticator app, for users with a second factor."""

    name: str
    password: str = field(repr=False)
    code: str = field(repr=False)


def log_in(engine: Engine, settings: Settings, shown: LogInCredentials, came_from: From) -> str | None:
    """Return the secret of a new session; None when name, password or code is wrong. Raises FirstPasswordEndedError.

    The answer does not say which of them is wrong, and takes equally long for an unknown name.
    """
    name, password = shown.name, shown.password
    memory = settings.password_memory_mib
    with read_session(engine) as session:
        row = users.find_user(session, name)
    stored = row.password_hash if row is not None and row.disabled_at is None else ""
    if not passwords.is_right(password, stored, memory) or row is None:
        _refuse(engine, name, row, came_from)
        return None
    # Hashing is slow, so it comes before the transaction takes SQLite's write lock.
    new_hash = passwords.hashed(password, memory) if passwords.is_outdated(stored, memory) else None
    if row.password_ends_at is not None and row.password_ends_at <= utc_now():
        _refuse(engine, name, row, came_from)
        raise FirstPasswordEndedError
    if row.totp_secret and not _use_code(engine, row.id or 0, shown.code):
        _refuse(engine, name, row, came_from)
        return None
    with transaction(engine) as session:
        return begin(session, users.get_user(session, row.id or 0), settings.session_idle, came_from, new_hash=new_hash)


def begin(session: Session, row: UserRow, idle: timedelta, came_from: From, *, new_hash: str | None = None) -> str:
    """Start a session for an authenticated user; return its secret. `new_hash`: replaces an outdated one."""
    users.delete_expired_sessions(session)
    row.last_login_at = utc_now()
    row.password_hash = new_hash or row.password_hash
    session.add(row)
    audit.record(
        session, who=row.name, subject="account", subject_id=row.id or 0, action="logged in",
        after={"address": came_from.address},
    )  # fmt: skip
    return users.start_session(session, row.id or 0, idle, address=came_from.address, agent=came_from.agent)


def _use_code(engine: Engine, user_id: int, code: str) -> bool:
    """Return whether the code is right, and let no other log-in use it. The row is locked against a second attempt."""
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
    """Record a refused log-in. Unknown names are not recorded: they may be passwords typed into the wrong field."""
    log.warning("login_refused", account=row.id if row else None, address=came_from.address)
    with transaction(engine) as session:
        audit.record(
            session, who=audit.SERVICE, subject="account", subject_id=(row.id or 0) if row else "unknown",
            action="log-in refused", after={"address": came_from.address, "name": row.name if row else ""},
            note="" if row else f"unknown name of {len(one_line(name))} characters",
        )  # fmt: skip


# --- Passwords are checked in their own threads, so that waiting log-ins do not block other requests.

T = TypeVar("T")
Args = TypeVarTuple("Args")

_THREADS = CapacityLimiter(AT_ONCE)


async def with_password(function: Callable[[*Args], T], *args: *Args) -> T:
    """Call a function that checks a password, which takes a tenth of a second of processor time."""
    return await to_thread.run_sync(function, *args, limiter=_THREADS)


# --- A user changes their password. The old one is needed, and all other browsers are logged out.

_INPUTS = ("old", "new", "again")
_MOST_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class PasswordForm:
    """`values` are not shown again. `errors`: messages by input."""

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
    """Change the password and return the secret of a new session. All other sessions end. Raises InvalidChange."""
    old, new = form.values["old"], form.values["new"]
    with read_session(engine) as session:
        row = users.get_user(session, user_id)
    if not passwords.is_right(old, row.password_hash, settings.password_memory_mib):
        raise _invalid_password("old", "is not your password")
    if problem := passwords.problem_with(new, row.name):
        raise _invalid_password("new", problem)
    if new == old:
        raise _invalid_password("new", "must differ from the current one")
    if new != form.values["again"]:
        raise _invalid_password("again", "does not match the new password")
    new_hash = passwords.hashed(new, settings.password_memory_mib)
    with transaction(engine) as session:
        row = users.get_user(session, user_id)
        row.password_hash, row.must_change_password, row.password_ends_at = new_hash, False, None
        session.add(row)
        audit.record(session, who=row.name, subject="account", subject_id=user_id, action="password set")
        users.end_sessions_of(session, user_id)
        return users.start_session(
            session, user_id, settings.session_idle, address=came_from.address, agent=came_from.agent
        )


def _invalid_password(name: str, message: str) -> InvalidChange:
    return InvalidChange("The password was not changed.", (FieldError(name, message),))


# --- Users of the identity provider. The first log-in creates the user, without a role in any project.

_MAX_SAME_NAMES = 1_000


class WrongIdentityError(Exception):
    """The provider's answer does not prove who the user is. The text is for the log."""


@dataclass(frozen=True, slots=True)
class Identity:
    """`issuer` and `subject` together identify a user permanently; names and addresses may change and be reused.

    `groups`: at the provider; None if the service does not read them.
    """

    issuer: str
    subject: str
    name: str
    email: str
    groups: frozenset[str] | None = None

    def is_of(self, domains: Collection[str]) -> bool:
        """Return whether the e-mail address has one of these domains; True without domains."""
        return not domains or self.email.rpartition("@")[2].lower() in domains


def user_of_identity(session: Session, identity: Identity) -> UserRow:
    """Return the user with this issuer and subject, created if new; never a user with the same name or e-mail."""
    if (row := _find_identity(session, identity)) is not None:
        return row
    try:
        with session.begin_nested():
            user = users.create_user(
                session, _free_name(session, identity), by=audit.SERVICE, email=identity.email,
                issuer=identity.issuer, subject=identity.subject,
            )  # fmt: skip
    except IntegrityError:  # the same user logged in from another tab at the same moment
        row = _find_identity(session, identity)
        if row is None:
            raise
        return row
    return users.get_user(session, user.id)


def _find_identity(session: Session, identity: Identity) -> UserRow | None:
    query = select(UserRow).where(col(UserRow.issuer) == identity.issuer, col(UserRow.subject) == identity.subject)
    row: UserRow | None = session.execute(query.order_by(col(UserRow.id)).limit(1)).scalar_one_or_none()
    return row


def _free_name(session: Session, identity: Identity) -> str:
    """Return the provider's name for the user, as far as it is valid here, numbered if it is taken."""
    name = users.plain_name(identity.name)[: users.MAX_NAME - 15]
    for number in range(1, _MAX_SAME_NAMES):
        candidate = name if number == 1 else f"{name} {number}"
        if not users.is_taken(session, candidate):
            return candidate
    return f"{name[:50]} {secrets.token_hex(8)}"
