"""Who belongs to a project, and whether everybody may read it."""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.access.passwords import problem_with
from app.domain.access.principal import Role, Scope
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange, NotFound
from app.storage import projects, tokens, users
from app.storage.database import read_session, transaction
from app.storage.projects import find_project
from app.storage.runs import aware
from app.storage.tables import MemberRow, ProjectRow, TokenRow, utc_now
from app.storage.tokens import MadeToken, made_in_force, revoke_made
from app.storage.users import Member, User, members_of

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


# --- The people of the service: made with a password of the first day, disabled, made administrators, given a new one.

_INITIAL_BYTES = 12


def add_person(engine: Engine, *, name: str, email: str, administrator: bool, by: str) -> tuple[User, str]:
    """The account, and its first password, which nobody can see again and its owner must change.

    Raises InvalidChange, NameTaken.
    """
    if email and ("@" not in email.strip("@ ") or len(email) > 300):
        why = "must be an address like ada@example.org, or empty"
        raise InvalidChange(f"Nothing was kept: the e-mail {why}.", (FieldError("email", why),))
    initial = _initial_password(name)
    with transaction(engine) as session:
        made = users.create_user(
            session, name, by=by, password=initial, email=email, administrator=administrator, must_change_password=True
        )
    log.info("account_made", account=made.id, administrator=administrator)
    return made, initial


def change_person(
    engine: Engine,
    user_id: int,
    *,
    administrator: bool | None = None,
    disabled: bool | None = None,
    revoke: bool = False,
    by: str,
) -> User:
    """`revoke`: with all tokens that the person made. Raises LastAdministrator, NotFound."""
    with transaction(engine) as session:
        row = users.get_user(session, user_id)
        users.set_standing(session, row, administrator=administrator, disabled=disabled, by=by)
        if revoke:
            tokens.revoke_made(session, row.name, by=by)
        changed = users.to_user(row)
    log.info(
        "account_changed", account=user_id, administrator=administrator, disabled=disabled, tokens_revoked=revoke
    )  # fmt: skip
    return changed


def reset_password(engine: Engine, user_id: int, *, by: str) -> tuple[User, str]:
    """A new first password; the account is logged out everywhere, without a second factor.

    Raises InvalidChange, NotFound.
    """
    with transaction(engine) as session:
        row = users.get_user(session, user_id)
        if row.issuer:
            raise InvalidChange(
                f"{row.name} logs in by an identity provider and has no password here. Nothing was changed."
            )
        initial = _initial_password(row.name)
        users.set_password(session, row, initial, by=by, must_change=True)
        users.end_sessions_of(session, user_id)
        changed = users.to_user(row)
    log.info("password_reset", account=user_id)
    return changed, initial


def _initial_password(name: str) -> str:
    """One that holds no name by chance."""
    while problem_with(password := secrets.token_urlsafe(_INITIAL_BYTES), name):
        pass
    return password


# --- Tokens of a project as people handle them: made with an end, listed with their state, revoked.

LIFE = timedelta(days=365)
"""What a token lives unless it is said."""

PAGE_SIZE = 100

State = Literal["in force", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class Token:
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

    items: tuple[Token, ...]
    page: int
    pages: int
    total: int
    in_force: int


def list_tokens(session: Session, slug: str, *, page: int = 1, page_size: int = PAGE_SIZE) -> TokenPage:
    """Those in force first, newest first. Raises NotFound."""
    project_id = find_project(session, slug).id or 0
    total, valid = tokens.count_tokens(session, project_id)
    rows = tokens.tokens_of(session, project_id, first=(page - 1) * page_size, limit=page_size)
    return TokenPage(tuple(map(_token, rows)), page, max(1, -(-total // page_size)), total, valid)


def make_token(
    engine: Engine, slug: str, *, name: str, scopes: Collection[str], expires_at: datetime | None, by: str
) -> tuple[Token, str]:
    """The token, and what nobody can see again. Raises InvalidChange, NotFound."""
    try:
        wanted = {Scope(scope) for scope in scopes}
    except ValueError:
        why = "must be one or more of upload, read and triage"
        raise InvalidChange(f"Nothing was kept: scopes {why}.", (FieldError("scopes", why),)) from None
    with transaction(engine) as session:
        project = find_project(session, slug)
        row, secret = tokens.make_token(
            session, project_id=project.id or 0, name=name, scopes=wanted, by=by, expires_at=expires_at
        )
        made = _token(row)
    log.info("token_made", project=slug, token=made.id, scopes=made.scopes)
    return made, secret


def revoke_token(engine: Engine, slug: str, token_id: int, *, by: str) -> Token:
    """Raises NotFound, also for a token of another project."""
    with transaction(engine) as session:
        project = find_project(session, slug)
        row = session.get(TokenRow, token_id)
        if row is None or row.project_id != project.id:
            raise NotFound(f"The project {slug} has no token {token_id}.")
        revoked = _token(tokens.revoke_token(session, token_id, by=by))
    log.info("token_revoked", project=slug, token=token_id)
    return revoked


def _token(row: TokenRow) -> Token:
    ends = aware(row.expires_at) if row.expires_at else None
    state: State = "revoked" if row.revoked_at else "expired" if ends and ends <= utc_now() else "in force"
    return Token(
        row.id or 0, row.name, row.shown, tuple(row.scopes), state, row.created_by, aware(row.created_at), ends,
        aware(row.last_used_at) if row.last_used_at else None, aware(row.revoked_at) if row.revoked_at else None,
        row.revoked_by,
    )  # fmt: skip
