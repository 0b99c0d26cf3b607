"""A run as matching and verdicts see it, and why some runs cannot be a baseline."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from typing import Self, TypeVar

import numpy as np

from app.domain.contract.values import OUTLINE, shown
from app.domain.performance.health import BYTES_PER_GIB, LOSS_NAMES
from app.domain.run import FloatArray, Metadata, RunSummary, Stated
from app.domain.verdict.history import FEWEST_RUNS, SHORTEST_SEGMENT, find_changes
from app.domain.verdict.step_time import (
    MOST_BASELINE_RUNS,
    RELEVANT_SHIFT,
    Prior,
    RunEstimate,
    centre,
    decide_step_time,
    select_baseline,
    unusable_as_baseline,
)

UNREAD = "unread"
"""Outcome of a run whose files contain no figure."""
_ENDINGS = {
    UNREAD: "no iteration could be read from its files",
    "failed": "the job failed",
    "out_of_memory": "the job ran out of memory",
    "not_finite": "the loss or the gradient was not finite",
    "truncated": "its log ends before the training does",
    "stopped": "it was stopped by a time limit or a signal",
    "running": "it is still running",
}
UNFIT = frozenset(_ENDINGS)
"""Outcomes of runs that are never compared."""
FAILED = frozenset({"failed", "out_of_memory", "not_finite", UNREAD})
"""Outcomes of runs whose speed does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts that decide whether a run may be a baseline, without its contract.

    `run`: its name, unique among those compared; `outcome`: as in its health; `quarantined`: a user's reason to exclude
    it, else empty; `definition_version`: that of its figures; `shape`: from `shape_of`; `job`: CI job or test.
    """

    run: str
    purpose: str
    branch: str
    commit: str
    stack_key: str
    config_key: str
    semantic_class: str
    outcome: str
    estimate: RunEstimate
    definition_version: int
    shape: tuple[str, ...] = ()
    quarantined: str = ""
    fair_for_timing: bool = True
    job: str = ""

    @property
    def failed_because(self) -> str:
        """Return why its speed does not count; empty when the job did not fail."""
        return _ENDINGS[self.outcome] if self.outcome in FAILED else ""

    @property
    def never_a_baseline_because(self) -> str:
        """Return why the run cannot be a baseline for any run; empty when it can."""
        return self.unfit_because or unusable_as_baseline(self.estimate)

    @property
    def unfit_because(self) -> str:
        """Return why it cannot be compared with any run, not even for a direction; empty when it can."""
        return f"quarantined: {self.quarantined}" if self.quarantined else _ENDINGS.get(self.outcome, "")

    def is_of_job(self, other: "RunFacts") -> bool:
        """Return False if both state their job and the jobs differ: they are two histories, regardless of their
        flags."""
        return not (self.job and other.job) or self.job == other.job

    def has_shape_of(self, other: "RunFacts") -> bool:
        """Return False if the model shapes are known to differ, regardless of their names."""
        return not any(a and b and a != b for a, b in zip(self.shape, other.shape, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(RunFacts):
    """A processed run with everything that a comparison needs."""

    project: str
    contract: Mapping[str, Stated]

    @classmethod
    def of(cls, facts: RunFacts, project: str, contract: Mapping[str, Stated]) -> Self:
        values = {field.name: getattr(facts, field.name) for field in fields(RunFacts)}
        return cls(**values, project=project, contract=contract)

    @classmethod
    def from_summary(cls, run: str, metadata: Metadata, summary: RunSummary, *, loss: float | None = None) -> Self:
        """Build from a summary. `loss`: typical final loss over shared iterations (`shared_losses`)."""
        memory = summary.metrics.get("peak_memory_gib")
        return cls(
            run=run,
            project=metadata.project,
            purpose=metadata.purpose,
            branch=metadata.branch,
            commit=metadata.commit,
            contract=summary.contract,
            stack_key=summary.stack_key,
            config_key=summary.config_key,
            semantic_class=summary.semantic_class,
            outcome=str(summary.health.get("outcome") or ""),
            estimate=RunEstimate.from_steady_state(
                run,
                summary.steady_state,
                peak_memory_bytes=None if memory is None else memory.value * BYTES_PER_GIB,
                loss=loss,
                not_finite_iterations=not_finite_iterations(summary.health),
                skipped_share=skipped_share(summary.health),
            ),
            definition_version=summary.definition_version,
            shape=shape_of(summary.contract),
            fair_for_timing=summary.fair_for_timing,
            job=metadata.job,
        )


def shape_of(contract: Mapping[str, Stated]) -> tuple[str, ...]:
    """Return the model shape (layers, width and so on) as texts, empty where unknown; () when nothing is known.

    It belongs to no key, because most logs name the model; it distinguishes models that are not named.
    """
    shape = tuple(shown(contract[name].value) if name in contract else "" for name in OUTLINE)
    return shape if any(shape) else ()


def not_finite_iterations(health: Mapping[str, object]) -> int:
    counted = health.get("nan_iterations")
    iterations = counted if isinstance(counted, int) else 0
    return max(iterations, 1) if health.get("loss_finite") is False else iterations


def skipped_share(health: Mapping[str, object]) -> float:
    """Return the share of iterations, 0 to 1, whose optimizer step was skipped; 0 when the log does not count them."""
    skipped, iterations = health.get("skipped_iterations"), health.get("iterations")
    if not isinstance(skipped, int) or not isinstance(iterations, int) or iterations < 1:
        return 0.0
    return min(skipped / iterations, 1.0)


# --- The loss of compared runs over shared iterations, because earlier losses are always higher.

LAST_ITERATIONS = 10
"""A single loss depends on its batch; the median of ten stays within 0.5 % between launches of one job."""
PEAK_MEMORY = "peak_memory_bytes"
"""The series of peak memory, of trainers and documents that state one."""
_NOTHING = np.empty(0)


@dataclass(frozen=True, slots=True)
class Losses:
    """Finite losses by iteration, in ascending order without repeats."""

    iterations: FloatArray
    values: FloatArray

    def at(self, iterations: FloatArray) -> FloatArray:
        return self.values[np.searchsorted(self.iterations, iterations)]


def shared_losses(runs: Sequence[Mapping[str, FloatArray]]) -> list[float | None]:
    """Return `typical_losses` of runs given by their columns."""
    return typical_losses([losses_of(columns) for columns in runs])


def typical_losses(runs: Sequence[Losses]) -> list[float | None]:
    """Return each run's median loss over the last shared iterations, None for a run without losses.

    Runs without losses do not restrict the shared iterations. Without shared iterations all are None.
    """
    shared = last_shared(runs)
    if not len(shared):
        return [None] * len(runs)
    typical = iter(np.median([run.at(shared) for run in runs if len(run.iterations)], axis=1).tolist())
    return [next(typical) if len(run.iterations) else None for run in runs]


def last_shared(runs: Sequence[Losses]) -> FloatArray:
    """Return the last iterations at which all runs with losses have one: those at which their losses are compared."""
    iterations = [run.iterations for run in runs if len(run.iterations)]
    return reduce(_in_both, iterations)[-LAST_ITERATIONS:] if iterations else _NOTHING


def losses_of(columns: Mapping[str, FloatArray]) -> Losses:
    """Extract losses from columns; of repeated iterations the later one counts."""
    loss = next((columns[name] for name in LOSS_NAMES if name in columns), None)
    if loss is None or "iteration" not in columns:
        return Losses(_NOTHING, _NOTHING)
    finite = np.isfinite(loss)
    counts = columns["iteration"][finite]
    if (counts[1:] > counts[:-1]).all():  # false only for restarted runs
        return Losses(counts, loss[finite])
    iterations, last = np.unique(counts[::-1], return_index=True)
    return Losses(iterations, loss[finite][::-1][last])


def _in_both(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.intersect1d(a, b, assume_unique=True)


# --- The current segment of a history, also while the history is too short for change points.
#
# `find_changes` needs twelve runs and may detect a change late. Until then three consecutive runs that differ from the
# level before them begin a new segment. A baseline never mixes runs of two segments.

_LEAST_SHARE = 0.5
"""Every run of a change must differ from the old level by this share of their mean shift."""

F = TypeVar("F", bound=RunFacts)


def launches_of_commits(runs: Sequence[F]) -> list[list[F]]:
    """Group the reruns of a commit, in the order of their first runs. A run that states no commit is alone.

    A commit that ran three times counts once, so reruns alone begin no segment.
    """
    groups: dict[tuple[str, str], list[F]] = {}
    for run in runs:
        groups.setdefault((run.commit, "" if run.commit else run.run), []).append(run)
    return list(groups.values())


def pooled(launches: Sequence[F]) -> F:
    """Return the newest of the launches of one commit with the mean of their step times."""
    newest = launches[-1]
    if len(launches) == 1:
        return newest
    mean = statistics.fmean(run.estimate.log_step_time for run in launches)
    return replace(newest, estimate=replace(newest.estimate, log_step_time=mean))


def current_level(runs: Sequence[F], prior: Prior) -> list[F]:
    """Return the newest 20 runs of the current segment. `runs`: at least one, oldest first."""
    return _launches(_whole_level(launches_of_commits(runs), prior))[-MOST_BASELINE_RUNS:]


def confirmed_level(runs: Sequence[F], prior: Prior) -> list[F]:
    """Return the current segment without one or two commits at its end that differ as an unconfirmed change.

    Three such commits form their own segment. Before that they would hide the change from the runs that have to confirm
    it, and two far outliers may be taken for a segment together with the run before them.
    """
    return _launches(_confirmed_level(launches_of_commits(runs), prior))


def _launches(commits: Sequence[Sequence[F]]) -> list[F]:
    return [run for launches in commits for run in launches]


def _whole_level(commits: Sequence[list[F]], prior: Prior) -> Sequence[list[F]]:
    starts = level_starts([pooled(launches) for launches in commits], prior)
    return commits[starts[-1] :] if starts else commits


def level_starts(runs: Sequence[RunFacts], prior: Prior) -> list[int]:
    """Return the start indexes of the segments, ascending, without 0. `runs`: one of each commit, oldest first."""
    starts = list(_change_points(tuple(run.estimate.log_step_time for run in runs), prior))
    start = starts[-1] if starts else 0
    for position in _not_seen_yet(start, len(runs)):
        # A segment has at least three runs; only the first segment may be shorter.
        if position - start < SHORTEST_SEGMENT and start:
            continue
        if _is_a_change(runs[start:position], runs[position : position + SHORTEST_SEGMENT], prior):
            start = position
            starts.append(position)
    return starts


@lru_cache(maxsize=64)
def _change_points(log_step_times: tuple[float, ...], prior: Prior) -> tuple[int, ...]:
    """Return where new levels start. Cached: judging, ranking and scaling request the same history."""
    return tuple(point.run for point in find_changes(log_step_times, prior).change_points)


def _confirmed_level(commits: Sequence[list[F]], prior: Prior) -> Sequence[list[F]]:
    level = _whole_level(commits, prior)
    runs, of_level = [pooled(launches) for launches in commits], [pooled(launches) for launches in level]
    before = [run.estimate.log_step_time for run in of_level[:-1]]
    if not before or abs(of_level[-1].estimate.log_step_time - statistics.median(before)) < RELEVANT_SHIFT:
        return level
    just_made = len(level) == SHORTEST_SEGMENT < len(commits)
    earlier = _before(commits, SHORTEST_SEGMENT, prior)
    if just_made and _is_a_change([pooled(launches) for launches in earlier], of_level, prior):
        return level
    for last in range(SHORTEST_SEGMENT - 1, 0, -1):
        rest = _before(commits, last, prior) if just_made else level[:-last]
        if _is_a_change([pooled(launches) for launches in rest], runs[-last:], prior):
            return rest
    return level


def _before(commits: Sequence[list[F]], last: int, prior: Prior) -> Sequence[list[F]]:
    return _whole_level(commits[:-last], prior) if len(commits) > last else []


def _not_seen_yet(start: int, count: int) -> list[int]:
    """Return where a segment may begin unseen by change points: near the end, and after the first one or two runs."""
    first = [1, 2] if start == 0 else []
    tail = range(max(start + 1, count - FEWEST_RUNS + 1), count)
    return [position for position in sorted({*first, *tail}) if position + SHORTEST_SEGMENT <= count]


def _is_a_change(before: Sequence[RunFacts], after: Sequence[RunFacts], prior: Prior) -> bool:
    """Return whether `after`, pooled, differs clearly from `before` and each of its runs is part of the change."""
    values = [run.estimate.log_step_time for run in after]
    old = [run.estimate.log_step_time for run in before[-MOST_BASELINE_RUNS:]]
    if not old or min(values) <= statistics.median(old) <= max(values):
        return False
    against = select_baseline([run.estimate for run in before], prior.variance)
    shift = statistics.fmean(values) - centre(against.log_step_times)
    nearest = min(abs(value - centre(against.log_step_times)) for value in values)
    if nearest < max(RELEVANT_SHIFT, _LEAST_SHARE * abs(shift)):
        return False
    return decide_step_time([run.estimate for run in after], against, prior) in ("regression", "improvement")
