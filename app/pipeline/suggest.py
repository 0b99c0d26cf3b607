"""Evaluate the rules for a stored run, with its facts and the A/Bs of its project."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sqlmodel import Session, col

from app.domain.experiments.plan import effect_of, size
from app.domain.numbers import plural, significant
from app.domain.planning.forecast import LayoutForecaster
from app.domain.rules.engine import Evaluation, Suggestion, evaluate, rules_of_two
from app.domain.rules.journey import Journey, journey
from app.domain.rules.rule import RuleBook, knob_of
from app.domain.rules.run_facts import RunReading, memory_kinds
from app.domain.verdict.comparability import compare_contracts
from app.errors import NotReady
from app.settings import Settings
from app.storage.profiles import NO_PROFILE, MeasuredFacts
from app.storage.readings import StatedFact, in_force
from app.storage.rules import AdvisedRun, RulesInForce, pair_facts, read_pair, read_run, rules_in_force, window_of
from app.storage.runs import RunDetail
from app.storage.stacks import full_record
from app.storage.suspect_evidence import Gain, MeasuredHere, gains_of, matched_abs, measured
from app.storage.tables import RunResultRow, select_any

# --- Matched A/Bs of this project on the knob that a suggestion changes.


def measured_here(session: Session, run: RunDetail, suggestions: Iterable[Suggestion]) -> tuple[MeasuredHere, ...]:
    """Return the results of the project's matched A/Bs for each suggestion that changes one knob."""
    knobs = {
        suggestion.rule.id: knob
        for suggestion in suggestions
        if (knob := knob_of(suggestion.set, run.contract)) is not None
    }
    if not knobs:
        return ()
    rows = matched_abs(session, sorted({knob.field for knob in knobs.values()}), run.project_id)
    groups = [(rule, own, gains) for rule, knob in knobs.items() for own, gains in _by_stack(run, gains_of(rows, knob))]
    contracts = _contracts(session, {gains[0].run_id for _, _, gains in groups})
    return tuple(
        measured(rule, gains, contracts.get(gains[0].run_id, {}), same_contract=own) for rule, own, gains in groups
    )


def _by_stack(run: RunDetail, gains: Sequence[Gain]) -> Iterator[tuple[bool, list[Gain]]]:
    """Yield gains on the run's own stack first, which outrank all evidence but code, then those on others."""
    for own in (True, False):
        group = [gain for gain in gains if (gain.stack_key == run.stack_key) is own]
        if group:
            yield own, group


def _contracts(session: Session, run_ids: set[int]) -> dict[int, dict[str, object]]:
    """Return the contracts of these runs."""
    rows = session.execute(
        select_any(RunResultRow.run_id, RunResultRow.contract).where(col(RunResultRow.run_id).in_(run_ids))
    )
    return {row.run_id: {name: entry["value"] for name, entry in (row.contract or {}).items()} for row in rows}


MOST_COMPARED = 20
"""Maximum number of baseline runs on the compare page."""


@dataclass(frozen=True, slots=True)
class PairSuggestions:
    """Results of the rules that compare a run with its baseline runs."""

    beside: tuple[int, ...]
    evaluation: Evaluation

    def compare(self, run: int) -> str:
        """Return the URL that compares them."""
        return f"/compare?a={','.join(map(str, self.beside[-MOST_COMPARED:]))}&b={run}"


@dataclass(frozen=True, slots=True)
class RunSuggestions:
    """Results of the rules for a run.

    `stated`: its facts without derived ones. `statements`: facts that users stated, newest first.
    """

    run: RunDetail
    reading: RunReading
    launch: object
    stated: Mapping[str, object]
    evaluation: Evaluation
    journey: Journey
    own: tuple[MeasuredHere, ...]
    rules: RulesInForce
    statements: tuple[StatedFact, ...] = ()
    pair: PairSuggestions | None = None
    profile: MeasuredFacts = NO_PROFILE

    @property
    def book(self) -> RuleBook:
        """Return the built-in rules and those of the team."""
        return self.rules.book

    @property
    def ranked(self) -> tuple[Suggestion, ...]:
        """Return blockers, then the other suggestions in order."""
        return (*self.evaluation.blockers, *self.evaluation.suggestions)

    def evaluation_of(self, rule: str) -> Evaluation:
        """Return the evaluation of the pair if the rule fires only there, else that of the run."""
        pair = self.pair
        return (
            pair.evaluation
            if pair is not None and pair.evaluation.find(rule) and not self.evaluation.find(rule)
            else self.evaluation
        )

    def stated_by(self, fact: str) -> StatedFact | None:
        """Return the statement of a fact. None if there is none or another value is in use."""
        statement = in_force(self.statements).get(fact)
        return statement if statement is not None and self.stated.get(fact) == statement.value else None

    def measured(self, rule: str) -> tuple[MeasuredHere, ...]:
        """Return the project's results for a rule's change, the run's own stack first."""
        return tuple(own_result for own_result in self.own if own_result.result.rule == rule)


