"""Groups of users: `/api/v1/groups` and `/settings/groups` for administrators, and their roles in a project."""

from typing import Annotated, Self
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.access.members import read_role
from app.access.members_api import Author, UserId
from app.access.members_pages import MAX_FIELDS, MemberForm
from app.domain.access.principal import Action, Role
from app.errors import Conflict, InvalidChange, NotFound, ThreewallsError
from app.storage import users
from app.storage.database import read_session, transaction
from app.storage.projects import find_project
from app.storage.users import MAX_GROUP_NAME, GroupRole
from app.web.access_rule import requires
from app.web.dependencies import LARGEST_NUMBER, ApiValue, AppEngine, AppSettings, ReadSession, Slug, api_router
from app.web.errors import documented
from app.web.forms import answer_form
from app.web.identity import signed
from app.web.templating import render

GroupId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="Id of the group.")]
GroupName = Annotated[str, Field(min_length=1, max_length=MAX_GROUP_NAME)]


class GroupMemberOut(ApiValue):
    user_id: int
    name: str
    by_provider: bool = Field(description="The identity provider states it; the next log-in may end it.")


class GroupOut(ApiValue):
    id: int
    name: str
    created_by: str
    members: list[GroupMemberOut]
    roles: dict[str, Role] = Field(description="By project.")


class GroupList(BaseModel):
    items: list[GroupOut]


class NewGroup(BaseModel, extra="forbid"):
    name: GroupName = Field(description="The name, as the identity provider states it in the groups claim.")
    author: Author = ""


class NewGroupMember(BaseModel, extra="forbid"):
    name: str = Field(min_length=1, max_length=100, description="Name of a user.")
    author: Author = ""


class GroupRoleOut(ApiValue):
    group_id: int
    name: str
    role: Role
    added_by: str
    members: list[str] = Field(description="Names of the active users in the group.")


class GroupRoles(BaseModel):
    items: list[GroupRoleOut]

    @classmethod
    def of(cls, roles: list[GroupRole]) -> Self:
        return cls(items=[GroupRoleOut.model_validate(role) for role in roles])


class NewGroupRole(BaseModel, extra="forbid"):
    name: GroupName = Field(description="Name of a group.")
    role: Role
    author: Author = ""


api = api_router("access")


@api.get("/groups")
@requires(Action.ADMINISTER)
def read_groups(session: ReadSession) -> GroupList:
    """List all groups with their members and roles."""
    return GroupList(items=[GroupOut.model_validate(group) for group in users.list_groups(session)])


@api.post("/groups", status_code=201, responses=documented(409, 422))
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
def create_group(engine: AppEngine, body: NewGroup) -> GroupOut:
    """Create a group. Users join it by hand, or at a log-in by an identity provider that states this name."""
    with transaction(engine) as session:
        return GroupOut.model_validate(users.create_group(session, body.name, by=signed(body.author)))


@api.delete("/groups/{group_id}", status_code=204, responses=documented(404, 422))
@requires(Action.ADMINISTER, log_ins=True)
def delete_group(engine: AppEngine, group_id: GroupId) -> None:
    """Delete a group with its roles. Roles that users have themselves stay."""
    with transaction(engine) as session:
        users.delete_group(session, group_id, by=signed())


@api.post("/groups/{group_id}/members", responses=documented(404, 422))
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
def add_to_group(engine: AppEngine, group_id: GroupId, body: NewGroupMember) -> GroupOut:
    """Add a user to a group. A log-in by the identity provider does not end it."""
    with transaction(engine) as session:
        users.add_to_group(session, group_id, body.name, by=signed(body.author))
        session.flush()
        return GroupOut.model_validate(next(group for group in users.list_groups(session) if group.id == group_id))


@api.delete("/groups/{group_id}/members/{user_id}", status_code=204, responses=documented(404, 422))
@requires(Action.ADMINISTER, log_ins=True)
def remove_from_group(engine: AppEngine, group_id: GroupId, user_id: UserId) -> None:
    """Remove a user from a group."""
    with transaction(engine) as session:
        users.remove_from_group(session, group_id, user_id, by=signed())


