"""`/api/v1/projects` with their members and tokens, and `/api/v1/users`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Self

from fastapi import Path, Query, Request
from pydantic import AwareDatetime, BaseModel, Field
from sqlmodel import Session
from starlette.responses import JSONResponse

from app.access import members
from app.access.members import Membership
from app.domain.access.principal import Action, Role, Scope
from app.errors import NotAllowed
from app.storage import projects
from app.storage.database import transaction
from app.storage.tables import utc_now
from app.storage.tokens import CreatedToken, tokens_by_creator
from app.storage.users import User, list_users, roles_by_user
from app.web.access_rule import requires
from app.web.dependencies import LARGEST_NUMBER, ApiValue, AppEngine, ReadSession, Slug, api_router
from app.web.errors import documented
from app.web.identity import NEEDS_LOG_INS, Access, access_of, how_to_have_log_ins, signed

_NO_STORE = {"Cache-Control": "no-store"}
Author = Annotated[str, Field(max_length=100, description="Author of the change, on a service without log-ins.")]

UserId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="Id of the user.")]
router = api_router("access", "/api/v1/projects")

TokenId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="Id of the token, as listed.")]


class ProjectOut(ApiValue):
    project: str
    public: bool = Field(description="Readable without a log-in.")
    role: str | None = Field(
        description="The caller's role: viewer, contributor, maintainer or administrator; null for tokens and "
        "callers without a role."
    )
    runs: int
    uploaded_at: datetime | None = Field(description="Time of the newest upload; null without runs.")
    deleted_runs: int = Field(description="Deleted runs; those of the last seven days can be restored.")
    members: int | None = Field(description="Number of members; null for callers who do not manage the project.")
    tokens: int | None = Field(description="Number of valid tokens; null for callers who do not manage the project.")

    @classmethod
    def of(cls, project: projects.Project, access: Access) -> Self:
        manages = access.may(Action.MANAGE, project.id)
        hidden: dict[str, object] = {} if manages else {"members": None, "tokens": None}
        return cls.from_values(project, project=project.slug, role=role_of(access, project.id), **hidden)


class ProjectList(BaseModel):
    items: list[ProjectOut]


class NewProject(BaseModel, extra="forbid"):
    project: str = Field(description="Its name: letters, digits, spaces and `()._-+`; no slash.")
    public: bool = Field(False, description="Make the project readable without a log-in.")
    author: Author = ""


class ProjectChange(BaseModel, extra="forbid"):
    public: bool = Field(description="Make the project readable without a log-in, or private.")
    author: Author = ""


class MemberOut(ApiValue):
    user_id: int
    name: str
    role: Role
    added_by: str
    added_at: datetime
    disabled: bool = Field(description="The user cannot log in.")
    administrator: bool = Field(
        description="The user is an administrator, with full access regardless of the role in this project."
    )
    tokens: list[CreatedToken] = Field(
        description="Valid tokens of this project that the user created. They stay valid when the role changes."
    )


class Members(ApiValue):
    project: str
    public: bool
    members: list[MemberOut]

    @classmethod
    def of(cls, membership: Membership) -> Self:
        items = [
            MemberOut.from_values(member, tokens=membership.tokens_of(member.name)) for member in membership.members
        ]
        return cls.from_values(membership, members=items)


class NewMember(BaseModel, extra="forbid"):
    name: str = Field(min_length=1, max_length=100, description="Name of a user. A member gets the new role.")
    role: Role
    author: Author = ""


class TokenOut(ApiValue):
    id: int
    name: str
    shown: str = Field(description="The first characters of the token, which identify it.")
    scopes: list[str]
    state: members.State
    created_by: str
    created_at: datetime
    expires_at: datetime | None = Field(description="null: never.")
    last_used_at: datetime | None = Field(description="Written once a minute at most; null: never used.")
    revoked_at: datetime | None
    revoked_by: str


class IssuedToken(TokenOut):
    token: str = Field(description="The secret that jobs send. It is shown only once.")


class TokenList(ApiValue):
    items: list[TokenOut] = Field(description="Valid tokens first, newest first.")
    total: int = Field(description="Number of tokens on all pages.")


class NewToken(BaseModel, extra="forbid"):
    name: str = Field(min_length=1, max_length=100, description="For example `nightly CI`; unique among valid tokens.")
    scopes: list[Scope] = Field([Scope.UPLOAD], min_length=1, max_length=len(Scope))
    expires_at: AwareDatetime | None = Field(None, description="Default: in one year; null for never.")
    author: Author = ""

    def ends(self) -> datetime | None:
        return self.expires_at if "expires_at" in self.model_fields_set else utc_now() + members.LIFE


def role_of(access: Access, project_id: int) -> str | None:
    """Return the caller's role in a project; None for tokens and callers without a role."""
    user = access.user
    if user is None:
        return None
    return "administrator" if user.administrator else user.roles.get(project_id)


