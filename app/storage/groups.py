"""Groups of users: created, filled by hand or at a log-in by the identity provider, given roles in projects.

The audit log is written in the same transaction.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.domain.access.principal import Role
from app.domain.text import one_line
from app.errors import Conflict, InvalidChange, NotFound
from app.storage import audit, users
from app.storage.tables import GroupMemberRow, GroupRoleRow, GroupRow, ProjectRow, UserRow, select_any

MAX_NAME = 300
MAX_GROUPS = 1_000
"""Groups of the service. A log-in compares the provider's groups with them."""


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
    if not 0 < len(name) <= MAX_NAME:
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
    row, user = get_group(session, group_id), users.find_user(session, name)
    if user is None or user.disabled_at is not None:
        raise InvalidChange.of_field(
            "name", f"must belong to an active user; {one_line(name)[: users.MAX_NAME]} does not"
        )
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
    _note(session, row, users.get_user(session, user_id), "member removed", by=by)


def follow_provider(session: Session, user: UserRow, names: Collection[str]) -> None:
    """Make the user a member of the groups with these names, and of no other unless added by hand."""
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
    """Set the role of a group in a project; None ends it. Raises NotFound."""
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
