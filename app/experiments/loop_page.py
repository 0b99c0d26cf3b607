"""The tuning loop on one page: state, wall, suggestion, change, runs under way, result, decision, and the journey."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.experiments.journey import Journey, accepted_changes
from app.domain.experiments.recipe import LaunchRecipe, SideLaunch, launch_script, recipe
from app.domain.experiments.values import UNDECIDED, Side
from app.domain.rules.change import FrameworkChange, change_of, without_context
from app.domain.rules.engine import Suggestion
from app.errors import NotFound, NotReady
from app.experiments.api_models import ExperimentId
from app.experiments.journey_page import JourneyPage
from app.experiments.pages import ExperimentPage, side_commands
from app.experiments.plan_page import PlanForm, offer
from app.experiments.waterfall import Waterfall, waterfall, waterfall_png, waterfall_svg
from app.pipeline.suggest import RunSuggestions, place_text, suggest
from app.settings import Settings
from app.storage.experiments import Experiment, get_experiment
from app.storage.journeys import journey_of
from app.storage.projects import find_project
from app.storage.rules import read_run, rules_in_force
from app.web.access_rule import requires
from app.web.dependencies import AppSettings, ReadSession, RunId, api_router
from app.web.errors import as_content, documented
from app.web.identity import access_of
from app.web.pictures import Kind, Picture, Theme, nested_body, picture_response
from app.web.templating import public_address, render

# --- State of the journey's current run, and what to do with it first.


@dataclass(frozen=True, slots=True)
class Diff:
    """The change of a suggestion for one trainer."""

    name: str
    change: FrameworkChange


class LoopState:
    """The state of a run and its first suggestion (`first`, None without one)."""

    def __init__(self, advice: RunSuggestions) -> None:
        self.advice = advice
        self.phases = advice.phases
        self.wall = advice.evaluation.wall
        self.first: Suggestion | None = advice.leading[0] if advice.leading else None

    @property
    def place(self) -> str:
        return "" if self.first is None else place_text(self.first, self.advice.sizing(self.first))

    @cached_property
    def diffs(self) -> list[Diff]:
        if self.first is None:
            return []
        change = change_of(self.first, self.advice.evaluation.facts, self.advice.launch, self.advice.reading.arguments)
        rows = (Diff("Megatron-LM", change.megatron_lm), Diff("Megatron-Bridge", change.bridge))
        return [
            Diff(row.name, without_context(row.change) if len(row.change.lines) > DIFF_LINES else row.change)
            for row in rows
            if any(line.sign != " " for line in row.change.lines)
        ]


def loop_state(session: Session, settings: Settings, run_id: int) -> LoopState | None:
    """Return None while the run was not read."""
    try:
        return LoopState(suggest(session, run_id, rules_in_force(settings)))
    except NotReady:
        return None


DIFF_LINES = 200
MOST_OPEN = 5
"""Experiments under way that the page shows in full."""

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/journey")
@requires(Action.READ, of="run")
def show_journey(request: Request, session: ReadSession, settings: AppSettings, run_id: RunId) -> HTMLResponse:
    return _render_journey(request, session, settings, run_id)


@router.get("/runs/{run_id}/journey/news")
@requires(Action.READ, of="run")
def show_journey_news(
    request: Request,
    session: ReadSession,
    settings: AppSettings,
    run_id: RunId,
    seen: Annotated[str, Query(max_length=500)] = "",
) -> HTMLResponse:
    """Return the changes since a run arrived or was decided about; to other clients the page itself."""
    return _render_journey(request, session, settings, run_id, block="journey_news", seen=seen)


def journey_token(journey: Journey, experiments: Sequence[ExperimentPage]) -> str:
    """Return what changes when a run arrives or an experiment is decided."""
    runs = ",".join(f"{page.experiment.id}:{page.token}" for page in experiments)
    return hashlib.sha256(f"{journey.current_run_id} {len(journey.edges)} {runs}".encode()).hexdigest()[:16]


def _render_journey(
    request: Request, session: Session, settings: Settings, run_id: int, *, block: str = "", seen: str = ""
) -> HTMLResponse:
    journey = journey_of(session, run_id)
    project = find_project(session, journey.project)
    project_id = project.id or 0
    may_plan = access_of(request).may(Action.CONTRIBUTE, project_id)
    state = loop_state(session, settings, journey.current_run_id)
    first = None if state is None else state.first
    form = PlanForm({"run": str(journey.current_run_id), "rule": first.rule.id if first else ""})
    experiments = under_way(session, settings, journey, public_address(request))
    token = journey_token(journey, experiments)
    return render(
        request,
        "experiments/journey.html",
        block=block or None,
        token=token,
        follows=any(page.follows for page in experiments),
        news=bool(seen) and seen != token,
        p=JourneyPage(journey, run_id),
        generated=project.generated,
        project_id=project_id,
        may_plan=may_plan,
        state=state,
        offer=offer(session, settings, journey.current_run_id, form, state.advice)
        if state and first and may_plan
        else None,
        under_way=experiments,
        waterfall=waterfall(accepted_changes(journey)),
    )


@router.get("/runs/{run_id}/journey/picture.{kind}")
@requires(Action.READ, of="run")
def draw_journey(request: Request, session: ReadSession, run_id: RunId, kind: Kind, theme: Theme = "light") -> Response:
    """Return the accepted changes of the journey as a slide. Raises NotFound before the first one."""
    journey = journey_of(session, run_id)
    drawing, page = _waterfall(session, run_id), JourneyPage(journey, run_id)
    body = nested_body(waterfall_svg(drawing), drawing.width, drawing.height)
    picture = Picture(
        f"Tuning journey of {page.root.name}", page.answer, f"/runs/{run_id}/journey",
        find_project(session, journey.project).generated, body,
    )  # fmt: skip
    return picture_response(request, picture, kind, theme)


def under_way(session: Session, settings: Settings, journey: Journey, base_url: str) -> list[ExperimentPage]:
    """Return the experiments of the journey that are not decided, newest first."""
    open_ids = sorted((edge.experiment_id for edge in journey.edges if edge.state in UNDECIDED), reverse=True)
    return [ExperimentPage(session, number, base_url, settings) for number in open_ids[:MOST_OPEN]]


# --- Files of the loop: the recipe of the current run, the waterfall, and the script that launches a side.

api = api_router("experiments")
_SCRIPT = as_content("text/x-shellscript")


@api.get("/journeys/{run_id}/waterfall.svg", responses=documented(404, 422, ok=as_content("image/svg+xml")))
@requires(Action.READ, of="run")
def read_waterfall(session: ReadSession, run_id: RunId) -> Response:
    """Return the accepted changes of a journey as a waterfall of step times."""
    return Response(waterfall_svg(_waterfall(session, run_id)), media_type="image/svg+xml")


@api.get("/journeys/{run_id}/waterfall.png", responses=documented(404, 422, ok=as_content("image/png")))
@requires(Action.READ, of="run")
def read_waterfall_png(session: ReadSession, run_id: RunId) -> Response:
    """Return the waterfall as a picture for slides."""
    return Response(waterfall_png(_waterfall(session, run_id)), media_type="image/png")


def _waterfall(session: Session, run_id: int) -> Waterfall:
    picture = waterfall(accepted_changes(journey_of(session, run_id)))
    if picture is None:
        raise NotFound("No change of this journey has been accepted yet.")
    return picture


@api.get("/journeys/{run_id}/recipe.yaml", responses=documented(404, 409, 422, ok=as_content("application/yaml")))
@requires(Action.READ, of="run")
def read_recipe_as_yaml(session: ReadSession, run_id: RunId) -> Response:
    """Return the configuration of the journey's current run for Megatron-Bridge."""
    recipe = recipe_of(session, journey_of(session, run_id).current_run_id)
    return _download(recipe.as_yaml, f"recipe-{run_id}.yaml", "application/yaml")


