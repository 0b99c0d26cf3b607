"""Members and tokens of projects, and the users of the service: changes with their rules."""

import argparse
import getpass
import os
import secrets
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import structlog
from sqlalchemy import Engine, make_url
from sqlmodel import Session

from app.domain.access.passwords import problem_with
from app.domain.access.principal import Role, Scope
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange, NotFound
from app.settings import Settings
from app.storage import projects, tokens, users
from app.storage.database import make_engine, migrate, read_session, transaction
from app.storage.projects import find_project
from app.storage.tables import MemberRow, ProjectRow, TokenRow, from_row, utc_now
from app.storage.tokens import CreatedToken, revoke_tokens_of, tokens_by_creator
from app.storage.users import GroupRole, ProjectMember, User, groups_of_project, members_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Membership:
    project_id: int
    project: str
    public: bool
    members: tuple[ProjectMember, ...]
    groups: tuple[GroupRole, ...]
    created: Mapping[str, list[CreatedToken]]

    def tokens_of(self, name: str) -> list[CreatedToken]:
        """Return the valid tokens of this project that the user created."""
        return self.created.get(name, [])


def get_membership(session: Session, slug: str) -> Membership:
    """Return the members of a project and their tokens. Raises NotFound."""
    row = projects.find_project(session, slug)
    project_id = row.id or 0
    created = tokens_by_creator(session, project_id=project_id)
    members, groups = tuple(members_of(session, project_id)), tuple(groups_of_project(session, project_id))
    return Membership(project_id, slug, row.public, members, groups, created)


def set_member(
    engine: Engine, slug: str, *, name: str, role: str, by: str, only_new: bool = False, may_orphan: bool = False
) -> Membership:
    """Add the user with this name as a member or, unless `only_new`, change the role. Raises InvalidChange, NotFound.

    `may_orphan`: also change the last maintainer's role.
    """
    new_role = read_role(role)
    with transaction(engine) as session:
        project = projects.find_project(session, slug)
        user = users.find_user(session, name)
        if user is None or user.disabled_at is not None:
            shown = one_line(name)[: users.MAX_NAME]
            why = f"no active user {shown}" if shown else "must be the name of a user"
            raise InvalidChange(
                f"Nothing was changed: {why}. An administrator creates users.", (FieldError("name", why),)
            )
        if only_new and (row := session.get(MemberRow, (project.id, user.id))) is not None:
            why = f"is already a member, as {row.role}; change the role in the list above"
            raise InvalidChange(f"Nothing was changed: {user.name} {why}.", (FieldError("name", why),))
        if not may_orphan:
            _require_maintainer(session, project, user.id or 0, new_role)
        users.set_role(session, project_id=project.id or 0, user_id=user.id or 0, role=new_role, by=by)
        session.flush()
        membership = get_membership(session, slug)
    log.info("member_set", project=slug, account=user.id, role=role)
    return membership


def change_role(engine: Engine, slug: str, user_id: int, *, role: str, by: str, may_orphan: bool, revoke: bool) -> None:
    """Change the role of a member; an empty role removes the member. Raises InvalidChange, NotFound.

    `may_orphan`: also for the last maintainer. `revoke`: also revoke the project's tokens that the user created.
    """
    new_role = read_role(role) if role else None
    with transaction(engine) as session:
        project = projects.find_project(session, slug)
        if session.get(MemberRow, (project.id, user_id)) is None:
            raise NotFound(f"This user is not a member of {slug}. Nothing was changed.")
        if not may_orphan:
            _require_maintainer(session, project, user_id, new_role)
        users.set_role(session, project_id=project.id or 0, user_id=user_id, role=new_role, by=by)
        if revoke:
            revoke_tokens_of(session, users.get_user(session, user_id).name, by=by, project_id=project.id)
    log.info("member_set", project=slug, account=user_id, role=role, tokens_revoked=revoke)


