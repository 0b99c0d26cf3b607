"""Choose the baseline of a run, and give the reason for each run of its stack that was left out (`docs/verdicts.md`).

A pinned golden run comes first; then runs of the same job and config key in the current segment of their history; then
runs of the config key that a new commit replaced, for an A/B that opens no regression. Configurations that ran at one
commit are cells of a matrix: none is the baseline of another. An experiment without any of these is measured against
the nearest earlier run of its stack.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Generic, Literal, TypeVar

from app.domain.text import coded_names
from app.domain.verdict.comparability import Comparability, compare_contracts, differing_stack
from app.domain.verdict.policy import DEFAULTS, Thresholds
from app.domain.verdict.record import RunFacts, RunRecord, confirmed_level
from app.domain.verdict.step_time import DEFAULT_PRIOR, MOST_BASELINE_RUNS, Prior

# --- The choice from facts alone: it reads no contracts, so its cost stays low for long histories.

BaselineKind = Literal["golden", "same_config", "last_config", "nearest", "experiment", "none"]
UNCONFIRMED = "differs from the previous level; a third run has to confirm the change"
OLDER_SEGMENT = "older than the current segment of the history"
AFTER_BRANCH_POINT = "newer than the branch point of this change"
BEYOND_NEWEST = f"older than the newest {MOST_BASELINE_RUNS} runs of the current segment"
OTHER_CELL = "another configuration, which no commit changed into this one"

F = TypeVar("F", bound=RunFacts)
F_co = TypeVar("F_co", bound=RunFacts, covariant=True)


@dataclass(frozen=True, slots=True)
class BaselineRules:
    """Project settings. `branch`: the baseline branch, None for any. `pinned`: the stack's golden runs.

    `branch_point`: history position at which a judged change left its target branch; `after_it`: later runs, whose code
    the change does not contain. `is_named`: a user named the earlier runs as the baseline, so they are not cells.
    """

    branch: str | None = None
    pinned: frozenset[str] = frozenset()
    thresholds: Thresholds = DEFAULTS
    branch_point: datetime | None = None
    after_it: frozenset[str] = frozenset()
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class Selection(Generic[F_co]):
    """The chosen `runs`, oldest first, of one config key; empty when `kind` is `none`.

    `refused`: runs of the stack that cannot serve as baseline, with reasons. `passed_over`: runs that could but were
    not taken. `golden`: the pinned run that took precedence, else empty. `beyond`: runs of the chosen segment that are
    older than its newest 20.
    """

    kind: BaselineKind
    runs: tuple[F_co, ...]
    refused: Mapping[str, str]
    passed_over: tuple[F_co, ...]
    golden: str = ""
    beyond: frozenset[str] = frozenset()


def select_baseline(
    run: RunFacts,
    earlier: Sequence[F],
    rules: BaselineRules | None = None,
    prior: Prior = DEFAULT_PRIOR,
    of_commit: Sequence[RunFacts] = (),
) -> Selection[F]:
    """Select the baseline of `run` among `earlier` runs, oldest first in the order of their commits.

    Runs of other stack keys are ignored. `prior`: the run-to-run variation, which decides where segments end.
    `of_commit`: runs of the run's commit that came after it; they only show whether it is a cell of a matrix.
    """
    rules = rules or BaselineRules()
    stack = [other for other in earlier if other.stack_key == run.stack_key and other.run != run.run]
    refused = {
        other.run: why for other in stack if (why := (unfit_because(other, run, rules) or _of_another_kind(other, run)))
    }
    usable = [other for other in stack if other.run not in refused]
    refused |= _of_other_jobs(run, usable, rules)
    usable = [other for other in usable if other.run not in refused]
    kind, level, golden = _choose(run, usable, rules, prior)
    changes_config = kind == "last_config" and not rules.is_named
    if kind == "none" or (changes_config and _is_cell(run, usable[-1], [*stack, *of_commit])):
        cells = {other.run: OTHER_CELL for other in usable}
        return Selection("none", (), refused | cells, ())
    chosen = level[-MOST_BASELINE_RUNS:]
    used = {other.run for other in chosen}
    if kind in ("same_config", "last_config"):
        newer = usable[usable.index(chosen[-1]) + 1 :]
        refused |= {other.run: UNCONFIRMED for other in newer if other.config_key == chosen[-1].config_key}
        usable = [other for other in usable if other.run not in refused]
    passed_over = tuple(other for other in usable if other.run not in used)
    beyond = frozenset(other.run for other in level) - used
    return Selection(kind, tuple(chosen), refused, passed_over, golden, beyond)


def offered_to_experiment(run: RunFacts, earlier: Sequence[F]) -> list[F]:
    """Return the runs that an experiment without a baseline may be measured against: any purpose, short ones included.

    Against short runs the result only gives a direction.
    """
    return [
        other
        for other in earlier
        if other.stack_key == run.stack_key
        and other.run != run.run
        and not (other.unfit_because or other.estimate.unusable_because or other.estimate.not_finite_iterations)
        and not (_measured_otherwise(other, run) or _of_another_kind(other, run))
    ]


def with_reruns(newest: F, runs: Sequence[F]) -> list[F]:
    """Return `newest` and its reruns (same commit and configuration) among `runs`, in the order of `runs`."""
    return [
        run
        for run in runs
        if run.run == newest.run
        or (run.commit != "" and run.commit == newest.commit and run.config_key == newest.config_key)
    ]


def unfit_because(earlier: RunFacts, run: RunFacts, rules: BaselineRules) -> str:
    """Return why `earlier` cannot be compared with `run`, regardless of their contracts; empty if it can."""
    pinned = earlier.run in rules.pinned
    if why := earlier.never_a_baseline_because or _measured_otherwise(earlier, run):
        return why
    if earlier.run in rules.after_it and not pinned:
        return AFTER_BRANCH_POINT
    if earlier.purpose != "ci" and not pinned:
        return f"purpose {earlier.purpose}, not ci"
    if rules.branch is None or earlier.branch == rules.branch or pinned:
        return ""
    if not earlier.branch:
        return f"no branch stated; the baseline branch is {rules.branch}"
    return f"not on branch {rules.branch}"


def _measured_otherwise(earlier: RunFacts, run: RunFacts) -> str:
    if earlier.definition_version != run.definition_version:
        return "figures of another version of the definitions"
    if earlier.fair_for_timing != run.fair_for_timing:
        return "timer barriers slowed only one of the two runs"
    return ""


def _of_another_kind(earlier: RunFacts, run: RunFacts) -> str:
    if earlier.semantic_class != run.semantic_class:
        return f"{_words(earlier.semantic_class)}, but this run is {_words(run.semantic_class)}"
    return "" if earlier.has_shape_of(run) else "another model shape"


def _of_other_jobs(run: RunFacts, usable: Sequence[RunFacts], rules: BaselineRules) -> dict[str, str]:
    """Return the runs that belong to another job, with the reason: two jobs are two histories, regardless of their
    flags.

    Off the baseline branch a job may have another name, as in a workflow for changes. When none of its runs is usable,
    the other jobs count.
    """
    others = {
        other.run: f"of another job: {other.job}"
        for other in usable
        if not other.is_of_job(run) and other.run not in rules.pinned
    }
    elsewhere = rules.branch is not None and run.branch != rules.branch
    if run.purpose == "experiment" or (elsewhere and len(others) == len(usable)):
        return {}
    return others


def _choose(
    run: RunFacts, usable: Sequence[F], rules: BaselineRules, prior: Prior
) -> tuple[BaselineKind, list[F], str]:
    """Return the kind, the runs of the chosen segment, and the golden run's name where one is pinned."""
    pinned = [other for other in usable if other.run in rules.pinned]
    if pinned:
        # Reruns of the golden commit are equally valid and make every verdict more precise.
        return "golden", with_reruns(pinned[-1], usable), pinned[-1].run
    same = [other for other in usable if other.config_key == run.config_key]
    if same:
        return "same_config", confirmed_level(same, prior), ""
    if usable:
        last = [other for other in usable if other.config_key == usable[-1].config_key]
        return "last_config", confirmed_level(last, prior), ""
    return "none", [], ""


