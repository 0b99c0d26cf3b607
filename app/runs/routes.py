"""Pages of runs: the list, one run and its parts. HTTP in, template out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from app.domain.verdict_words import DECISIONS
from app.runs.export import csv_rows
from app.runs.filters import EVIDENCE_LEVELS, PURPOSES, STATUSES, VERDICTS
from app.runs.news import Token, news_of, token_of
from app.runs.queries import RunFilters, filter_options, find_runs, get_series, get_state, page_number
from app.runs.run_page import RunPage, render_run
from app.runs.run_view import RunView
from app.web.dependencies import AppLogFiles, ReadSession
from app.web.outcomes import OUTCOMES
from app.web.templating import render, shown_params

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
        choices={
            "status": STATUSES,
            "purpose": PURPOSES,
            "evidence": EVIDENCE_LEVELS,
            "outcome": OUTCOMES,
            "verdict": {name: DECISIONS.get(name, name) for name in VERDICTS} | {"none": "not judged"},
        },
    )


def get_page(request: Request, run_id: RunId, session: ReadSession, log_files: AppLogFiles) -> RunPage:
    return RunPage(session, log_files, run_id, RunView.from_params(request.query_params))


Page = Annotated[RunPage, Depends(get_page)]


@router.get("/runs/{run_id}")
def show_run(request: Request, page: Page) -> HTMLResponse:
    page.check_series()
    return render_run(request, page, block=None)


@router.get("/runs/{run_id}/chart")
def show_chart(request: Request, page: Page) -> HTMLResponse:
    return render_run(request, page, block="run_chart", anchor="chart")


@router.get("/runs/{run_id}/log")
def show_log(request: Request, page: Page) -> HTMLResponse:
    anchor = f"L{page.view.line}" if page.view.line else "log"
    return render_run(request, page, block="run_log", anchor=anchor)


@router.get("/runs/{run_id}/timers")
def show_timers(request: Request, page: Page) -> HTMLResponse:
    return render_run(request, page, block="run_timers")


@router.get("/runs/{run_id}/news")
def show_news(
    *, request: Request, session: ReadSession, log_files: AppLogFiles, run_id: RunId, seen: str = ""
) -> Response:
    """What a page asks for while it may be behind. 204 while it is not, so that nothing on it moves."""
    before, now = Token.parse(seen), token_of(get_state(session, run_id))
    if before == now:
        return Response(status_code=204, headers={"Vary": "HX-Request", "Cache-Control": "no-cache"})
    page = RunPage(session, log_files, run_id, RunView.from_params(shown_params(request)))
    return render_run(request, page, block="run_news", whole=before.status != now.status, announce=news_of(before, now))


@router.get("/runs/{run_id}/series.csv")
def export_series(session: ReadSession, run_id: RunId) -> StreamingResponse:
    """The API's CSV under an address of its own: a link cannot ask for a media type."""
    headers = {"Content-Disposition": f'attachment; filename="run-{run_id}.csv"'}
    return StreamingResponse(csv_rows(get_series(session, run_id)), media_type="text/csv", headers=headers)
