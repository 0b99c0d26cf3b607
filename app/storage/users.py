"""People: kept, found, given a password and a role. Who did it goes to the audit in the same transaction."""

import re
import unicodedata
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.domain.access import passwords
from app.domain.access.principal import Person
from app.domain.access.roles import Role
from app.domain.text import one_line
from app.errors import Conflict, FieldError, InvalidChange, NotFound
from app.settings import get_settings
from app.storage import audit
from app.storage.access_tables import MemberRow, UserRow
from app.storage.run_records import aware
from app.storage.tables import utc_now

MAX_NAME = 100
_RESERVED = re.compile(rf"{audit.SERVICE}|command line|token|token .*|nobody|nobody .*", re.IGNORECASE)
"""Names that the record gives to others than people."""
_LETTERS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._@'+-]*[A-Za-z0-9.])?")
"""Of which no two look alike but by their case. Accounts from before may have others."""


class NameTaken(Conflict):
    title = "This name is taken"


@dataclass(frozen=True, slots=True)
class User:
    """A person as kept. `comes_by`: the identity provider, empty for one with a password here."""

    id: int
    name: str
    email: str
    administrator: bool
    must_change_password: bool
    password_ends_at: datetime | None
    second_factor: bool
    comes_by: str
    created_at: datetime
    last_login_at: datetime | None
    disabled_at: datetime | None


def has_administrator(session: Session) -> bool:
    found = select(UserRow.id).where(col(UserRow.administrator), col(UserRow.disabled_at).is_(None)).limit(1)  # type: ignore[call-overload]
    return session.execute(found).first() is not None


def create_user(
    session: Session,
    name: str,
    *,
    by: str,
    password: str | None = None,
    email: str = "",
    administrator: bool = False,
    must_change_password: bool = False,
    issuer: str = "",
    subject: str = "",
) -> User:
    """Raises InvalidChange for a name or password that will not do, NameTaken. Without a password none opens it."""
    name = checked_name(name)
    if is_taken(session, name):
        raise NameTaken(f"There is an account {name} already. Nothing was changed. Choose another name.")
    row = UserRow(
        name=name,
        email=one_line(email)[:300],
        password_hash="" if password is None else _new_hash(password, name),
        administrator=administrator,
        must_change_password=must_change_password,
        password_ends_at=utc_now() + passwords.FIRST_PASSWORD_LASTS if must_change_password else None,
        issuer=issuer,
        subject=subject,
    )
    session.add(row)
    session.flush()
    audit.record(
        session, who=by, subject="account", subject_id=row.id or 0, action="created",
        after={"name": name, "administrator": administrator},
    )  # fmt: skip
    return to_user(row)


def is_taken(session: Session, name: str) -> bool:
    """Whether somebody has it, in whatever case."""
    alike = select(UserRow.id).where(func.lower(col(UserRow.name)) == name.lower())  # type: ignore[call-overload]
    return session.execute(alike).first() is not None


def find_user(session: Session, name: str) -> UserRow | None:
    return session.execute(select(UserRow).where(col(UserRow.name) == one_line(name))).scalar_one_or_none()


def get_user(session: Session, user_id: int) -> UserRow:
    row = session.get(UserRow, user_id)
    if row is None:
        raise NotFound("There is no such account.")
    return row


def set_password(session: Session, row: UserRow, password: str, *, by: str, must_change: bool = False) -> None:
    """Give an account a password, and take its second factor away: who lost one comes in by this. Raises InvalidChange.

    Ending the sessions is the caller's matter: which one stays, only it knows.
    """
    row.password_hash = _new_hash(password, row.name)
    row.must_change_password = must_change
    row.password_ends_at = utc_now() + passwords.FIRST_PASSWORD_LASTS if must_change else None
    row.totp_secret, row.totp_step = "", 0
    session.add(row)
    audit.record(session, who=by, subject="account", subject_id=row.id or 0, action="password set")