def _is_cell(run: RunFacts, newest: RunFacts, runs: Iterable[RunFacts]) -> bool:
    """Return whether `run` and `newest`, the run before it, are cells of a matrix: no commit changed one to the other.

    A commit changed the configuration if the commits differ and the job ran one configuration at each of them.
    `runs`: those of the stack. An experiment is not a cell: it is an A/B against whatever ran last.
    """
    if run.purpose == "experiment":
        return False
    if not run.commit or not newest.commit:
        return True
    measured = [other for other in (run, *runs) if other.purpose != "experiment" and not other.unfit_because]
    return any(
        other.commit == side.commit and other.config_key != side.config_key and other.is_of_job(side)
        for side in (run, newest)
        for other in measured
    )


def _words(semantic_class: str) -> str:
    return semantic_class.replace("_", " ")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An earlier run of the same stack that is not part of the baseline."""

    run: str
    why: str


@dataclass(frozen=True, slots=True)
class BaselineChoice:
    """The baseline `runs`, oldest first, of one config key; `comparability` is with the newest of them.

    `kind`: `none` without runs; `nearest` for the run, with its reruns, that an experiment without a baseline uses.
    """

    kind: BaselineKind
    runs: tuple[RunFacts, ...]
    left_out: tuple[LeftOut, ...]
    comparability: Comparability | None


def choose_baseline(
    run: RunRecord, earlier: Sequence[RunRecord], rules: BaselineRules | None, prior: Prior = DEFAULT_PRIOR
) -> BaselineChoice:
    """Choose the baseline of `run` among `earlier` runs, oldest first in the order of their commits.

    `prior`: the run-to-run variation, which decides where segments end.
    """
    selection = select_baseline(run, earlier, rules, prior)
    by_name = {other.run: other for other in earlier}
    if not selection.runs and run.purpose == "experiment":
        selection = _nearest(run, selection, offered_to_experiment(run, earlier))
    knobs = {other.config_key: other for other in earlier}
    comparability = compare_contracts(by_name[selection.runs[-1].run], run) if selection.runs else None
    return BaselineChoice(
        selection.kind, selection.runs, left_out(selection, [other.run for other in earlier], knobs), comparability
    )


def nearest_run(run: RunRecord, offered: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run that differs in the fewest knobs, the newest among equals. `offered`: oldest first."""
    newest = {other.config_key: other for other in offered}
    apart = [(len(compare_contracts(other, run).knobs), -offered.index(other), other) for other in newest.values()]
    return min(apart, key=lambda item: item[:2])[2] if apart else None


