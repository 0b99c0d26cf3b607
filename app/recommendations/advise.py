"""What to try next with a stored run: its facts and this project's own A/Bs, asked of the rules."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlmodel import Session

from app.domain.rules.engine import Evaluation, Suggestion, evaluate
from app.domain.rules.journey import Journey, journey
from app.domain.rules.rule import RuleBook
from app.domain.rules.run_facts import RunReading
from app.errors import NotReady
from app.recommendations.measured_here import MeasuredHere, measured_here
from app.storage.advised_pairs import read_pair
from app.storage.advised_runs import AdvisedRun, read_run
from app.storage.rules_in_force import RulesInForce
from app.storage.run_records import RunDetail
from app.storage.stated_facts import StatedFact, in_force

MOST_COMPARED = 20
"""Runs of one side that the comparison shows."""


@dataclass(frozen=True, slots=True)
class PairAdvice:
    """What the rules about two runs say of a run and those that it was judged against."""

    beside: tuple[int, ...]
    told: Evaluation

    def compare(self, run: int) -> str:
        """Where they stand beside each other."""
        return f"/compare?a={','.join(map(str, self.beside[-MOST_COMPARED:]))}&b={run}"


@dataclass(frozen=True, slots=True)
class Advice:
    """What the rules say of a run. `stated`: the facts that were read of it, before others followed from them.
    `statements`: what people stated of it beside its files, newest first."""

    run: RunDetail
    reading: RunReading
    launch: object
    stated: Mapping[str, object]
    told: Evaluation
    journey: Journey
    own: tuple[MeasuredHere, ...]
    rules: RulesInForce
    statements: tuple[StatedFact, ...] = ()
    pair: PairAdvice | None = None

    @property
    def book(self) -> RuleBook:
        """The rules of the service and of a team."""
        return self.rules.book

    @property
    def ranked(self) -> tuple[Suggestion, ...]:
        """Blockers first, then what to do in its order."""
        return (*self.told.blockers, *self.told.suggestions)

    def told_by(self, rule: str) -> Evaluation:
        """In which a rule is to be read: of the run, or of the pair where it fires there only."""
        pair = self.pair
        return pair.told if pair is not None and pair.told.find(rule) and not self.told.find(rule) else self.told

    def stated_by(self, fact: str) -> StatedFact | None:
        """Who stated a fact of this run, where that is what counts."""
        one = in_force(self.statements).get(fact)
        return one if one is not None and self.stated.get(fact) == one.value else None

    def measured(self, rule: str) -> tuple[MeasuredHere, ...]:
        """What this project measured of a rule's change, on the run's own stack first."""
        return tuple(one for one in self.own if one.result.rule == rule)


def advise(session: Session, run_id: int, rules: RulesInForce) -> Advice:
    """Raises NotFound, and NotReady while the run was never read."""
    advised = read_run(session, run_id)
    facts = advised.facts
    told = evaluate(facts, rules.book, settings=rules.thresholds)
    own = measured_here(session, advised.run, told.fired)
    if own:
        told = evaluate(facts, rules.book, own=[one.result for one in own], settings=rules.thresholds)
    return Advice(
        advised.run,
        advised.reading,
        advised.launch,
        facts,
        told,
        journey(told),
        own,
        rules,
        advised.statements,
        _pair(session, advised, rules, told),
    )


def _pair(session: Session, advised: AdvisedRun, rules: RulesInForce, told: Evaluation) -> PairAdvice | None:
    """Only rules that speak of two runs are asked, and that do not fire for the run itself."""
    pair = read_pair(session, advised.run)
    if pair is None:
        return None
    fired = {one.rule.id for one in told.fired}
    of_two = {
        name: rule for name, rule in rules.book.rules.items() if "compared" in rule.when.names and name not in fired
    }
    book = RuleBook(of_two, rules.book.sources)
    return PairAdvice(pair.beside, evaluate({**advised.facts, **pair.facts}, book, settings=rules.thresholds))


def first_suggestion(session: Session, run_id: int, rules: RulesInForce) -> tuple[str, str] | None:
    """Rule and title of what to do first, for the report of the run; None where there is nothing."""
    try:
        ranked = advise(session, run_id, rules).ranked
    except NotReady:
        return None
    return (ranked[0].rule.id, ranked[0].rule.title) if ranked else None
