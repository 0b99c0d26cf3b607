"""Pages of projects, their members and tokens. HTTP in, template out."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.access.roles import ADMINISTRATOR, Action, Role, Scope
from app.errors import Conflict, InvalidChange
from app.members import membership, tokens
from app.members.api import LARGEST_ID, UserId, role_of
from app.members.form import MAX_FIELDS, Form
from app.members.job_lines import job_lines
from app.members.signed import signed
from app.storage import projects
from app.storage.database import read_session, transaction
from app.storage.tables import utc_now
from app.web.access.state import access_of
from app.web.dependencies import AppEngine
from app.web.forms import sent_form
from app.web.templating import public_address, render

LIVES = {"30": "30 days", "90": "90 days", "365": "1 year", "730": "2 years", "never": "never"}
"""How long a token lives, as the form offers it."""

router = APIRouter(include_in_schema=False, prefix="/settings/projects")

Slug = Annotated[str, Path(min_length=1, max_length=100)]
TokenId = Annotated[int, Path(ge=1, le=LARGEST_ID)]


async def read_form(request: Request) -> Form:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        return Form.read(sent)


@router.get("")
def show_projects(request: Request, engine: AppEngine) -> HTMLResponse:
    return _projects_page(request, engine, Form())


@router.post("")
async def create_project(request: Request, engine: AppEngine) -> Response:
    form = await read_form(request)
    return await run_in_threadpool(_create_project, request, engine, form)


def _create_project(request: Request, engine: Engine, form: Form) -> Response:
    try:
        with transaction(engine) as session:
            slug = projects.create_project(session, form.value("slug").strip(), by=signed(form.value("author"))).slug
    except (InvalidChange, Conflict) as error:
        return _projects_page(request, engine, form.refused(error), 422)
    return RedirectResponse(f"/settings/projects/{slug}/members", 303)


def _projects_page(request: Request, engine: Engine, form: Form, status: int = 200) -> HTMLResponse:
    access = access_of(request)
    with read_session(engine) as session:
        found = projects.list_projects(session)
    return render(
        request,
        "members/projects.html",
        status=status,
        projects=[(one, role_of(access, one.id), access.may(Action.MANAGE, one.id)) for one in found],
        form=form,
        administrator=ADMINISTRATOR,
    )


@router.get("/{slug}/members")
def show_members(request: Request, engine: AppEngine, slug: Slug) -> HTMLResponse:
    return _members_page(request, engine, slug, Form())


@router.post("/{slug}/members")
async def add_member(request: Request, engine: AppEngine, slug: Slug) -> Response:
    form = await read_form(request)
    return await run_in_threadpool(_add_member, request, engine, slug, form)


def _add_member(request: Request, engine: Engine, slug: str, form: Form) -> Response:
    by = signed(form.value("author"))
    try:
        membership.set_member(engine, slug, name=form.value("name"), role=form.value("role"), by=by, only_new=True)
    except InvalidChange as error:
        return _members_page(request, engine, slug, form.refused(error), 422)
    return RedirectResponse(request.url.path, 303)


@router.post("/{slug}/members/{user_id}")
async def change_member(request: Request, engine: AppEngine, slug: Slug, user_id: UserId) -> Response:
    """Another role, or none. Somebody who takes their own leaves the page that they may see no longer."""
    form = await read_form(request)
    return await run_in_threadpool(_change_member, request, engine, slug, user_id, form)


def _change_member(request: Request, engine: Engine, slug: str, user_id: int, form: Form) -> Response:
    role = "" if form.value("remove") else form.value("role") or "none"
    revoke = not role and form.value("revoke") == "yes"
    by, may_orphan = signed(form.value("author")), access_of(request).may_anywhere(Action.ADMINISTER)
    try:
        membership.change_role(engine, slug, user_id, role=role, by=by, may_orphan=may_orphan, revoke=revoke)
    except InvalidChange as error:
        return _members_page(request, engine, slug, Form(problem=error.detail), 422)
    person = access_of(request).person
    own = person is not None and person.user_id == user_id and not person.administrator
    stays = not own or role == Role.MAINTAINER
    return RedirectResponse(request.url.path.rpartition("/")[0] if stays else "/settings/projects", 303)


@router.post("/{slug}/public")
async def set_public(request: Request, engine: AppEngine, slug: Slug) -> Response:
    form = await read_form(request)
    public = form.value("public") == "yes"
    await run_in_threadpool(membership.set_public, engine, slug, public, by=signed(form.value("author")))
    return RedirectResponse(f"{request.url.path.rpartition('/')[0]}/members#public", 303)


def _members_page(request: Request, engine: Engine, slug: str, form: Form, status: int = 200) -> HTMLResponse:
    with read_session(engine) as session:
        found = membership.get_membership(session, slug)
    return render(
        request,
        "members/members.html",
        status=status,
        of_project={"id": found.project_id, "slug": slug},
        found=found,
        form=form,
        roles=[role.value for role in Role],
    )


@router.get("/{slug}/tokens")
def show_tokens(
    request: Request, engine: AppEngine, slug: Slug, page: Annotated[int, Query(ge=1, le=10**6)] = 1
) -> HTMLResponse:
    return _tokens_page(request, engine, slug, Form(), page=page)


@router.post("/{slug}/tokens")
async def make_token(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """The page that follows shows the token, once; no cache keeps it."""
    form = await read_form(request)
    return await run_in_threadpool(_make_token, request, engine, slug, form)


def _make_token(request: Request, engine: Engine, slug: str, form: Form) -> Response:
    life = form.value("life")
    ends = utc_now() + timedelta(days=int(life)) if life in LIVES and life != "never" else None
    if life not in LIVES:
        ends = utc_now() + tokens.LIFE
    try:
        made, secret = tokens.make_token(
            engine, slug, name=form.value("name"), scopes=form.all("scopes"), expires_at=ends,
            by=signed(form.value("author")),
        )  # fmt: skip
    except InvalidChange as error:
        return _tokens_page(request, engine, slug, form.refused(error), status=422)
    return _tokens_page(request, engine, slug, Form(), made=made, secret=secret)


@router.post("/{slug}/tokens/{token_id}/revoke")
async def revoke_token(request: Request, engine: AppEngine, slug: Slug, token_id: TokenId) -> Response:
    form = await read_form(request)
    await run_in_threadpool(tokens.revoke_token, engine, slug, token_id, by=signed(form.value("author")))
    return RedirectResponse(request.url.path.rsplit("/", 2)[0], 303)


def _tokens_page(
    request: Request,
    engine: Engine,
    slug: str,
    form: Form,
    *,
    status: int = 200,
    made: tokens.Token | None = None,
    secret: str = "",
    page: int = 1,
) -> HTMLResponse:
    with read_session(engine) as session:
        project = projects.find_project(session, slug)
        found = tokens.list_tokens(session, slug, page=page)
    response = render(
        request,
        "members/tokens.html",
        status=status,
        of_project={"id": project.id, "slug": slug},
        tokens=found,
        form=form,
        scopes=[scope.value for scope in Scope],
        lives=LIVES,
        made=made,
        secret=secret,
        job=job_lines(public_address(request), slug),
    )
    if secret:
        response.headers["Cache-Control"] = "no-store"
    return response
