"""Which earlier runs a run is judged against, and why the others are not among them (`docs/verdicts.md`).

A pinned golden run comes first; then runs of the same config key in the current level of their history; then those of
the config key that the stack used last, whose knobs are then the first suspects.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.detection.baseline import MOST_BASELINE_RUNS
from app.domain.history import find_changes
from app.domain.matching.comparability import Comparability, compare_contracts
from app.domain.matching.differences import differing_shape
from app.domain.matching.record import RunRecord

BaselineKind = Literal["golden", "same_config", "last_config", "none"]


@dataclass(frozen=True, slots=True)
class BaselineRules:
    """`branch`: the project's baseline branch, None for any. `pinned`: names of the stack's golden runs."""

    branch: str | None = None
    pinned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An earlier run of the same stack that is not part of the baseline."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class BaselineChoice:
    """`runs`: oldest first, of one config key; none when `kind` is `none`. `comparability`: with the newest of them."""

    kind: BaselineKind
    runs: tuple[RunRecord, ...]
    left_out: tuple[LeftOut, ...]
    comparability: Comparability | None


def choose_baseline(
    run: RunRecord, earlier: Sequence[RunRecord], rules: BaselineRules | None = None, prior: Prior = DEFAULT_PRIOR
) -> BaselineChoice:
    """The baseline of `run` among `earlier` runs, which are oldest first in the order of their commits.

    Runs of other stack keys are passed over in silence. `prior`: what is known about run-to-run variation; it decides
    where the history's levels end.
    """
    rules = rules or BaselineRules()
    stack = [one for one in earlier if one.stack_key == run.stack_key and one.run != run.run]
    refused = {one.run: why for one in stack if (why := _refusal(one, run, rules))}
    usable = [one for one in stack if one.run not in refused]
    kind, chosen = _choose(run, usable, rules, prior)
    used = {one.run for one in chosen}
    left_out = [
        LeftOut(one.run, refused.get(one.run) or _passed_over(one, chosen)) for one in stack if one.run not in used
    ]
    comparability = compare_contracts(chosen[-1], run) if chosen else None
    return BaselineChoice(kind, tuple(chosen), tuple(left_out), comparability)


def unfit_because(earlier: RunRecord, run: RunRecord, rules: BaselineRules) -> str:
    """Why `earlier` cannot be measured against `run`, whatever their contracts; empty when it can."""
    pinned = earlier.run in rules.pinned
    other_branch = rules.branch is not None and earlier.branch != rules.branch
    reasons = (
        (earlier.definition_version != run.definition_version, "its figures are of another version of the definitions"),
        (earlier.fair_for_timing != run.fair_for_timing, "only one of the two was slowed down by its own timers"),
        (earlier.purpose != "ci" and not pinned, f"its purpose is {earlier.purpose}"),
        (other_branch and not pinned, f"it is not of the baseline branch {rules.branch}"),
    )
    return earlier.never_a_baseline_because or next((why for holds, why in reasons if holds), "")


def _refusal(earlier: RunRecord, run: RunRecord, rules: BaselineRules) -> str:
    """Why `earlier`, of the same stack key, is no baseline of `run`; empty when it may be one."""
    if why := unfit_because(earlier, run, rules):
        return why
    if earlier.semantic_class != run.semantic_class:
        return f"its class is {_words(earlier.semantic_class)}, that of this run is {_words(run.semantic_class)}"
    return "its model has another shape" if any(differing_shape(earlier.contract, run.contract)) else ""


def _choose(
    run: RunRecord, usable: Sequence[RunRecord], rules: BaselineRules, prior: Prior
) -> tuple[BaselineKind, list[RunRecord]]:
    pinned = [one for one in usable if one.run in rules.pinned]
    if pinned:
        newest = pinned[-1]
        # Reruns of the golden commit are as golden as itself, and sharpen every verdict.
        golden = [one for one in usable if one.config_key == newest.config_key and _is_rerun(one, newest)]
        return "golden", golden[-MOST_BASELINE_RUNS:]
    same = [one for one in usable if one.config_key == run.config_key]
    if same:
        return "same_config", _current_level(same, prior)
    if usable:
        last = [one for one in usable if one.config_key == usable[-1].config_key]
        return "last_config", _current_level(last, prior)
    return "none", []


def _is_rerun(one: RunRecord, golden: RunRecord) -> bool:
    return one.run == golden.run or (one.commit != "" and one.commit == golden.commit)


def _current_level(runs: Sequence[RunRecord], prior: Prior) -> list[RunRecord]:
    """The newest 20 runs of the last level of their history."""
    level = find_changes([one.estimate.log_step_time for one in runs], prior).current
    return list(runs[level.start : level.stop])[-MOST_BASELINE_RUNS:]


def _passed_over(run: RunRecord, chosen: Sequence[RunRecord]) -> str:
    """Why a usable run was not taken."""
    if run.config_key == chosen[-1].config_key:
        return "older than the current level of the history, or than the newest 20 runs"
    return f"another configuration: {listed(one.field for one in compare_contracts(run, chosen[-1]).knobs)}"


def listed(fields: Iterable[str]) -> str:
    return ", ".join(f"`{field}`" for field in fields)


def _words(semantic_class: str) -> str:
    return semantic_class.replace("_", " ")
