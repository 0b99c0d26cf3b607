"""The members of a project, as they are listed."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.access.roles import Role
from app.storage.access_tables import MemberRow, UserRow
from app.storage.run_records import aware
from app.storage.tables import ProjectRow


@dataclass(frozen=True, slots=True)
class Member:
    """`disabled`: the account may do nothing at all now. `administrator`: it may do everything, whatever the role."""

    user_id: int
    name: str
    role: Role
    added_by: str
    added_at: datetime
    disabled: bool
    administrator: bool


def members_of(session: Session, project_id: int) -> list[Member]:
    """By role, those who may do most first, then by name."""
    rows = session.execute(
        select(MemberRow, UserRow)
        .join(UserRow, col(UserRow.id) == MemberRow.user_id)
        .where(col(MemberRow.project_id) == project_id)
    ).all()
    found = [
        Member(
            user.id or 0, user.name, Role(member.role), member.added_by, aware(member.added_at),
            user.disabled_at is not None, user.administrator,
        )
        for member, user in rows
    ]  # fmt: skip
    order = list(Role)
    return sorted(found, key=lambda one: (-order.index(one.role), one.name.lower()))


def maintainers(session: Session, project_id: int) -> list[str]:
    """The names of those who may log in."""
    found = members_of(session, project_id)
    return [one.name for one in found if one.role is Role.MAINTAINER and not one.disabled]


def roles_by_user(session: Session) -> dict[int, list[tuple[str, Role]]]:
    """For each person the projects and the role there, in alphabetical order."""
    found: dict[int, list[tuple[str, Role]]] = {}
    rows = session.execute(
        select(MemberRow.user_id, ProjectRow.slug, MemberRow.role)  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == MemberRow.project_id)
        .order_by(col(ProjectRow.slug))
    )
    for user_id, slug, role in rows:
        found.setdefault(user_id, []).append((slug, Role(role)))
    return found
