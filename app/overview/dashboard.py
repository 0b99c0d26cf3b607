"""The charts on the overview of a project: `/api/v1/projects/{slug}/dashboard`, and the forms that change them."""

import re
from datetime import datetime
from typing import Annotated
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.responses import Response

from app.access.owners import Owners
from app.access.share_links import page_to_share
from app.domain.access.principal import Action
from app.domain.naming import comparison_title
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange
from app.storage import projects
from app.storage.database import transaction
from app.storage.projects import MAX_CHARTS, MAX_PAGE, MAX_TITLE, DashboardChart, find_project
from app.storage.stacks import names_of_stacks
from app.storage.standings import leaderboard_title
from app.web.access_rule import requires
from app.web.dependencies import LARGEST_NUMBER, ApiValue, AppEngine, ReadSession, Slug, api_router
from app.web.errors import documented
from app.web.forms import Form, answer_form
from app.web.identity import signed

_BOARD = re.compile(r"/leaderboards/([^/]{1,100})/([^/]{1,100})")

ChartId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="Id of the chart.")]


def page_to_chart(session: Session, engine: Engine, project_id: int, slug: str, address: str) -> tuple[str, str]:
    """Return path with query and title of a page with a chart. Raises InvalidChange unless the project owns it.

    A leaderboard is limited to the stacks of the project.
    """
    parts = urlsplit(address.strip())
    if board := _BOARD.fullmatch(parts.path.rstrip("/")):
        if title := leaderboard_title(session, board[1], board[2]):
            filters = dict(parse_qsl(parts.query)) | {"project": slug}
            return f"{board[0]}?{urlencode(filters)}", title
    elif parts.path.startswith("/history/"):
        page = page_to_share(Owners(engine), project_id, address)
        key = page.removeprefix("/history/")
        return page, names_of_stacks(session, [key]).get(key, key[:12])
    elif parts.path.startswith("/compare"):
        page = page_to_share(Owners(engine), project_id, address)
        sides = dict(parse_qsl(urlsplit(page).query))
        return page, comparison_title(sides.get("a", "").split(","), sides.get("b", "").split(","))
    why = "must be the address of a history, leaderboard or comparison of this project"
    raise InvalidChange(f"No chart was added: the page {why}.", (FieldError("page", why),))


def add(engine: Engine, slug: str, *, page: str, title: str, by: str) -> DashboardChart:
    with transaction(engine) as session:
        project = find_project(session, slug)
        address, own_title = page_to_chart(session, engine, project.id or 0, project.slug, page)
        name = (one_line(title) or own_title)[:MAX_TITLE]
        return projects.add_chart(session, project.id or 0, page=address, title=name, by=by)


# --- The API.


class ChartOut(ApiValue):
    id: int
    page: str
    title: str
    position: int = Field(description="From 1.")
    picture: str = Field(description="The chart as an image; `picture.png` is the same as PNG.")
    added_by: str
    added_at: datetime


class Dashboard(BaseModel):
    items: list[ChartOut]


class NewChart(BaseModel, extra="forbid"):
    page: str = Field(
        min_length=1, max_length=2 * MAX_PAGE, description="Address or path of a history, leaderboard or comparison."
    )
    title: str = Field("", max_length=MAX_TITLE, description="Default: the title of the page.")
    author: str = Field("", max_length=100, description="Author of the change, on a service without log-ins.")


class ChartChange(BaseModel, extra="forbid"):
    position: int = Field(ge=1, le=MAX_CHARTS)
    author: str = Field("", max_length=100, description="Author of the change, on a service without log-ins.")


api = api_router("projects", "/api/v1/projects/{slug}/dashboard")


@api.get("", responses=documented(404, 422))
@requires(Action.READ, of="project")
def read_dashboard(session: ReadSession, slug: Slug) -> Dashboard:
    """List the charts on the overview of the project, in order."""
    charts = projects.list_charts(session, find_project(session, slug).id or 0)
    return Dashboard(items=[ChartOut.model_validate(chart) for chart in charts])


@api.post("", status_code=201, responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def add_chart(engine: AppEngine, slug: Slug, body: NewChart) -> ChartOut:
    """Add a chart at the end. A page that is there already stays where it is."""
    chart = add(engine, slug, page=body.page, title=body.title, by=signed(body.author))
    return ChartOut.model_validate(chart)


@api.patch("/{chart_id}", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def move_chart(engine: AppEngine, slug: Slug, chart_id: ChartId, change: ChartChange) -> Dashboard:
    """Move a chart."""
    with transaction(engine) as session:
        project_id = find_project(session, slug).id or 0
        projects.move_chart(session, project_id, chart_id, change.position, by=signed(change.author))
        session.flush()
        charts = projects.list_charts(session, project_id)
    return Dashboard(items=[ChartOut.model_validate(chart) for chart in charts])


@api.delete("/{chart_id}", status_code=204, responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="project")
def remove_chart(engine: AppEngine, slug: Slug, chart_id: ChartId) -> None:
    """Remove a chart from the overview."""
    with transaction(engine) as session:
        projects.remove_chart(session, find_project(session, slug).id or 0, chart_id, by=signed())


# --- The forms. Each leads to the overview of the project.


class ChartForm(Form):
    inputs = ("page", "title", "author", "do", "position")
    longest = 2 * MAX_PAGE


router = APIRouter(include_in_schema=False, prefix="/settings/projects/{slug}/dashboard")
_MAX_FIELDS = 6


@router.post("")
@requires(Action.CONTRIBUTE, of="project")
async def add_by_form(request: Request, engine: AppEngine, slug: Slug) -> Response:
    def act(form: ChartForm) -> str:
        add(engine, slug, page=form.value("page"), title=form.value("title"), by=signed(form.value("author")))
        return _overview(slug)

    return await answer_form(request, ChartForm, act, max_fields=_MAX_FIELDS)


@router.post("/{chart_id}")
@requires(Action.CONTRIBUTE, of="project")
async def change_by_form(request: Request, engine: AppEngine, slug: Slug, chart_id: ChartId) -> Response:
    """Remove the chart, or move it to `position`."""

    def act(form: ChartForm) -> str:
        by, position = signed(form.value("author")), form.value("position")
        with transaction(engine) as session:
            project_id = find_project(session, slug).id or 0
            if form.value("do") == "remove":
                projects.remove_chart(session, project_id, chart_id, by=by)
            elif position.isascii() and position.isdigit() and len(position) < 4:
                projects.move_chart(session, project_id, chart_id, int(position), by=by)
        return _overview(slug)

    return await answer_form(request, ChartForm, act, max_fields=_MAX_FIELDS)


def _overview(slug: str) -> str:
    return f"/?{urlencode({'project': slug})}#dashboard"
