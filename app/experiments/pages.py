"""Pages of experiments: the list, one experiment with its forms, and its news. They work without script."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from sqlalchemy import Engine
from sqlmodel import Session, col
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.domain.access.principal import Action
from app.domain.experiments.journey import continuation
from app.domain.experiments.plan import LONGEST_META, RUNS_EACH, STEPS, tagged, upload_command
from app.domain.experiments.values import LETTERS, STATES, UNDECIDED, Commands, KnobChange, PlannedGain, Side, State
from app.domain.naming import SEPARATOR, common_parts, without_common
from app.domain.numbers import THIN, gain_change, gpu_hours, grouped, level_text, plural
from app.domain.rules.engine import Suggestion
from app.domain.text import capitalized, some_of
from app.domain.verdict.comparability import FOLLOWS
from app.errors import Conflict, FieldError, InvalidChange, NotFound, ThreewallsError
from app.experiments.api_models import ExperimentId
from app.experiments.commands import accept, plan_experiment, reject, set_runs_each, withdraw
from app.experiments.plan_page import (
    DECISIONS,
    ExperimentDecisionForm,
    IdeaPage,
    PlanForm,
    experiment_request,
    whole_number,
)
from app.experiments.queries import ExperimentQuery, last_tuned, newest_of_workloads
from app.experiments.result_view import (
    DrawnEffect,
    ResultRow,
    effect,
    is_too_small,
    more_runs,
    more_runs_sentence,
    result_rows,
    too_small_sentence,
    would_decide,
)
from app.pipeline.suggest import first_suggestion, suggest_for_sides
from app.settings import Settings
from app.storage.audit import AuditEvent, events
from app.storage.experiments import (
    Experiment,
    ExperimentListPage,
    ExperimentRun,
    find_experiments,
    get_experiment,
)
from app.storage.journeys import journey_of
from app.storage.rules import read_run, rules_in_force
from app.storage.tables import ExperimentRow, ProjectRow, select_any
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, AppSettings, ReadSession, RunId
from app.web.forms import answer_form, status_of
from app.web.templating import public_address, render

# --- The form that plans an experiment: a suggestion's change, or the user's own idea. It works without script.

router = APIRouter(include_in_schema=False)

_MAX_FIELDS = 20
_RECENT = 9


@router.get("/experiments/new")
@requires(Action.CONTRIBUTE)
def choose_run(request: Request, session: ReadSession) -> Response:
    """Offer baseline runs; a named run leads on to its page."""
    typed = request.query_params.get("run", "").strip()[:40]
    run_id, problem = whole_number(typed), ""
    change = {name: value for name, value in request.query_params.items() if name != "run"}
    rest = f"?{urlencode(change)}" if change else ""
    if run_id is not None:
        try:
            read_run(session, run_id)
        except NotFound as error:
            problem = error.detail
        except Conflict as error:
            problem = error.detail
        else:
            return RedirectResponse(f"/runs/{run_id}/experiments/new{rest}", status_code=303)
    elif typed:
        problem = f"{typed!r} is not a run number."
    tuned = last_tuned(session)
    recent = newest_of_workloads(session, _RECENT, first=tuned.project if tuned else "")
    return render(
        request,
        "experiments/choose.html",
        status=422 if problem else 200,
        typed=typed,
        change=change,
        rest=rest,
        problem=problem,
        recent=recent,
        tuned=tuned,
        proposed=tuned or next(iter(recent), None),
        unfinished=continuation(journey_of(session, tuned.id), tuned.id).unfinished if tuned else (),
    )


@router.get("/runs/{run_id}/experiments/new")
@requires(Action.CONTRIBUTE, of="run")
def offer_plan(request: Request, session: ReadSession, settings: AppSettings, run_id: RunId) -> HTMLResponse:
    form = PlanForm.read(request.query_params)
    return render(request, "experiments/new.html", p=IdeaPage(session, settings, run_id, form))


@router.post("/runs/{run_id}/experiments")
@requires(Action.CONTRIBUTE, of="run")
async def plan_by_form(request: Request, engine: AppEngine, settings: AppSettings, run_id: RunId) -> Response:
    """Plan an experiment like the API's POST."""

    def plan(form: PlanForm) -> str:
        if form.value("runs_each") and form.runs_each is None:
            raise InvalidChange("Nothing was planned.", (FieldError("runs_each", RUNS_EACH),))
        return (
            f"/experiments/{plan_experiment(engine, settings, experiment_request(run_id, form), form.value('author'))}"
        )

    def again(session: Session, form: PlanForm, _: ThreewallsError) -> Response:
        return render(request, "experiments/new.html", status=422, p=IdeaPage(session, settings, run_id, form))

    catch = (InvalidChange, Conflict)
    return await answer_form(request, PlanForm, plan, again, max_fields=_MAX_FIELDS, catch=catch)


