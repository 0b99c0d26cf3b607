"""Planning an experiment by a form: a suggestion's change, or a person's own idea. It works without script."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Request
from sqlalchemy import Engine
from sqlmodel import Session, col
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.experiments.sizing import RUNS_EACH
from app.errors import Conflict, FieldError, InvalidChange, NotFound
from app.experiments.forms import PlanForm, read_plan_form, whole_number
from app.experiments.plan import plan_experiment
from app.experiments.plan_page import IdeaPage, wish_of
from app.settings import Settings
from app.storage.advised_runs import read_run
from app.storage.run_list import latest_runs
from app.storage.tables import RunRow
from app.web.dependencies import AppEngine, AppSettings, ReadSession
from app.web.forms import sent_form
from app.web.request_session import reading
from app.web.templating import render

router = APIRouter(include_in_schema=False)

RunId = Annotated[int, Path(ge=1, lt=2**63)]
_MAX_FIELDS = 20
_RECENT = 12


@router.get("/experiments/new")
def choose_run(request: Request, session: ReadSession) -> Response:
    """Which run to begin from; one that is named leads on."""
    typed = request.query_params.get("run", "").strip()[:40]
    run_id, problem = whole_number(typed), ""
    if run_id is not None:
        try:
            read_run(session, run_id)
        except NotFound as error:
            problem = error.detail
        except Conflict as error:
            problem = error.detail
        else:
            rest = {name: value for name, value in request.query_params.items() if name != "run"}
            return RedirectResponse(
                f"/runs/{run_id}/experiments/new{'?' if rest else ''}{urlencode(rest)}", status_code=303
            )
    elif typed:
        problem = f"{typed!r} is no number of a run."
    recent = latest_runs(session, _RECENT, col(RunRow.status) == "ready")
    return render(
        request,
        "experiments/choose.html",
        status=422 if problem else 200,
        typed=typed,
        problem=problem,
        recent=recent,
    )


@router.get("/runs/{run_id}/experiments/new")
def offer_plan(request: Request, session: ReadSession, settings: AppSettings, run_id: RunId) -> HTMLResponse:
    form = read_plan_form(dict(request.query_params))
    return render(request, "experiments/new.html", p=IdeaPage(session, settings, run_id, form))


@router.post("/runs/{run_id}/experiments")
async def plan_by_form(request: Request, engine: AppEngine, settings: AppSettings, run_id: RunId) -> Response:
    """The same as the API's POST. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=_MAX_FIELDS) as sent:
        form = read_plan_form(sent)
    return await run_in_threadpool(_plan, request, engine, settings, run_id, form)


def _plan(request: Request, engine: Engine, settings: Settings, run_id: int, form: PlanForm) -> Response:
    try:
        if form.value("runs_each") and form.runs_each is None:
            raise InvalidChange("Nothing was planned.", (FieldError("runs_each", RUNS_EACH),))
        planned = plan_experiment(engine, settings, wish_of(run_id, form), form.value("author"))
    except (InvalidChange, Conflict) as error:
        with reading(request) as session:
            return _again(request, session, settings, run_id, form.refused(error))
    return RedirectResponse(f"/experiments/{planned}", status_code=303)


def _again(request: Request, session: Session, settings: Settings, run_id: int, form: PlanForm) -> HTMLResponse:
    """The page of the form with what is wrong with it."""
    return render(request, "experiments/new.html", status=422, p=IdeaPage(session, settings, run_id, form))
