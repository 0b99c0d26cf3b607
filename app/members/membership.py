"""Who belongs to a project, and whether everybody may read it."""

from dataclasses import dataclass

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.access.roles import Role
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange, NotFound
from app.storage import projects, users
from app.storage.access_tables import MemberRow
from app.storage.database import read_session, transaction
from app.storage.members import Member, members_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Membership:
    project_id: int
    project: str
    public: bool
    members: tuple[Member, ...]


def get_membership(session: Session, slug: str) -> Membership:
    """Raises NotFound."""
    row = projects.find_project(session, slug)
    return Membership(row.id or 0, slug, row.public, tuple(members_of(session, row.id or 0)))


def set_member(engine: Engine, slug: str, *, name: str, role: str, by: str, only_new: bool = False) -> Membership:
    """Make the person of this name a member, or, unless `only_new`, change the role. Raises InvalidChange, NotFound."""
    wanted = read_role(role)
    with transaction(engine) as session:
        project = projects.find_project(session, slug)
        user = users.find_user(session, name)
        if user is None or user.disabled_at is not None:
            shown = one_line(name)[: users.MAX_NAME]
            why = f"no account that may log in is called {shown}" if shown else "must be the name of an account"
            raise InvalidChange(
                f"Nothing was changed: {why}. Accounts are made by an administrator.", (FieldError("name", why),)
            )
        if only_new and session.get(MemberRow, (project.id, user.id)) is not None:
            why = "is a member already; the list above changes the role"
            raise InvalidChange(f"Nothing was changed: {user.name} {why}.", (FieldError("name", why),))
        users.set_role(session, project_id=project.id or 0, user_id=user.id or 0, role=wanted, by=by)
        session.flush()
        found = get_membership(session, slug)
    log.info("member_set", project=slug, account=user.id, role=role)
    return found


def change_role(engine: Engine, slug: str, user_id: int, *, role: str, by: str) -> None:
    """Of somebody who is a member; an empty role ends that. Raises InvalidChange, NotFound."""
    wanted = read_role(role) if role else None
    with transaction(engine) as session:
        project = projects.find_project(session, slug)
        if session.get(MemberRow, (project.id, user_id)) is None:
            raise NotFound(f"The project {slug} has no such member. Nothing was changed.")
        users.set_role(session, project_id=project.id or 0, user_id=user_id, role=wanted, by=by)
    log.info("member_set", project=slug, account=user_id, role=role)


def set_public(engine: Engine, slug: str, public: bool, *, by: str) -> Membership:
    """Raises NotFound."""
    with transaction(engine) as session:
        projects.set_public(session, projects.find_project(session, slug), public, by=by)
    log.info("project_public_set", project=slug, public=public)
    with read_session(engine) as session:
        return get_membership(session, slug)


def read_role(text: str) -> Role:
    """Raises InvalidChange."""
    try:
        return Role(text)
    except ValueError:
        why = f"must be one of {', '.join(Role)}"
        raise InvalidChange(f"Nothing was changed: the role {why}.", (FieldError("role", why),)) from None