# --- Experiments as text.

ARROW = "\N{RIGHTWARDS ARROW}"


def knob_text(knob: KnobChange) -> str:
    """Format a knob: `ep_overlap off → on`."""
    return f"{knob.field} {knob.before_text} {ARROW} {knob.after_text}"


def values_text(knobs: Sequence[KnobChange]) -> str:
    """Format the values: `off → on`, or the number of knobs."""
    return " ".join((knobs[0].before_text, ARROW, knobs[0].after_text)) if len(knobs) == 1 else f"{len(knobs)} knobs"


def knobs_text(knobs: Sequence[KnobChange]) -> str:
    return "; ".join(map(knob_text, knobs)) or "nothing"


def gain_text(gain: PlannedGain | None, level_pct: float | None = None) -> str:
    """Format a gain: `24.1 % faster (23.1 to 24.9 at 99.6 %)`; empty without a measurement."""
    if gain is None:
        return ""
    change = gain_change(gain.pct, gain.low_pct, gain.high_pct)
    at_level = f" at {level_text(level_pct)}" if level_pct is not None else ""
    return f"{change.figure} ({change.interval}{at_level})" if change.interval else change.figure


def short_gain(gain: PlannedGain | None) -> str:
    return "" if gain is None else gain_change(gain.pct).figure


def tone(gain: PlannedGain | None) -> str:
    """Return the colour of a gain: none where its interval includes both directions."""
    if gain is None or gain.low_pct <= 0 <= gain.high_pct:
        return ""
    return "improvement" if gain.pct > 0 else "regression"


# --- The runs of an experiment as rows: figures, positions on one axis, and why some do not count.

_ROOM = 0.08
"""Free share of the axis at each end: a dot has a radius."""
_LEAST_SPAN = 0.02
"""Minimum range as a share of the middle, so that noise of 0.1 % does not look like a difference."""
JOINED = {
    "plan": "baseline run",
    "tag": "tagged",
    "config": "same configuration",
}


@dataclass(frozen=True, slots=True)
class RunLine:
    """`at`: its position on the axis of step times in percent, as text; empty without one."""

    run: ExperimentRun
    letter: str
    at: str
    joined: str


def run_lines(experiment: Experiment) -> tuple[RunLine, ...]:
    """Return the runs, side A first, each side in order of arrival."""
    times = [run.step_time_ms for run in experiment.runs if run.step_time_ms is not None]
    low, high = _axis(times)
    return tuple(
        RunLine(run, LETTERS[side], _place(run.step_time_ms, low, high), JOINED.get(run.joined_by, run.joined_by))
        for side in LETTERS
        for run in experiment.side(side)
    )


def _axis(times: list[float]) -> tuple[float, float]:
    if not times:
        return 0.0, 1.0
    low, high = min(times), max(times)
    middle = (low + high) / 2
    half = max(high - low, _LEAST_SPAN * middle) / 2 / (1 - 2 * _ROOM)
    return middle - half, middle + half


def _place(value: float | None, low: float, high: float) -> str:
    return "" if value is None else f"{100 * (value - low) / (high - low):.2f}"


# --- The interleaved order of an experiment's runs as slots: which are filled, and which one is next.


@dataclass(frozen=True, slots=True)
class Slot:
    """`number` counts from 1; `run` is None while the slot is empty. `next`: the first empty one."""

    number: int
    side: Side
    letter: str
    run: ExperimentRun | None
    next: bool