@api.get("/journeys/{run_id}/recipe.sh", responses=documented(404, 409, 422, ok=_SCRIPT))
@requires(Action.READ, of="run")
def read_recipe_as_flags(session: ReadSession, run_id: RunId) -> Response:
    """Return the configuration of the journey's current run as flags of Megatron-LM."""
    recipe = recipe_of(session, journey_of(session, run_id).current_run_id)
    return _download(recipe.as_flags, f"recipe-{run_id}.sh")


def _download(text: str, name: str, media_type: str = "text/x-shellscript") -> Response:
    return Response(text, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def recipe_of(session: Session, run_id: int) -> LaunchRecipe:
    """Return the launch recipe of a run. Raises NotFound, and NotReady before the run is read."""
    advised = read_run(session, run_id)
    command = advised.launch if isinstance(advised.launch, str) else ""
    return recipe(f"Recipe of run {run_id}", advised.run.contract, command)


@api.get("/experiments/{experiment_id}/launch.sbatch", responses=documented(404, 422, ok=_SCRIPT))
@requires(Action.READ, of="experiment")
def read_batch_script(
    request: Request, session: ReadSession, experiment_id: ExperimentId, side: Side = "candidate"
) -> Response:
    """Return a Slurm batch script for one side of an experiment, which uploads its log."""
    experiment = get_experiment(session, experiment_id)
    text = script_of(session, experiment, side, public_address(request), sbatch=True)
    return _download(text, f"{experiment.tag}-{side}.sbatch")


@api.get("/experiments/{experiment_id}/launch.sh", responses=documented(404, 422, ok=_SCRIPT))
@requires(Action.READ, of="experiment")
def read_launch_script(
    request: Request, session: ReadSession, experiment_id: ExperimentId, side: Side = "candidate"
) -> Response:
    """Return a script for one side of an experiment without a scheduler, which uploads its log."""
    experiment = get_experiment(session, experiment_id)
    text = script_of(session, experiment, side, public_address(request), sbatch=False)
    return _download(text, f"{experiment.tag}-{side}.sh")


_AUTHORIZED = '${THREEWALLS_TOKEN:+-H "Authorization: Bearer $THREEWALLS_TOKEN"}'


def script_of(session: Session, experiment: Experiment, side: Side, base_url: str, *, sbatch: bool) -> str:
    commands = side_commands(experiment, side, base_url)
    whole = next((launch.command for launch in commands.launches if launch.command), "")
    contract = read_run(session, experiment.baseline_run_id).run.contract
    gpus, per_node = (contract[name].value if name in contract else None for name in ("gpus", "gpus_per_node"))
    each = per_node if isinstance(per_node, int) else None
    nodes = -(-gpus // each) if isinstance(gpus, int) and each else None
    return launch_script(
        SideLaunch(
            tag=experiment.tag,
            side=side,
            command=whole,
            hint=_hint(experiment, side),
            exports=commands.export.splitlines(),
            upload=commands.upload.replace("curl ", f"curl {_AUTHORIZED} ", 1),
            nodes=nodes,
            gpus_per_node=each,
        ),
        sbatch=sbatch,
    )


def _hint(experiment: Experiment, side: Side) -> str:
    text = f"The command of run {experiment.baseline_run_id} is unknown to Threewalls."
    if side == "baseline":
        return text
    added = [f"Add: {command.add}" for command in experiment.plan.change.commands if command.add]
    removed = [f"Remove: {' '.join(command.remove)}" for command in experiment.plan.change.commands if command.remove]
    return "\n".join([text, *added, *removed])
