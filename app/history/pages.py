"""Pages of histories: the list of stacks, one stack and its parts, its golden run. HTTP in, template out."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.errors import NotFound, ThreewallsError
from app.history.api import csv_rows
from app.history.charts import history_picture
from app.history.lists import MOST_STACKS, StackQuery, find_stacks, stack_options, stacks_of
from app.history.page import HistoryPage, PinForm, pin_by_form, render_history, unpin_by_form
from app.history.queries import MOST_CANDIDATES, VERDICTS, HistoryView, get_stack, matching_keys
from app.storage.database import read_session
from app.storage.example_runs import example_runs
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession, StackKey
from app.web.forms import answer_form
from app.web.lists import csv_download
from app.web.pictures import Kind, Theme, picture_response
from app.web.templating import render

MAX_FIELDS = 8

router = APIRouter(include_in_schema=False)


@router.get("/history")
@requires(Action.READ)
def list_stacks(request: Request, session: ReadSession) -> HTMLResponse:
    query = StackQuery.from_params(request.query_params)
    return render(
        request,
        "history/list.html",
        block="stack_table",
        address=query.address("/history"),
        page=find_stacks(session, query),
        most_stacks=MOST_STACKS,
        filters=query,
        options=stack_options(session),
        verdicts=VERDICTS,
        loading=example_runs(session),
    )


@router.get("/history/{stack}")
@requires(Action.READ)
def show_history(request: Request, session: ReadSession, stack: StackKey) -> HTMLResponse:
    return _show(request, session, stack, None)


@router.get("/history/{stack}/chart")
@requires(Action.READ)
def show_chart(request: Request, session: ReadSession, stack: StackKey) -> HTMLResponse:
    return _show(request, session, stack, "history_chart")


@router.get("/history/{stack}/data")
@requires(Action.READ)
def show_data(request: Request, session: ReadSession, stack: StackKey) -> HTMLResponse:
    return _show(request, session, stack, "history_data")


@router.get("/history/{stack}/runs")
@requires(Action.READ)
def show_runs(request: Request, session: ReadSession, stack: StackKey) -> HTMLResponse:
    return _show(request, session, stack, "history_runs")


@router.get("/history/{stack}/runs.csv")
@requires(Action.READ)
def export_runs(request: Request, session: ReadSession, stack: StackKey) -> Response:
    """Return the same CSV as the API. It has its own address, because a link cannot request a media type."""
    page = _page(request, session, stack)
    if page is None:
        raise NotFound("No stack has this key. The list of stacks is at /history.")
    return csv_download(csv_rows(page), f"history-{page.stack.stack_key[:12]}.csv")


@router.get("/history/{stack}/picture.{kind}")
@requires(Action.READ)
def draw_history(
    request: Request, session: ReadSession, stack: StackKey, kind: Kind, theme: Theme = "light"
) -> Response:
    """Return the newest step times of the stack as a slide."""
    keys = matching_keys(session, stack)
    drawn_stack = get_stack(session, keys[0]) if len(keys) == 1 else None
    if drawn_stack is None:
        raise NotFound("No stack has this key. The list of stacks is at /history.")
    return picture_response(request, history_picture(session, drawn_stack), kind, theme)


@router.post("/history/{stack}/pin")
@requires(Action.CONTRIBUTE, of="stack")
async def pin_run(request: Request, engine: AppEngine, stack: StackKey) -> Response:
    return await _decide(request, engine, stack, pin_by_form)


@router.post("/history/{stack}/unpin")
@requires(Action.CONTRIBUTE, of="stack")
async def unpin_run(request: Request, engine: AppEngine, stack: StackKey) -> Response:
    return await _decide(request, engine, stack, unpin_by_form)


def _show(request: Request, session: Session, text: str, block: str | None) -> HTMLResponse:
    page = _page(request, session, text)
    return _render_candidates(request, session, text) if page is None else render_history(request, page, block=block)


def _page(request: Request, session: Session, text: str, form: PinForm | None = None) -> HistoryPage | None:
    """Return the page of a stack; None unless the text identifies exactly one stack."""
    keys = matching_keys(session, text)
    stack = get_stack(session, keys[0]) if len(keys) == 1 else None
    view = HistoryView() if form else HistoryView.from_params(request.query_params)
    return HistoryPage(session, stack, f"/history/{text}", view, form) if stack else None


def _render_candidates(request: Request, session: Session, text: str) -> HTMLResponse:
    """Render the page for a text with which several stack keys start, or none."""
    keys = matching_keys(session, text)
    return render(
        request,
        "history/which.html",
        status=300 if keys else 404,
        text=text,
        stacks=stacks_of(session, keys[:MOST_CANDIDATES]),
        more=len(keys) > MOST_CANDIDATES,
    )


async def _decide(
    request: Request, engine: Engine, text: str, decide: Callable[[Engine, str, PinForm], None]
) -> Response:
    def act(form: PinForm) -> str:
        with read_session(engine) as session:
            keys = matching_keys(session, text)
        if len(keys) != 1:
            raise NotFound("No stack has this key, or several do. The list of stacks is at /history.")
        decide(engine, keys[0], form)
        return f"/history/{text}#golden"

    def again(session: Session, form: PinForm, _: ThreewallsError) -> Response:
        page = _page(request, session, text, form)
        if page is None:
            return _render_candidates(request, session, text)
        return render_history(request, page, block=None, status=422)

    return await answer_form(request, PinForm, act, again, max_fields=MAX_FIELDS)
