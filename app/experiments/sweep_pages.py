"""Sweeps of one knob: the form that plans one, its page with the rounds, and the same calls in the API."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.responses import HTMLResponse

from app.domain.access.principal import Action
from app.domain.contract.fields import FIELDS
from app.domain.experiments.plan import MOST_ASKED_EACH, RUNS_EACH
from app.domain.experiments.sweep import FEWEST_VALUES, Round, SweepProgress, Trial, first_values, rounds
from app.domain.experiments.values import PlannedGain, State
from app.errors import Conflict, FieldError, InvalidChange, NotReady, ThreewallsError
from app.experiments.api_models import ExperimentId, KnobValue
from app.experiments.commands import SweepProposal, SweepRequest, advance_sweep, plan_sweep, progress_of, propose_sweep
from app.experiments.pages import gain_text
from app.experiments.plan_page import FormOfPlan, IdeaPage, PlanForm, knob_fields
from app.settings import Settings
from app.storage.audit import MAX_NOTE
from app.storage.database import read_session
from app.storage.experiments import Experiment, sweep_of
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, AppEngine, AppSettings, ReadSession, RunId, api_router
from app.web.errors import documented
from app.web.forms import answer_form, status_of
from app.web.identity import Author, author_field
from app.web.templating import public_address, render

_MAX_FIELDS = 20


class SweepForm(FormOfPlan):
    """One knob (`field`) with its `values`: separated by semicolons, or by commas where no value is a list."""

    inputs = ("field", "values", "author", "runs_each")

    def input_of(self, field: str) -> str:
        return "values" if field.startswith("knobs.") else super().input_of(field)

    @property
    def values_list(self) -> list[str]:
        text, name = self.value("values"), self.value("field")
        is_list = name in FIELDS and FIELDS[name].kind in ("words", "counts")
        separator = r"[;\n]" if ";" in text or is_list else r"[;,\n]"
        return [part for item in re.split(separator, text) if (part := item.strip())]


class SweepPlanPage:
    """The data of the form. `proposal` is None where the values cannot be planned (`form` says why).

    Without a field, the page offers the first knob that a suggestion changes; without values, those to try first.
    """

    def __init__(
        self, session: Session, settings: Settings, run_id: int, form: SweepForm, *, fill: bool = True
    ) -> None:
        self._idea = IdeaPage(session, settings, run_id, PlanForm({"field": form.value("field")}))
        self.run = self._idea.run
        self.form = self._filled(form) if fill else form
        self.proposal: SweepProposal | None = None
        if self.form.value("field") and self.form.value("values") and not self.form.errors:
            try:
                self.proposal = propose_sweep(session, settings, _sweep_request(run_id, self.form))
            except (InvalidChange, NotReady) as error:
                self.form = self.form.refused(error)

    most = MOST_ASKED_EACH

    def _filled(self, form: SweepForm) -> SweepForm:
        name, values = form.value("field"), form.value("values")
        if name and name not in knob_fields():
            return replace(form, errors={"field": "is not a knob: choose one of the list"})
        if values:
            return form
        for knob in [name] if name else self._idea.suggested:
            if values := ", ".join(self._first_values(knob)):
                return replace(form, values={**form.values, "field": knob, "values": values})
        return form

    def _first_values(self, name: str) -> list[str]:
        """Return values of a knob to try first: those with which the job would start, if there are at least two."""
        stated = self.run.contract.get(name)
        values = first_values(FIELDS[name], None if stated is None else stated.value)
        starting = [value for value in values if self._idea.starts(name, value)]
        return starting if len(starting) >= FEWEST_VALUES else []

    @property
    def groups(self) -> object:
        return self._idea.groups

    @property
    def chosen(self) -> str:
        return self.form.value("field") if self.form.value("field") in FIELDS else ""

    @property
    def warnings(self) -> list[str]:
        """Return the warnings of all values, each once."""
        assert self.proposal is not None  # noqa: S101  # the template asks for it only then
        return list(dict.fromkeys(text for item in self.proposal.proposals for text in item.plan.warnings))

    @property
    def rounds(self) -> tuple[Round, ...]:
        assert self.proposal is not None  # noqa: S101  # the template asks for it only then
        return rounds(len(self.proposal.proposals), self.proposal.sizing.runs_each)


def _sweep_request(run_id: int, form: SweepForm) -> SweepRequest:
    if not form.value("field"):
        raise InvalidChange("Nothing was planned.", (FieldError("field", "must be chosen"),))
    if form.value("runs_each") and form.runs_each is None:
        raise InvalidChange("Nothing was planned.", (FieldError("runs_each", RUNS_EACH),))
    return SweepRequest(run_id, form.value("field"), form.values_list, form.runs_each)


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A value with its experiment; `place` is its fate in the sweep."""

    trial: Trial
    experiment: Experiment
    place: str

    @property
    def gain(self) -> str:
        return gain_text(self.trial.gain)