def slots(experiment: Experiment) -> tuple[Slot, ...]:
    """Return the slots of both sides, filled by the runs that count in order of arrival; surplus runs are left out."""
    left = {
        side: [run for run in experiment.side(side) if run.counts and run.status not in ("failed", "unread")]
        for side in LETTERS
    }
    filled = [(side, left[side].pop(0) if left[side] else None) for side in experiment.sequence]
    first = next((number for number, (_, run) in enumerate(filled) if run is None), -1)
    return tuple(
        Slot(number + 1, side, LETTERS[side], run, number == first) for number, (side, run) in enumerate(filled)
    )


def next_side(places: Sequence[Slot]) -> Side | None:
    """Return the side that needs the next run; None when every slot is filled."""
    return next((slot.side for slot in places if slot.next), None)


def missing(places: Sequence[Slot], side: Side) -> int:
    return sum(slot.run is None and slot.side == side for slot in places)


# --- Commands to paste for each side: the job, and the upload of its log with the tag.


@dataclass(frozen=True, slots=True)
class LaunchCommands:
    """Commands for one trainer:

    `command` is complete, or "" when the run's own is unknown; then see `add` and `remove`.
    """

    trainer: str
    command: str
    add: str
    remove: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SideCommands:
    """`meta`: upload metadata that are too long for the command line, else empty."""

    side: Side
    letter: str
    launches: tuple[LaunchCommands, ...]
    export: str
    upload: str
    meta: str


def side_commands(experiment: Experiment, side: Side, base_url: str) -> SideCommands:
    change = experiment.plan.change
    # When the run's own command is known, the flags of another trainer are useless.
    own = [command for command in change.commands if command.candidate or command.baseline]
    launches = own or (change.commands if side == "candidate" else ())
    meta = tagged(experiment.plan.meta.get(side, {}), experiment.tag, side)
    text = json.dumps(meta, indent=1)
    return SideCommands(
        side=side,
        letter=LETTERS[side],
        launches=tuple(_launch(launch, side) for launch in launches),
        export=change.export if side == "candidate" else "",
        upload=upload_command(meta, base_url),
        meta=text if len(json.dumps(meta)) > LONGEST_META else "",
    )


_STEPS_OF = {"Megatron-LM": f"--train-iters {STEPS}", "Megatron-Bridge": f"train.train_iters={STEPS}"}
"""What sets the number of steps that the plan assumes, by trainer."""


def _launch(commands: Commands, side: Side) -> LaunchCommands:
    if side == "baseline":
        return LaunchCommands(commands.trainer, commands.baseline, "", ())
    add = " ".join(filter(None, (commands.add, _STEPS_OF.get(commands.trainer, ""))))
    return LaunchCommands(commands.trainer, commands.candidate, add, commands.remove)


def projects_with_experiments(session: Session) -> tuple[str, ...]:
    some = select_any(ExperimentRow.project_id)
    wanted = select_any(ProjectRow.slug).where(col(ProjectRow.id).in_(some)).order_by(ProjectRow.slug)
    return tuple(session.execute(wanted).scalars())


# --- The data of an experiment's page. A part is computed when a template first needs it.

