"""Users, their passwords, sessions and roles, and groups. Each change is audited in the same transaction."""

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, union_all, update
from sqlmodel import Session, col

from app.domain.access import passwords
from app.domain.access.principal import LoggedInUser, Role
from app.domain.access.secrets import digest, new_session_id
from app.domain.text import one_line
from app.errors import Conflict, InvalidChange, NotFound
from app.settings import get_settings
from app.storage import audit
from app.storage.tables import (
    GroupMemberRow,
    GroupRoleRow,
    GroupRow,
    MemberRow,
    ProjectRow,
    SessionRow,
    UserRow,
    from_row,
    select_any,
    utc_now,
)
from app.storage.visible import CHANGES_NO_RIGHTS

MAX_NAME = 100
_ORDER = list(Role)
_RESERVED = re.compile(rf"{audit.SERVICE}|command line|token|token .*|nobody|nobody .*", re.IGNORECASE)
"""Names that the audit log uses for actors other than users."""
_LETTERS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._@'+-]*[A-Za-z0-9.])?")
"""Allowed names: no two look alike. Users from before this check may have others."""


class NameTaken(Conflict):
    title = "The name is taken"


@dataclass(frozen=True, slots=True)
class User:
    """A stored user. `comes_by`: the identity provider; empty for a user with a password."""

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
    administrators = (
        select_any(UserRow.id).where(col(UserRow.administrator), col(UserRow.disabled_at).is_(None)).limit(1)
    )
    return session.execute(administrators).first() is not None


