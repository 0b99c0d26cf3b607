"""`/api/v1/projects`, their members and tokens."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Path, Query, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from sqlmodel import Session
from starlette.responses import JSONResponse

from app.access import members
from app.access import members as membership
from app.access import members as tokens
from app.domain.access.principal import Action, Role, Scope
from app.errors import NotAllowed
from app.storage import projects
from app.storage.database import transaction
from app.storage.tables import utc_now
from app.storage.tokens import MadeToken, made_in_force
from app.storage.users import Member, User, list_users, roles_by_user
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession
from app.web.errors import documented
from app.web.identity import NEEDS_LOG_INS, Access, access_of, how_to_have_log_ins, signed

LARGEST_ID = 2**63 - 1
_NOT_KEPT = {"Cache-Control": "no-store"}

UserId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="Of the account.")]
router = APIRouter(prefix="/api/v1/projects", tags=["access"])

Slug = Annotated[str, Path(min_length=1, max_length=100, description="Name of the project, as in `meta.project`.")]
TokenId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="Of the token, as listed.")]


class ProjectOut(BaseModel):
    project: str
    public: bool = Field(description="Whoever reaches the service may read it, without a log-in.")
    role: str | None = Field(
        description="Of the caller: viewer, contributor, maintainer, administrator; null for a token, or without one."
    )
    runs: int
    uploaded_at: datetime | None = Field(description="When its newest run came; null without runs.")
    members: int | None = Field(description="null for who does not manage it; so is `tokens`.")
    tokens: int | None = Field(description="Tokens in force.")

    @classmethod
    def of(cls, one: projects.Project, access: Access) -> Self:
        manages = access.may(Action.MANAGE, one.id)
        return cls(
            project=one.slug, public=one.public, role=role_of(access, one.id), runs=one.runs,
            uploaded_at=one.uploaded_at, members=one.members if manages else None,
            tokens=one.tokens if manages else None,
        )  # fmt: skip


class ProjectList(BaseModel):
    items: list[ProjectOut]


class NewProject(BaseModel):
    model_config = ConfigDict(extra="forbid")

    project: str = Field(min_length=1, max_length=projects.MAX_SLUG, description="Letters, digits, `.`, `_` and `-`.")
    public: bool = Field(False, description="Whether everybody who reaches the service may read it.")
    author: str = Field("", max_length=100, description="Who makes it, where nobody is logged in.")


class ProjectChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    public: bool = Field(description="Whether everybody who reaches the service may read it, without a log-in.")
    author: str = Field("", max_length=100, description="Who changes it, where nobody is logged in.")


class MemberOut(BaseModel):
    user_id: int
    name: str
    role: Role
    added_by: str
    added_at: datetime
    disabled: bool = Field(description="The account may do nothing now.")
    administrator: bool = Field(description="The account may do everything, whatever its role here.")
    tokens: list[MadeToken] = Field(
        description="Tokens of this project that the person made and that are in force; they outlive the role."
    )

    @classmethod
    def of(cls, one: Member, made: list[MadeToken]) -> Self:
        return cls(
            user_id=one.user_id, name=one.name, role=one.role, added_by=one.added_by, added_at=one.added_at,
            disabled=one.disabled, administrator=one.administrator,
            tokens=made,
        )  # fmt: skip


class Members(BaseModel):
    project: str
    public: bool
    members: list[MemberOut]

    @classmethod
    def of(cls, found: membership.Membership) -> Self:
        members = [MemberOut.of(one, found.tokens_of(one.name)) for one in found.members]
        return cls(project=found.project, public=found.public, members=members)


class NewMember(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=100, description="Of an account. Who is a member gets the other role.")
    role: Role
    author: str = Field("", max_length=100, description="Who does it, where nobody is logged in.")


class TokenOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    name: str
    shown: str = Field(description="The first characters of the token, by which it is told from others.")
    scopes: list[str]
    state: tokens.State
    created_by: str
    created_at: datetime
    expires_at: datetime | None = Field(description="null: it does not expire.")
    last_used_at: datetime | None = Field(description="Written once a minute; null: never used.")
    revoked_at: datetime | None
    revoked_by: str


class TokenMade(TokenOut):
    token: str = Field(description="What a job sends. Nobody can see it again.")


class TokenList(BaseModel):
    items: list[TokenOut] = Field(description="Those in force first, newest first.")
    total: int = Field(description="Of all pages.")


class NewToken(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=100, description="For instance `nightly CI`; of no other in force.")
    scopes: list[Scope] = Field([Scope.UPLOAD], min_length=1, max_length=len(Scope))
    expires_at: AwareDatetime | None = Field(
        None, description="In a year unless it is given; null for a token that does not expire."
    )
    author: str = Field("", max_length=100, description="Who makes it, where nobody is logged in.")

    def ends(self) -> datetime | None:
        return self.expires_at if "expires_at" in self.model_fields_set else utc_now() + tokens.LIFE


def role_of(access: Access, project_id: int) -> str | None:
    """What the caller is in a project."""
    person = access.person
    if person is None:
        return None
    return "administrator" if person.administrator else person.roles.get(project_id)


@router.get("")
@requires(Action.READ)
def list_projects(request: Request, session: ReadSession) -> ProjectList:
    """The projects that the caller may read."""
    access = access_of(request)
    return ProjectList(items=[ProjectOut.of(one, access) for one in projects.list_projects(session)])


@router.post("", status_code=201, responses=documented(403, 409, 422))
@requires(Action.ADMINISTER)
def create_project(request: Request, engine: AppEngine, body: NewProject) -> ProjectOut:
    """Make a project: private, with nobody in it, unless said otherwise."""
    if body.public and access_of(request).is_open:
        raise NotAllowed(f"{NEEDS_LOG_INS} Nothing was kept. {how_to_have_log_ins(request.app.state.settings)}")
    with transaction(engine) as session:
        row = projects.create_project(session, body.project, by=signed(body.author), public=body.public)
        made = next(one for one in projects.list_projects(session) if one.id == row.id)
    return ProjectOut.of(made, access_of(request))


@router.patch("/{slug}", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def change_project(engine: AppEngine, slug: Slug, change: ProjectChange) -> Members:
    """Have everybody read the project, or its members only."""
    return Members.of(membership.set_public(engine, slug, change.public, by=signed(change.author)))


@router.get("/{slug}/members", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def list_members(session: ReadSession, slug: Slug) -> Members:
    """Who belongs to the project."""
    return Members.of(membership.get_membership(session, slug))


@router.post("/{slug}/members", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
def set_member(request: Request, engine: AppEngine, slug: Slug, body: NewMember) -> Members:
    """Make somebody a member, or change the role. That of the last maintainer is an administrator's to take."""
    by, may_orphan = signed(body.author), access_of(request).may_anywhere(Action.ADMINISTER)
    return Members.of(membership.set_member(engine, slug, name=body.name, role=body.role, by=by, may_orphan=may_orphan))


