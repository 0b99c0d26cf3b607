"""Experiments at `/api/v1/experiments` and `/api/v1/journeys`: planned A/Bs, their results and journeys."""

from typing import Annotated

from fastapi import Path, Query, Request, Response
from sqlalchemy import Engine

from app.domain.access.principal import Action
from app.domain.experiments.journey import dot, mermaid
from app.errors import FieldError, InvalidChange
from app.experiments.api_models import (
    ExperimentChangeIn,
    ExperimentId,
    ExperimentIn,
    ExperimentListOut,
    ExperimentOut,
    JourneyOut,
)
from app.experiments.commands import accept, plan_experiment, reject, set_runs_each, withdraw
from app.experiments.journey_page import JourneyPage, svg
from app.experiments.pages import pair_rules
from app.experiments.queries import EXPERIMENT_COLUMNS, ExperimentQuery, experiment_rows
from app.pipeline.propose import ExperimentRequest
from app.settings import Settings
from app.storage.database import read_session
from app.storage.experiments import find_experiments, get_experiment
from app.storage.journeys import journey_of
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, AppSettings, ReadSession, api_router
from app.web.errors import as_content, documented
from app.web.lists import only_parameters, table_answer, table_format
from app.web.templating import public_address

router = api_router("experiments")

_AS_TEXT = {"mermaid": ("text/vnd.mermaid", mermaid), "dot": ("text/vnd.graphviz", dot)}


@router.get(
    "/experiments",
    response_model=ExperimentListOut,
    dependencies=[only_parameters(*ExperimentQuery.names(), "page", "page_size", "format")],
    responses=documented(406, 422, ok=as_content("text/csv")),
)
@requires(Action.READ)
def list_all_experiments(
    request: Request,
    engine: AppEngine,
    session: ReadSession,
    query: Annotated[ExperimentQuery, Query()],
) -> Response | ExperimentListOut:
    """List experiments, newest first. CSV and Parquet (`format`) have all experiments, not one page."""
    chosen = table_format(request)
    if chosen != "json":
        return table_answer(chosen, EXPERIMENT_COLUMNS, experiment_rows(engine, query), "experiments")
    page = find_experiments(session, query.filter, query.page, query.page_size)
    return ExperimentListOut.of(page, public_address(request))


@router.post("/experiments", status_code=201, responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE)
def create_experiment(
    request: Request, response: Response, engine: AppEngine, settings: AppSettings, plan: ExperimentIn
) -> ExperimentOut:
    """Plan an A/B from a run: with a rule that fires in it, or with knobs of your own."""
    requested = ExperimentRequest(plan.run, plan.rule, plan.knobs, plan.title, plan.effect_pct, plan.runs_each)
    experiment_id = plan_experiment(engine, settings, requested, plan.author, plan.note)
    response.headers["Location"] = f"/api/v1/experiments/{experiment_id}"
    return _read(engine, settings, experiment_id, public_address(request))


@router.get("/experiments/{experiment_id}", responses=documented(404, 422))
@requires(Action.READ, of="experiment")
def read_experiment(
    request: Request, session: ReadSession, settings: AppSettings, experiment_id: ExperimentId
) -> ExperimentOut:
    """Return one experiment: its plan, its runs with reasons for those left out, and its current result."""
    experiment = get_experiment(session, experiment_id)
    return ExperimentOut.of(experiment, public_address(request), pair_rules(session, settings, experiment))


@router.patch("/experiments/{experiment_id}", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="experiment")
def change_experiment(
    request: Request,
    engine: AppEngine,
    settings: AppSettings,
    experiment_id: ExperimentId,
    change: ExperimentChangeIn,
) -> ExperimentOut:
    """Accept, reject or withdraw it, or change its number of runs. Recorded with author, time and previous value."""
    if (change.state is None) == (change.runs_each is None):
        message = "or `runs_each` must be given, not both"
        raise InvalidChange(f"state {message}. Nothing was changed.", (FieldError("state", message),))
    if change.runs_each is not None:
        set_runs_each(engine, experiment_id, change.runs_each, change.author, change.note)
    elif change.state is not None:
        decide = {"accepted": accept, "rejected": reject, "withdrawn": withdraw}[change.state]
        decide(engine, experiment_id, change.author, change.note)
    return _read(engine, settings, experiment_id, public_address(request))


@router.get(
    "/journeys/{run_id}",
    response_model=JourneyOut,
    responses=documented(404, 422, ok=as_content("text/vnd.mermaid", "", "text/vnd.graphviz", "image/svg+xml")),
)
@requires(Action.READ, of="run")
def read_journey(
    session: ReadSession,
    run_id: Annotated[int, Path(ge=1, lt=2**31)],
    form: Annotated[str, Query(pattern="^(json|mermaid|dot|svg)$", alias="format")] = "json",
) -> JourneyOut | Response:
    """Return the tuning journey of a run: runs as nodes, knobs as edges. Also as Mermaid, DOT or SVG."""
    journey = journey_of(session, run_id)
    if form == "svg":
        page = JourneyPage(journey, run_id)
        return Response(svg(page.picture, page.picture_label), media_type="image/svg+xml")
    if form not in _AS_TEXT:
        return JourneyOut.of(journey)
    media_type, write = _AS_TEXT[form]
    return Response(write(journey), media_type=media_type)


def _read(engine: Engine, settings: Settings, experiment_id: int, base_url: str) -> ExperimentOut:
    with read_session(engine) as session:
        experiment = get_experiment(session, experiment_id)
        return ExperimentOut.of(experiment, base_url, pair_rules(session, settings, experiment))