def _require_maintainer(session: Session, project: ProjectRow, user_id: int, new_role: Role | None) -> None:
    """Raise InvalidChange if the project would lose its last maintainer. Locked, because two may leave at once."""
    session.refresh(project, with_for_update=True)
    maintainers = [
        member
        for member in members_of(session, project.id or 0)
        if member.role is Role.MAINTAINER and not member.disabled
    ]
    if new_role is not Role.MAINTAINER and [member.user_id for member in maintainers] == [user_id]:
        why = f"{maintainers[0].name} is the last maintainer of {project.slug}, and without one no member can set roles"
        raise InvalidChange(
            f"Nothing was changed: {why}. Make another member a maintainer first, or ask an administrator.",
            (FieldError("role", "belongs to the last maintainer"),),
        )


def set_public(engine: Engine, slug: str, public: bool, *, by: str) -> Membership:
    """Make a project public or private. Raises NotFound."""
    with transaction(engine) as session:
        projects.set_public(session, projects.find_project(session, slug), public, by=by)
    log.info("project_public_set", project=slug, public=public)
    with read_session(engine) as session:
        return get_membership(session, slug)


def read_role(text: str) -> Role:
    """Parse a role. Raises InvalidChange."""
    try:
        return Role(text)
    except ValueError:
        raise InvalidChange.of_field("role", f"must be one of {', '.join(Role)}") from None


# --- Users: created with an initial password, disabled, made administrators, given a new password.

_INITIAL_BYTES = 12


def create_user(engine: Engine, *, name: str, email: str, administrator: bool, by: str) -> tuple[User, str]:
    """Create a user; return it with its initial password, which is shown once and which the user must change.

    Raises InvalidChange, NameTaken.
    """
    if email and ("@" not in email.strip("@ ") or len(email) > 300):
        why = "must be an e-mail address, for example ada@example.org, or empty"
        raise InvalidChange(f"Nothing was saved: the e-mail {why}.", (FieldError("email", why),))
    initial = initial_password(name)
    with transaction(engine) as session:
        user = users.create_user(
            session, name, by=by, password=initial, email=email, administrator=administrator, must_change_password=True
        )
    log.info("account_made", account=user.id, administrator=administrator)
    return user, initial


def change_user(
    engine: Engine,
    user_id: int,
    *,
    administrator: bool | None = None,
    disabled: bool | None = None,
    revoke: bool = False,
    by: str,
) -> User:
    """Change the rights of a user. `revoke`: also revoke all tokens that they created.

    Raises LastAdministrator, NotFound.
    """
    with transaction(engine) as session:
        row = users.get_user(session, user_id)
        users.set_rights(session, row, administrator=administrator, disabled=disabled, by=by)
        if revoke:
            tokens.revoke_tokens_of(session, row.name, by=by)
        changed = users.to_user(row)
    log.info("account_changed", account=user_id, administrator=administrator, disabled=disabled, tokens_revoked=revoke)
    return changed


def reset_password(engine: Engine, user_id: int, *, by: str) -> tuple[User, str]:
    """Set a new initial password, log the user out everywhere and remove the second factor.

    Raises InvalidChange, NotFound.
    """
    with transaction(engine) as session:
        row = users.get_user(session, user_id)
        if row.issuer:
            raise InvalidChange(
                f"{row.name} logs in with an identity provider and has no password here. Nothing was changed."
            )
        initial = initial_password(row.name)
        users.set_password(session, row, initial, by=by, must_change=True)
        users.end_sessions_of(session, user_id)
        changed = users.to_user(row)
    log.info("password_reset", account=user_id)
    return changed, initial


def initial_password(name: str) -> str:
    """Return a random password that passes the same checks as any other."""
    while problem_with(password := secrets.token_urlsafe(_INITIAL_BYTES), name):
        pass
    return password


# --- Tokens of a project.

LIFE = timedelta(days=365)
"""Default lifetime of a token."""

PAGE_SIZE = 100

