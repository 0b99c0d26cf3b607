"""`POST /runs/{id}/quarantine`, `/release`, `/pin`, `/unpin`: the forms of the run's page. They work without script."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.errors import InvalidChange
from app.runs.decide import ACTIONS, Action, decide
from app.runs.decision_form import DecisionForm, read_decision_form
from app.runs.routes import RunId
from app.runs.run_page import RunPage, render_run
from app.runs.run_view import RunView
from app.web.dependencies import AppEngine, AppLogFiles
from app.web.forms import sent_form
from app.web.request_session import reading

MAX_FIELDS = 8

router = APIRouter(include_in_schema=False)


def _route(action: Action) -> Callable[..., Awaitable[Response]]:
    async def decide_run(request: Request, engine: AppEngine, log_files: AppLogFiles, run_id: RunId) -> Response:
        """The same as the API's. Async only to read the form; the work is done in a thread."""
        async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
            form = read_decision_form(action, sent)
        refused = await run_in_threadpool(_decide, engine, run_id, action, form)
        if refused is None:
            return RedirectResponse(f"/runs/{run_id}#decisions", status_code=303)

        def page() -> HTMLResponse:
            with reading(request) as session:
                shown = RunPage(session, log_files, run_id, RunView(), decision=refused)
                return render_run(request, shown, block=None, status=422)

        return await run_in_threadpool(page)

    return decide_run


def _decide(engine: Engine, run_id: int, action: Action, form: DecisionForm) -> DecisionForm | None:
    """None when it was recorded, else the form with what is wrong."""
    try:
        decide(engine, run_id, action, author=form.value(action, "author"), note=form.value(action, "note"))
    except InvalidChange as error:
        return form.refused(error)
    return None


for _action in ACTIONS:
    router.add_api_route(f"/runs/{{run_id}}/{_action}", _route(_action), methods=["POST"], name=f"{_action}_by_form")