def left_out(
    selection: Selection[RunFacts], names: Iterable[str], newest: Mapping[str, RunRecord]
) -> tuple[LeftOut, ...]:
    """Return those of the runs `names` that are on the stack but not in the baseline, each with the reason.

    `newest`: a run of each config key, whose contract shows how the configuration differs.
    """
    passed = {run.run: run for run in selection.passed_over}
    reasons = (
        (name, selection.refused.get(name) or _passed_over(passed.get(name), selection, newest)) for name in names
    )
    return tuple(LeftOut(name, why) for name, why in reasons if why)


def _nearest(run: RunRecord, selection: Selection[RunRecord], offered: Sequence[RunRecord]) -> Selection[RunRecord]:
    nearest = nearest_run(run, offered)
    if nearest is None:
        return selection
    runs = tuple(with_reruns(nearest, offered))
    used = {rerun.run for rerun in runs}
    refused = {name: why for name, why in selection.refused.items() if name not in used}
    return Selection("nearest", runs, refused, selection.passed_over)


def _passed_over(run: RunFacts | None, selection: Selection[RunFacts], newest: Mapping[str, RunRecord]) -> str:
    """Return why a usable run was not taken; empty when it was."""
    if run is None or not selection.runs:
        return ""
    if selection.golden:
        return f"run {selection.golden} is pinned as golden baseline"
    if run.run in selection.beyond:
        return BEYOND_NEWEST
    chosen = selection.runs[-1].config_key
    if run.config_key == chosen:
        return OLDER_SEGMENT
    if run.config_key in newest and chosen in newest:
        knobs = compare_contracts(newest[run.config_key], newest[chosen]).knobs
        return f"different configuration: {coded_names(knob.field for knob in knobs)}"
    return "different configuration"


# --- Near misses: the closest earlier runs when none is comparable, with the fields that differ.

MOST_MISSES = 3


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The newest run of another stack, or of the run's own stack when none of its runs can be a baseline.

    `alike`: how many of the runs share its config key. `never_a_baseline_because`: empty when only the contract
    prevents the comparison.
    """

    run: str
    comparability: Comparability
    alike: int
    never_a_baseline_because: str

    @property
    def fields(self) -> tuple[str, ...]:
        """Members of the keys that differ or may differ, stack members first."""
        return tuple(difference.field for difference in (*self.comparability.stack, *self.comparability.knobs))

    @property
    def is_other_cell(self) -> bool:
        """Return whether only knobs of one job differ, so that a comparison is fair although no baseline is chosen."""
        comparability = self.comparability
        other_work = comparability.stack or comparability.two_jobs
        return bool(comparability.knobs) and not (other_work or self.never_a_baseline_because)


def nearest_misses(
    run: RunRecord, earlier: Sequence[RunRecord], counts: Mapping[str, int] | None = None
) -> tuple[NearMiss, ...]:
    """Return one run per stack: those of the same model first, then fewest differing stack members, then fewest knobs.

    `earlier`: oldest first; one contract comparison is made per config key. `counts`: the number of runs of each config
    key, when `earlier` does not hold all of them.
    """
    alike: dict[str, list[RunRecord]] = {}
    for other in reversed(earlier):
        if other.run != run.run:
            alike.setdefault(other.config_key, []).append(other)
    # The newest of each configuration that can be a baseline, else the newest.
    offered = [
        next((other for other in runs if not other.never_a_baseline_because), runs[0]) for runs in alike.values()
    ]
    apart = sorted(((_distance(other, run), other) for other in offered), key=itemgetter(0))
    nearest: dict[str, NearMiss] = {}
    for _, group in groupby(apart, key=itemgetter(0)):
        misses = [
            (other, compare_contracts(other, run), (counts or {}).get(other.config_key, len(alike[other.config_key])))
            for _, other in group
        ]
        # Sorting keeps the newest first among equals.
        for other, comparability, count in sorted(misses, key=lambda miss: len(miss[1].knobs)):
            miss = NearMiss(other.run, comparability, count, other.never_a_baseline_because)
            nearest.setdefault(other.stack_key, miss)
        if len(nearest) >= MOST_MISSES:
            break
    return tuple(nearest.values())[:MOST_MISSES]


def _distance(other: RunRecord, run: RunRecord) -> tuple[bool, int, bool]:
    """Return the first sort key of a near miss, from the stacks. A model that a side does not state is not the same; it
    may be, so it comes before another one.
    """
    stack = differing_stack(other, run)
    model = next((difference for difference in stack if difference.field == "model"), None)
    is_same = model is None and "model" in run.contract
    return not is_same, len(stack), model is not None and model.is_certain
