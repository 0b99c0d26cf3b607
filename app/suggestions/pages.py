"""Pages of next steps: HTTP in, template out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.experiments.journey import Continuation, continuation
from app.domain.numbers import axis_limit_pct, gain_change, plural
from app.domain.rules.change import change_of
from app.domain.rules.engine import Suggestion
from app.domain.rules.rule import Phase, Recipe
from app.errors import InvalidChange, InvalidMetadata, NotReady, ThreewallsError
from app.pipeline.propose import ExperimentProposal, ExperimentRequest, propose
from app.pipeline.suggest import PairSuggestions, RunSuggestions, cost_text, place_text, suggest
from app.settings import Settings
from app.storage.experiments import ExperimentItem, experiments_by_id
from app.storage.journeys import journey_of
from app.storage.rules import RulesInForce
from app.storage.setbacks import REGRESSION_RULE, regression_change
from app.suggestions.commands import StateForm, state
from app.suggestions.step_page import StepPage
from app.suggestions.views import (
    MOST_NAMED,
    CopiedFlags,
    FactRow,
    GainView,
    MissingView,
    RestsOn,
    Revert,
    check_first_text,
    continued_text,
    copied_flags,
    elsewhere_text,
    experiment_text,
    fact_row,
    gain_view,
    is_accepted,
    journey_leads,
    linked_why,
    measured_text,
    met_count,
    of_run_texts,
    rerun_address,
    rests_on,
    revert_view,
    run_with_change,
    sentence,
    setting_text,
)
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession, Rules, RunId
from app.web.forms import Form, answer_form
from app.web.templating import render

# --- The page of suggestions.

_EVIDENCE: Mapping[Phase, str] = {
    "contract": "/runs/{}#contract",
    "fit": "/runs/{}#run-top",
    "scale": "/runs/{}/next#suggestions",
    "profile": "/runs/{}/next#wall",
    "retune": "/runs/{}/next#suggestions",
    "validate": "/runs/{}#run-top",
}
"""Address of the evidence for the state of each phase."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One phase. `href`: the evidence for its state."""

    phase: Phase
    question: str
    state: str
    because: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class SuggestionRow:
    """One suggestion in the list.

    `needs`: how many prerequisites are met, or empty; `check_first`: those that are not. `elsewhere`: the effect on
    other kinds of GPU, if it is unknown here. `may_plan`: it is an A/B that no experiment on this stack measures.
    `experiment`: the one that does. `tried_here`: it accepted the change, and no profile is needed.
    `flags`: those of the change. `container`: one that works as it is, which comes before them. `revert`: how to undo a
    regression without an A/B.
    """

    rule: str
    kind: str
    phase: str
    wall: str
    title: str
    why: Markup
    needs: str
    check_first: str
    elsewhere: str
    effect: str
    measured: str
    withheld: str
    is_look: bool
    place: str
    also: tuple[tuple[str, str], ...]
    rests_on: tuple[RestsOn, ...]
    gain: GainView | None
    recipe: Recipe | None
    cost: str
    may_plan: bool
    experiment: ExperimentItem | None
    tried_here: bool
    change: str
    flags: CopiedFlags | None
    container: str
    revert: Revert | None
    rerun: str

    @property
    def is_accepted(self) -> bool:
        return is_accepted(self.experiment)


MOST_TITLE_WORDS = 11
"""Words of a title that leave room for the expected gain in a lead of 16 words."""


