"""The page of next steps: where the run stands, what the evidence points at, and what to do in which order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from app.domain.numbers import counted
from app.domain.rules.engine import Checked, Suggestion
from app.domain.rules.facts import SETTINGS
from app.domain.rules.rule import Phase
from app.recommendations.advise import Advice, PairAdvice
from app.recommendations.missing_view import MissingView
from app.recommendations.origins import FactRow, fact_row, linked_why
from app.recommendations.state_form import StateForm
from app.recommendations.words import measured_text, numbered, sentence

_EVIDENCE: Mapping[Phase, str] = {
    "contract": "/runs/{}#contract",
    "fit": "/runs/{}#run-top",
    "scale": "/runs/{}/next#suggestions",
    "profile": "/runs/{}/next#wall",
    "retune": "/runs/{}/next#suggestions",
    "validate": "/runs/{}#run-top",
}
"""Where what is said of a phase can be read."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One phase; `href`: where the numbers of its reason can be read, "" without one.

    `first`: what to do in it first, as rule and title.
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
    """One line of the list. `needs`: how many prerequisites are met, "" where there are none."""

    rule: str
    kind: str
    phase: str
    wall: str
    title: str
    why: Markup
    needs: str
    effect: str
    measured: str
    held: str
    is_look: bool


class NextPage:
    """What the template asks for."""

    def __init__(self, advice: Advice, form: StateForm | None = None, fact: str = "") -> None:
        self._advice = advice
        self._missing = MissingView(advice, form or StateForm(), fact)
        self.run = advice.run
        self.wall = advice.told.wall

    @property
    def answer(self) -> str:
        """What to do first."""
        told, blockers = self._advice.told, self._advice.told.blockers
        if blockers:
            more = f" {len(blockers) - 1} more stand in the way." if len(blockers) > 1 else ""
            return f"Clear this first: {sentence(blockers[0].rule.title)}{more}"
        if told.suggestions:
            return f"Next: {sentence(told.suggestions[0].rule.title)}"
        return "No rule asks for a change of this run."

    @property
    def steps(self) -> list[StepRow]:
        titles = {one.rule.id: one.rule.title for one in self._advice.told.fired}
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
        return [fact_row(self._advice, name) for name in self.wall.evidence if name in self._advice.told.facts]

    @property
    def ranked(self) -> list[SuggestionRow]:
        return self._rows(one for one in self._advice.ranked if not one.rule.is_step_of_the_profile)

    @property
    def profile_steps(self) -> list[SuggestionRow]:
        """What to look at in a profile, beside the wall: it changes nothing, so it is no candidate."""
        return self._rows(one for one in self._advice.ranked if one.rule.is_step_of_the_profile)

    @property
    def withheld(self) -> list[SuggestionRow]:
        return self._rows(self._advice.told.withheld)

    @property
    def warnings(self) -> list[SuggestionRow]:
        return self._rows(self._advice.told.warnings)

    @property
    def pair(self) -> PairAdvice | None:
        """The runs that it was judged against, where a rule about two runs fires."""
        pair = self._advice.pair
        return pair if pair is not None and pair.told.fired else None

    @property
    def beside(self) -> list[SuggestionRow]:
        return [] if self.pair is None else self._rows(self.pair.told.fired)

    @property
    def missing(self) -> MissingView:
        return self._missing

    @property
    def asking(self) -> int:
        """Rules that nobody can decide yet."""
        return len(self._advice.told.asks)

    @property
    def thresholds(self) -> list[FactRow]:
        return [fact_row(self._advice, name) for name in SETTINGS]

    @property
    def counts(self) -> str:
        told = self._advice.told
        return (
            f"{counted(len(told.fired), 'rule')} of {len(self._advice.book.rules)} fire, {len(told.silent)} do not "
            f"apply, {len(told.asks)} ask for facts that nobody stated"
        )

    def _rows(self, found: Iterable[Suggestion]) -> list[SuggestionRow]:
        return [
            SuggestionRow(
                rule=one.rule.id,
                kind=one.kind,
                phase=one.rule.phase,
                wall=one.rule.wall,
                title=one.rule.title,
                why=linked_why(self._advice, one),
                needs=_needs(one.needs),
                effect="" if one.rule.effect.text == "unquantified" else one.rule.effect.text,
                measured="; ".join(measured_text(found) for found in self._advice.measured(one.rule.id)),
                held=one.withheld or one.doubt,
                is_look=one.rule.is_step_of_the_profile,
            )
            for one in found
        ]


def _needs(needs: Iterable[Checked]) -> str:
    states = [one.state for one in needs]
    return f"{states.count('met')} of {len(states)} prerequisites met" if states else ""
