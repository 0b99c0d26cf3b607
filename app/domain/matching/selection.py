"""Which earlier runs are the baseline, from facts alone: no contract is read, however long the history is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.detection.baseline import MOST_BASELINE_RUNS
from app.domain.matching.levels import confirmed_level
from app.domain.matching.record import RunFacts

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


def select(
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