class NextPage:
    """The suggestions of a run. `unfinished`: the experiments to finish first, if the journey did not go on."""

    def __init__(
        self,
        advice: RunSuggestions,
        continued: Continuation,
        unfinished: Sequence[ExperimentItem] = (),
        form: StateForm | None = None,
        fact: str = "",
    ) -> None:
        self._advice = advice
        self.continued = continued
        self.unfinished = unfinished
        self._missing = MissingView(advice, form or StateForm(), fact)
        self.facts_open = form is not None or bool(fact)
        self.run = advice.run
        self.wall = advice.evaluation.wall

    experiment_text = staticmethod(experiment_text)

    @property
    def answer(self) -> str:
        """Return the lead of the page."""
        if self.journey_leads:
            return continued_text(self.continued, self.unfinished)
        blockers = self._advice.evaluation.blockers
        if blockers:
            more = f" {len(blockers) - 1} more blockers remain." if len(blockers) > 1 else ""
            return f"Resolve this blocker first: {sentence(blockers[0].title)}{more}"
        if self._advice.leading:
            first = self._advice.leading[0]
            return self._slower(first) or self._lead(first)
        return "No rule suggests a change for this run."

    @property
    def journey_leads(self) -> bool:
        leading = self._advice.leading
        return journey_leads(self.continued, leading[0].rule.id if leading else "")

    def _slower(self, first: Suggestion) -> str:
        """Return the lead for a regression that a rerun or a bisection comes first for; else empty."""
        facts = self._advice.evaluation.facts
        if first.rule.id != REGRESSION_RULE or first.place.expected is not None:
            return ""
        if rerun_address(self._advice, first.rule.id):
            return f"Rerun #{self.run.id} first: {facts['regression_pct']:.1f}\u202f% slower is unconfirmed."
        change = regression_change(facts["regression_metric"], facts["regression_pct"])
        return f"Find why {change[0].lower()}{change[1:]} before you tune this run.".replace(" %", "\u202f%")

    def _lead(self, first: Suggestion) -> str:
        if (experiment := self._advice.experiments.get(first.rule.id)) is not None:
            facts = self._advice.evaluation_of(first.rule.id).facts
            change = setting_text(first, facts) if experiment.state == "accepted" else ""
            title = f"{sentence(first.title)} " if len(first.title.split()) <= MOST_TITLE_WORDS - 2 else ""
            title = f"Set {change}. " if change else title
            return f"{title}{experiment_text(experiment)}."
        if first.place.tier == "other" and not self._low_mfu:
            return f"No A/B of this stack applies yet. Next: {sentence(first.title)}"
        gain = gain_view(first)
        if gain is None or len(first.title.split()) > MOST_TITLE_WORDS:
            return f"{self._low_mfu}Next: {sentence(first.title)}"
        doubt = "" if gain.is_settled else " (inconclusive)"
        own = first.place.expected.statement.own if first.place.expected else None
        where = own.where if own and own.at_gpus else "expected"
        if own and not own.same_contract and not own.same_model:
            where = "on other models"
        unmet = [need.state for need in first.needs].count("unmet")
        lacking = f"; {plural(unmet, 'prerequisite')} unmet" if unmet else ""
        return f"{first.title}, {gain_change(gain.pct).figure} {where}{doubt}{lacking}."

    @property
    def _low_mfu(self) -> str:
        """Return a sentence about a low share of the peak; empty if it is usual, or if something precedes tuning."""
        evaluation = self._advice.evaluation
        if evaluation.facts.get("low_utilization") is not True:
            return ""
        if self._advice.leading[0].place.tier in ("health", "rerun", "regression", "unjudged"):
            return ""
        mfu = evaluation.facts.get("mfu")
        return f"MFU is only {100 * mfu:.0f}\u202f%. " if isinstance(mfu, float) else ""

    @property
    def steps(self) -> list[StepRow]:
        """Return the phases. Retuning that experiments of this run have begun is open, whatever else it waits for."""
        phases = self._advice.phases
        begun = [f"#{experiment.id}" for experiment in self.unfinished]
        because = f"{plural(len(begun), 'Experiment', number=False)} {' and '.join(begun)} under way." if begun else ""
        evidence = _EVIDENCE if self.shows_limit else {**_EVIDENCE, "profile": _EVIDENCE["retune"]}
        return [
            StepRow(
                phase=step.phase,
                question=step.question,
                state="open" if step.phase == "retune" and begun else step.state,
                because=because if step.phase == "retune" and begun else step.because,
                href=evidence[step.phase].format(self.run.id),
                current=step.phase == phases.current,
            )
            for step in phases.steps
        ]

    @property
    def shows_limit(self) -> bool:
        """Return whether anything is known about what limits the step, or how to find out."""
        return self.wall.wall != "none" or bool(self.wall.evidence or self.profile_steps)

    @property
    def wall_facts(self) -> list[FactRow]:
        return [fact_row(self._advice, name) for name in self.wall.evidence if name in self._advice.evaluation.facts]

    @cached_property
    def _ranked(self) -> list[SuggestionRow]:
        return self._rows(
            suggestion for suggestion in self._advice.ranked if not suggestion.rule.is_step_of_the_profile
        )

    @property
    def ranked(self) -> list[SuggestionRow]:
        """Return the suggestions shown without unfolding: those of this run, or the first that most runs have."""
        leading = {suggestion.rule.id for suggestion in self._advice.leading}
        return [row for row in self._ranked if row.rule in leading]

    @property
    def others(self) -> list[SuggestionRow]:
        shown = {row.rule for row in self.ranked}
        return [row for row in self._ranked if row.rule not in shown]

    @property
    def profile_steps(self) -> list[SuggestionRow]:
        """Return checks of a profile, which change nothing and are shown with the wall."""
        return self._rows(suggestion for suggestion in self._advice.ranked if suggestion.rule.is_step_of_the_profile)

    @property
    def withheld(self) -> list[SuggestionRow]:
        """Return what is deferred; nothing after running out of memory, where only what lets the job run is of use.

        Another layout that is predicted to be slower is no suggestion, unless there is a result for it.
        """
        if self._ran_out:
            return []
        return self._rows(
            suggestion
            for suggestion in self._advice.evaluation.withheld
            if suggestion.forecast is None or suggestion.forecast.is_faster or suggestion.place.expected is not None
        )

    @property
    def _ran_out(self) -> bool:
        facts = self._advice.evaluation.facts
        return facts.get("oom") is True and facts.get("health_dismissed") is not True

    @property
    def warnings(self) -> list[SuggestionRow]:
        """Return the warnings; without a steady window there is no figure that those of the contract would qualify."""
        has_figure = self.run.steady_state is not None
        warnings = self._advice.evaluation.warnings
        return self._rows(warning for warning in warnings if has_figure or warning.rule.phase != "contract")

    @property
    def pair(self) -> PairSuggestions | None:
        """Return the baseline runs and their rules; None if no rule about two runs fires."""
        pair = self._advice.pair
        return pair if pair is not None and pair.evaluation.fired else None

    @property
    def beside(self) -> list[SuggestionRow]:
        if self.pair is None:
            return []
        return self._rows(self.pair.evaluation.offered if self._ran_out else self.pair.evaluation.fired)

    @property
    def also(self) -> list[SuggestionRow]:
        """Return the other rows, first the steps of the current phase.

        For a run that did not get through, first what helps it to run, figures last.
        """
        rows = [*self.warnings, *self.beside, *self.others, *self.withheld]
        if self._advice.evaluation.facts.get("ran") is True:
            current = self._advice.phases.current
            return sorted(rows, key=lambda row: row.phase != current or row.kind == "warning")
        last = ("contract", "validate")
        return sorted(rows, key=lambda row: (row.phase in last, row.phase != "fit", row.wall != self.wall.wall))

    @property
    def missing(self) -> MissingView:
        return self._missing

    @property
    def asking(self) -> int:
        """Return the number of rules that lack facts."""
        return len(self._advice.evaluation.asks)

    @property
    def limit_pct(self) -> float:
        """Return the end of the common axis of expected gains, a multiple of 5 %."""
        return axis_limit_pct((row.gain.low, row.gain.high) for row in self._ranked if row.gain is not None)

    @property
    def counts(self) -> str:
        evaluation, rules = self._advice.evaluation, self._advice.book.rules
        return (
            f"{plural(len(evaluation.fired), 'rule')} of {len(rules)} fire, {len(evaluation.silent)} do not apply, "
            f"{len(evaluation.asks)} need missing facts"
        )

    def _rows(self, suggestions: Iterable[Suggestion]) -> list[SuggestionRow]:
        return [self._row(suggestion) for suggestion in suggestions]

    def _row(self, suggestion: Suggestion) -> SuggestionRow:
        advice, rule = self._advice, suggestion.rule
        sizing = advice.sizing(suggestion)
        facts = advice.evaluation_of(rule.id).facts
        change = change_of(suggestion, facts, advice.launch, advice.reading.arguments)
        return SuggestionRow(
            rule=rule.id,
            kind=suggestion.kind,
            phase=rule.phase,
            wall=rule.wall,
            title=suggestion.title,
            why=linked_why(advice, suggestion),
            needs=f"{met_count(suggestion.needs, run_with_change(advice, rule.id))} prerequisites met"
            if suggestion.needs
            else "",
            effect="" if rule.effect.text == "unquantified" else rule.effect.text,
            check_first=check_first_text(suggestion.needs, run_with_change(advice, rule.id)),
            elsewhere=elsewhere_text(suggestion, facts.get("gpu")),
            measured="; ".join(
                [*of_run_texts(suggestion), *(measured_text(measurement) for measurement in advice.measured(rule.id))]
            ),
            withheld=suggestion.withheld or suggestion.doubt,
            is_look=rule.is_step_of_the_profile,
            place="" if suggestion.rule.kind == "warning" else place_text(suggestion, sizing),
            also=tuple((other.rule.id, other.title) for other in suggestion.also),
            rests_on=rests_on(advice, rule.when.names),
            gain=gain_view(suggestion),
            recipe=next(iter(suggestion.recipes), None),
            cost="" if sizing is None else cost_text(sizing),
            may_plan=sizing is not None and not suggestion.withheld,
            experiment=(experiment := advice.experiments.get(rule.id)),
            tried_here=is_accepted(experiment) and bool(suggestion.assumed),
            change=setting_text(suggestion, facts),
            flags=copied_flags(change),
            container=suggestion.container,
            revert=revert_view(suggestion, change, sizing, purpose=self.run.purpose),
            rerun=rerun_address(advice, rule.id),
        )