def suggest(session: Session, run_id: int, rules: RulesInForce) -> RunSuggestions:
    """Evaluate the rules for a run. Raises NotFound, and NotReady until the run was read."""
    advised = read_run(session, run_id)
    facts, run = advised.facts, advised.run
    peak_gb = facts.get("mem_alloc_peak_gb")
    ask = partial(
        evaluate,
        facts,
        rules.book,
        settings=rules.thresholds,
        undo=advised.setbacks.undo,
        forecast=LayoutForecaster(
            run.contract, peak_gb if isinstance(peak_gb, float) else None, rules.thresholds["T_headroom"]
        ),
    )
    evaluation = ask()
    own = measured_here(session, run, (*evaluation.fired, *evaluation.conditional))
    if own:
        evaluation = ask(own=[own_result.result for own_result in own])
    return RunSuggestions(
        advised.run,
        advised.reading,
        advised.launch,
        facts,
        evaluation,
        journey(evaluation),
        own,
        rules,
        advised.statements,
        _pair(session, advised, rules, evaluation),
        advised.profile,
    )


def _pair(session: Session, advised: AdvisedRun, rules: RulesInForce, evaluation: Evaluation) -> PairSuggestions | None:
    """Evaluate the rules about two runs that do not already fire for the run alone."""
    pair = read_pair(session, advised.run)
    if pair is None:
        return None
    fired = {suggestion.rule.id for suggestion in evaluation.fired}
    of_two = {name: rule for name, rule in rules_of_two(rules.book).rules.items() if name not in fired}
    book = RuleBook(of_two, rules.book.sources)
    return PairSuggestions(pair.beside, evaluate({**advised.facts, **pair.facts}, book, settings=rules.thresholds))


def suggest_for_pair(
    session: Session, first: int, second: int, rules: RulesInForce, step_time_pct: float | None
) -> tuple[Suggestion, ...]:
    """Return the results of the rules that compare `second` with `first`."""
    a, b = (read_run(session, run_id) for run_id in (first, second))
    comparability = compare_contracts(full_record(session, first), full_record(session, second))
    pair = pair_facts(
        comparability,
        b.run,
        step_time_pct,
        window=window_of(a.run.steady_state),
        memory=memory_kinds(a.run.health),
    )
    return evaluate({**b.facts, **pair}, rules_of_two(rules.book), settings=rules.thresholds).fired


# --- Cost of an A/B.


@dataclass(frozen=True, slots=True)
class Cost:
    """`runs_each`: runs per side to detect the expected effect. `gpu_hours`: None if step time or GPUs are unknown."""

    runs_each: int
    gpu_hours: float | None


def cost_of(suggestion: Suggestion, facts: Mapping[str, object]) -> Cost | None:
    """Return the cost; None for a rule without a measurable change."""
    if suggestion.rule.kind != "candidate" or not (suggestion.rule.changes_something or suggestion.set):
        return None
    step_s, gpus = facts.get("step_s"), facts.get("gpus")
    sizing = size(
        (),
        effect_pct=effect_of(suggestion),
        step_s=step_s if isinstance(step_s, float) else None,
        gpus=gpus if isinstance(gpus, int) else None,
    )
    return Cost(sizing.runs_each, sizing.gpu_hours)


class FirstSuggestion(NamedTuple):
    """`place`: why it is first, with the expected gain, its range and confidence, and the cost of the A/B."""

    rule: str
    title: str
    why: str
    place: str


def first_suggestion(session: Session, settings: Settings, run_id: int) -> FirstSuggestion | None:
    """Return the first suggestion, for the report of the run. None without one."""
    try:
        advice = suggest(session, run_id, rules_in_force(settings))
    except NotReady:
        return None
    if not advice.ranked:
        return None
    first = advice.ranked[0]
    place = place_text(first, cost_of(first, advice.evaluation_of(first.rule.id).facts))
    return FirstSuggestion(first.rule.id, first.rule.title, first.why, place)


def place_text(suggestion: Suggestion, cost: Cost | None) -> str:
    """Format the rank, the expected effect and the cost of an A/B."""
    place, expected = suggestion.place, suggestion.place.expected
    texts = [place.because]
    if expected is not None:
        spread = "" if expected.low == expected.high else f" ({expected.low:+.1f} to {expected.high:+.1f})"
        differs = f" (different {', '.join(expected.likeness.differs)})" if expected.likeness.differs else ""
        texts.append(
            f"Expected throughput {expected.pct:+.1f}\u202f%{spread}, {place.confidence} confidence; "
            f"measured in a {expected.likeness.score:.0%} similar setting{differs}."
        )
    elif cost is not None:
        texts.append("No source gives a figure for the gain; low confidence.")
    if suggestion.forecast is not None and suggestion.forecast.gain_pct is not None:
        texts.append(f"The planner predicts {suggestion.forecast.gain_pct:+.1f}\u202f%.")
    if cost is not None and suggestion.kind == "candidate":
        hours = "" if cost.gpu_hours is None else f", about {significant(cost.gpu_hours)} GPU-hours"
        texts.append(f"An A/B takes {plural(cost.runs_each, 'run')} per side{hours}.")
    return " ".join(texts)
