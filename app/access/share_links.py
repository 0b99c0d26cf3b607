"""Share links: links that open one page of a project without a log-in, until they expire or are revoked."""

import re
from typing import Annotated
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import APIRouter, Path, Query, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.access.credentials import set_share
from app.access.members_api import LARGEST_ID
from app.access.owners import Owners
from app.domain.access.principal import Action
from app.domain.access.secrets import digest
from app.errors import FieldError, InvalidChange, NotFound, ThreewallsError
from app.storage import share_links
from app.storage.database import read_session, transaction
from app.storage.projects import find_project
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access_rule import Open, Owner, requires
from app.web.dependencies import AppEngine, ReadSession, reading
from app.web.forms import Form, answer_form
from app.web.identity import signed
from app.web.templating import public_address, render

router = APIRouter(include_in_schema=False)

Slug = Annotated[str, Path(min_length=1, max_length=100)]
LinkId = Annotated[int, Path(ge=1, le=LARGEST_ID)]

LIVES = {"1": "1 day", "7": "7 days", "30": "30 days", "90": "90 days", "365": "1 year"}
_DEFAULT_LIFE = "30"

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
        with reading(request) as session:
            project_id = find_project(session, slug).id or 0
        page = page_to_share(Owners(engine), project_id, form.value("page"))
        days = int(form.value("days")) if form.value("days") in LIVES else int(_DEFAULT_LIFE)
        with transaction(engine) as session:
            _, secret = share_links.make_share_link(session, project_id=project_id, page=page, days=days, by=signed(""))
        with reading(request) as session:
            return _page(request, session, slug, ShareForm(), link=f"{public_address(request)}/s/{secret}")

    def again(session: Session, form: ShareForm, _: ThreewallsError) -> Response:
        return _page(request, session, slug, form, status=422)

    return await answer_form(request, ShareForm, make, again, max_fields=4)


@router.post("/settings/projects/{slug}/share-links/{link_id}/revoke")
@requires(Action.CONTRIBUTE, of="project", log_ins=True)
async def revoke_link(request: Request, engine: AppEngine, slug: Slug, link_id: LinkId) -> Response:
    def revoke(_: ShareForm) -> str:
        with transaction(engine) as session:
            share_links.revoke_share_link(session, find_project(session, slug).id or 0, link_id, by=signed(""))
        return request.url.path.rsplit("/", 2)[0]

    return await answer_form(request, ShareForm, revoke, max_fields=4)


@router.get("/s/{secret}")
@requires(Open.ANYONE)
def open_link(request: Request, engine: AppEngine, secret: Annotated[str, Path(max_length=100)]) -> Response:
    """Open the shared page. The cookie limits access to it; the secret does not stay in the address."""
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        link = share_links.find_share_link(session, digest(secret))
    if link is None:
        raise NotFound("This link is unknown, expired or revoked. Ask the person who sent it for a new one.")
    with seeing(EVERY_PROJECT), transaction(engine) as session:
        share_links.note_opened(session, link.id)
    response = RedirectResponse(link.page, status_code=303)
    set_share(request, response, link, secret)
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
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
        life=form.value("days") or _DEFAULT_LIFE,
        link=link,
    )
    if link:
        response.headers["Cache-Control"] = "no-store"
    return response
