"""Pages of regressions: the triage list and one regression, with their forms. They work without script."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.matching import AXES
from app.domain.triage import STATES
from app.errors import EditConflict, InvalidChange, NotFound, ThreewallsError
from app.regressions import sentences
from app.regressions.detail import RegressionView
from app.regressions.filters import ACTIVE_STATES, KINDS, METRICS, RegressionFilters, page_number
from app.regressions.forms import TriageForm, read_triage_form
from app.regressions.history_chart import history_chart
from app.regressions.queries import cost_of, count_by_state, find_regressions, options_of
from app.regressions.triage import MAX_AT_ONCE, change_regressions
from app.web.dependencies import AppEngine, ReadSession
from app.web.forms import sent_form
from app.web.request_session import reading
from app.web.templating import render

router = APIRouter(include_in_schema=False)

RegressionId = Annotated[int, Path(ge=1, lt=2**31)]
_MAX_FIELDS = MAX_AT_ONCE + 20


@router.get("/regressions")
def list_regressions(
    request: Request, session: ReadSession, changed: Annotated[int | None, Query(ge=0)] = None
) -> HTMLResponse:
    return _render_list(request, session, TriageForm(), changed=changed)


@router.post("/regressions")
async def change_selected(request: Request, engine: AppEngine) -> Response:
    """The same change as the API's, of the rows that were selected. Async only to read the form."""
    async with sent_form(request, max_files=0, max_fields=_MAX_FIELDS) as sent:
        form = read_triage_form(sent, sent.getlist("seen"))
    return await run_in_threadpool(_change_selected, request, engine, form)


@router.get("/regressions/{regression_id}")
def show_regression(request: Request, session: ReadSession, regression_id: RegressionId) -> HTMLResponse:
    return _render_regression(request, RegressionView(session, regression_id))


@router.post("/regressions/{regression_id}")
async def change_regression(request: Request, engine: AppEngine, regression_id: RegressionId) -> Response:
    """The same change as the API's. Async only to read the form."""
    async with sent_form(request, max_files=0, max_fields=_MAX_FIELDS) as sent:
        form = read_triage_form(sent)
    return await run_in_threadpool(_change_one, request, engine, regression_id, form)


@router.get("/regressions/{regression_id}/chart")
def show_chart(request: Request, session: ReadSession, regression_id: RegressionId, run: int) -> HTMLResponse:
    """The chart of one member: by itself to htmx, on the page to everyone else."""
    view = RegressionView(session, regression_id)
    member = view.member_of(run)
    if member is None:
        raise NotFound(f"Run {run} is no member of regression {regression_id}.")
    points = view.points(member)
    spec = history_chart(points, member, view.found.metric) if points else None
    return _render_regression(request, view, block="member_chart", drawn=member, points=points, spec=spec)


def _change_selected(request: Request, engine: Engine, form: TriageForm) -> Response:
    filters = RegressionFilters.from_params(request.query_params, state=ACTIVE_STATES)
    query = filters.query(page=page_number(request.query_params))
    try:
        changed = change_regressions(engine, form.seen_rows(), form.bulk_change())
    except (InvalidChange, EditConflict, NotFound) as error:
        with reading(request) as session:
            return _render_list(request, session, form.refused(error), status=_status(error))
    return RedirectResponse(f"/regressions?{query}{'&' if query else ''}changed={changed}", status_code=303)


def _change_one(request: Request, engine: Engine, regression_id: int, form: TriageForm) -> Response:
    try:
        change_regressions(engine, [form.seen_one(regression_id)], form.change())
    except (InvalidChange, EditConflict) as error:
        with reading(request) as session:
            view = RegressionView(session, regression_id, form.refused(error))
            return _render_regression(request, view, status=_status(error))
    return RedirectResponse(f"/regressions/{regression_id}#discussion", status_code=303)


def _status(error: ThreewallsError) -> int:
    return 409 if isinstance(error, EditConflict) else 404 if isinstance(error, NotFound) else 422


def _render_list(
    request: Request, session: Session, form: TriageForm, *, changed: int | None = None, status: int = 200
) -> HTMLResponse:
    filters = RegressionFilters.from_params(request.query_params, state=ACTIVE_STATES)
    number = page_number(request.query_params)
    counts = count_by_state(session, filters)
    query = filters.query(page=number)
    hours, without_cost = cost_of(session, RegressionFilters(state=ACTIVE_STATES))
    to_do = count_by_state(session, RegressionFilters())
    return render(
        request,
        "regressions/list.html",
        block="regression_table",
        address=f"/regressions?{query}" if query else "/regressions",
        status=status,
        page=find_regressions(session, filters, number),
        filters=filters,
        query=query,
        counts=counts,
        total=to_do["any"],
        answer=sentences.to_do(to_do[ACTIVE_STATES], hours, without_cost),
        options=options_of(session),
        choices={"metric": METRICS, "kind": KINDS, "axis": AXES, "state": STATES},
        what=sentences.what,
        form=form,
        selected={seen.split("@")[0] for seen in form.seen},
        changed=changed,
    )


def _render_regression(
    request: Request, view: RegressionView, *, block: str | None = None, status: int = 200, **drawn: Any
) -> HTMLResponse:
    return render(
        request,
        "regressions/regression.html",
        block=block,
        status=status,
        view=view,
        found=view.found,
        form_failed=status != 200,
        **({"drawn": None, "points": (), "spec": None} | drawn),
    )