@router.get("")
@requires(Action.READ)
def list_projects(request: Request, session: ReadSession) -> ProjectList:
    """List the projects that the caller may read."""
    access = access_of(request)
    return ProjectList(items=[ProjectOut.of(project, access) for project in projects.list_projects(session)])


@router.post("", status_code=201, responses=documented(403, 409, 422))
@requires(Action.ADMINISTER)
def create_project(request: Request, engine: AppEngine, body: NewProject) -> ProjectOut:
    """Create a project without members, private by default."""
    if body.public and access_of(request).is_open:
        raise NotAllowed(f"{NEEDS_LOG_INS} Nothing was saved. {how_to_have_log_ins(request.app.state.settings)}")
    with transaction(engine) as session:
        row = projects.create_project(session, body.project, by=signed(body.author), public=body.public)
        project = next(project for project in projects.list_projects(session) if project.id == row.id)
    return ProjectOut.of(project, access_of(request))


@router.patch("/{slug}", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def change_project(engine: AppEngine, slug: Slug, change: ProjectChange) -> Members:
    """Make the project public or private."""
    return Members.of(members.set_public(engine, slug, change.public, by=signed(change.author)))


@router.get("/{slug}/members", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def list_members(session: ReadSession, slug: Slug) -> Members:
    """List the members of the project."""
    return Members.of(members.get_membership(session, slug))


@router.post("/{slug}/members", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
def set_member(request: Request, engine: AppEngine, slug: Slug, body: NewMember) -> Members:
    """Add a member, or change a role. Only administrators can demote the last maintainer."""
    by, may_orphan = signed(body.author), access_of(request).may_anywhere(Action.ADMINISTER)
    return Members.of(members.set_member(engine, slug, name=body.name, role=body.role, by=by, may_orphan=may_orphan))


@router.delete("/{slug}/members/{user_id}", status_code=204, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def remove_member(
    request: Request,
    engine: AppEngine,
    slug: Slug,
    user_id: UserId,
    revoke_tokens: Annotated[
        bool, Query(description="Also revoke the tokens of this project that the user created.")
    ] = False,
) -> None:
    """Remove a member. Tokens that the user created stay valid unless they are revoked as well."""
    may_orphan = access_of(request).may_anywhere(Action.ADMINISTER)
    members.change_role(engine, slug, user_id, role="", by=signed(), may_orphan=may_orphan, revoke=revoke_tokens)


@router.get("/{slug}/tokens", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def list_tokens(
    session: ReadSession,
    slug: Slug,
    page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    page_size: Annotated[int, Query(ge=1, le=500)] = members.PAGE_SIZE,
) -> TokenList:
    """List the tokens of the project, including expired and revoked ones."""
    tokens = members.list_tokens(session, slug, page=page, page_size=page_size)
    return TokenList.model_validate(tokens)


@router.post("/{slug}/tokens", status_code=201, responses=documented(404, 422), response_model=IssuedToken)
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
def create_token(engine: AppEngine, slug: Slug, body: NewToken) -> JSONResponse:
    """Create a token. Only this answer shows it."""
    token, secret = members.make_token(
        engine, slug, name=body.name, scopes=body.scopes, expires_at=body.ends(), by=signed(body.author)
    )
    answer = IssuedToken.from_values(token, token=secret)
    return JSONResponse(answer.model_dump(mode="json"), 201, _NO_STORE)


@router.delete("/{slug}/tokens/{token_id}", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def revoke_token(engine: AppEngine, slug: Slug, token_id: TokenId) -> TokenOut:
    """Revoke a token. It stops working immediately; revoking it again changes nothing."""
    return TokenOut.model_validate(members.revoke_token(engine, slug, token_id, by=signed()))


# --- `/api/v1/users`, for administrators.

users_router = api_router("access", "/api/v1/users")


class UserOut(ApiValue):
    id: int
    name: str
    email: str
    administrator: bool
    disabled: bool
    must_change_password: bool
    password_ends_at: datetime | None = Field(
        description="When the initial password expires; null once the user changed it."
    )
    second_factor: bool = Field(description="The user needs a code from an authenticator app to log in.")
    comes_by: str = Field(description="Issuer of the identity provider; empty for users with a password here.")
    roles: dict[str, Role] = Field(description="By project. Administrators need none.")
    created_at: datetime
    last_login_at: datetime | None = Field(description="null: never.")
    disabled_at: datetime | None
    tokens: list[CreatedToken] = Field(
        description="Valid tokens that the user created. They stay valid when roles change or the user is disabled."
    )

    @classmethod
    def of(cls, user: User, roles: list[tuple[str, Role]], tokens: Sequence[CreatedToken] = ()) -> Self:
        return cls.from_values(user, disabled=user.disabled_at is not None, roles=dict(roles), tokens=tokens)


class CreatedUser(UserOut):
    password: str = Field(description="Initial password, which the user must change. It is shown only once.")


class UserList(BaseModel):
    items: list[UserOut]


class NewUser(BaseModel, extra="forbid"):
    name: str = Field(min_length=1, max_length=100, description="Log-in name.")
    email: str = Field("", max_length=300)
    administrator: bool = Field(False, description="The user is an administrator, with full access to every project.")
    author: Author = ""


class UserChange(BaseModel, extra="forbid"):
    """Omitted fields are unchanged."""

    administrator: bool | None = None
    disabled: bool | None = Field(None, description="A disabled user is logged out and cannot log in.")
    revoke_tokens: bool = Field(False, description="Also revoke all tokens that the user created.")
    author: Author = ""


@users_router.get("")
@requires(Action.ADMINISTER)
def read_users(session: ReadSession) -> UserList:
    """List all users, including disabled ones."""
    roles, tokens = roles_by_user(session), tokens_by_creator(session)
    users = list_users(session)
    return UserList(items=[UserOut.of(user, roles.get(user.id, []), tokens.get(user.name, [])) for user in users])


@users_router.post("", status_code=201, responses=documented(409, 422), response_model=CreatedUser)
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
def create_user(engine: AppEngine, body: NewUser) -> JSONResponse:
    """Create a user. Only this answer shows the initial password."""
    user, password = members.create_user(
        engine, name=body.name, email=body.email, administrator=body.administrator, by=signed(body.author)
    )
    return _with_password(UserOut.of(user, []), password, 201)


@users_router.patch("/{user_id}", responses=documented(404, 409, 422))
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
def change_user(engine: AppEngine, session: ReadSession, user_id: UserId, change: UserChange) -> UserOut:
    """Disable or enable a user, or change whether they are an administrator. One administrator must remain."""
    user = members.change_user(
        engine, user_id, administrator=change.administrator, disabled=change.disabled, revoke=change.revoke_tokens,
        by=signed(change.author),
    )  # fmt: skip
    return _user_out(session, user)


@users_router.post("/{user_id}/password", responses=documented(404, 422), response_model=CreatedUser)
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
def reset_password(engine: AppEngine, session: ReadSession, user_id: UserId) -> JSONResponse:
    """Set a new initial password and log the user out everywhere."""
    user, password = members.reset_password(engine, user_id, by=signed())
    return _with_password(_user_out(session, user), password, 200)


def _user_out(session: Session, user: User) -> UserOut:
    return UserOut.of(user, roles_by_user(session).get(user.id, []), tokens_by_creator(session).get(user.name, []))


def _with_password(user: UserOut, password: str, status: int) -> JSONResponse:
    answer = CreatedUser.from_values(user, password=password)
    return JSONResponse(answer.model_dump(mode="json"), status, _NO_STORE)
