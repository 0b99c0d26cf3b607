"""Who belongs to a project, and whether everybody may read it."""

from collections.abc import Mapping
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
from app.storage.tables import ProjectRow
from app.storage.tokens import MadeToken, made_in_force, revoke_made

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Membership:
    project_id: int
    project: str
    public: bool
    members: tuple[Member, ...]
    made: Mapping[str, list[MadeToken]]

    def tokens_of(self, name: str) -> list[MadeToken]:
        """Tokens of this project in force that the person made."""
        return self.made.get(name, [])


def get_membership(session: Session, slug: str) -> Membership:
    """Raises NotFound."""
    row = projects.find_project(session, slug)
    project_id = row.id or 0
    made = made_in_force(session, project_id=project_id)
    return Membership(project_id, slug, row.public, tuple(members_of(session, project_id)), made)


def set_member(
    engine: Engine, slug: str, *, name: str, role: str, by: str, only_new: bool = False, may_orphan: bool = False
) -> Membership:
    """Make the person of this name a member, or, unless `only_new`, change the role. Raises InvalidChange, NotFound.

    `may_orphan`: also that of the last maintainer.
    """
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
        if only_new and (row := session.get(MemberRow, (project.id, user.id))) is not None:
            why = f"is a member already, as {row.role}; the list above changes the role"
            raise InvalidChange(f"Nothing was changed: {user.name} {why}.", (FieldError("name", why),))
        if not may_orphan:
            _keep_a_maintainer(session, project, user.id or 0, wanted)
        users.set_role(session, project_id=project.id or 0, user_id=user.id or 0, role=wanted, by=by)
        session.flush()
        found = get_membership(session, slug)
    log.info("member_set", project=slug, account=user.id, role=role)
    return found


def change_role(
    engine: Engine, slug: str, user_id: int, *, role: str, by: str, may_orphan: bool = False, revoke: bool = False
) -> None:
    """Of somebody who is a member; an empty role ends that. Raises InvalidChange, NotFound.

    `may_orphan`: also of the last maintainer. `revoke`: with the tokens of the project that the person made.
    """
    wanted = read_role(role) if role else None
    with transaction(engine) as session:
        project = projects.find_project(session, slug)
        if session.get(MemberRow, (project.id, user_id)) is None:
            raise NotFound(f"The project {slug} has no such member. Nothing was changed.")
        if not may_orphan:
            _keep_a_maintainer(session, project, user_id, wanted)
        users.set_role(session, project_id=project.id or 0, user_id=user_id, role=wanted, by=by)
        if revoke:
            revoke_made(session, users.get_user(session, user_id).name, by=by, project_id=project.id)
    log.info("member_set", project=slug, account=user_id, role=role, tokens_revoked=revoke)


def _keep_a_maintainer(session: Session, project: ProjectRow, user_id: int, wanted: Role | None) -> None:
    """Raises InvalidChange where nobody would be left who gives roles. Locked, for two who leave at once."""
    session.refresh(project, with_for_update=True)
    left = [one for one in members_of(session, project.id or 0) if one.role is Role.MAINTAINER and not one.disabled]
    if wanted is not Role.MAINTAINER and [one.user_id for one in left] == [user_id]:
        why = f"{left[0].name} is the last maintainer of {project.slug}, and nobody else there could give roles"
        raise InvalidChange(
            f"Nothing was changed: {why}. Make somebody else a maintainer first, or ask an administrator to do it.",
            (FieldError("role", "is of the last maintainer"),),
        )


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