class SweepPage:
    """The data of the template. Raises NotFound for an experiment that begins no sweep."""

    def __init__(self, session: Session, sweep_id: int, form: SweepForm | None = None) -> None:
        self._session = session
        self.id = sweep_id
        self.experiments = sweep_of(session, sweep_id)
        self.first = self.experiments[0]
        self.form = form or SweepForm()

    @cached_property
    def progress(self) -> SweepProgress:
        return progress_of(self.experiments)

    @property
    def knob(self) -> str:
        return self.first.knobs[0].field

    @property
    def rows(self) -> list[TrialRow]:
        """Return the trials, the best first and dropped values last."""
        rows = [
            TrialRow(trial, experiment, _place(trial, self.progress))
            for trial, experiment in zip(self.progress.trials, self.experiments, strict=True)
        ]
        return sorted(rows, key=lambda row: (not row.trial.is_in, -(row.trial.gain.pct if row.trial.gain else -1e9)))


def _place(trial: Trial, progress: SweepProgress) -> str:
    if trial.state in ("accepted", "rejected", "withdrawn"):
        return trial.state
    if trial in progress.waits_for:
        return f"needs {progress.round.runs_each - trial.runs} more"
    if trial in progress.drop:
        return "to drop"
    return "decision due" if progress.next_round is None else "stays"


# --- Pages.

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id}/sweeps/new")
@requires(Action.CONTRIBUTE, of="run")
def offer_sweep(request: Request, session: ReadSession, settings: AppSettings, run_id: RunId) -> HTMLResponse:
    page = SweepPlanPage(session, settings, run_id, SweepForm.read(request.query_params))
    return render(request, "experiments/sweep_new.html", p=page)


@router.post("/runs/{run_id}/sweeps")
@requires(Action.CONTRIBUTE, of="run")
async def plan_sweep_by_form(request: Request, engine: AppEngine, settings: AppSettings, run_id: RunId) -> Response:
    """Plan a sweep like the API's POST."""

    def plan(form: SweepForm) -> str:
        return f"/experiments/{plan_sweep(engine, settings, _sweep_request(run_id, form), form.value('author'))}/sweep"

    def again(session: Session, form: SweepForm, _: ThreewallsError) -> Response:
        page = SweepPlanPage(session, settings, run_id, form, fill=False)
        return render(request, "experiments/sweep_new.html", status=422, p=page)

    catch = (InvalidChange, Conflict)
    return await answer_form(request, SweepForm, plan, again, max_fields=_MAX_FIELDS, catch=catch)


@router.get("/experiments/{experiment_id}/sweep")
@requires(Action.READ, of="experiment")
def show_sweep(request: Request, session: ReadSession, experiment_id: ExperimentId) -> HTMLResponse:
    return render(request, "experiments/sweep.html", p=SweepPage(session, experiment_id))


@router.post("/experiments/{experiment_id}/sweep")
@requires(Action.CONTRIBUTE, of="experiment")
async def advance_by_form(request: Request, engine: AppEngine, experiment_id: ExperimentId) -> Response:
    """Go to the next round like the API's PATCH."""

    def advance(form: SweepForm) -> str:
        advance_sweep(engine, experiment_id, form.value("author"))
        return f"/experiments/{experiment_id}/sweep"

    def again(session: Session, form: SweepForm, error: ThreewallsError) -> Response:
        page = SweepPage(session, experiment_id, form)
        return render(request, "experiments/sweep.html", status=status_of(error), p=page)

    catch = (InvalidChange, Conflict)
    return await answer_form(request, SweepForm, advance, again, max_fields=_MAX_FIELDS, catch=catch)