@api.get("/projects/{slug}/groups", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def read_group_roles(session: ReadSession, slug: Slug) -> GroupRoles:
    """List the groups with a role in the project."""
    return GroupRoles.of(users.groups_of_project(session, find_project(session, slug).id or 0))


@api.post("/projects/{slug}/groups", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
def set_group_role(engine: AppEngine, slug: Slug, body: NewGroupRole) -> GroupRoles:
    """Give a group a role in the project, or change it."""
    give_role(engine, slug, body.name, body.role, by=signed(body.author))
    with read_session(engine) as session:
        return GroupRoles.of(users.groups_of_project(session, find_project(session, slug).id or 0))


@api.delete("/projects/{slug}/groups/{group_id}", status_code=204, responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def end_group_role(engine: AppEngine, slug: Slug, group_id: GroupId) -> None:
    """End the role of a group in the project."""
    end_role(engine, slug, group_id, by=signed())


def give_role(engine: AppEngine, slug: str, name: str, role: str, *, by: str) -> None:
    """Give the group with this name a role in a project. Raises InvalidChange, NotFound."""
    new_role = read_role(role)
    with transaction(engine) as session:
        project, group = find_project(session, slug), users.find_group(session, name)
        if group is None:
            raise InvalidChange.of_field("name", "does not match a group; an administrator creates groups")
        users.set_group_role(session, project_id=project.id or 0, group_id=group.id or 0, role=new_role, by=by)


def end_role(engine: AppEngine, slug: str, group_id: int, *, by: str) -> None:
    with transaction(engine) as session:
        project = find_project(session, slug)
        if group_id not in {role.group_id for role in users.groups_of_project(session, project.id or 0)}:
            raise NotFound(f"This group has no role in {slug}. Nothing was changed.")
        users.set_group_role(session, project_id=project.id or 0, group_id=group_id, role=None, by=by)


# --- Pages.

router = APIRouter(include_in_schema=False, prefix="/settings")


@router.get("/groups")
@requires(Action.ADMINISTER)
def show_groups(request: Request, session: ReadSession, settings: AppSettings) -> HTMLResponse:
    return _page(request, session, settings, MemberForm())


@router.post("/groups")
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
async def add_group(request: Request, engine: AppEngine, settings: AppSettings) -> Response:
    def add(form: MemberForm) -> str:
        with transaction(engine) as session:
            group = users.create_group(session, form.value("name"), by=form.by)
        return f"/settings/groups#group-{group.id}"

    def again(session: Session, form: MemberForm, _: ThreewallsError) -> Response:
        return _page(request, session, settings, form, 422)

    catch = (InvalidChange, Conflict)
    return await answer_form(request, MemberForm, add, again, max_fields=MAX_FIELDS, catch=catch)


@router.post("/groups/{group_id}")
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
async def change_group(request: Request, engine: AppEngine, settings: AppSettings, group_id: GroupId) -> Response:
    """Add the user `name`, remove the user `remove`, or delete the group, as the button says."""

    def change(form: MemberForm) -> str:
        with transaction(engine) as session:
            if form.value("delete") == "yes":
                users.delete_group(session, group_id, by=form.by)
            elif form.value("remove"):
                removed = form.value("remove")
                user_id = int(removed) if removed.isascii() and removed.isdigit() and len(removed) < 19 else 0
                users.remove_from_group(session, group_id, user_id, by=form.by)
            else:
                users.add_to_group(session, group_id, form.value("name"), by=form.by)
        return f"/settings/groups#group-{group_id}"

    def again(session: Session, _: MemberForm, error: ThreewallsError) -> Response:
        return _page(request, session, settings, MemberForm(problem=error.detail), 422)

    return await answer_form(request, MemberForm, change, again, max_fields=MAX_FIELDS)


@router.post("/projects/{slug}/groups")
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
async def change_group_role(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """Give the group `name` a role, or end that of the group `remove`."""

    def change(form: MemberForm) -> str:
        if removed := form.value("remove"):
            end_role(engine, slug, int(removed) if removed.isascii() and removed.isdigit() else 0, by=form.by)
        else:
            give_role(engine, slug, form.value("name"), form.value("role"), by=form.by)
        return f"/settings/projects/{quote(slug)}/members#groups"

    return await answer_form(request, MemberForm, change, max_fields=MAX_FIELDS)


def _page(
    request: Request, session: Session, settings: AppSettings, form: MemberForm, status: int = 200
) -> HTMLResponse:
    return render(
        request,
        "access/groups.html",
        status=status,
        groups=users.list_groups(session),
        form=form,
        claim=settings.oidc_groups_claim if settings.oidc_issuer else "",
    )
