"""Evaluate rules with the facts of one run: which fire, which do not apply, and which need missing facts.

A rule whose condition depends on an unknown fact neither fires nor passes. The evaluation names the missing facts, how
to supply each, and which suggestions they would enable.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from app.domain.contract.fields import PREFIX
from app.domain.contract.values import read_value
from app.domain.rules.change import OwnIdea, lacking_flags
from app.domain.rules.derive import WallReading, derive, read_wall
from app.domain.rules.evidence import OwnResult, RuleEvidence, Statement, rule_evidence
from app.domain.rules.expression import Expression, FactContext, RuleError, Unknown, filled
from app.domain.rules.facts import FACTS, Fact
from app.domain.rules.ranking import Place, expected_gain, follow, place_of
from app.domain.rules.rule import Facts, Kind, Recipe, Requirement, Rule, RuleBook, Setting, Urgency
from app.domain.verdict.comparability import FOLLOWS

# --- Which suggestions are deferred, and why.

STRONG_LEVEL = 3
"""A matched A/B here, or published for this model, GPU and shape: evidence that may replace a profile."""
LAYOUT = frozenset(("tp", "pp", "vpp", "cp", "ep", "etp", "pp_layout"))
"""Fields of the parallel layout: changing them is suggested only if the planner predicts that it fits."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The planner's prediction for another layout of this run.

    `fits` None: it cannot tell. `is_faster` False: it fits and is not predicted to be faster. `why`: the reason of
    either, or of a range that includes zero. `gain_pct`: predicted change of throughput, within `gain_range_pct`; None
    without a prediction. `at_most_gb`: bound of the peak by the run's own, if none is predicted.
    """

    fits: bool | None
    why: str
    gain_pct: float | None = None
    gain_range_pct: tuple[float, float] | None = None
    at_most_gb: float | None = None
    is_faster: bool = True

    @property
    def is_settled(self) -> bool:
        """Return whether the predicted range excludes zero, or nothing is predicted."""
        low, high = self.gain_range_pct or (math.inf, math.inf)
        return not low <= 0 <= high

    def refuses(self, *, out_of_memory: bool, is_measured: bool) -> bool:
        """Return whether the layout is not to be suggested.

        A job that ran out of memory needs no gain, only memory. A gain that was measured replaces an unsettled
        prediction. `is_measured`: a run or a record shows a gain.
        """
        if out_of_memory:
            return self.fits is False
        return self.fits is not True or not self.is_faster or not (self.is_settled or is_measured)


@dataclass(frozen=True, slots=True)
class Taken:
    """What a rule takes over from another run or from a record: contract fields, and how much faster it was.

    `needs_forecast`: it was not measured here, so another layout must be predicted to fit. `title`: instead of the
    rule's, where the change goes back to earlier values. `container`: another one that works instead of the settings.
    `withheld`: why it is not suggested yet, or empty.
    """

    settings: Mapping[str, Setting]
    statement: Statement | None = None
    needs_forecast: bool = False
    title: str = ""
    container: str = ""
    withheld: str = ""


Forecaster = Callable[[Mapping[str, Setting]], Forecast]


def withheld_because(
    rule: Rule,
    values: Mapping[str, object],
    evidence: RuleEvidence,
    *,
    blocked: bool = False,
    unhealthy: str = "",
    unjudged: str = "",
) -> str:
    """Return why a suggestion is deferred; empty if it is not.

    `unhealthy`, `unjudged`: title of a rule of that urgency that fires, or empty.

    Retuning needs a valid launch, a healthy run, and a profile or a matched A/B that was faster.
    """
    is_tuning = rule.kind in ("candidate", "sizing") or rule.phase == "profile"
    is_proof = unjudged != "" and rule.phase == "validate" and rule.kind == "gate"
    if (
        not (is_tuning or is_proof)
        or rule.hints.bring_up
        or rule.hints.urgency in ("health", "unjudged", "rerun", "regression")
    ):
        return ""
    retunes = rule.kind == "candidate" and rule.phase == "retune"
    is_measured = rule.hints.urgency in ("measured", "evidence")
    moves_speed = is_proof or rule.phase in ("scale", "retune") or rule.hints.blocks == "retune"
    another_layout = rule.kind == "candidate" and not LAYOUT.isdisjoint(rule.change.set) and not values.get("oom")
    moves_speed |= another_layout or (rule.phase == "profile" and rule.kind == "candidate")
    needs_profile = retunes and not is_measured and not values.get("profiled")
    reasons = (
        (blocked and (retunes or (another_layout and rule.phase == "scale")), "Resolve the blockers first."),
        (
            unhealthy and not (values.get("oom") is True and (rule.phase == "fit" or rule.saves_memory)),
            f"{'First make it fit' if values.get('oom') is True else 'Make the run healthy first'}: {unhealthy}.",
        ),
        (unjudged and moves_speed, f"First: {unjudged}."),
        (
            needs_profile and not _is_strong(evidence, values),
            "Profile first: retuning needs a measured wall.",
        ),
    )
    return next((why for applies, why in reasons if applies), "")


def _is_strong(evidence: RuleEvidence, values: Mapping[str, object]) -> bool:
    """Return whether evidence shows a gain above the noise: a settled A/B here or one on this model, GPU and shape."""
    expected, noise = expected_gain(evidence, values), values.get("T_noise")
    if expected is None or expected.statement.level > STRONG_LEVEL:
        return False
    own = expected.statement.own
    return expected.pct > 100 * (noise if isinstance(noise, float) else 0.0) and (own is None or own.settled)


# --- Blockers of a run that ran. A trainer refuses an invalid launch before the first iteration. If the run has steady
# iterations, its contract is wrong or its trainer is older, so the blocker is doubtful and defers nothing.

_NOT_OF_RUNNING = ("framework", "semantic_class")
"""Facts from a log that do not show how the run went."""


STARTED = 6
"""Iterations after which the trainer has accepted the launch: as many as a screen needs."""


def ran_in_spite(rule: Rule, values: Mapping[str, object]) -> bool:
    """Return whether the run disproves a blocker.

    Blockers based on events of the run cannot be disproved. A job that ran out of memory later had started, so only
    blockers about memory stay.
    """
    ran_out = values.get("oom") is True and values.get("loss_finite") is not False and _steps(values) >= STARTED
    if rule.kind != "blocker" or not (values.get("ran") is True or (ran_out and rule.phase != "fit")):
        return False
    return not any(
        name in FACTS and FACTS[name].section == "log" and name not in _NOT_OF_RUNNING for name in rule.when.names
    )


def doubt_of(rule: Rule, values: Mapping[str, object]) -> str:
    """Return why a blocker is doubtful, with the evidence; empty if it is not, and for other kinds."""
    steps = _steps(values)
    if rule.kind != "blocker" or steps <= 0:
        return ""
    why = (
        "either a contract field is wrong, or this trainer version does not enforce the constraint. "
        "Correct the field if it is wrong."
    )
    if ran_in_spite(rule, values):
        is_steady = "window" in values and not values.get("unsteady_because")
        steady = f", {values['window']} of them steady" if is_steady else ""
        return f"The run completed {steps} iterations{steady} despite this blocker, so it is shown as a warning: {why}"
    return f"The run completed {steps} iterations despite this: {why}"


def _steps(values: Mapping[str, object]) -> int:
    steps = values.get("steps_done")
    return steps if isinstance(steps, int) else 0


# --- Where a rule can apply at all: its condition is not false, whatever is measured and whatever value its change has.

_MEASURED = ("log", "profile", "stated", "judged", "faster", "compared")


def can_apply(rule: Rule, contract: Mapping[str, object], field: str, before: str) -> bool:
    """Return whether the condition may have been met before a change of `field`. `contract`: not derived.

    What follows from the field is derived again. Measured facts and those that follow from another field that the rule
    changes are left open, as unknown ones are.
    """
    open_or_derived, left_open = _left_open(frozenset((field,))), _left_open(frozenset(rule.change.set) - {field})
    stated = {name: value for name, value in contract.items() if name not in open_or_derived}
    values = derive(_with_value(stated, field, before))
    context = FactContext({name: values[name] for name in rule.when.names if name in values and name not in left_open})
    try:
        return context.ask(rule.when) is not False
    except RuleError:
        return False


def is_decided_by_contract(rule: Rule) -> bool:
    """Return whether the contract alone can meet a condition that also names measured facts. Its examples show it."""
    return not _left_open(frozenset()).isdisjoint(rule.when.names) and any(
        _is_met(rule, facts) for facts in rule.examples.fires
    )


def was_met(
    rule: Rule, contract: Mapping[str, object], field: str, before: str, headroom_frac: float | None = None
) -> bool:
    """Return whether the condition was met before a change of `field`, by the contract and the free memory alone.

    `contract`: not derived; `headroom_frac`: None if unknown. Other measured facts are unknown.
    """
    memory = {} if headroom_frac is None else {"headroom_frac": headroom_frac}
    return _is_met(rule, _with_value(contract, field, before), memory)


def _with_value(contract: Mapping[str, object], field: str, text: str) -> dict[str, object]:
    """Return the contract with another value of a field, without the fields that state the same."""
    follows = _SAME if field in _SAME else frozenset()
    value = read_value(field, text)
    return {name: stated for name, stated in contract.items() if name not in follows} | {
        field: list(value) if isinstance(value, tuple) else value
    }


def _is_met(rule: Rule, facts: Mapping[str, object], memory: Mapping[str, float] = MappingProxyType({})) -> bool:
    measured = _left_open(frozenset())
    stated = {name: value for name, value in facts.items() if name not in measured}
    return _holds(rule, FactContext(derive({**stated, **memory})))


@lru_cache(maxsize=1024)
def _left_open(changed: frozenset[str]) -> frozenset[str]:
    """Return the facts that are measured, follow from these fields, or do not state what they follow from."""
    names = changed | {field for field, switch in FOLLOWS.items() if switch in changed}
    names |= {fact.name for fact in FACTS.values() if fact.section in _MEASURED}
    names |= {fact.name for fact in FACTS.values() if fact.section == "derived" and not fact.inputs}
    while more := {fact.name for fact in FACTS.values() if not names.isdisjoint(fact.inputs)} - names:
        names |= more
    return names


# --- Unknown facts, the rules that need each, and which to request now. Facts that only enable deferred suggestions or
# warnings, or that the run answered by running, can wait.


@dataclass(frozen=True, slots=True)
class UndecidedRule:
    """A rule that cannot be evaluated, with its missing base facts."""

    rule: Rule
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MissingFact:
    """An unknown fact.

    `alone`: rules that lack only it; `together`: rules that lack more. `decides`: rules of `alone` that are actionable
    now; if empty, the fact can wait.
    """

    fact: Fact
    alone: tuple[str, ...]
    together: tuple[str, ...]
    decides: tuple[str, ...] = ()


def missing_facts(
    asks: Sequence[UndecidedRule], values: Mapping[str, object], wall: WallReading
) -> tuple[MissingFact, ...]:
    """Return missing facts, most useful first: by the actionable rules that they decide."""
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
    """Return the facts that decide the rule, if its result would be shown and could be followed."""
    rule = asking.rule
    if rule.kind == "warning" or (rule.kind == "blocker" and values.get("ran") is True):
        return ()
    if wall.certainty == "measured" and rule.kind == "candidate" and rule.wall not in (wall.wall, "none"):
        return ()
    profile = [name for name in asking.missing if name in FACTS and FACTS[name].section == "profile"]
    retunes = rule.kind == "candidate" and rule.phase == "retune"
    if retunes and withheld_because(
        rule, values, rule_evidence(rule, values)
    ):  # nothing is retuned before a profile, so the profile is what is missing
        return profile[:1] if len(asking.missing) == len(profile) else ()
    return asking.missing if len(asking.missing) == 1 else ()


Met = Literal["met", "unmet", "unknown"]


@dataclass(frozen=True, slots=True)
class ShownFact:
    fact: Fact
    value: object


@dataclass(frozen=True, slots=True)
class CheckedRequirement:
    """A prerequisite or a conflict in this run. For a conflict, `met` means that it is present."""

    text: str
    state: Met
    condition: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A rule that fires in this run.

    `set`, `env`: the change with evaluated expressions; `unset` names those whose value depends on unknown facts.
    `withheld`: why it is deferred, or empty. `doubt`: why a blocker is doubtful; `disproved`: the run had steady
    iterations, so the blocker is shown as a warning and defers nothing. `place`: its rank and the reason. `assumed`:
    unmeasured profile facts in its condition; it is suggested because of its evidence. `also`: other rules that suggest
    the same change. `forecast`: of another layout. `title`: the rule's for this run, or what the change goes back to.
    `brings`: the blocker that the change would bring, or empty. `container`: that of `Taken`.
    """

    rule: Rule
    title: str
    why: str
    facts: tuple[ShownFact, ...]
    needs: tuple[CheckedRequirement, ...]
    conflicts: tuple[CheckedRequirement, ...]
    set: Mapping[str, Setting]
    env: Mapping[str, Setting]
    megatron_lm: tuple[str, ...]
    bridge: tuple[str, ...]
    open: tuple[str, ...]
    evidence: RuleEvidence
    place: Place
    change_text: str = ""
    recipes: tuple[Recipe, ...] = ()
    withheld: str = ""
    doubt: str = ""
    disproved: bool = False
    assumed: tuple[str, ...] = ()
    also: "tuple[Suggestion, ...]" = ()
    forecast: Forecast | None = None
    brings: str = ""
    container: str = ""

    @property
    def kind(self) -> Kind:
        """Return the kind of the rule in this run."""
        return "warning" if self.disproved else self.rule.kind


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result for a run.

    `blockers` and `warnings` by phase; `suggestions` ranked (gates, sizing, candidates); `withheld` ones after them.
    `missing`: what to supply, most useful first. `broken`: team rules that fail on their facts. Disproved blockers are
    among the warnings. `conditional`: candidates that would fire if the missing part of a profile showed their wall,
    but whose evidence is too weak without it.
    """

    facts: Mapping[str, object]
    wall: WallReading
    blockers: tuple[Suggestion, ...]
    warnings: tuple[Suggestion, ...]
    suggestions: tuple[Suggestion, ...]
    withheld: tuple[Suggestion, ...]
    silent: tuple[Rule, ...]
    asks: tuple[UndecidedRule, ...]
    broken: tuple[tuple[Rule, str], ...] = ()
    conditional: tuple[Suggestion, ...] = ()

    @property
    def missing(self) -> tuple[MissingFact, ...]:
        """Return the facts to supply. Computed on demand, because a worker only stores what fires."""
        return missing_facts(self.asks, self.facts, self.wall)

    @property
    def offered(self) -> tuple[Suggestion, ...]:
        """Return everything that fires and is not deferred, including duplicates of another suggestion."""
        shown = (*self.blockers, *self.warnings, *self.suggestions)
        return tuple(item for suggestion in shown for item in (suggestion, *suggestion.also))

    @property
    def fired(self) -> tuple[Suggestion, ...]:
        return (*self.offered, *self.withheld)

    def find(self, rule: str) -> Suggestion | None:
        """Return what fires under this id; None if nothing does."""
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
    taken: Mapping[str, Taken] | None = None,
    forecast: Forecaster | None = None,
) -> Evaluation:
    """Evaluate the rules for a run.

    `own`: this project's matched A/Bs; `settings`: thresholds that differ from ours. `taken`: by rule, the settings
    taken over from another run. `forecast`: predicts layouts; without it no layout is deferred. Raises ValueError for
    an unknown fact or an invalid value.
    """
    context = FactContext(derive(facts, settings))
    answers = _ask_all(context, book)
    wall = read_wall(context.values)
    unhealthy = _unhealthy(answers.fires, context.values)
    blocked = any(rule.kind == "blocker" and not ran_in_spite(rule, context.values) for rule in answers.fires)
    asked = _SuggestionInput(
        facts,
        settings,
        tuple(rule for rule in answers.silent if rule.kind == "blocker"),
        context,
        wall,
        own,
        taken or {},
        blocked,
        unhealthy,
        _first_of(answers.fires, "unjudged"),
        forecast,
    )
    suggestions = [asked.suggestion(rule) for rule in answers.fires]
    conditional = [asked.suggestion(rule, assumed) for rule, assumed in _if_profiled(answers.asks, context, wall)]
    promoted = [
        item for item in conditional if (not item.withheld or item.brings) and _is_strong(item.evidence, context.values)
    ]
    ranked = _after_stronger(_ranked([*suggestions, *promoted]))
    if unhealthy and context.values.get("oom") is True:
        ranked = [item if _lets_it_run(item.rule) else replace(item, withheld=item.withheld or _RUN) for item in ranked]
    offered = [suggestion for suggestion in ranked if _is_suggestion(suggestion.rule)]
    return Evaluation(
        facts=context.values,
        wall=wall,
        blockers=tuple(suggestion for suggestion in ranked if suggestion.kind == "blocker"),
        warnings=tuple(
            item for item in ranked if item.kind == "warning" and not _is_suggestion(item.rule) and not item.withheld
        ),
        suggestions=_merged([suggestion for suggestion in offered if not suggestion.withheld], context.values),
        withheld=tuple(item for item in ranked if item.withheld and item.kind != "blocker"),
        silent=tuple(answers.silent),
        asks=tuple(answers.asks),
        broken=tuple(answers.broken),
        conditional=tuple(item for item in conditional if item not in promoted),
    )


def rules_of_two(book: RuleBook) -> RuleBook:
    """Return the rules that compare two runs."""
    return RuleBook({name: rule for name, rule in book.rules.items() if "compared" in rule.when.names}, book.sources)


def _unhealthy(fires: Sequence[Rule], values: Mapping[str, object]) -> str:
    """Return the title of a rule that says that the run failed or is unhealthy; empty without one or if a user
    dismissed it."""
    if values.get("health_dismissed") is True:
        return ""
    if values.get("oom") is True:
        return "it ran out of GPU memory"
    return _first_of(fires, "health")


_RUN = "Let the job run first: it ran out of GPU memory."


def _lets_it_run(rule: Rule) -> bool:
    """Return whether a rule says what lets a job run that ran out of memory: nothing else is of use to it."""
    asks = rule.kind == "candidate" and rule.phase in ("fit", "scale") and "oom" in rule.when.names
    warns = rule.kind == "warning" and rule.wall == "memory" and rule.changes_something
    return rule.saves_memory or asks or warns or rule.kind == "blocker" or rule.hints.urgency == "health"


def _first_of(fires: Sequence[Rule], urgency: Urgency) -> str:
    """Return the title of the first rule of an urgency that fires; empty without one."""
    return next((rule.title for rule in fires if rule.hints.urgency == urgency), "")


_PROFILE = tuple(fact for fact in FACTS.values() if fact.section == "profile" and fact.type == "double")
_LOW = ("sm_util", "comm_hidden_frac")
"""Shares that are a wall if they are small."""


def _if_profiled(
    asks: "Sequence[UndecidedRule]", context: FactContext, wall: WallReading
) -> Iterator[tuple[Rule, tuple[str, ...]]]:
    """Yield candidates that would fire if the missing part of the profile showed their wall.

    Computation is the wall where all other shares are small.
    """
    if context.values.get("ran") is not True:
        return
    unknown = {fact.name: 0.0 if fact.name in _LOW else 1.0 for fact in _PROFILE if fact.name not in context.values}
    of_wall: dict[bool, FactContext] = {}
    for asking in asks:
        rule = asking.rule
        if rule.kind != "candidate" or not rule.changes_something or not unknown.keys() >= set(asking.missing):
            continue
        if wall.certainty == "measured" and rule.wall != wall.wall:
            continue
        is_compute = rule.wall == "compute"
        if is_compute not in of_wall:
            shares = dict.fromkeys(unknown, 0.0) if is_compute else unknown
            of_wall[is_compute] = FactContext({**context.values, **shares})
        if of_wall[is_compute].ask(rule.when) is True:
            yield rule, asking.missing


def _ranked(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Sort by rank; within a tier, after the rules that must come first."""
    by_id = {suggestion.rule.id: suggestion for suggestion in suggestions}
    order = sorted(by_id, key=lambda name: by_id[name].place.key)
    after: dict[str, list[str]] = {}
    for name, suggestion in by_id.items():
        rivals = [other for other in suggestion.rule.hints.after if other in by_id]
        after[name] = [other for other in rivals if by_id[other].place.tier == suggestion.place.tier]
    return [by_id[name] for name in follow(order, {name: before for name, before in after.items() if before})]


