"""`/api/v1/projects`, their members and tokens."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Path, Query, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from app.domain.access.roles import Action, Role, Scope
from app.errors import NotAllowed
from app.members import membership, tokens
from app.members.signed import signed
from app.storage import projects
from app.storage.database import transaction
from app.storage.members import Member
from app.storage.tables import utc_now
from app.storage.tokens import MadeToken
from app.web.access.open_mode import NEEDS_LOG_INS, how_to_have_log_ins
from app.web.access.state import Access, access_of
from app.web.dependencies import AppEngine, ReadSession
from app.web.problems import documented

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


class MadeTokenOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    name: str
    project: str


class MemberOut(BaseModel):
    user_id: int
    name: str
    role: Role
    added_by: str
    added_at: datetime
    disabled: bool = Field(description="The account may do nothing now.")
    administrator: bool = Field(description="The account may do everything, whatever its role here.")
    tokens: list[MadeTokenOut] = Field(
        description="Tokens of this project that the person made and that are in force; they outlive the role."
    )

    @classmethod
    def of(cls, one: Member, made: list[MadeToken]) -> Self:
        return cls(
            user_id=one.user_id, name=one.name, role=one.role, added_by=one.added_by, added_at=one.added_at,
            disabled=one.disabled, administrator=one.administrator,
            tokens=[MadeTokenOut.model_validate(token) for token in made],
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
def list_projects(request: Request, session: ReadSession) -> ProjectList:
    """The projects that the caller may read."""
    access = access_of(request)
    return ProjectList(items=[ProjectOut.of(one, access) for one in projects.list_projects(session)])


@router.post("", status_code=201, responses=documented(403, 409, 422))
def create_project(request: Request, engine: AppEngine, body: NewProject) -> ProjectOut:
    """Make a project: private, with nobody in it, unless said otherwise."""
    if body.public and access_of(request).is_open:
        raise NotAllowed(f"{NEEDS_LOG_INS} Nothing was kept. {how_to_have_log_ins(request.app.state.settings)}")
    with transaction(engine) as session:
        row = projects.create_project(session, body.project, by=signed(body.author), public=body.public)
        made = next(one for one in projects.list_projects(session) if one.id == row.id)
    return ProjectOut.of(made, access_of(request))


@router.patch("/{slug}", responses=documented(404, 422))
def change_project(engine: AppEngine, slug: Slug, change: ProjectChange) -> Members:
    """Have everybody read the project, or its members only."""
    return Members.of(membership.set_public(engine, slug, change.public, by=signed(change.author)))


@router.get("/{slug}/members", responses=documented(404, 422))
def list_members(session: ReadSession, slug: Slug) -> Members:
    """Who belongs to the project."""
    return Members.of(membership.get_membership(session, slug))


@router.post("/{slug}/members", responses=documented(404, 422))
def set_member(request: Request, engine: AppEngine, slug: Slug, body: NewMember) -> Members:
    """Make somebody a member, or change the role. That of the last maintainer is an administrator's to take."""
    by, may_orphan = signed(body.author), access_of(request).may_anywhere(Action.ADMINISTER)
    return Members.of(membership.set_member(engine, slug, name=body.name, role=body.role, by=by, may_orphan=may_orphan))


@router.delete("/{slug}/members/{user_id}", status_code=204, responses=documented(404, 422))
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
def create_token(engine: AppEngine, slug: Slug, body: NewToken) -> JSONResponse:
    """Make a token. The answer is the only place where it is shown."""
    one, secret = tokens.make_token(
        engine, slug, name=body.name, scopes=body.scopes, expires_at=body.ends(), by=signed(body.author)
    )
    made = TokenMade(**TokenOut.model_validate(one).model_dump(), token=secret)
    return JSONResponse(made.model_dump(mode="json"), 201, _NOT_KEPT)


@router.delete("/{slug}/tokens/{token_id}", responses=documented(404, 422))
def revoke_token(engine: AppEngine, slug: Slug, token_id: TokenId) -> TokenOut:
    """Revoke a token: from now on it opens nothing. Revoking it again changes nothing."""
    return TokenOut.model_validate(tokens.revoke_token(engine, slug, token_id, by=signed()))