def next_page(
    session: Session, rules: RulesInForce, run_id: int, form: StateForm | None = None, fact: str = ""
) -> NextPage:
    continued = continuation(journey_of(session, run_id), run_id)
    advice = suggest(session, run_id, rules)
    return NextPage(advice, continued, _unfinished(session, continued), form=form, fact=fact)


def _unfinished(session: Session, continued: Continuation) -> list[ExperimentItem]:
    """Return the experiments to finish first; none if the journey went on in another run."""
    open_here = () if continued.run_id is not None else (*continued.decide, *continued.under_way)
    return experiments_by_id(session, open_here[:MOST_NAMED])


router = APIRouter(include_in_schema=False)

MAX_FIELDS = 300
"""More than the number of facts."""

FactName = Annotated[str, Query(max_length=100)]


@router.get("/runs/{run_id}/next")
@requires(Action.READ, of="run")
def show_next(request: Request, session: ReadSession, rules: Rules, run_id: RunId, fact: FactName = "") -> HTMLResponse:
    """Show the suggestions of a run. `fact`: the fact whose input comes first."""
    return render(request, "suggestions/next.html", p=next_page(session, rules, run_id, fact=fact))


@router.post("/runs/{run_id}/facts")
@requires(Action.CONTRIBUTE, of="run")
async def state_facts(request: Request, engine: AppEngine, rules: Rules, run_id: RunId) -> Response:
    """State facts like the API."""

    def act(form: StateForm) -> str:
        state(engine, run_id, facts=form.stated(), author=form.value("author"), note=form.value("note"))
        return f"/runs/{run_id}/next#stated"

    def again(session: Session, form: StateForm, _: ThreewallsError) -> Response:
        page = next_page(session, rules, run_id, form=form)
        return render(request, "suggestions/next.html", p=page, status=422)

    return await answer_form(request, StateForm, act, again, max_fields=MAX_FIELDS, catch=(InvalidMetadata,))