_STRONGER = frozenset(("health", "rerun", "regression", "measured", "evidence"))
"""Tiers that come before a suggestion that yields."""


def _after_stronger(ranked: Sequence[Suggestion]) -> list[Suggestion]:
    """Defer what yields while a blocker or something stronger is suggested."""
    offered = (item for item in ranked if item.kind == "blocker" or (_is_suggestion(item.rule) and not item.withheld))
    first = next((item.title for item in offered if item.kind == "blocker" or item.place.tier in _STRONGER), "")
    why = f"First: {first}." if first else ""
    return [replace(item, withheld=item.withheld or why) if item.rule.hints.yields else item for item in ranked]


def _merged(ranked: Sequence[Suggestion], values: Mapping[str, object]) -> tuple[Suggestion, ...]:
    """Merge candidates whose change is the same, or contains that of an earlier one, or is part of it.

    Such a suggestion has several reasons. A rule that `joins` another is one of them.
    """
    ids = {suggestion.rule.id for suggestion in ranked}
    joining = [suggestion for suggestion in ranked if not ids.isdisjoint(suggestion.rule.hints.joins)]
    merged: list[tuple[frozenset[object], Suggestion]] = []
    for suggestion in (*(item for item in ranked if item not in joining), *joining):
        change = _effective(suggestion, values) if suggestion.rule.kind == "candidate" else frozenset()
        place = next(
            (
                at
                for at, (other, first) in enumerate(merged)
                if first.rule.id in suggestion.rule.hints.joins
                or (change and other and (change <= other or change >= other))
            ),
            None,
        )
        if place is None:
            merged.append((change, suggestion))
        else:
            other, first = merged[place]
            merged[place] = (other, replace(first, also=(*first.also, suggestion)))
    return tuple(suggestion for _, suggestion in merged)


