"""The baseline of a run with what differs, and why the other runs of its stack are none of it (`docs/verdicts.md`).

A pinned golden run comes first; then runs of the same config key in the current level of their history; then those of
the config key that the stack used last, whose knobs are then the first suspects. An experiment without any of these is
measured against the earlier run of its stack that comes nearest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from app.domain.verdict.comparability import Comparability, compare_contracts
from app.domain.verdict.record import RunFacts, RunRecord, confirmed_level
from app.domain.verdict.step_time import DEFAULT_PRIOR, MOST_BASELINE_RUNS, Prior

# --- Which earlier runs are the baseline, from facts alone: no contract is read, however long the history is.

BaselineKind = Literal["golden", "same_config", "last_config", "nearest", "none"]
UNCONFIRMED = "it stands out from the level before it, which no third run has confirmed yet"
OLDER_LEVEL = "older than the current level of the history"
BEYOND_NEWEST = f"older than the newest {MOST_BASELINE_RUNS} runs of the current level"

F = TypeVar("F", bound=RunFacts)
F_co = TypeVar("F_co", bound=RunFacts, covariant=True)


@dataclass(frozen=True, slots=True)
class BaselineRules:
    """`branch`: the project's baseline branch, None for any. `pinned`: names of the stack's golden runs."""

    branch: str | None = None
    pinned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Selection(Generic[F_co]):
    """`runs`: oldest first, of one config key; none when `kind` is `none`. `refused`: why others of the stack are none.

    `passed_over`: runs that could be a baseline and were not taken. `golden`: the pinned one that came before all of
    them, else empty. `beyond`: names of those of the chosen level that are older than its newest 20.
    """

    kind: BaselineKind
    runs: tuple[F_co, ...]
    refused: Mapping[str, str]
    passed_over: tuple[F_co, ...]
    golden: str = ""
    beyond: frozenset[str] = frozenset()


def select_baseline(
    run: RunFacts, earlier: Sequence[F], rules: BaselineRules | None = None, prior: Prior = DEFAULT_PRIOR
) -> Selection[F]:
    """The baseline of `run` among `earlier` runs, which are oldest first in the order of their commits.

    Runs of other stack keys are passed over in silence. `prior`: what is known about run-to-run variation; it decides
    where the history's levels end.
    """
    rules = rules or BaselineRules()
    stack = [one for one in earlier if one.stack_key == run.stack_key and one.run != run.run]
    refused = {one.run: why for one in stack if (why := _refusal(one, run, rules))}
    usable = [one for one in stack if one.run not in refused]
    kind, level, golden = _choose(run, usable, rules, prior)
    chosen = level[-MOST_BASELINE_RUNS:]
    used = {one.run for one in chosen}
    if kind in ("same_config", "last_config"):
        newer = usable[usable.index(chosen[-1]) + 1 :]
        refused |= {one.run: UNCONFIRMED for one in newer if one.config_key == chosen[-1].config_key}
        usable = [one for one in usable if one.run not in refused]
    passed_over = tuple(one for one in usable if one.run not in used)
    beyond = frozenset(one.run for one in level) - used
    return Selection(kind, tuple(chosen), refused, passed_over, golden, beyond)


def offered_to_experiment(run: RunFacts, earlier: Sequence[F]) -> list[F]:
    """Earlier runs of the stack that an experiment may be measured against where no baseline is: whatever they were
    for, also short ones, and then the result is a direction only.
    """
    return [
        one
        for one in earlier
        if one.stack_key == run.stack_key
        and one.run != run.run
        and not (one.unfit_because or one.estimate.unusable_because or one.estimate.not_finite_iterations)
        and not (_measured_otherwise(one, run) or _of_another_kind(one, run))
    ]


def with_reruns(newest: F, runs: Sequence[F]) -> list[F]:
    """`newest` and those of `runs` that are the same commit and configuration, in the order of `runs`."""
    return [
        one
        for one in runs
        if one.run == newest.run
        or (one.commit != "" and one.commit == newest.commit and one.config_key == newest.config_key)
    ]


def unfit_because(earlier: RunFacts, run: RunFacts, rules: BaselineRules) -> str:
    """Why `earlier` cannot be measured against `run`, whatever their contracts; empty when it can."""
    pinned = earlier.run in rules.pinned
    if why := earlier.never_a_baseline_because or _measured_otherwise(earlier, run):
        return why
    if earlier.purpose != "ci" and not pinned:
        return f"its purpose is {earlier.purpose}"
    if rules.branch is None or earlier.branch == rules.branch or pinned:
        return ""
    if not earlier.branch:
        return f"it states no branch, and the baseline branch is {rules.branch}"
    return f"it is not of the baseline branch {rules.branch}"


def _refusal(earlier: RunFacts, run: RunFacts, rules: BaselineRules) -> str:
    """Why `earlier`, of the same stack key, is no baseline of `run`; empty when it may be one."""
    return unfit_because(earlier, run, rules) or _of_another_kind(earlier, run)


def _measured_otherwise(earlier: RunFacts, run: RunFacts) -> str:
    if earlier.definition_version != run.definition_version:
        return "its figures are of another version of the definitions"
    if earlier.fair_for_timing != run.fair_for_timing:
        return "only one of the two was slowed down by its own timers"
    return ""


def _of_another_kind(earlier: RunFacts, run: RunFacts) -> str:
    if earlier.semantic_class != run.semantic_class:
        return f"its class is {_words(earlier.semantic_class)}, that of this run is {_words(run.semantic_class)}"
    return "" if earlier.has_shape_of(run) else "its model has another shape"


def _choose(
    run: RunFacts, usable: Sequence[F], rules: BaselineRules, prior: Prior
) -> tuple[BaselineKind, list[F], str]:
    """The kind, the runs of the chosen level, and the name of the golden run where one is pinned."""
    pinned = [one for one in usable if one.run in rules.pinned]
    if pinned:
        # Reruns of the golden commit are as golden as itself, and sharpen every verdict.
        return "golden", with_reruns(pinned[-1], usable), pinned[-1].run
    same = [one for one in usable if one.config_key == run.config_key]
    if same:
        return "same_config", confirmed_level(same, prior), ""
    if usable:
        last = [one for one in usable if one.config_key == usable[-1].config_key]
        return "last_config", confirmed_level(last, prior), ""
    return "none", [], ""


def _words(semantic_class: str) -> str:
    return semantic_class.replace("_", " ")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An earlier run of the same stack that is not part of the baseline."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class BaselineChoice:
    """`runs`: oldest first, of one config key; none when `kind` is `none`. `comparability`: with the newest of them.

    `kind` is `nearest` for the one run, with its reruns, that an experiment is measured against for lack of a baseline.
    """

    kind: BaselineKind
    runs: tuple[RunFacts, ...]
    left_out: tuple[LeftOut, ...]
    comparability: Comparability | None


def choose_baseline(
    run: RunRecord, earlier: Sequence[RunRecord], rules: BaselineRules | None = None, prior: Prior = DEFAULT_PRIOR
) -> BaselineChoice:
    """The baseline of `run` among `earlier` runs, which are oldest first in the order of their commits.

    `prior`: what is known about run-to-run variation; it decides where the history's levels end.
    """
    selection = select_baseline(run, earlier, rules, prior)
    by_name = {one.run: one for one in earlier}
    if not selection.runs and run.purpose == "experiment":
        selection = _nearest(run, selection, offered_to_experiment(run, earlier))
    knobs = {one.config_key: one for one in earlier}
    comparability = compare_contracts(by_name[selection.runs[-1].run], run) if selection.runs else None
    return BaselineChoice(
        selection.kind, selection.runs, left_out(selection, [one.run for one in earlier], knobs), comparability
    )


def nearest_run(run: RunRecord, offered: Sequence[RunRecord]) -> RunRecord | None:
    """The one that differs in the fewest knobs, the newest among equals; `offered` is oldest first."""
    newest = {one.config_key: one for one in offered}
    apart = [(len(compare_contracts(one, run).knobs), -offered.index(one), one) for one in newest.values()]
    return min(apart, key=lambda found: found[:2])[2] if apart else None


def left_out(
    selection: Selection[RunFacts], names: Iterable[str], newest: Mapping[str, RunRecord]
) -> tuple[LeftOut, ...]:
    """Of the runs `names`, those of the stack that are no baseline, each with the reason.

    `newest`: a run of each config key, whose contract tells what is other about it.
    """
    passed = {one.run: one for one in selection.passed_over}
    found = ((name, selection.refused.get(name) or _passed_over(passed.get(name), selection, newest)) for name in names)
    return tuple(LeftOut(name, why) for name, why in found if why)


def _nearest(run: RunRecord, selection: Selection[RunRecord], offered: Sequence[RunRecord]) -> Selection[RunRecord]:
    nearest = nearest_run(run, offered)
    if nearest is None:
        return selection
    runs = tuple(with_reruns(nearest, offered))
    used = {one.run for one in runs}
    refused = {name: why for name, why in selection.refused.items() if name not in used}
    return Selection("nearest", runs, refused, selection.passed_over)


def _passed_over(run: RunFacts | None, selection: Selection[RunFacts], newest: Mapping[str, RunRecord]) -> str:
    """Why a usable run was not taken."""
    if run is None or not selection.runs:
        return ""
    if selection.golden:
        return f"run {selection.golden} is pinned as the golden baseline"
    if run.run in selection.beyond:
        return BEYOND_NEWEST
    chosen = selection.runs[-1].config_key
    if run.config_key == chosen:
        return OLDER_LEVEL
    if run.config_key in newest and chosen in newest:
        knobs = compare_contracts(newest[run.config_key], newest[chosen]).knobs
        return f"another configuration: {listed(one.field for one in knobs)}"
    return "another configuration"


def listed(fields: Iterable[str]) -> str:
    return ", ".join(f"`{field}`" for field in fields)


# --- Where nothing may be compared: the earlier runs that came closest, and the fields that stand between.

MOST_MISSES = 3


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The newest run of a stack that is not the run's own, or of its own when none of that can be a baseline.

    `alike`: how many of the runs looked at have its config key. `never_a_baseline_because`: empty when the contract is
    all that stands between.
    """

    run: str
    comparability: Comparability
    alike: int
    never_a_baseline_because: str

    @property
    def fields(self) -> tuple[str, ...]:
        """Members of the keys that differ or may differ, those of the stack first."""
        return tuple(one.field for one in (*self.comparability.stack, *self.comparability.knobs))