def set_second_factor(session: Session, row: UserRow, secret: str, step: int = 0) -> None:
    """Ask for codes of this secret at each log-in, or, without one, no more. `step`: of the code that proved it."""
    action = "second factor added" if secret else "second factor removed"
    if row.totp_secret == secret:
        return
    row.totp_secret, row.totp_step = secret, step
    session.add(row)
    audit.record(session, who=row.name, subject="account", subject_id=row.id or 0, action=action)


def person(session: Session, user_id: int) -> Person | None:
    """What the account may do now; None when it is disabled or gone."""
    row = session.get(UserRow, user_id)
    if row is None or row.disabled_at is not None:
        return None
    found = Person(
        user_id, row.name, row.administrator, {}, row.must_change_password, bool(row.totp_secret or row.issuer)
    )
    if row.administrator:
        return found
    members = session.execute(
        select(MemberRow.project_id, MemberRow.role).where(col(MemberRow.user_id) == user_id)  # type: ignore[call-overload]
    )
    return replace(found, roles={project: Role(role) for project, role in members})


def set_role(session: Session, *, project_id: int, user_id: int, role: Role | None, by: str) -> None:
    """Make somebody a member, change the role, or (None) end the membership."""
    row = session.get(MemberRow, (project_id, user_id))
    before = row.role if row else None
    if before == (role.value if role else None):
        return
    name = get_user(session, user_id).name
    if role is None:
        session.delete(row)
    else:
        row = row or MemberRow(project_id=project_id, user_id=user_id, role=role.value, added_by=by)
        row.role = role.value
        session.add(row)
    audit.record(
        session, who=by, subject="member", subject_id=user_id, action="role", project_id=project_id,
        before={"name": name, "role": before}, after={"name": name, "role": role.value if role else None},
    )  # fmt: skip


def disable(session: Session, row: UserRow, *, by: str) -> None:
    """May do nothing any more, at once. Stays on record: its name stands beside what it did."""
    row.disabled_at = row.disabled_at or utc_now()
    session.add(row)
    audit.record(session, who=by, subject="account", subject_id=row.id or 0, action="disabled")


def checked_name(text: str) -> str:
    """As it is kept. Raises InvalidChange for one that could pass for another's."""
    name = one_line(unicodedata.normalize("NFKC", text))
    if not 0 < len(name) <= MAX_NAME:
        raise _refused("name", f"must have 1 to {MAX_NAME} characters")
    if not _LETTERS.fullmatch(name):
        raise _refused(
            "name", "must begin with a letter a to z or a digit, and have besides only blanks and . _ - ' + @"
        )
    if _RESERVED.fullmatch(name):
        raise _refused("name", "is what the record calls the service, a token or nobody")
    return name


def plain_name(text: str) -> str:
    """What of a name that is spelled elsewhere may be one here: without marks, and without letters of other scripts."""
    spelled = unicodedata.normalize("NFKD", text)
    kept = "".join(c for c in spelled if re.fullmatch(r"[A-Za-z0-9 ._@'+-]", c))
    name = one_line(kept)[: MAX_NAME - 5].strip(" ._@'+-") or "somebody"
    return f"account {name}" if _RESERVED.fullmatch(name) else name


def _new_hash(password: str, name: str) -> str:
    if wrong := passwords.problem_with(password, name):
        raise _refused("password", wrong)
    return passwords.hashed(password, get_settings().password_memory_mib)


def to_user(row: UserRow) -> User:
    return User(
        row.id or 0, row.name, row.email, row.administrator, row.must_change_password,
        aware(row.password_ends_at) if row.password_ends_at else None, bool(row.totp_secret), row.issuer,
        aware(row.created_at), aware(row.last_login_at) if row.last_login_at else None,
        aware(row.disabled_at) if row.disabled_at else None,
    )  # fmt: skip


def _refused(field: str, message: str) -> InvalidChange:
    return InvalidChange(f"Nothing was changed: the {field} {message}.", (FieldError(field, message),))