def _effective(suggestion: Suggestion, values: Mapping[str, object]) -> frozenset[object]:
    """Return the changed settings in comparable form, a layout as one of them; nothing if a value is open."""
    if suggestion.open:
        return frozenset()
    settings: dict[str, object] = dict(suggestion.set)
    if settings.get("dispatcher_type") == "flex" and settings.get("flex_backend") is not None:
        settings = {"dispatcher": settings["flex_backend"]} | {
            name: value for name, value in settings.items() if name not in ("dispatcher_type", "flex_backend")
        }
    changed = {name: _comparable(name, value) for name, value in settings.items() if _changes(values.get(name), value)}
    layout = frozenset((name, changed.pop(name)) for name in LAYOUT & changed.keys())
    flags = (*suggestion.megatron_lm, *suggestion.bridge)
    return frozenset((*changed.items(), *((layout,) if layout else ()), *suggestion.env.items(), *flags))


def _changes(before: object, after: object) -> bool:
    return (before or False) != (list(after) if isinstance(after, tuple) else after or False)


def _comparable(name: str, value: object) -> object:
    """Return a list of names without its order."""
    return frozenset(value) if isinstance(value, tuple) and FACTS[name].type == "strings" else value


def _is_suggestion(rule: Rule) -> bool:
    """Return whether a warning about the run's health is the next step instead of a remark."""
    return rule.kind not in ("blocker", "warning") or (rule.kind == "warning" and rule.hints.urgency != "")


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
    """Return what to supply so that `missing` facts are known: of derived ones the unknown inputs."""
    bases: list[str] = []
    for name in missing:
        inputs = FACTS[name].inputs if name in FACTS else ()
        unstated = [base for base in inputs if base not in values]
        bases += base_facts(unstated, values) if unstated else [name]
    return tuple(dict.fromkeys(bases))