def nearest_misses(
    run: RunRecord, earlier: Sequence[RunRecord], most: int = MOST_MISSES, counts: Mapping[str, int] | None = None
) -> tuple[NearMiss, ...]:
    """One run a stack, those first that differ in the fewest members of the stack key, then in the fewest knobs.

    `earlier`: oldest first. One comparison is made for each config key among them. `counts`: how many runs there are
    of each, where only some of them are given.
    """
    alike: dict[str, list[RunRecord]] = {}
    for one in reversed(earlier):
        if one.run != run.run:
            alike.setdefault(one.config_key, []).append(one)
    found = [_miss(run, runs, (counts or {}).get(key, len(runs))) for key, runs in alike.items()]
    # Sorting keeps the newest first among equals.
    ranked = sorted(found, key=lambda pair: (len(pair[1].comparability.stack), len(pair[1].comparability.knobs)))
    return tuple(_first_of_each_stack(ranked))[:most]


def _miss(run: RunRecord, runs: Sequence[RunRecord], count: int) -> tuple[str, NearMiss]:
    """The newest of `runs`, which share a config key, that can be a baseline; else the newest. With its stack key."""
    best = next((one for one in runs if not one.never_a_baseline_because), runs[0])
    miss = NearMiss(best.run, compare_contracts(best, run), count, best.never_a_baseline_because)
    return best.stack_key, miss


def _first_of_each_stack(ranked: Iterable[tuple[str, NearMiss]]) -> list[NearMiss]:
    first: dict[str, NearMiss] = {}
    for stack, miss in ranked:
        first.setdefault(stack, miss)
    return list(first.values())