# --- The same in the API.


class SweepIn(BaseModel, extra="forbid"):
    run: int = Field(ge=1, lt=2**31, description="The baseline: a run with figures.")
    field: str = Field(max_length=100, description="The contract field to sweep.")
    values: list[KnobValue] = Field(max_length=50, description="2 to 12 different values.")
    author: Author = author_field("Author of the plan.")
    note: str = Field("", max_length=MAX_NOTE)
    runs_each: int | None = Field(
        None, ge=1, le=MOST_ASKED_EACH, description="Runs per side of the last value; null: as many as needed."
    )


class AdvanceIn(BaseModel, extra="forbid"):
    author: Author = author_field("Author of the decision.")


class TrialOut(ApiValue):
    experiment: int
    url: str
    value: str
    state: State
    tag: str = Field(description="Include it in the `tags` of each upload.")
    runs: int = Field(description="Runs of the value that count.")
    planned: int = Field(description="Runs per side that the round requests.")
    gain: PlannedGain | None
    place: str


class SweepOut(ApiValue):
    id: int = Field(description="The first experiment of the sweep.")
    url: str
    field: str
    baseline_run: int
    sentence: str
    round: int = Field(description="From 1.")
    rounds: list[Round]
    may_go_on: bool = Field(description="Every value has its runs: PATCH drops the worse half.")
    keep: list[str]
    drop: list[str]
    trials: list[TrialOut]

    @classmethod
    def of(cls, page: SweepPage, base: str) -> "SweepOut":
        progress = page.progress
        return cls.from_values(
            progress,
            page,
            url=f"{base}/experiments/{page.id}/sweep",
            field=page.knob,
            baseline_run=page.first.baseline_run_id,
            round=progress.number + 1,
            keep=_values(progress.keep),
            drop=_values(progress.drop),
            trials=[
                TrialOut.from_values(
                    row.trial,
                    row,
                    experiment=row.trial.experiment_id,
                    url=f"{base}/experiments/{row.trial.experiment_id}",
                    tag=row.experiment.tag,
                )
                for row in page.rows
            ],
        )


def _values(trials: Sequence[Trial]) -> list[str]:
    return [trial.value for trial in trials]


api = api_router("experiments")


@api.post("/sweeps", status_code=201, responses=documented(404, 409, 422))
@requires(Action.CONTRIBUTE)
def create_sweep(
    request: Request, response: Response, engine: AppEngine, settings: AppSettings, plan: SweepIn
) -> SweepOut:
    """Plan a sweep of one knob: an experiment per value, halved after each round."""
    requested = SweepRequest(plan.run, plan.field, plan.values, plan.runs_each)
    sweep_id = plan_sweep(engine, settings, requested, plan.author, plan.note)
    response.headers["Location"] = f"/api/v1/experiments/{sweep_id}/sweep"
    return _read(engine, sweep_id, public_address(request))


@api.get("/experiments/{experiment_id}/sweep", responses=documented(404, 422))
@requires(Action.READ, of="experiment")
def read_sweep(request: Request, session: ReadSession, experiment_id: ExperimentId) -> SweepOut:
    """Return a sweep by its first experiment: its rounds, and what the next one does."""
    return SweepOut.of(SweepPage(session, experiment_id), public_address(request))


@api.patch("/experiments/{experiment_id}/sweep", responses=documented(404, 422))
@requires(Action.CONTRIBUTE, of="experiment")
def change_sweep(request: Request, engine: AppEngine, experiment_id: ExperimentId, change: AdvanceIn) -> SweepOut:
    """Go to the next round: reject the worse half, and request more runs of the rest."""
    advance_sweep(engine, experiment_id, change.author)
    return _read(engine, experiment_id, public_address(request))


def _read(engine: Engine, sweep_id: int, base: str) -> SweepOut:
    with read_session(engine) as session:
        return SweepOut.of(SweepPage(session, sweep_id), base)
