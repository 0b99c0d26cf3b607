"""Facts and rules -> what fires, what is silent, and what asks: the answer of the workflow for one run.

A rule whose condition depends on a fact that nobody stated neither fires nor passes; the evaluation names the facts
that are missing, how somebody supplies each, and which suggestions they would unlock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.domain.rules.derive import derive
from app.domain.rules.doubt import doubt_of, ran_in_spite
from app.domain.rules.expression import Expression, Known, RuleError, Unknown
from app.domain.rules.facts import FACTS, Fact
from app.domain.rules.filling import filled
from app.domain.rules.missing import Asking, MissingFact, missing_facts
from app.domain.rules.precedence import OwnResult, Standing, standing
from app.domain.rules.rank import order_of, withheld_because
from app.domain.rules.rule import Facts, Kind, Requirement, Rule, RuleBook, Setting
from app.domain.rules.wall import WallReading, read_wall

__all__ = [
    "Asking",
    "Checked",
    "Evaluation",
    "Met",
    "MissingFact",
    "ShownFact",
    "Suggestion",
    "base_facts",
    "check",
    "evaluate",
]

Met = Literal["met", "unmet", "unknown"]


@dataclass(frozen=True, slots=True)
class ShownFact:
    """A fact that a condition looked at, with its value here."""

    fact: Fact
    value: object


@dataclass(frozen=True, slots=True)
class Checked:
    """A prerequisite or a conflict in this run. Of a conflict `met` is bad: it is there."""

    text: str
    state: Met
    condition: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A rule that fires in this run: why, on which facts, what it needs, and what it would set here.

    `set`, `env`: the change with its expressions worked out; `unset` names those whose value depends on unknown facts.
    `withheld`: why it is kept back for now, "" where it is not. `doubt`: of a blocker in a run that made iterations in
    spite of it; `disproved`: it made steady ones, so the blocker is a warning here and holds nothing back.
    """

    rule: Rule
    why: str
    facts: tuple[ShownFact, ...]
    needs: tuple[Checked, ...]
    conflicts: tuple[Checked, ...]
    set: Mapping[str, Setting]
    env: Mapping[str, Setting]
    megatron_lm: tuple[str, ...]
    bridge: tuple[str, ...]
    open: tuple[str, ...]
    standing: Standing
    withheld: str = ""
    doubt: str = ""
    disproved: bool = False

    @property
    def kind(self) -> Kind:
        """Of the rule in this run."""
        return "warning" if self.disproved else self.rule.kind


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`blockers` and `warnings` by phase; `suggestions` ranked (gates, sizing, candidates); `withheld` ones after
    them. `missing`: what to supply, the most useful first. `broken`: rules of a team that do not suit their facts.
    A blocker that the run ran in spite of is among the warnings."""

    facts: Mapping[str, object]
    wall: WallReading
    blockers: tuple[Suggestion, ...]
    warnings: tuple[Suggestion, ...]
    suggestions: tuple[Suggestion, ...]
    withheld: tuple[Suggestion, ...]
    silent: tuple[Rule, ...]
    asks: tuple[Asking, ...]
    missing: tuple[MissingFact, ...]
    broken: tuple[tuple[Rule, str], ...] = ()

    @property
    def fired(self) -> tuple[Suggestion, ...]:
        """Everything that fires."""
        return (*self.blockers, *self.warnings, *self.suggestions, *self.withheld)

    def find(self, rule: str) -> Suggestion | None:
        """What fires under that id."""
        return next((one for one in self.fired if one.rule.id == rule), None)


@dataclass
class _Answers:
    fires: list[Rule] = field(default_factory=list)
    silent: list[Rule] = field(default_factory=list)
    asks: list[Asking] = field(default_factory=list)
    broken: list[tuple[Rule, str]] = field(default_factory=list)


def evaluate(
    facts: Facts,
    book: RuleBook,
    *,
    own: Sequence[OwnResult] = (),
    settings: Mapping[str, float] | None = None,
) -> Evaluation:
    """What the rules say of a run. `own`: this project's matched A/Bs; `settings`: thresholds other than ours.

    Raises ValueError on a fact that is none, or whose value does not suit it.
    """
    known = Known(derive(facts, settings))
    answers = _ask_all(known, book)
    wall = read_wall(known.values)
    blocked = any(rule.kind == "blocker" and not ran_in_spite(rule, known.values) for rule in answers.fires)
    found = [_suggestion(rule, known, own, blocked) for rule in answers.fires]
    ranked = sorted(found, key=lambda one: order_of(one.rule, known, wall, one.standing))
    return Evaluation(
        facts=known.values,
        wall=wall,
        blockers=tuple(one for one in ranked if one.kind == "blocker"),
        warnings=tuple(one for one in ranked if one.kind == "warning"),
        suggestions=tuple(one for one in ranked if _is_suggestion(one.rule) and not one.withheld),
        withheld=tuple(one for one in ranked if _is_suggestion(one.rule) and one.withheld),
        silent=tuple(answers.silent),
        asks=tuple(answers.asks),
        missing=missing_facts(answers.asks, known.values, wall),
        broken=tuple(answers.broken),
    )


def _is_suggestion(rule: Rule) -> bool:
    return rule.kind not in ("blocker", "warning")


def _ask_all(known: Known, book: RuleBook) -> _Answers:
    answers = _Answers()
    bases: dict[str, tuple[str, ...]] = {}
    for rule in book.rules.values():
        try:
            answer = known.ask(rule.when)
        except RuleError as problem:
            answers.broken.append((rule, str(problem)))
            continue
        if isinstance(answer, Unknown):
            for name in answer.missing:
                if name not in bases:
                    bases[name] = base_facts((name,), known.values)
            missing = dict.fromkeys(base for name in answer.missing for base in bases[name])
            answers.asks.append(Asking(rule, tuple(missing)))
        elif answer is True:
            answers.fires.append(rule)
        else:
            answers.silent.append(rule)
    return answers


def base_facts(missing: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """What to supply so that `missing` facts are known: of derived ones the inputs that nobody stated."""
    found: list[str] = []
    for name in missing:
        inputs = FACTS[name].inputs if name in FACTS else ()
        unstated = [one for one in inputs if one not in values]
        found += base_facts(unstated, values) if unstated else [name]
    return tuple(dict.fromkeys(found))


def _suggestion(rule: Rule, known: Known, own: Sequence[OwnResult], blocked: bool) -> Suggestion:
    values = known.values
    settings, open_settings = _worked_out(rule.change.set, known)
    env, open_env = _worked_out(rule.change.env, known)
    return Suggestion(
        rule=rule,
        why=filled(rule.why, values),
        facts=tuple(ShownFact(FACTS[name], values[name]) for name in rule.when.names if name in values),
        needs=tuple(check(one, known) for one in rule.needs),
        conflicts=tuple(check(one, known) for one in rule.conflicts),
        set=settings,
        env=env,
        megatron_lm=tuple(filled(flag, values) for flag in rule.change.megatron_lm),
        bridge=tuple(filled(flag, values) for flag in rule.change.bridge),
        open=(*open_settings, *open_env),
        standing=standing(rule, values, own),
        withheld=withheld_because(rule, values, blocked),
        doubt=doubt_of(rule, values),
        disproved=ran_in_spite(rule, values),
    )


def check(requirement: Requirement, known: Known) -> Checked:
    """Whether a prerequisite or a conflict is there. A broken condition counts as unknown."""
    if requirement.when is None:
        return Checked(requirement.text, "unknown")
    source = requirement.when.source
    try:
        answer = known.ask(requirement.when)
    except RuleError:
        return Checked(requirement.text, "unknown", source)
    if isinstance(answer, Unknown):
        return Checked(requirement.text, "unknown", source, base_facts(answer.missing, known.values))
    return Checked(requirement.text, "met" if answer is True else "unmet", source)


def _worked_out(
    settings: Mapping[str, Setting | Expression], known: Known
) -> tuple[dict[str, Setting], tuple[str, ...]]:
    """Values of the settings here, and the names of those that depend on unknown facts."""
    found: dict[str, Setting] = {}
    unknown = []
    for name, value in settings.items():
        if not isinstance(value, Expression):
            found[name] = value
            continue
        try:
            answer = known.ask(value)
        except RuleError:
            answer = Unknown(())
        if isinstance(answer, Unknown):
            unknown.append(name)
        else:
            found[name] = tuple(answer) if isinstance(answer, list) else answer  # type: ignore[assignment]
    return found, tuple(unknown)