State = Literal["in force", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class TokenView:
    id: int
    name: str
    shown: str
    scopes: tuple[str, ...]
    state: State
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str


@dataclass(frozen=True, slots=True)
class TokenPage:
    """`total` and `in_force` count all tokens of the project."""

    items: tuple[TokenView, ...]
    page: int
    pages: int
    total: int
    in_force: int


def list_tokens(session: Session, slug: str, *, page: int = 1, page_size: int = PAGE_SIZE) -> TokenPage:
    """Return a page of a project's tokens: valid ones first, newest first. Raises NotFound."""
    project_id = find_project(session, slug).id or 0
    total, valid = tokens.count_tokens(session, project_id)
    rows = tokens.tokens_of(session, project_id, first=(page - 1) * page_size, limit=page_size)
    return TokenPage(tuple(map(_token, rows)), page, max(1, -(-total // page_size)), total, valid)


def make_token(
    engine: Engine, slug: str, *, name: str, scopes: Collection[str], expires_at: datetime | None, by: str
) -> tuple[TokenView, str]:
    """Create a token; return it with its secret, which is shown once. Raises InvalidChange, NotFound."""
    try:
        read_scopes = {Scope(scope) for scope in scopes}
    except ValueError:
        why = "must be one or more of upload, read and triage"
        raise InvalidChange(f"Nothing was saved: scopes {why}.", (FieldError("scopes", why),)) from None
    with transaction(engine) as session:
        project = find_project(session, slug)
        row, secret = tokens.make_token(
            session, project_id=project.id or 0, name=name, scopes=read_scopes, by=by, expires_at=expires_at
        )
        token = _token(row)
    log.info("token_made", project=slug, token=token.id, scopes=token.scopes)
    return token, secret


def revoke_token(engine: Engine, slug: str, token_id: int, *, by: str) -> TokenView:
    """Revoke a token. Raises NotFound, also for a token of another project."""
    with transaction(engine) as session:
        project = find_project(session, slug)
        row = session.get(TokenRow, token_id)
        if row is None or row.project_id != project.id:
            raise NotFound(f"The project {slug} has no token {token_id}.")
        revoked = _token(tokens.revoke_token(session, token_id, by=by))
    log.info("token_revoked", project=slug, token=token_id)
    return revoked


def _token(row: TokenRow) -> TokenView:
    ends = row.expires_at
    state: State = "revoked" if row.revoked_at else "expired" if ends and ends <= utc_now() else "in force"
    return from_row(TokenView, row, scopes=tuple(row.scopes), state=state)


# --- `threewalls admin`: create an administrator or set a user's password, from a shell on the machine of the
# service.

PASSWORD_VARIABLE = "THREEWALLS_ADMIN_PASSWORD"  # noqa: S105
BY = "command line"


def run_admin(options: argparse.Namespace, settings: Settings) -> None:
    """Create an administrator or set a password, as the options say. Raises InvalidChange, NameTaken, NotFound."""
    name = users.checked_name(options.name)
    if settings.embedded:
        migrate(settings)  # the database does not exist before the first start
    engine = make_engine(settings)
    try:
        password = _password(name)
        with transaction(engine) as session:
            if options.action == "create":
                users.create_user(session, name, by=BY, password=password, administrator=True)
                done = f"{name} is now an administrator of {_where(settings)}. All users must log in from now on."
            else:
                row = users.find_user(session, name)
                if row is None:
                    raise NotFound(f"User {name} does not exist.")
                users.set_password(session, row, password, by=BY)
                users.end_sessions_of(session, row.id or 0)
                done = f"{name} has a new password in {_where(settings)} and is logged out everywhere."
    finally:
        engine.dispose()
    print(done)


def _where(settings: Settings) -> str:
    """Return which service was changed: the command changes another one when it runs in another folder."""
    if not settings.database_url:
        return f"the service with the data folder {settings.data_dir.resolve()}"
    return f"the service on {make_url(settings.database_url).render_as_string(hide_password=True)}"


def _password(name: str) -> str:
    """Read a password from the environment, the terminal or standard input. Raises InvalidChange if it is too weak."""
    if (password := os.environ.get(PASSWORD_VARIABLE)) is None:
        if sys.stdin.isatty():
            password = getpass.getpass("Password: ")
            if getpass.getpass("Repeat the password: ") != password:
                raise InvalidChange("The passwords do not match. Nothing was changed.")
        else:
            password = sys.stdin.readline().rstrip("\r\n")
    if problem := problem_with(password, name):
        raise InvalidChange(f"The password {problem}. Nothing was changed.")
    return password
