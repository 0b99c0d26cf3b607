"""Pages of next steps: HTTP in, template out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from markupsafe import Markup
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.numbers import plural
from app.domain.rules.engine import CheckedRequirement, Suggestion
from app.domain.rules.facts import SETTINGS
from app.domain.rules.rule import Phase
from app.errors import InvalidChange, InvalidMetadata, NotReady, ThreewallsError
from app.pipeline.propose import Proposal, Wish, propose
from app.pipeline.suggest import PairSuggestions, RunSuggestions, place_text, suggest
from app.settings import Settings
from app.suggestions.commands import StateForm, state
from app.suggestions.step_page import StepPage
from app.suggestions.views import (
    FactRow,
    MissingView,
    RestsOn,
    fact_row,
    linked_why,
    measured_text,
    numbered,
    rests_on,
    sentence,
)
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession, Rules
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
    """One phase. `href`: source of the numbers in its reason, or empty. `first`: rule and title of its first
    suggestion.
    """

    phase: Phase
    question: str
    state: str
    because: str
    href: str
    first: tuple[tuple[str, str], ...]
    current: bool


@dataclass(frozen=True, slots=True)
class SuggestionRow:
    """One suggestion in the list. `needs`: how many prerequisites are met, or empty."""

    rule: str
    kind: str
    phase: str
    wall: str
    title: str
    why: Markup
    needs: str
    effect: str
    measured: str
    withheld: str
    is_look: bool
    place: str
    also: tuple[tuple[str, str], ...]
    rests_on: tuple[RestsOn, ...]


SHOWN_FIRST = 5
"""Number of suggestions shown; the others are folded."""


class NextPage:
    """Data of the page."""

    def __init__(self, advice: RunSuggestions, form: StateForm | None = None, fact: str = "") -> None:
        self._advice = advice
        self._missing = MissingView(advice, form or StateForm(), fact)
        self.run = advice.run
        self.wall = advice.evaluation.wall

    @property
    def answer(self) -> str:
        """Return the lead of the page."""
        evaluation, blockers = self._advice.evaluation, self._advice.evaluation.blockers
        if blockers:
            more = f" {len(blockers) - 1} more blockers remain." if len(blockers) > 1 else ""
            return f"Resolve this blocker first: {sentence(blockers[0].rule.title)}{more}"
        if evaluation.suggestions:
            return f"Next: {sentence(evaluation.suggestions[0].rule.title)}"
        return "No rule suggests a change for this run."

    @property
    def steps(self) -> list[StepRow]:
        titles = {suggestion.rule.id: suggestion.rule.title for suggestion in self._advice.evaluation.fired}
        current = self._advice.journey.current
        return [
            StepRow(
                phase=step.phase,
                question=step.question,
                state=step.state,
                because=step.because,
                href=_EVIDENCE[step.phase].format(self.run.id) if numbered(step.because) else "",
                first=tuple((rule, titles[rule]) for rule in step.rules[:1]),
                current=step.phase == current,
            )
            for step in self._advice.journey.steps
        ]

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
        """Return the suggestions shown without unfolding."""
        return self._ranked[:SHOWN_FIRST]

    @property
    def others(self) -> list[SuggestionRow]:
        return self._ranked[SHOWN_FIRST:]

    @property
    def profile_steps(self) -> list[SuggestionRow]:
        """Return checks of a profile, which change nothing and are shown with the wall."""
        return self._rows(suggestion for suggestion in self._advice.ranked if suggestion.rule.is_step_of_the_profile)

    @property
    def withheld(self) -> list[SuggestionRow]:
        return self._rows(self._advice.evaluation.withheld)

    @property
    def warnings(self) -> list[SuggestionRow]:
        return self._rows(self._advice.evaluation.warnings)

    @property
    def pair(self) -> PairSuggestions | None:
        """Return the baseline runs and their rules; None if no rule about two runs fires."""
        pair = self._advice.pair
        return pair if pair is not None and pair.evaluation.fired else None

    @property
    def beside(self) -> list[SuggestionRow]:
        return [] if self.pair is None else self._rows(self.pair.evaluation.fired)

    @property
    def missing(self) -> MissingView:
        return self._missing

    @property
    def asking(self) -> int:
        """Return the number of rules that lack facts."""
        return len(self._advice.evaluation.asks)

    @property
    def thresholds(self) -> list[FactRow]:
        return [fact_row(self._advice, name) for name in SETTINGS]

    @property
    def counts(self) -> str:
        evaluation, rules = self._advice.evaluation, self._advice.book.rules
        return (
            f"{plural(len(evaluation.fired), 'rule')} of {len(rules)} fire, {len(evaluation.silent)} do not apply, "
            f"{len(evaluation.asks)} need missing facts"
        )

    def _rows(self, suggestions: Iterable[Suggestion]) -> list[SuggestionRow]:
        return [
            SuggestionRow(
                rule=suggestion.rule.id,
                kind=suggestion.kind,
                phase=suggestion.rule.phase,
                wall=suggestion.rule.wall,
                title=suggestion.rule.title,
                why=linked_why(self._advice, suggestion),
                needs=_needs(suggestion.needs),
                effect="" if suggestion.rule.effect.text == "unquantified" else suggestion.rule.effect.text,
                measured="; ".join(
                    measured_text(suggestions) for suggestions in self._advice.measured(suggestion.rule.id)
                ),
                withheld=suggestion.withheld or suggestion.doubt,
                is_look=suggestion.rule.is_step_of_the_profile,
                place=place_text(suggestion, self._advice.sizing(suggestion)),
                also=tuple((other.rule.id, other.rule.title) for other in suggestion.also),
                rests_on=rests_on(self._advice, suggestion.rule.when.names),
            )
            for suggestion in suggestions
        ]


def _needs(needs: Iterable[CheckedRequirement]) -> str:
    states = [need.state for need in needs]
    return f"{states.count('met')} of {len(states)} prerequisites met" if states else ""


router = APIRouter(include_in_schema=False)

MAX_FIELDS = 300
"""More than the number of facts."""

FactName = Annotated[str, Query(max_length=100)]
RunId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("/runs/{run_id}/next")
@requires(Action.READ, of="run")
def show_next(request: Request, session: ReadSession, rules: Rules, run_id: RunId, fact: FactName = "") -> HTMLResponse:
    """Show the suggestions of a run. `fact`: the fact whose input comes first."""
    return render(request, "suggestions/next.html", p=NextPage(suggest(session, run_id, rules), fact=fact))


@router.post("/runs/{run_id}/facts")
@requires(Action.CONTRIBUTE, of="run")
async def state_facts(request: Request, engine: AppEngine, rules: Rules, run_id: RunId) -> Response:
    """State facts like the API."""

    def act(form: StateForm) -> str:
        state(engine, run_id, facts=form.facts(), author=form.value("author"), note=form.value("note"))
        return f"/runs/{run_id}/next#stated"

    def again(session: Session, form: StateForm, _: ThreewallsError) -> Response:
        page = NextPage(suggest(session, run_id, rules), form=form)
        return render(request, "suggestions/next.html", p=page, status=422)

    return await answer_form(request, StateForm, act, again, max_fields=MAX_FIELDS, catch=(InvalidMetadata,))


@router.get("/runs/{run_id}/next/{rule}")
@requires(Action.READ, of="run")
def show_step(request: Request, session: ReadSession, rules: Rules, run_id: RunId, rule: str) -> HTMLResponse:
    advice = suggest(session, run_id, rules)
    page = StepPage(advice, rule)
    offer = None if page.found is None else plan_offer(session, request.app.state.settings, advice, rule)
    return render(request, "suggestions/step.html", p=page, offer=offer)


@dataclass(frozen=True, slots=True)
class PlanOffer:
    """What `experiments/_propose.html` shows: the plan, or why it cannot be planned (`refused`)."""

    run_id: int
    form: Form
    proposal: Proposal | None = None
    refused: str = ""


def plan_offer(session: Session, settings: Settings, advice: RunSuggestions, rule: str) -> PlanOffer:
    """Return what planning the change of a rule as an experiment takes. Raises NotFound."""
    run_id = advice.run.id
    form = Form({"run": str(run_id), "rule": rule})
    try:
        return PlanOffer(run_id, form, propose(session, settings, Wish(run_id, rule_id=rule), advice))
    except (NotReady, InvalidChange) as error:
        return PlanOffer(run_id, form, refused=" ".join(wrong.message for wrong in error.errors) or error.detail)