@router.delete("/{slug}/members/{user_id}", status_code=204, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def remove_member(
    request: Request,
    engine: AppEngine,
    slug: Slug,
    user_id: UserId,
    revoke_tokens: Annotated[bool, Query(description="Also the tokens of the project that the person made.")] = False,
) -> None:
    """End a membership, at once. Tokens that the person made stay in force unless they are revoked with it."""
    may_orphan = access_of(request).may_anywhere(Action.ADMINISTER)
    membership.change_role(
        engine, slug, user_id, role="", by=signed(), may_orphan=may_orphan, revoke=revoke_tokens
    )  # fmt: skip


@router.get("/{slug}/tokens", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def list_tokens(
    session: ReadSession,
    slug: Slug,
    page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    page_size: Annotated[int, Query(ge=1, le=500)] = tokens.PAGE_SIZE,
) -> TokenList:
    """Tokens of the project, also those that are over."""
    found = tokens.list_tokens(session, slug, page=page, page_size=page_size)
    return TokenList(items=[TokenOut.model_validate(one) for one in found.items], total=found.total)


@router.post("/{slug}/tokens", status_code=201, responses=documented(404, 422), response_model=TokenMade)
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
def create_token(engine: AppEngine, slug: Slug, body: NewToken) -> JSONResponse:
    """Make a token. The answer is the only place where it is shown."""
    one, secret = tokens.make_token(
        engine, slug, name=body.name, scopes=body.scopes, expires_at=body.ends(), by=signed(body.author)
    )
    made = TokenMade(**TokenOut.model_validate(one).model_dump(), token=secret)
    return JSONResponse(made.model_dump(mode="json"), 201, _NOT_KEPT)


@router.delete("/{slug}/tokens/{token_id}", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def revoke_token(engine: AppEngine, slug: Slug, token_id: TokenId) -> TokenOut:
    """Revoke a token: from now on it opens nothing. Revoking it again changes nothing."""
    return TokenOut.model_validate(tokens.revoke_token(engine, slug, token_id, by=signed()))


# --- `/api/v1/users`: the people of the service, for administrators.

users_router = APIRouter(prefix="/api/v1/users", tags=["access"])


class UserOut(BaseModel):
    id: int
    name: str
    email: str
    administrator: bool
    disabled: bool
    must_change_password: bool
    password_ends_at: datetime | None = Field(description="Of a first password that was not changed; else null.")
    second_factor: bool = Field(description="Each log-in asks for a code of an authenticator app.")
    comes_by: str = Field(description="The identity provider; empty for one with a password here.")
    roles: dict[str, Role] = Field(description="By project. An administrator needs none.")
    created_at: datetime
    last_login_at: datetime | None = Field(description="null: never.")
    disabled_at: datetime | None
    tokens: list[MadeToken] = Field(
        description="Tokens of projects that the person made and that are in force; they outlive role and account."
    )

    @classmethod
    def of(cls, user: User, roles: list[tuple[str, Role]], made: Sequence[MadeToken] = ()) -> Self:
        return cls(
            id=user.id, name=user.name, email=user.email, administrator=user.administrator,
            disabled=user.disabled_at is not None, must_change_password=user.must_change_password,
            password_ends_at=user.password_ends_at, second_factor=user.second_factor,
            comes_by=user.comes_by, roles=dict(roles), created_at=user.created_at, last_login_at=user.last_login_at,
            disabled_at=user.disabled_at, tokens=list(made),
        )  # fmt: skip


class UserMade(UserOut):
    password: str = Field(description="For the first log-in, where another one must be chosen. Shown nowhere else.")


class UserList(BaseModel):
    items: list[UserOut]


class NewUser(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=100, description="By which the person logs in.")
    email: str = Field("", max_length=300)
    administrator: bool = Field(False, description="May do everything, in every project.")
    author: str = Field("", max_length=100, description="Who makes it, where nobody is logged in.")


class UserChange(BaseModel):
    """What is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    administrator: bool | None = None
    disabled: bool | None = Field(None, description="May do nothing any more, and is logged out at once.")
    revoke_tokens: bool = Field(False, description="Also revoke all tokens that the person made.")
    author: str = Field("", max_length=100, description="Who changes it, where nobody is logged in.")


@users_router.get("")
@requires(Action.ADMINISTER)
def read_users(session: ReadSession) -> UserList:
    """Everybody who has an account, also those who are disabled."""
    roles, made = roles_by_user(session), made_in_force(session)
    listed = list_users(session)
    return UserList(items=[UserOut.of(user, roles.get(user.id, []), made.get(user.name, [])) for user in listed])


@users_router.post("", status_code=201, responses=documented(409, 422), response_model=UserMade)
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
def create_user(engine: AppEngine, body: NewUser) -> JSONResponse:
    """Make an account. The answer is the only place where its first password is shown."""
    user, password = members.add_person(
        engine, name=body.name, email=body.email, administrator=body.administrator, by=signed(body.author)
    )
    return _made(UserOut.of(user, []), password, 201)


@users_router.patch("/{user_id}", responses=documented(404, 409, 422))
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
def change_user(engine: AppEngine, session: ReadSession, user_id: UserId, change: UserChange) -> UserOut:
    """Disable an account or enable it, make it an administrator's or not. The last administrator stays one."""
    user = members.change_person(
        engine, user_id, administrator=change.administrator, disabled=change.disabled, revoke=change.revoke_tokens,
        by=signed(change.author),
    )  # fmt: skip
    return _now(session, user)


@users_router.post("/{user_id}/password", responses=documented(404, 422), response_model=UserMade)
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
def reset_password(engine: AppEngine, session: ReadSession, user_id: UserId) -> JSONResponse:
    """Give an account a new first password; it is logged out everywhere."""
    user, password = members.reset_password(engine, user_id, by=signed())
    return _made(_now(session, user), password, 200)


def _now(session: Session, user: User) -> UserOut:
    return UserOut.of(user, roles_by_user(session).get(user.id, []), made_in_force(session).get(user.name, []))


def _made(user: UserOut, password: str, status: int) -> JSONResponse:
    made = UserMade(**user.model_dump(), password=password)
    return JSONResponse(made.model_dump(mode="json"), status, {"Cache-Control": "no-store"})
