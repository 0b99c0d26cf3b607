"""Share links: links that open one page of a project without a log-in, until they expire or are revoked."""

import re
from datetime import datetime
from typing import Annotated
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from app.access.credentials import set_share
from app.access.members_api import Author
from app.access.owners import Owners
from app.domain.access.principal import Action
from app.domain.access.secrets import digest
from app.errors import FieldError, InvalidChange, NotFound, ThreewallsError
from app.storage import share_links
from app.storage.database import read_session, transaction
from app.storage.projects import find_project
from app.storage.share_links import ShareLink
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access_rule import Open, Owner, requires
from app.web.dependencies import LARGEST_NUMBER, ApiValue, AppEngine, ReadSession, Slug, api_router, reading
from app.web.errors import documented
from app.web.forms import Form, answer_form
from app.web.identity import signed
from app.web.templating import public_address, render

router = APIRouter(include_in_schema=False)

LinkId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="Id of the link.")]

LIVES = {"1": "1 day", "7": "7 days", "30": "30 days", "90": "90 days", "365": "1 year"}
_DEFAULT_LIFE = 30
_NO_STORE = {"Cache-Control": "no-store"}

_PAGES: tuple[tuple[re.Pattern[str], Owner], ...] = (
    (re.compile(r"/runs/(\d+)"), "run"),
    (re.compile(r"/regressions/(\d+)"), "regression"),
    (re.compile(r"/experiments/(\d+)"), "experiment"),
    (re.compile(r"/history/([0-9a-f]{64})"), "stack"),
    (re.compile(r"/api/v1/runs/(\d+)/report"), "run"),
)
"""Pages that can be shared, and what their paths name. A comparison names its runs in the query instead."""


class ShareForm(Form):
    inputs = ("page", "days")
    longest = share_links.MAX_PAGE


def page_to_share(owners: Owners, project_id: int, address: str) -> str:
    """Return the path of a page, with the query of a comparison. Raises InvalidChange unless the project owns it.

    `address`: the URL as a browser shows it, or its path.
    """
    parts = urlsplit(address.strip())
    path = parts.path.rstrip("/")
    if path == "/compare":
        sides = {name: values[0] for name, values in parse_qs(parts.query).items() if name in ("a", "b") and values}
        runs = [run for side in sides.values() for run in side.split(",")]
        if len(sides) == 2 and all(_is_of(owners, project_id, "run", run) for run in runs):
            return f"{path}?{urlencode(sides)}"
    for pattern, owner in _PAGES:
        if (matched := pattern.fullmatch(path)) and _is_of(owners, project_id, owner, matched[1]):
            return path
    why = "must be the address of a run, comparison, regression, experiment or history of this project"
    raise InvalidChange(f"No link was created: page {why}.", (FieldError("page", why),))


def _is_of(owners: Owners, project_id: int, owner: Owner, value: str) -> bool:
    owned = owners.find(owner, value)
    return owned is not None and owned.project == project_id


def share(engine: Engine, slug: str, *, page: str, days: int, by: str) -> tuple[ShareLink, str]:
    """Create a link to a page of the project and return it with its secret. Raises InvalidChange, NotFound."""
    with read_session(engine) as session:
        project_id = find_project(session, slug).id or 0
    address = page_to_share(Owners(engine), project_id, page)
    with transaction(engine) as session:
        return share_links.make_share_link(session, project_id=project_id, page=address, days=days, by=by)


def revoke(engine: Engine, slug: str, link_id: int, *, by: str) -> ShareLink:
    with transaction(engine) as session:
        return share_links.revoke_share_link(session, find_project(session, slug).id or 0, link_id, by=by)


# --- `/api/v1/projects/{slug}/share-links`.


class ShareLinkOut(ApiValue):
    id: int
    page: str = Field(description="The page that the link opens.")
    state: str = Field(description="`active`, `revoked` or `expired`.")
    created_by: str
    created_at: datetime
    expires_at: datetime
    opened: int = Field(description="How often it was opened.")
    opened_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str


class ShareLinkCreated(ShareLinkOut):
    link: str = Field(description="The address to send. It is shown only once.")


class ShareLinkList(BaseModel):
    items: list[ShareLinkOut] = Field(description="Links that are not revoked first, newest first.")


class NewShareLink(BaseModel, extra="forbid"):
    page: str = Field(
        min_length=1,
        max_length=share_links.MAX_PAGE,
        description="Address or path of a run, its report, a comparison, a regression, an experiment or a history.",
    )
    days: int = Field(_DEFAULT_LIFE, ge=1, le=share_links.MAX_DAYS, description="Days until the link expires.")
    author: Author = ""


