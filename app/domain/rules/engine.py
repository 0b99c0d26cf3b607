"""Facts and rules -> what fires, what is silent, and what asks: the answer of the workflow for one run.

A rule whose condition depends on a fact that nobody stated neither fires nor passes; the evaluation names the facts
that are missing, how somebody supplies each, and which suggestions they would unlock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.domain.rules.derive import WallReading, derive, read_wall
from app.domain.rules.evidence import OwnResult, Standing, standing
from app.domain.rules.expression import Expression, FactContext, RuleError, Unknown, filled
from app.domain.rules.facts import FACTS, Fact
from app.domain.rules.rule import PHASES, Facts, Kind, Requirement, Rule, RuleBook, Setting

# --- In which order suggestions stand, and which are kept back for now.
#
# Blockers first; then by phase: gates, sizing, candidates for the measured wall. Candidates for another wall than the
# measured one stand last. Defaults of the bring-up come between contract and fit, for that is when they are needed.
# What gained in this project's own A/Bs on this contract stands, whatever its phase and wall, before every prior:
# behind the gates that say whether a measurement can be trusted, before another layout. Steps of a profile change
# nothing, so they come behind what there is to try.

ORDER = 50
"""Place of a rule whose order depends on facts that nobody stated."""
_KINDS = {"blocker": 0, "warning": 1, "gate": 2, "sizing": 3, "candidate": 4}
_PHASES = {phase: 2 * place for place, phase in enumerate(PHASES)}
_BRING_UP = 1
_GAINED = _PHASES["profile"]
"""Its kind puts it behind the gates of the profile."""

Key = tuple[int, int, int, int, float, int, int, str]


def order_of(rule: Rule, context: FactContext, wall: WallReading, standing: Standing) -> Key:
    """The key by which suggestions are sorted, small first."""
    gained = rule.kind == "candidate" and standing.own_order < 0
    measured = wall.certainty == "measured" and rule.kind == "candidate" and not gained
    return (
        0 if rule.kind == "blocker" else 1,
        1 if measured and rule.wall not in (wall.wall, "none") and not rule.hints.bring_up else 0,
        _BRING_UP if rule.hints.bring_up else _GAINED if gained else _phase(rule, context),
        _KINDS[rule.kind],
        standing.own_order,
        _order(rule.hints.order, context),
        standing.level,
        rule.id,
    )


def _phase(rule: Rule, context: FactContext) -> int:
    """A profile says whether another layout is worth it, for a job that fits and runs: its gates come before."""
    runs = context.values.get("fits") is True or context.values.get("profiled") is True
    if runs and rule.phase == "scale" and rule.kind == "candidate":
        return _PHASES["profile"] + 1
    if rule.is_step_of_the_profile:
        return _PHASES["retune"] + 1
    return _PHASES[rule.phase]


def _order(order: int | Expression, context: FactContext) -> int:
    if isinstance(order, int):
        return order
    try:
        answer = context.ask(order)
    except RuleError:
        return ORDER
    return answer if isinstance(answer, int) else ORDER


def withheld_because(rule: Rule, values: Mapping[str, object], blocked: bool) -> str:
    """Why a suggestion is kept back; "" when it is not. Retuning takes a launch that is valid, and a profile."""
    if rule.kind != "candidate" or rule.phase != "retune" or rule.hints.bring_up:
        return ""
    if blocked:
        return "Resolve the blockers first."
    if not values.get("profiled"):
        return "Profile first: retuning needs a measured wall."
    return ""


# --- What a run that ran says of the blockers that its contract fires: the trainer did not stop it.
#
# A launch that a trainer refuses makes no iterations. One that made steady ones has other values than its contract
# says, or an older trainer: then the blocker is in doubt, and holds nothing back.

_NOT_OF_RUNNING = ("framework", "semantic_class")
"""Facts that a log tells which are none of how the run went."""


def ran(values: Mapping[str, object]) -> bool:
    """It made steady steps, did not run out of memory, and its loss stayed finite."""
    sound = values.get("oom") is not True and values.get("loss_finite") is not False
    return values.get("fits") is True and sound and _steps(values) > 0


def ran_in_spite(rule: Rule, values: Mapping[str, object]) -> bool:
    """A blocker that the run disproves; not one that rests on what happened in it."""
    if rule.kind != "blocker" or not ran(values):
        return False
    return not any(
        name in FACTS and FACTS[name].section == "log" and name not in _NOT_OF_RUNNING for name in rule.when.names
    )


def doubt_of(rule: Rule, values: Mapping[str, object]) -> str:
    """Why a blocker is in doubt, with the evidence; empty where it is not, and of other kinds."""
    steps = _steps(values)
    if rule.kind != "blocker" or steps <= 0:
        return ""
    why = (
        "either a contract field is wrong, or this trainer version does not enforce the constraint. "
        "Correct the field if it is wrong."
    )
    if ran_in_spite(rule, values):
        steady = f", {values['window']} of them steady" if "window" in values else ""
        return f"The run completed {steps} iterations{steady} despite this blocker, so it is shown as a warning: {why}"
    return f"The run completed {steps} iterations despite this: {why}"


def _steps(values: Mapping[str, object]) -> int:
    steps = values.get("steps_done")
    return steps if isinstance(steps, int) else 0


# --- Which facts nobody stated, what each would decide, and which of them are worth asking for now.
#
# A fact that only lets a rule speak that would be kept back anyway, that changes nothing to do (a warning), or that
# the run answered by running, can wait.


@dataclass(frozen=True, slots=True)
class UndecidedRule:
    """A rule that cannot be decided, and what it lacks: base facts, not those that follow from them."""

    rule: Rule
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MissingFact:
    """A fact that nobody stated. `alone`: rules that ask for nothing else; `together`: those that need more.

    `decides`: those of `alone` that somebody could act upon now; without one the fact can wait.
    """

    fact: Fact
    alone: tuple[str, ...]
    together: tuple[str, ...]
    decides: tuple[str, ...] = ()


def missing_facts(
    asks: Sequence[UndecidedRule], values: Mapping[str, object], wall: WallReading
) -> tuple[MissingFact, ...]:
    """The most useful first: by the rules that it decides and that somebody could act upon."""
    alone: dict[str, list[str]] = {}
    together: dict[str, list[str]] = {}
    decides: dict[str, list[str]] = {}
    for asking in asks:
        group = alone if len(asking.missing) == 1 else together
        for name in asking.missing:
            group.setdefault(name, []).append(asking.rule.id)
        for name in _worth_asking(asking, values, wall):
            decides.setdefault(name, []).append(asking.rule.id)
    missing = [
        MissingFact(
            FACTS[name], tuple(alone.get(name, ())), tuple(together.get(name, ())), tuple(decides.get(name, ()))
        )
        for name in {*alone, *together}
        if name in FACTS
    ]
    return tuple(sorted(missing, key=_by_use))


def _by_use(missing: MissingFact) -> tuple[int, int, int, str]:
    return -len(missing.decides), -len(missing.alone), -len(missing.together), missing.fact.name


def _worth_asking(asking: UndecidedRule, values: Mapping[str, object], wall: WallReading) -> Sequence[str]:
    """The fact that decides the rule, where its answer would be shown and followed."""
    rule = asking.rule
    if rule.kind == "warning" or (rule.kind == "blocker" and ran(values)):
        return ()
    if wall.certainty == "measured" and rule.kind == "candidate" and rule.wall not in (wall.wall, "none"):
        return ()
    profile = [name for name in asking.missing if name in FACTS and FACTS[name].section == "profile"]
    if withheld_because(rule, values, blocked=False):  # nothing is retuned before a profile: that is what is missing
        return profile[:1] if len(asking.missing) == len(profile) else ()
    return asking.missing if len(asking.missing) == 1 else ()


Met = Literal["met", "unmet", "unknown"]


@dataclass(frozen=True, slots=True)
class ShownFact:
    """A fact that a condition looked at, with its value here."""

    fact: Fact
    value: object


@dataclass(frozen=True, slots=True)
class CheckedRequirement:
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
    needs: tuple[CheckedRequirement, ...]
    conflicts: tuple[CheckedRequirement, ...]
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
    asks: tuple[UndecidedRule, ...]
    missing: tuple[MissingFact, ...]
    broken: tuple[tuple[Rule, str], ...] = ()

    @property
    def fired(self) -> tuple[Suggestion, ...]:
        """Everything that fires."""
        return (*self.blockers, *self.warnings, *self.suggestions, *self.withheld)

    def find(self, rule: str) -> Suggestion | None:
        """What fires under that id."""
        return next((suggestion for suggestion in self.fired if suggestion.rule.id == rule), None)


@dataclass
class _Answers:
    fires: list[Rule] = field(default_factory=list)
    silent: list[Rule] = field(default_factory=list)
    asks: list[UndecidedRule] = field(default_factory=list)
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
    context = FactContext(derive(facts, settings))
    answers = _ask_all(context, book)
    wall = read_wall(context.values)
    blocked = any(rule.kind == "blocker" and not ran_in_spite(rule, context.values) for rule in answers.fires)
    suggestions = [_suggestion(rule, context, own, blocked) for rule in answers.fires]
    ranked = sorted(suggestions, key=lambda fired: order_of(fired.rule, context, wall, fired.standing))
    return Evaluation(
        facts=context.values,
        wall=wall,
        blockers=tuple(suggestion for suggestion in ranked if suggestion.kind == "blocker"),
        warnings=tuple(suggestion for suggestion in ranked if suggestion.kind == "warning"),
        suggestions=tuple(
            suggestion for suggestion in ranked if _is_suggestion(suggestion.rule) and not suggestion.withheld
        ),
        withheld=tuple(suggestion for suggestion in ranked if _is_suggestion(suggestion.rule) and suggestion.withheld),
        silent=tuple(answers.silent),
        asks=tuple(answers.asks),
        missing=missing_facts(answers.asks, context.values, wall),
        broken=tuple(answers.broken),
    )


def _is_suggestion(rule: Rule) -> bool:
    return rule.kind not in ("blocker", "warning")


def _ask_all(context: FactContext, book: RuleBook) -> _Answers:
    answers = _Answers()
    bases: dict[str, tuple[str, ...]] = {}
    for rule in book.rules.values():
        try:
            answer = context.ask(rule.when)
        except RuleError as problem:
            answers.broken.append((rule, str(problem)))
            continue
        if isinstance(answer, Unknown):
            for name in answer.missing:
                if name not in bases:
                    bases[name] = base_facts((name,), context.values)
            missing = dict.fromkeys(base for name in answer.missing for base in bases[name])
            answers.asks.append(UndecidedRule(rule, tuple(missing)))
        elif answer is True:
            answers.fires.append(rule)
        else:
            answers.silent.append(rule)
    return answers


def base_facts(missing: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """What to supply so that `missing` facts are known: of derived ones the inputs that nobody stated."""
    bases: list[str] = []
    for name in missing:
        inputs = FACTS[name].inputs if name in FACTS else ()
        unstated = [base for base in inputs if base not in values]
        bases += base_facts(unstated, values) if unstated else [name]
    return tuple(dict.fromkeys(bases))


def _suggestion(rule: Rule, context: FactContext, own: Sequence[OwnResult], blocked: bool) -> Suggestion:
    values = context.values
    settings, open_settings = _worked_out(rule.change.set, context)
    env, open_env = _worked_out(rule.change.env, context)
    return Suggestion(
        rule=rule,
        why=filled(rule.why, values),
        facts=tuple(ShownFact(FACTS[name], values[name]) for name in rule.when.names if name in values),
        needs=tuple(check(need, context) for need in rule.needs),
        conflicts=tuple(check(conflict, context) for conflict in rule.conflicts),
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


def check(requirement: Requirement, context: FactContext) -> CheckedRequirement:
    """Whether a prerequisite or a conflict is there. A broken condition counts as unknown."""
    if requirement.when is None:
        return CheckedRequirement(requirement.text, "unknown")
    source = requirement.when.source
    try:
        answer = context.ask(requirement.when)
    except RuleError:
        return CheckedRequirement(requirement.text, "unknown", source)
    if isinstance(answer, Unknown):
        return CheckedRequirement(requirement.text, "unknown", source, base_facts(answer.missing, context.values))
    return CheckedRequirement(requirement.text, "met" if answer is True else "unmet", source)


def _worked_out(
    settings: Mapping[str, Setting | Expression], context: FactContext
) -> tuple[dict[str, Setting], tuple[str, ...]]:
    """Values of the settings here, and the names of those that depend on unknown facts."""
    values: dict[str, Setting] = {}
    unknown = []
    for name, value in settings.items():
        if not isinstance(value, Expression):
            values[name] = value
            continue
        try:
            answer = context.ask(value)
        except RuleError:
            answer = Unknown(())
        if isinstance(answer, Unknown):
            unknown.append(name)
        else:
            values[name] = tuple(answer) if isinstance(answer, list) else answer  # type: ignore[assignment]
    return values, tuple(unknown)
