"""Pages of experiments: the list, one experiment with its forms, and its news. They work without script."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.experiments.values import STATES
from app.domain.numbers import counted
from app.errors import Conflict, InvalidChange, ThreewallsError
from app.experiments.decide import accept, reject, set_runs_each, withdraw
from app.experiments.filters import ExperimentFilters, page_number
from app.experiments.forms import DECISIONS, DecisionForm, read_decision_form, whole_number
from app.experiments.page import ExperimentPage
from app.experiments.projects import projects_with_experiments
from app.storage.experiments import ExperimentFilter, find_experiments
from app.web.dependencies import AppEngine, ReadSession
from app.web.forms import sent_form
from app.web.request_session import reading
from app.web.templating import public_address, render

router = APIRouter(include_in_schema=False)

ExperimentId = Annotated[int, Path(ge=1, lt=2**31)]
_MAX_FIELDS = 20


@router.get("/experiments")
def list_experiments(request: Request, session: ReadSession) -> HTMLResponse:
    filters, number = ExperimentFilters.from_params(request.query_params), page_number(request.query_params)
    page = find_experiments(session, filters.wanted, number)
    everything = find_experiments(session, ExperimentFilter(), page_size=1).states
    query = filters.query(number)
    return render(
        request,
        "experiments/list.html",
        block="experiment_table",
        address=f"/experiments?{query}" if query else "/experiments",
        page=page,
        filters=filters,
        tabs=[("", sum(page.states.values())), *((state, page.states.get(state, 0)) for state in STATES)],
        total=sum(everything.values()),
        answer=_answer(everything),
        projects=projects_with_experiments(session),
    )


@router.get("/experiments/{experiment_id}")
def show_experiment(request: Request, session: ReadSession, experiment_id: ExperimentId) -> HTMLResponse:
    return _render_one(request, session, experiment_id)


@router.get("/experiments/{experiment_id}/news")
def show_news(
    request: Request,
    session: ReadSession,
    experiment_id: ExperimentId,
    seen: Annotated[str, Query(max_length=500)] = "",
) -> HTMLResponse:
    """What the page asks for while runs are to come; to anybody else the page itself."""
    return _render_one(request, session, experiment_id, block="experiment_news", seen=seen)


@router.post("/experiments/{experiment_id}")
async def decide_by_form(request: Request, engine: AppEngine, experiment_id: ExperimentId) -> Response:
    """The same as the API's decisions. Async only to read the form; the work is done in a thread."""
    async with sent_form(request, max_files=0, max_fields=_MAX_FIELDS) as sent:
        form = read_decision_form(sent)
    return await run_in_threadpool(_decide, request, engine, experiment_id, form)


def _decide(request: Request, engine: Engine, experiment_id: int, form: DecisionForm) -> Response:
    try:
        _apply(engine, experiment_id, form)
    except (InvalidChange, Conflict) as error:
        with reading(request) as session:
            return _render_one(request, session, experiment_id, form=form.refused(error), status=_status(error))
    return RedirectResponse(f"/experiments/{experiment_id}", status_code=303)


def _apply(engine: Engine, experiment_id: int, form: DecisionForm) -> None:
    author, note, what = form.value("author"), form.value("note"), form.value("decision")
    if what == "runs":
        number = whole_number(form.value("runs_each"))
        set_runs_each(engine, experiment_id, number or 0, who=author)
        return
    decisions = {"accept": accept, "reject": reject, "withdraw": withdraw}
    if what not in decisions:
        raise InvalidChange(f"A decision is one of {', '.join(DECISIONS)}. Nothing was changed.")
    decisions[what](engine, experiment_id, who=author, note=note)


def _status(error: ThreewallsError) -> int:
    return 409 if isinstance(error, Conflict) else 422


def _render_one(
    request: Request,
    session: Session,
    experiment_id: int,
    *,
    form: DecisionForm | None = None,
    block: str | None = None,
    seen: str = "",
    status: int = 200,
) -> HTMLResponse:
    next_step = request.app.state.next_step
    page = ExperimentPage(session, experiment_id, public_address(request), next_step, form)
    template: dict[str, Any] = {"p": page, "news": seen != page.token}
    return render(request, "experiments/experiment.html", block=block, status=status, **template)


def _answer(states: Mapping[str, int]) -> str:
    """What needs somebody, in plain words."""
    if not states:
        return "Nothing was planned yet."
    wait, decide = states.get("planned", 0) + states.get("waiting", 0), states.get("done", 0)
    parts = []
    if decide:
        parts.append(f"{counted(decide, 'experiment has its runs', 'experiments have their runs')}; decide.")
    if wait:
        parts.append(f"{counted(wait, 'experiment waits', 'experiments wait')} for runs.")
    return " ".join(parts) or "Every experiment is decided."
