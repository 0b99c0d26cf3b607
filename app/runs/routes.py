"""Pages of runs: the list, one run and its parts, the upload form. HTTP in, template out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import HTMLResponse, Response

from app.runs.filters import EVIDENCE_LEVELS, PURPOSES, STATUSES
from app.runs.queries import RunFilters, filter_options, find_runs, page_number
from app.runs.run_page import RunPage
from app.runs.run_view import RunView
from app.settings import Settings
from app.web.assets import vega_bundle
from app.web.dependencies import AppLogFiles, AppSettings, ReadSession
from app.web.templating import render

router = APIRouter(include_in_schema=False)

RunId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("/runs")
def list_runs(request: Request, session: ReadSession) -> HTMLResponse:
    filters = RunFilters.from_params(request.query_params)
    number = page_number(request.query_params)
    page = find_runs(session, filters, number)
    query = filters.query(page=number)
    return render(
        request,
        "runs/list.html",
        block="run_table",
        address=f"/runs?{query}" if query else "/runs",
        page=page,
        filters=filters,
        options=filter_options(session),
        choices={"status": STATUSES, "purpose": PURPOSES, "evidence": EVIDENCE_LEVELS},
    )


def get_page(request: Request, run_id: RunId, session: ReadSession, log_files: AppLogFiles) -> RunPage:
    return RunPage(session, log_files, run_id, RunView.from_params(request.query_params))


Page = Annotated[RunPage, Depends(get_page)]


@router.get("/runs/{run_id}")
def show_run(request: Request, page: Page, settings: AppSettings) -> HTMLResponse:
    return _render_run(request, page, settings, block=None)


@router.get("/runs/{run_id}/chart")
def show_chart(request: Request, page: Page, settings: AppSettings) -> HTMLResponse:
    return _render_run(request, page, settings, block="run_chart")


@router.get("/runs/{run_id}/log")
def show_log(request: Request, page: Page, settings: AppSettings) -> HTMLResponse:
    return _render_run(request, page, settings, block="run_log")


@router.get("/runs/{run_id}/state")
def show_state(request: Request, page: Page, settings: AppSettings, seen: str = "") -> Response:
    """What a waiting page asks every second. 204 while nothing changed, so that nothing on the page moves."""
    if page.run.status == seen:
        return Response(status_code=204, headers={"Vary": "HX-Request", "Cache-Control": "no-cache"})
    return _render_run(request, page, settings, block="run_body")


def _render_run(request: Request, page: RunPage, settings: Settings, block: str | None) -> HTMLResponse:
    # Writing the bundle takes a second the first time, so only a page that draws asks for it.
    return render(
        request,
        "runs/run.html",
        block=block,
        p=page,
        run=page.run,
        view=page.view,
        vega_url=lambda: f"/assets/{vega_bundle(settings.data_dir).name}",
    )