_NOTHING_TAKEN = Taken({})
_FOLLOWS = frozenset(("dp", "edp", "ga"))
"""Facts of a run that follow from others, so a change invalidates them."""
_SAME = frozenset(("dispatcher", "dispatcher_type", "flex_backend"))
"""Facts that state the same value; a change of one replaces all."""


def _holds(rule: Rule, context: FactContext) -> bool:
    try:
        return context.ask(rule.when) is True
    except RuleError:
        return False


@dataclass(frozen=True, slots=True)
class _SuggestionInput:
    """The shared input of all suggestions of one run. `silent`: blockers that do not fire."""

    facts: Facts
    thresholds: Mapping[str, float] | None
    silent: tuple[Rule, ...]
    context: FactContext
    wall: WallReading
    own: Sequence[OwnResult]
    taken: Mapping[str, Taken]
    blocked: bool
    unhealthy: str
    unjudged: str
    forecast: Forecaster | None

    def suggestion(self, rule: Rule, assumed: tuple[str, ...] = ()) -> Suggestion:
        context, values = self.context, self.context.values
        settings, open_settings = _worked_out(rule.change.set, context)
        taken = self.taken.get(rule.id, _NOTHING_TAKEN)
        settings |= taken.settings
        env, open_env = _worked_out(rule.change.env, context)
        evidence = rule_evidence(rule, values, self.own, taken.statement)
        withheld = taken.withheld or withheld_because(
            rule, values, evidence, blocked=self.blocked, unhealthy=self.unhealthy, unjudged=self.unjudged
        )
        layout = LAYOUT & (settings if taken.needs_forecast else rule.change.set).keys()
        forecast = self._forecast(rule, settings, open_settings) if layout and not withheld else None
        gain = None if forecast is None else forecast.gain_pct
        place = place_of(rule, context, self.wall, evidence, forecast_gain_pct=gain)
        is_measured = place.expected is not None and not place.expected.is_no_gain
        if forecast is not None and forecast.refuses(out_of_memory=values.get("oom") is True, is_measured=is_measured):
            withheld = forecast.why
        flags = tuple(filled(flag, values) for flag in rule.change.megatron_lm)
        if (
            rule.kind == "candidate"
            and not withheld
            and (lacking := lacking_flags(OwnIdea(settings, env, flags), values))
        ):
            withheld = f"Megatron Core {values['mcore_version']} lacks {', '.join(lacking)}: upgrade first."
        blocker = self._blocker_of(settings, env) if rule.kind == "candidate" and not withheld else None
        if blocker is not None:
            withheld = f"The change would trigger a blocker: {blocker.title}."
        return Suggestion(
            rule=rule,
            title=taken.title or filled(rule.run_title, values) or rule.title,
            why=_by_evidence(evidence, values) if assumed else filled(rule.why, values),
            facts=tuple(ShownFact(FACTS[name], values[name]) for name in rule.when.names if name in values),
            needs=tuple(check(need, context) for need in rule.needs),
            conflicts=tuple(check(conflict, context) for conflict in rule.conflicts),
            set=settings,
            env=env,
            megatron_lm=flags,
            bridge=tuple(filled(flag, values) for flag in rule.change.bridge),
            open=(*open_settings, *open_env),
            evidence=evidence,
            place=place,
            change_text=filled(rule.change.text, values),
            recipes=tuple(_recipes(rule, context)),
            withheld=withheld,
            doubt=doubt_of(rule, values),
            disproved=ran_in_spite(rule, values),
            assumed=assumed,
            forecast=forecast,
            brings="" if blocker is None else blocker.id,
            container=taken.container,
        )

    def _blocker_of(self, settings: Mapping[str, Setting], env: Mapping[str, Setting]) -> Rule | None:
        """Return a blocker that a change brings. The planner judges other layouts."""
        if not (settings or env) or LAYOUT & settings.keys():
            return None
        dependent = _FOLLOWS | (_SAME if _SAME & settings.keys() else frozenset())
        after = {name: value for name, value in self.facts.items() if name not in dependent}
        after |= {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
        after |= {f"{PREFIX}{name}": None if value is None else str(value) for name, value in env.items()}
        derived, before = derive(after, self.thresholds), self.context.values
        changed = {name for name, value in derived.items() if name not in before or before[name] != value}
        affected = [rule for rule in self.silent if not changed.isdisjoint(rule.when.names)]
        if not affected:
            return None
        context = FactContext(derived)
        return next((rule for rule in affected if _holds(rule, context)), None)

    def _forecast(self, rule: Rule, settings: Mapping[str, Setting], unknown: tuple[str, ...]) -> Forecast | None:
        """Return the forecast for a rule that offers another layout."""
        if self.forecast is None or rule.kind not in ("candidate", "sizing"):
            return None
        if LAYOUT & set(unknown):
            return Forecast(None, f"The target layout depends on unknown facts: {', '.join(unknown)}.")
        return self.forecast(settings)


def _by_evidence(evidence: RuleEvidence, values: Mapping[str, object]) -> str:
    """Return the reason of a suggestion that is offered without a profile, in one sentence."""
    expected = expected_gain(evidence, values)
    if expected is None:
        return ""
    statement = expected.statement
    if statement.own is not None:
        where = "" if statement.own.same_contract else f", {statement.own.where}"
        return f"Offered without a profile, because it was measured here: {statement.text}{where}."
    where = f" ({statement.setting})" if statement.setting else ""
    return f"Offered without a profile, because of a matched A/B: {statement.text}{where}."


def _recipes(rule: Rule, context: FactContext) -> Iterator[Recipe]:
    """Yield the commands for this run, without those for another trainer or GPU if these are known."""
    for recipe in rule.change.recipes:
        if recipe.when is None or context.ask(recipe.when) is not False:
            yield replace(recipe, run=filled(recipe.run, context.values), then=filled(recipe.then, context.values))


def check(requirement: Requirement, context: FactContext) -> CheckedRequirement:
    """Check whether a prerequisite or a conflict is met. A failing condition counts as unknown."""
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
    """Return the values to set, and the names of those that depend on unknown facts."""
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