@router.get("/runs/{run_id}/next/{rule}")
@requires(Action.READ, of="run")
def show_step(request: Request, session: ReadSession, rules: Rules, run_id: RunId, rule: str) -> HTMLResponse:
    advice = suggest(session, run_id, rules)
    continued = continuation(journey_of(session, run_id), run_id)
    page = StepPage(advice, rule, continued, _unfinished(session, continued))
    offer = None if page.suggestion is None else plan_offer(session, request.app.state.settings, advice, rule)
    return render(request, "suggestions/step.html", p=page, offer=offer)


@dataclass(frozen=True, slots=True)
class PlanOffer:
    """What `experiments/_propose.html` shows: the plan, or why it cannot be planned (`refused`)."""

    run_id: int
    form: Form
    proposal: ExperimentProposal | None = None
    refused: str = ""


def plan_offer(session: Session, settings: Settings, advice: RunSuggestions, rule: str) -> PlanOffer:
    """Return what planning the change of a rule as an experiment takes. Raises NotFound."""
    run_id = advice.run.id
    form = Form({"run": str(run_id), "rule": rule})
    try:
        return PlanOffer(run_id, form, propose(session, settings, ExperimentRequest(run_id, rule_id=rule), advice))
    except (NotReady, InvalidChange) as error:
        return PlanOffer(run_id, form, refused=" ".join(wrong.message for wrong in error.errors) or error.detail)