_STEPS: tuple[State, ...] = ("planned", "waiting", "done")


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run from which the journey continues. `name`: a side if it is a run of the experiment, else `#200`.

    `unfinished`: number and state of the experiment to finish there first, None if there is none.
    """

    run_id: int
    name: str
    unfinished: tuple[int, str] | None = None


class ExperimentPage:
    """The data of the template. Raises NotFound."""

    full_steps = STEPS

    def __init__(
        self,
        session: Session,
        experiment_id: int,
        base_url: str,
        settings: Settings,
        form: ExperimentDecisionForm | None = None,
    ) -> None:
        self._session = session
        self._base_url = base_url
        self._settings = settings
        self.form = form or ExperimentDecisionForm()
        self.experiment: Experiment = get_experiment(session, experiment_id)

    @property
    def token(self) -> str:
        """Return the state of the page; a different token means news."""
        runs = ".".join(f"{run.run_id}{run.status[:2]}{'' if run.counts else '-'}" for run in self.experiment.runs)
        at = f"{self.experiment.result_at.timestamp():.0f}" if self.experiment.result_at else "0"
        return f"{self.experiment.state}.{at}.{runs}"[:400]

    @property
    def follows(self) -> bool:
        """Return whether the page may still change without an action of a user."""
        return self.experiment.state in ("planned", "waiting") or any(
            run.status == "processing" for run in self.experiment.runs
        )

    @property
    def undecided(self) -> bool:
        return self.experiment.state in UNDECIDED

    @property
    def knobs(self) -> str:
        return knobs_text(self.experiment.knobs)

    @property
    def steps(self) -> tuple[tuple[str, str], ...]:
        """Return each step of an undecided experiment with `done`, `current` or `open`."""
        place = _STEPS.index(self.experiment.state)
        return tuple(
            (name, "done" if number < place else "current" if number == place else "open")
            for number, name in enumerate(("planned", "runs", "decision"))
        )

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        return slots(self.experiment)

    @property
    def next_side(self) -> Side | None:
        return next_side(self.slots) if self.undecided and not self.experiment.result.finished else None

    @property
    def next_label(self) -> str:
        """Return what the page shows of the next run: `Flags of the next run`."""
        launches = next(side.launches for side in self.sides if side.side == self.next_side)
        noun = "Job" if not launches else "Command" if launches[0].command else "Flags"
        return f"{noun} of the next run"

    @property
    def answer(self) -> str:
        """Return the state of the experiment and the next action, as a sentence."""
        experiment, result = self.experiment, self.experiment.result
        if experiment.state == "withdrawn":
            return f"Withdrawn by {experiment.decided_by} before a result."
        if not self.is_validated and result.gain:
            change = gain_change(result.gain.pct, result.gain.low_pct, result.gain.high_pct).text
            return f"{capitalized(experiment.state_text)}: {change}."
        if experiment.state in ("accepted", "rejected"):
            return f"{experiment.state.capitalize()}. {result.sentence}".rstrip()
        if result.finished or experiment.state == "done":
            more = more_runs_sentence(experiment)
            if more:
                return f"Inconclusive. {more}"
            return too_small_sentence(experiment) or result.sentence
        needed = [(n, letter) for side, letter in LETTERS.items() if (n := missing(self.slots, side))]
        wait = ", ".join(
            f"{n if place else plural(n, 'more run')} of {letter}" for place, (n, letter) in enumerate(needed)
        )
        so_far = f" So far {gain_change(result.gain.pct).figure}." if result.gain else ""
        return (
            f"Needs {wait}{self.cost(sum(missing(self.slots, side) for side in LETTERS))}.{so_far}"
            if wait
            else result.sentence
            if result.gain
            else ""
        )

    def cost(self, runs: int) -> str:
        """Format what so many runs cost: `, about 96 GPU-hours`; empty if unknown."""
        hours = self.experiment.plan.sizing.gpu_hours_of(runs)
        return "" if hours is None else f", about {gpu_hours(hours)} GPU-hours"

    @property
    def cost_of_more(self) -> str:
        """Return what the offered runs cost, and after how many steps the measured gain pays it back.

        For example `about 241 GPU-hours, pays back after 17,000 steps of B`; of optional runs what they decide:
        `2 more (about 241 GPU-hours) test a 2 % gain; 5 (about 602 GPU-hours) decide if 1.2 % holds`.
        """
        sizing, verdict = self.experiment.plan.sizing, self.experiment.result.verdict
        hours = sizing.gpu_hours_of(2 * (self.more_runs or self.optional_runs))
        time = None if verdict is None else verdict.step_time
        if hours is None or sizing.gpus is None or time is None:
            return ""
        cost, saved_ms = f"about {gpu_hours(hours)} GPU-hours", time.baseline_ms - time.candidate_ms
        if self.optional_runs:
            return self._aims_of_more or cost
        if saved_ms <= 0:
            return cost
        steps = hours * 3.6e6 / (saved_ms * sizing.gpus)
        return f"{cost}, pays back after {grouped(float(f'{steps:.2g}'))} steps of B"

    @property
    def _aims(self) -> list[tuple[int, str, str]]:
        """Return how many more runs per side answer what, the fewest first."""
        result, sizing = self.experiment.result, self.experiment.plan.sizing
        time, more = result.verdict.step_time if result.verdict else None, []
        if sizing.needed and sizing.needed > self.experiment.runs_each:
            more.append((sizing.needed - self.experiment.runs_each, f"a {sizing.effect_pct:g}{THIN}% gain", "test"))
        if time and time.need_runs and result.gain:
            more.append((time.need_runs, f"if {gain_change(result.gain.pct).size} holds", "decide"))
        return sorted(more)

    @property
    def _aims_of_more(self) -> str:
        """Return what optional runs decide, the fewest first."""
        texts: list[str] = []
        for runs, aim, verb in self._aims:
            hours = self.experiment.plan.sizing.gpu_hours_of(2 * runs)
            cost = "" if hours is None else f" (about {gpu_hours(hours)} GPU-hours)"
            texts.append(f"{runs}{'' if texts else ' more'}{cost} {plural(runs, f'{verb}s', verb, number=False)} {aim}")
        return "; ".join(texts)

    @property
    def is_validated(self) -> bool:
        """Return whether nothing is left to show of an accepted change; True for other states."""
        return self.experiment.state != "accepted" or self.experiment.result.evidence_level == "validated"

    @property
    def accepted_flags(self) -> str:
        """Return the flags of an accepted change, for the trainer of the run; empty without any.

        One that is not full-length has the number of steps that makes it so.
        """
        if self.experiment.state != "accepted":
            return ""
        commands = self.experiment.plan.change.commands
        own = [command for command in commands if command.candidate] or commands
        command = next((command for command in own if command.add), None)
        if command is None:
            return ""
        return command.add if self.is_validated else _launch(command, "candidate").add

    @property
    def measured_on(self) -> str:
        """Return how many runs of each side the result so far rests on; empty if the lead says it."""
        result = self.experiment.result
        return "" if result.finished else f"{plural(len(result.baseline), 'run')} of A, {len(result.candidate)} of B"

    @property
    def cautions(self) -> tuple[str, ...]:
        """Return what qualifies a decided result: why its evidence is not stronger, and its warnings."""
        result = self.experiment.result
        if result.verdict is None or not result.finished or result.inconclusive:
            return ()
        because = (f"{capitalized(result.evidence_because)}.",) if result.evidence_because else ()
        return (*because, *result.warnings)

    @property
    def advice(self) -> str:
        """Return the next action; empty when no run is left to do."""
        side = self.next_side
        if side is None:
            return ""
        what = "unchanged" if side == "baseline" else f"with {self.knobs}"
        return f"Next: a run of {LETTERS[side]}, {what}."

    @property
    def length(self) -> str:
        """Return how long each run has to be, and which runs that count are too weak to accept the change on."""
        weak = [f"#{run.run_id}" for run in self.experiment.runs if run.counts and run.evidence_level != "validated"]
        text = f"Run each for {STEPS} steps."
        if not weak:
            return text
        verb = plural(len(weak), "is no steady run", "are no steady runs", number=False)
        return f"{text} {some_of(weak)} {verb} of {STEPS} steps: so far the result can reject B, but not confirm it."

    @cached_property
    def sides(self) -> tuple[SideCommands, ...]:
        """Return both sides; the side that needs the next run comes first."""
        order: tuple[Side, ...] = ("candidate", "baseline") if self.next_side == "candidate" else tuple(LETTERS)
        return tuple(side_commands(self.experiment, side, self._base_url) for side in order)

    @cached_property
    def runs(self) -> tuple[RunLine, ...]:
        return run_lines(self.experiment)

    @property
    def rows(self) -> tuple[ResultRow, ...]:
        return result_rows(self.experiment.result)

    @property
    def effect(self) -> DrawnEffect | None:
        return effect(self.experiment.result)

    @property
    def paired(self) -> str:
        return gain_text(self.experiment.result.paired)

    @property
    def dependent_fields(self) -> tuple[str, ...]:
        """Return the changed fields that only follow from the one that the result is attributed to."""
        field = self.experiment.result.attributed_to
        return tuple(knob.field for knob in self.experiment.knobs if FOLLOWS.get(knob.field) == field)

    @property
    def would_decide(self) -> str:
        """Return what an undecided result needs, if it is not the number of runs in the lead."""
        return would_decide(self.experiment)

    @property
    def offered_runs(self) -> int:
        """Return the number of runs per side that the form offers."""
        return self.experiment.runs_each + (self.more_runs or self.optional_runs)

    @property
    def more_runs(self) -> int:
        """Return how many more runs per side would decide a complete but undecided result; 0 if no number would."""
        return more_runs(self.experiment)

    @property
    def optional_runs(self) -> int:
        """Return how many more runs per side to offer for a small result that excludes no gain that counts; else 0.

        The fewest that answer something: whether a gain that counts exists, or whether the measured one holds.
        """
        result = self.experiment.result
        if not (self.undecided and is_too_small(self.experiment) and result.excluded_gain_pct is None):
            return 0
        return self._aims[0][0] if self._aims else int(self.experiment.plan.sizing.needed is not None)

    @cached_property
    def pair_rules(self) -> tuple[Suggestion, ...]:
        """Return the results of the rules that compare the runs of B with those of A."""
        return pair_rules(self._session, self._settings, self.experiment)

    @property
    def compare_query(self) -> str:
        """Return the query of the compare page; empty while a side has no run that counts."""
        a, b = (",".join(self.experiment.result.counted(side)) for side in LETTERS)
        return f"a={a}&b={b}" if a and b else ""

    @cached_property
    def current_run(self) -> CurrentRun | None:
        """Return the run to continue from, where its journey is now; None while the experiment is undecided."""
        side: Side = "candidate" if self.experiment.state == "accepted" else "baseline"
        counted = self.experiment.result.counted(side)
        if self.experiment.state in UNDECIDED or (side == "candidate" and not counted):
            return None
        decided_for = int(counted[-1]) if side == "candidate" else self.experiment.baseline_run_id
        journey = journey_of(self._session, decided_for)
        moved_to = continuation(journey, decided_for).run_id
        run_id, name = moved_to or decided_for, ""
        if moved_to is None and counted:
            run_id, name = journey.current_run_id, LETTERS[side]
        unfinished = continuation(journey, run_id).unfinished
        return CurrentRun(run_id, name or f"#{run_id}", next(iter(unfinished), None))

    @cached_property
    def first_next(self) -> tuple[str, str, str, str] | None:
        """Return rule and title of the first next step from there."""
        if self.current_run is None:
            return None
        return first_suggestion(self._session, self._settings, self.current_run.run_id)

    def done(self, event: AuditEvent) -> str:
        """Describe an action of a user, to follow the name."""
        if event.action == "runs_each":
            return f"planned {plural(event.after['runs_each'], 'run')} per side instead of {event.before['runs_each']}"
        return {"plan": "planned it"}.get(event.action, f"{event.action} it")

    @cached_property
    def events(self) -> tuple[AuditEvent, ...]:
        """Return the actions on the experiment, newest first."""
        return events(self._session, "experiment", self.experiment.id)


def pair_rules(session: Session, settings: Settings, experiment: Experiment) -> tuple[Suggestion, ...]:
    """Return () until both sides have a run that counts."""
    result = experiment.result
    if not (result.baseline and result.candidate):
        return ()
    time = result.verdict.step_time if result.verdict else None
    sides = [int(run) for run in result.baseline], [int(run) for run in result.candidate]
    return suggest_for_sides(session, sides, rules_in_force(settings), None if time is None else time.delta_pct)


@router.get("/experiments")
@requires(Action.READ)
def list_experiments(request: Request, session: ReadSession) -> HTMLResponse:
    query = ExperimentQuery.from_params(request.query_params)
    page = find_experiments(session, query.filter, query.page, next_first=True)
    complete = find_experiments(session, replace(query.filter, state="done"), page_size=_MOST_ANSWERED)
    projects = projects_with_experiments(session)
    workloads = [item.workload for item in page.items]
    return render(
        request,
        "experiments/list.html",
        block="experiment_table",
        address=query.address("/experiments"),
        page=page,
        filters=query,
        tabs=[("", sum(page.states.values())), *((state, page.states.get(state, 0)) for state in STATES)],
        answer=_answer(complete) if projects else "An experiment is a planned A/B of one knob.",
        more_runs=more_runs,
        workloads=dict(zip((item.id for item in page.items), without_common(workloads), strict=True)),
        workload_share=SEPARATOR.join(common_parts(workloads)),
        projects=projects,
    )


@router.get("/experiments/{experiment_id}")
@requires(Action.READ, of="experiment")
def show_experiment(request: Request, session: ReadSession, experiment_id: ExperimentId) -> HTMLResponse:
    return _render_experiment(request, session, experiment_id)


@router.get("/experiments/{experiment_id}/news")
@requires(Action.READ, of="experiment")
def show_news(
    request: Request,
    session: ReadSession,
    experiment_id: ExperimentId,
    seen: Annotated[str, Query(max_length=500)] = "",
) -> HTMLResponse:
    """Return the changes while runs are expected; to other clients the page itself."""
    return _render_experiment(request, session, experiment_id, block="experiment_news", seen=seen)


@router.post("/experiments/{experiment_id}")
@requires(Action.CONTRIBUTE, of="experiment")
async def decide_by_form(request: Request, engine: AppEngine, experiment_id: ExperimentId) -> Response:
    """Decide like the API."""

    def decide(form: ExperimentDecisionForm) -> str:
        _apply(engine, experiment_id, form)
        return f"/experiments/{experiment_id}"

    def again(session: Session, form: ExperimentDecisionForm, error: ThreewallsError) -> Response:
        return _render_experiment(request, session, experiment_id, form=form, status=status_of(error))

    catch = (InvalidChange, Conflict)
    return await answer_form(request, ExperimentDecisionForm, decide, again, max_fields=_MAX_FIELDS, catch=catch)


def _apply(engine: Engine, experiment_id: int, form: ExperimentDecisionForm) -> None:
    author, note, what = form.value("author"), form.value("note"), form.value("decision")
    if what == "runs":
        number = whole_number(form.value("runs_each"))
        set_runs_each(engine, experiment_id, number or 0, who=author)
        return
    decisions = {"accept": accept, "reject": reject, "withdraw": withdraw}
    if what not in decisions:
        raise InvalidChange(f"The decision must be one of {', '.join(DECISIONS)}. Nothing was changed.")
    decisions[what](engine, experiment_id, who=author, note=note)


def _render_experiment(
    request: Request,
    session: Session,
    experiment_id: int,
    *,
    form: ExperimentDecisionForm | None = None,
    block: str | None = None,
    seen: str = "",
    status: int = 200,
) -> HTMLResponse:
    page = ExperimentPage(session, experiment_id, public_address(request), request.app.state.settings, form)
    template: dict[str, Any] = {"p": page, "news": seen != page.token}
    return render(request, "experiments/experiment.html", block=block, status=status, **template)


_MOST_ANSWERED = 200
"""Maximum number of complete experiments that the lead divides into decided and inconclusive ones."""


def _answer(complete: ExperimentListPage) -> str:
    """Summarise the matching experiments that need a decision or runs, given those whose runs are complete."""
    states = complete.states
    if not states:
        return "No experiment matches."
    open_runs = [item for item in complete.items if more_runs(item)]
    decide = complete.total - len(open_runs)
    parts = [f"Decide {plural(decide, 'experiment')}."] if decide else []
    if len(open_runs) == 1:
        parts.append(more_runs_sentence(open_runs[0], f"#{open_runs[0].id}"))
    elif open_runs:
        parts.append(f"{len(open_runs)} are inconclusive: more runs can decide.")
    open_states = [f"{states[state]} {state}" for state in ("waiting", "planned") if states.get(state)]
    if open_states:
        parts.append(f"{', '.join(open_states)}.")
    return " ".join(parts) or "Every experiment is decided."