api = api_router("access", "/api/v1/projects/{slug}/share-links")


@api.get("", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def read_share_links(session: ReadSession, slug: Slug) -> ShareLinkList:
    """List the share links of the project."""
    links = share_links.list_share_links(session, find_project(session, slug).id or 0)
    return ShareLinkList(items=[ShareLinkOut.model_validate(link) for link in links])


@api.post("", status_code=201, responses=documented(404, 422), response_model=ShareLinkCreated)
@requires(Action.CONTRIBUTE, of="project", log_ins=True)
def create_share_link(request: Request, engine: AppEngine, slug: Slug, body: NewShareLink) -> JSONResponse:
    """Create a link that opens one page without a log-in. Only this answer shows it."""
    link, secret = share(engine, slug, page=body.page, days=body.days, by=signed(body.author))
    answer = ShareLinkCreated.from_values(link, link=_address(request, secret))
    return JSONResponse(answer.model_dump(mode="json"), 201, _NO_STORE)


@api.delete("/{link_id}", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project", log_ins=True)
def delete_share_link(engine: AppEngine, slug: Slug, link_id: LinkId) -> ShareLinkOut:
    """Revoke a link: it opens nothing from now on."""
    return ShareLinkOut.model_validate(revoke(engine, slug, link_id, by=signed()))


def _address(request: Request, secret: str) -> str:
    return f"{public_address(request)}/s/{secret}"


# --- The page of a project's share links, and what opens a link.


@router.get("/settings/projects/{slug}/share-links")
@requires(Action.CONTRIBUTE, of="project")
def show_links(
    request: Request,
    session: ReadSession,
    slug: Slug,
    page: Annotated[str, Query(max_length=share_links.MAX_PAGE)] = "",
) -> HTMLResponse:
    return _page(request, session, slug, ShareForm({"page": page}))


@router.post("/settings/projects/{slug}/share-links")
@requires(Action.CONTRIBUTE, of="project", log_ins=True)
async def make_link(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """Create a link. The answer shows it once and must not be cached."""

    def make(form: ShareForm) -> Response:
        days = int(form.value("days")) if form.value("days") in LIVES else _DEFAULT_LIFE
        _, secret = share(engine, slug, page=form.value("page"), days=days, by=signed(""))
        with reading(request) as session:
            return _page(request, session, slug, ShareForm(), link=_address(request, secret))

    def again(session: Session, form: ShareForm, _: ThreewallsError) -> Response:
        return _page(request, session, slug, form, status=422)

    return await answer_form(request, ShareForm, make, again, max_fields=4)


@router.post("/settings/projects/{slug}/share-links/{link_id}/revoke")
@requires(Action.CONTRIBUTE, of="project", log_ins=True)
async def revoke_link(request: Request, engine: AppEngine, slug: Slug, link_id: LinkId) -> Response:
    def act(_: ShareForm) -> str:
        revoke(engine, slug, link_id, by=signed(""))
        return request.url.path.rsplit("/", 2)[0]

    return await answer_form(request, ShareForm, act, max_fields=4)


@router.get("/s/{secret}")
@requires(Open.ANYONE)
def open_link(request: Request, engine: AppEngine, secret: Annotated[str, Path(max_length=100)]) -> Response:
    """Open the shared page. The cookie limits access to it; the secret does not stay in the address."""
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        link = share_links.find_share_link(session, digest(secret))
    if link is None:
        raise NotFound("This link is unknown, expired or revoked. Ask its sender for a new one.")
    with seeing(EVERY_PROJECT), transaction(engine) as session:
        share_links.note_opened(session, link.id)
    response = RedirectResponse(link.page, status_code=303)
    set_share(request, response, link, secret)
    response.headers.update(_NO_STORE | {"Referrer-Policy": "no-referrer"})
    return response


def _page(
    request: Request, session: Session, slug: str, form: ShareForm, *, status: int = 200, link: str = ""
) -> HTMLResponse:
    project = find_project(session, slug)
    response = render(
        request,
        "access/share_links.html",
        status=status,
        of_project={"id": project.id, "slug": slug},
        links=share_links.list_share_links(session, project.id or 0),
        form=form,
        lives=LIVES,
        life=form.value("days") or str(_DEFAULT_LIFE),
        link=link,
    )
    if link:
        response.headers.update(_NO_STORE)
    return response