def create_user(
    session: Session,
    name: str,
    *,
    by: str,
    password: str | None = None,
    password_hash: str = "",
    email: str = "",
    administrator: bool = False,
    must_change_password: bool = False,
    issuer: str = "",
    subject: str = "",
) -> User:
    """Create a user.

    Without `password` or `password_hash` the user cannot log in with a password. Raises InvalidChange for an invalid
    name or password, and NameTaken.
    """
    name = checked_name(name)
    if is_taken(session, name):
        raise NameTaken(f"User {name} already exists. Nothing was changed. Choose another name.")
    row = UserRow(
        name=name,
        email=one_line(email)[:300],
        password_hash=password_hash if password is None else _new_hash(password, name),
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
    """Return whether the name is taken, ignoring case."""
    alike = select_any(UserRow.id).where(func.lower(col(UserRow.name)) == name.lower())
    return session.execute(alike).first() is not None


def find_user(session: Session, name: str) -> UserRow | None:
    return session.execute(select(UserRow).where(col(UserRow.name) == one_line(name))).scalar_one_or_none()


def get_user(session: Session, user_id: int) -> UserRow:
    row = session.get(UserRow, user_id)
    if row is None:
        raise NotFound("This user does not exist.")
    return row


def set_password(session: Session, row: UserRow, password: str, *, by: str, must_change: bool = False) -> None:
    """Set the password of a user, and remove the second factor in case the user lost it. Raises InvalidChange.

    The caller ends the user's sessions, because only the caller knows which session to keep.
    """
    row.password_hash = _new_hash(password, row.name)
    row.must_change_password = must_change
    row.password_ends_at = utc_now() + passwords.FIRST_PASSWORD_LASTS if must_change else None
    row.totp_secret, row.totp_step = "", 0
    session.add(row)
    audit.record(session, who=by, subject="account", subject_id=row.id or 0, action="password set")


def set_second_factor(session: Session, row: UserRow, secret: str, step: int = 0) -> None:
    """Require codes of this secret at each log-in; none if empty. `step`: time step of the code that confirmed it."""
    action = "second factor added" if secret else "second factor removed"
    if row.totp_secret == secret:
        return
    row.totp_secret, row.totp_step = secret, step
    session.add(row)
    audit.record(session, who=row.name, subject="account", subject_id=row.id or 0, action=action)


def logged_in_user(session: Session, user_id: int) -> LoggedInUser | None:
    """Return the user with their own roles and those of their groups; None if disabled or deleted."""
    row = session.get(UserRow, user_id)
    if row is None or row.disabled_at is not None:
        return None
    user = LoggedInUser(
        user_id, row.name, row.administrator, {}, row.must_change_password, bool(row.totp_secret or row.issuer)
    )
    if row.administrator:
        return user
    own = select_any(MemberRow.project_id, MemberRow.role).where(col(MemberRow.user_id) == user_id)
    by_group = (
        select_any(GroupRoleRow.project_id, GroupRoleRow.role)
        .join(GroupMemberRow, col(GroupMemberRow.group_id) == GroupRoleRow.group_id)
        .where(col(GroupMemberRow.user_id) == user_id)
    )
    roles: dict[int, Role] = {}
    for project, role in session.execute(union_all(own, by_group)):
        roles[project] = max(Role(role), roles.get(project, Role.VIEWER), key=_ORDER.index)
    return replace(user, roles=roles)


def set_role(session: Session, *, project_id: int, user_id: int, role: Role | None, by: str) -> bool:
    """Set the role of a user in a project; None removes the user. Return whether the role changed."""
    row = session.get(MemberRow, (project_id, user_id))
    before = row.role if row else None
    if before == (role.value if role else None):
        return False
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
    return True


def checked_name(text: str) -> str:
    """Return the name as stored. Raises InvalidChange for an invalid name and for one that the audit log reserves."""
    name = one_line(unicodedata.normalize("NFKC", text))
    if not 0 < len(name) <= MAX_NAME:
        raise InvalidChange.of_field("name", f"must have 1 to {MAX_NAME} characters")
    if not _LETTERS.fullmatch(name):
        raise InvalidChange.of_field(
            "name", "must start with a letter (a to z) or a digit, and may also contain spaces and . _ - ' + @"
        )
    if _RESERVED.fullmatch(name):
        raise InvalidChange.of_field("name", "is reserved by the audit log")
    return name


def plain_name(text: str) -> str:
    """Return a name from an identity provider without accents and without letters of other scripts."""
    spelled = unicodedata.normalize("NFKD", text)
    allowed = "".join(c for c in spelled if re.fullmatch(r"[A-Za-z0-9 ._@'+-]", c))
    name = one_line(allowed)[: MAX_NAME - 5].strip(" ._@'+-") or "user"
    return f"user {name}" if _RESERVED.fullmatch(name) else name


def _new_hash(password: str, name: str) -> str:
    if wrong := passwords.problem_with(password, name):
        raise InvalidChange.of_field("password", wrong)
    return passwords.hashed(password, get_settings().password_memory_mib)


def to_user(row: UserRow) -> User:
    return from_row(User, row, second_factor=bool(row.totp_secret), comes_by=row.issuer)


# --- The members of a project.


@dataclass(frozen=True, slots=True)
class ProjectMember:
    """A member of a project. `disabled`: cannot log in. `administrator`: has full access regardless of the role."""

    user_id: int
    name: str
    role: Role
    added_by: str
    added_at: datetime
    disabled: bool
    administrator: bool


def members_of(session: Session, project_id: int) -> list[ProjectMember]:
    """Return the members of a project by role, most privileged first, then by name."""
    rows = session.execute(
        select(MemberRow, UserRow)
        .join(UserRow, col(UserRow.id) == MemberRow.user_id)
        .where(col(MemberRow.project_id) == project_id)
    ).all()
    members = [
        ProjectMember(
            user.id or 0, user.name, Role(member.role), member.added_by, member.added_at,
            user.disabled_at is not None, user.administrator,
        )
        for member, user in rows
    ]  # fmt: skip
    return sorted(members, key=lambda member: (-_ORDER.index(member.role), member.name.lower()))


def maintainers(session: Session, project_id: int) -> list[str]:
    """Return the names of the enabled maintainers of a project, including those with the role by a group."""
    members = members_of(session, project_id)
    own = [member.name for member in members if member.role is Role.MAINTAINER and not member.disabled]
    by_group = (
        select_any(UserRow.name)
        .join(GroupMemberRow, col(GroupMemberRow.user_id) == UserRow.id)
        .join(GroupRoleRow, col(GroupRoleRow.group_id) == GroupMemberRow.group_id)
        .where(
            col(GroupRoleRow.project_id) == project_id,
            col(GroupRoleRow.role) == Role.MAINTAINER.value,
            col(UserRow.disabled_at).is_(None),
        )
        .order_by(col(UserRow.name))
    )
    return list(dict.fromkeys([*own, *session.execute(by_group).scalars()]))


def roles_by_user(session: Session) -> dict[int, list[tuple[str, Role]]]:
    """Return the projects and roles of each user, in alphabetical order."""
    roles: dict[int, list[tuple[str, Role]]] = {}
    rows = session.execute(
        select_any(MemberRow.user_id, ProjectRow.slug, MemberRow.role)
        .join(ProjectRow, col(ProjectRow.id) == MemberRow.project_id)
        .order_by(col(ProjectRow.slug))
    )
    for user_id, slug, role in rows:
        roles.setdefault(user_id, []).append((slug, Role(role)))
    return roles


# --- Log-in sessions. A cookie contains a random id; the session's row is looked up by the SHA-256 of this id.


@dataclass(frozen=True, slots=True)
class ActiveSession:
    id: str
    user_id: int
    created_at: datetime
    confirmed_at: datetime
    seen_at: datetime
    expires_at: datetime


def start_session(session: Session, user_id: int, idle: timedelta, *, address: str = "", agent: str = "") -> str:
    """Start a session that expires after `idle` without use. Return the content of its cookie."""
    secret, now = new_session_id(), utc_now()
    session.add(
        SessionRow(
            id=digest(secret), user_id=user_id, created_at=now, seen_at=now, expires_at=now + idle,
            address=address[:100], agent=agent[:300],
        )
    )  # fmt: skip
    return secret


def find_session(session: Session, session_id: str) -> ActiveSession | None:
    """Return the session by the SHA-256 of its cookie; None if it has ended."""
    row = session.get(SessionRow, session_id)
    if row is None or row.expires_at <= utc_now():
        return None
    return from_row(ActiveSession, row)


def extend_session(session: Session, seen: ActiveSession, idle: timedelta, longest: timedelta) -> None:
    """Extend an active session by `idle`, up to a total age of `longest`."""
    now = utc_now()
    session.execute(
        update(SessionRow)
        .where(col(SessionRow.id) == seen.id)
        .values(seen_at=now, expires_at=min(now + idle, seen.created_at + longest)),
        execution_options={CHANGES_NO_RIGHTS: True, "synchronize_session": False},
    )


def confirm(session: Session, session_id: str) -> None:
    """Record that the user has just confirmed the password."""
    row = session.get_one(SessionRow, session_id)
    row.confirmed_at = utc_now()
    session.add(row)


def end_session(session: Session, session_id: str) -> None:
    session.execute(delete(SessionRow).where(col(SessionRow.id) == session_id))


def end_sessions_of(session: Session, user_id: int, *, but: str = "") -> None:
    """End all sessions of a user except the session with id `but`."""
    session.execute(delete(SessionRow).where(col(SessionRow.user_id) == user_id, col(SessionRow.id) != but))


def delete_expired_sessions(session: Session) -> None:
    expired = delete(SessionRow).where(col(SessionRow.expires_at) <= utc_now())
    session.execute(expired, execution_options={CHANGES_NO_RIGHTS: True, "synchronize_session": False})


def sessions_of(session: Session, user_id: int) -> list[SessionRow]:
    """Return the sessions of a user, most recently used first."""
    chosen = select(SessionRow).where(col(SessionRow.user_id) == user_id, col(SessionRow.expires_at) > utc_now())
    return list(session.execute(chosen.order_by(col(SessionRow.seen_at).desc())).scalars())


# --- All users. At least one enabled administrator must remain.


class LastAdministrator(Conflict):
    title = "This is the last administrator"


def list_users(session: Session) -> list[User]:
    """Return all users in alphabetical order, enabled ones first."""
    rows = session.execute(
        select(UserRow).order_by(col(UserRow.disabled_at).is_not(None), func.lower(UserRow.name))
    ).scalars()
    return [to_user(row) for row in rows]


def names_by_id(session: Session) -> Mapping[str, str]:
    """Return the names of all users by their number as text, which the audit log stores."""
    return {str(user.id): user.name for user in list_users(session)}


def administrators(session: Session) -> list[str]:
    """Return the names of enabled administrators in alphabetical order."""
    return [user.name for user in list_users(session) if user.administrator and user.disabled_at is None]


def set_rights(
    session: Session, row: UserRow, *, administrator: bool | None = None, disabled: bool | None, by: str
) -> None:
    """Grant or revoke administrator rights, and enable or disable a user; None changes nothing.

    Disabling ends the user's sessions. The audit log keeps the name. Raises LastAdministrator.
    """
    remaining = _administrators_locked(session)
    wanted = row.administrator if administrator is None else administrator
    away = row.disabled_at is not None if disabled is None else disabled
    if remaining == {row.id} and (away or not wanted):
        raise LastAdministrator(
            f"{row.name} is the last administrator, and the service needs one. Nothing was changed. Make "
            "another user an administrator first."
        )
    if wanted != row.administrator:
        before = {"administrator": row.administrator}
        _record(session, row, "administrator", by=by, before=before, after={"administrator": wanted})
        row.administrator = wanted
    if away != (row.disabled_at is not None):
        before, after = {"disabled": not away}, {"disabled": away}
        _record(session, row, "disabled" if away else "enabled", by=by, before=before, after=after)
        row.disabled_at = utc_now() if away else None
        end_sessions_of(session, row.id or 0)
    session.add(row)
    session.flush()


def _administrators_locked(session: Session) -> set[int | None]:
    """Return the ids of enabled administrators. Locks their rows, so that concurrent changes cannot remove all."""
    chosen = select(UserRow).where(col(UserRow.administrator), col(UserRow.disabled_at).is_(None))
    return {row.id for row in session.execute(chosen.with_for_update()).scalars()}


def _record(
    session: Session,
    row: UserRow,
    action: str,
    *,
    by: str,
    before: Mapping[str, bool],
    after: Mapping[str, bool],
) -> None:
    audit.record(
        session, who=by, subject="account", subject_id=row.id or 0, action=action,
        before={"name": row.name, **before}, after={"name": row.name, **after},
    )  # fmt: skip


# --- Groups of users. Administrators or the identity provider (at log-in) add members; projects give groups roles.

MAX_GROUP_NAME = 300
MAX_GROUPS = 1_000
"""Maximum groups of the service. Each log-in compares all of them with the provider's groups."""


class GroupExists(Conflict):
    title = "The group exists"


@dataclass(frozen=True, slots=True)
class GroupMember:
    user_id: int
    name: str
    by_provider: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A group with its members by name and its roles by project."""

    id: int
    name: str
    created_by: str
    members: tuple[GroupMember, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupRole:
    """A group with a role in one project. `members`: the names of its enabled users."""

    group_id: int
    name: str
    role: Role
    added_by: str
    members: tuple[str, ...]


def create_group(session: Session, name: str, *, by: str) -> Group:
    """Create a group without members and roles. Raises InvalidChange, GroupExists."""
    name = one_line(name)
    if not 0 < len(name) <= MAX_GROUP_NAME:
        raise InvalidChange.of_field("name", f"must have 1 to {MAX_NAME} characters")
    if find_group(session, name) is not None:
        raise GroupExists(f"The group {name} exists already. Nothing was changed. Choose another name.")
    if session.execute(select_any(func.count()).select_from(GroupRow)).scalar_one() >= MAX_GROUPS:
        raise InvalidChange.of_field("name", f"exceeds the limit of {MAX_GROUPS} groups; delete one first")
    row = GroupRow(name=name, created_by=by)
    session.add(row)
    session.flush()
    audit.record(session, who=by, subject="group", subject_id=row.id or 0, action="created", after={"name": name})
    return Group(row.id or 0, name, by)


def find_group(session: Session, name: str) -> GroupRow | None:
    return session.execute(select(GroupRow).where(col(GroupRow.name) == one_line(name))).scalar_one_or_none()


def get_group(session: Session, group_id: int) -> GroupRow:
    row = session.get(GroupRow, group_id)
    if row is None:
        raise NotFound("This group does not exist.")
    return row


def delete_group(session: Session, group_id: int, *, by: str) -> None:
    """Delete a group with its roles. Raises NotFound."""
    row = get_group(session, group_id)
    session.delete(row)
    audit.record(session, who=by, subject="group", subject_id=group_id, action="deleted", before={"name": row.name})


def add_to_group(session: Session, group_id: int, name: str, *, by: str) -> None:
    """Add the user with this name to a group. Raises InvalidChange, NotFound."""
    row, user = get_group(session, group_id), find_user(session, name)
    if user is None or user.disabled_at is not None:
        raise InvalidChange.of_field("name", f"must belong to an active user; {one_line(name)[:MAX_NAME]} does not")
    member = session.get(GroupMemberRow, (group_id, user.id))
    if member is not None and not member.by_provider:
        return
    _note(session, row, user, "member added", by=by)
    if member is not None:
        member.by_provider, member.added_by = False, by
        session.add(member)
    else:
        session.add(GroupMemberRow(group_id=group_id, user_id=user.id or 0, added_by=by))


def remove_from_group(session: Session, group_id: int, user_id: int, *, by: str) -> None:
    """Remove a user from a group. Raises NotFound."""
    row, member = get_group(session, group_id), session.get(GroupMemberRow, (group_id, user_id))
    if member is None:
        raise NotFound(f"This user is not in the group {row.name}. Nothing was changed.")
    session.delete(member)
    _note(session, row, get_user(session, user_id), "member removed", by=by)


def follow_provider(session: Session, user: UserRow, names: Collection[str]) -> None:
    """Make the user a member of the groups with these names; remove memberships that the provider added before."""
    rows = {row.id: row for row in session.execute(select(GroupRow)).scalars()}
    present = {
        member.group_id: member
        for member in session.execute(select(GroupMemberRow).where(col(GroupMemberRow.user_id) == user.id)).scalars()
    }
    for group_id, row in rows.items():
        member = present.get(group_id or 0)
        if row.name in names and member is None:
            session.add(
                GroupMemberRow(group_id=group_id or 0, user_id=user.id or 0, by_provider=True, added_by=audit.SERVICE)
            )
            _note(session, row, user, "member added", by=audit.SERVICE)
        elif row.name not in names and member is not None and member.by_provider:
            session.delete(member)
            _note(session, row, user, "member removed", by=audit.SERVICE)


def _note(session: Session, row: GroupRow, user: UserRow, action: str, *, by: str) -> None:
    audit.record(
        session, who=by, subject="group", subject_id=row.id or 0, action=action,
        after={"name": row.name, "user": user.name},
    )  # fmt: skip


def set_group_role(session: Session, *, project_id: int, group_id: int, role: Role | None, by: str) -> None:
    """Set the role of a group in a project; None removes it. Raises NotFound."""
    group, row = get_group(session, group_id), session.get(GroupRoleRow, (project_id, group_id))
    before = row.role if row else None
    if before == (role.value if role else None):
        return
    if role is None:
        session.delete(row)
    else:
        row = row or GroupRoleRow(project_id=project_id, group_id=group_id, role=role.value, added_by=by)
        row.role = role.value
        session.add(row)
    audit.record(
        session, who=by, subject="group", subject_id=group_id, action="role", project_id=project_id,
        before={"name": group.name, "role": before}, after={"name": group.name, "role": role.value if role else None},
    )  # fmt: skip


def list_groups(session: Session) -> list[Group]:
    """Return all groups in alphabetical order."""
    members: dict[int, list[GroupMember]] = {}
    for member, name in session.execute(
        select_any(GroupMemberRow, UserRow.name)
        .join(UserRow, col(UserRow.id) == GroupMemberRow.user_id)
        .order_by(func.lower(UserRow.name))
    ):
        members.setdefault(member.group_id, []).append(GroupMember(member.user_id, name, member.by_provider))
    roles: dict[int, dict[str, Role]] = {}
    for group_id, slug, role in session.execute(
        select_any(GroupRoleRow.group_id, ProjectRow.slug, GroupRoleRow.role)
        .join(ProjectRow, col(ProjectRow.id) == GroupRoleRow.project_id)
        .order_by(col(ProjectRow.slug))
    ):
        roles.setdefault(group_id, {})[slug] = Role(role)
    rows = session.execute(select(GroupRow).order_by(func.lower(GroupRow.name))).scalars()
    return [
        Group(row.id or 0, row.name, row.created_by, tuple(members.get(row.id or 0, ())), roles.get(row.id or 0, {}))
        for row in rows
    ]


def groups_of_project(session: Session, project_id: int) -> list[GroupRole]:
    """Return the groups with a role in a project, in alphabetical order."""
    rows = session.execute(
        select(GroupRoleRow, GroupRow)
        .join(GroupRow, col(GroupRow.id) == GroupRoleRow.group_id)
        .where(col(GroupRoleRow.project_id) == project_id)
        .order_by(func.lower(GroupRow.name))
    ).all()
    members: dict[int, list[str]] = {}
    for group_id, name in session.execute(
        select_any(GroupMemberRow.group_id, UserRow.name)
        .join(UserRow, col(UserRow.id) == GroupMemberRow.user_id)
        .where(col(GroupMemberRow.group_id).in_([group.id for _, group in rows]), col(UserRow.disabled_at).is_(None))
        .order_by(func.lower(UserRow.name))
    ):
        members.setdefault(group_id, []).append(name)
    return [
        GroupRole(row.group_id, group.name, Role(row.role), row.added_by, tuple(members.get(row.group_id, ())))
        for row, group in rows
    ]
