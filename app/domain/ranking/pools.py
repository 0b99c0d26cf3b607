"""The runs of one config key become one result. The sample is the run: more iterations do not narrow the interval."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

import numpy as np

from app.domain.performance.health import BYTES_PER_GIB
from app.domain.ranking.runs import RankedRun, reaches
from app.domain.run import EVIDENCE_LEVELS, FloatArray
from app.domain.verdict.record import RunFacts, level_starts
from app.domain.verdict.special import t_quantile
from app.domain.verdict.step_time import (
    DroppedRun,
    Prior,
    RunEstimate,
    centre,
    degrees_of_freedom,
    moderated_variance,
    select_baseline,
)

INTERVAL_P = 0.975
FEWEST_VALIDATED = 2
"""Fewest runs of a validated result: one launch does not show how much another would differ."""


def interval_half_width(runs: int, variance: float, noise: float, prior: Prior) -> float:
    """Return the half width of the 95 % interval of a mean of ln(step time) over launches."""
    return t_quantile(INTERVAL_P, degrees_of_freedom(prior, runs)) * math.sqrt(max(variance, noise) / runs)


@dataclass(frozen=True)
class Pool:
    """Runs that represent one configuration, oldest first, at least one. `dropped`: eligible runs that do not count.

    `directional`: all runs are short, so the result shows only a direction.
    """

    runs: tuple[RankedRun, ...]
    dropped: tuple[DroppedRun, ...]
    directional: bool
    prior: Prior

    @property
    def config_key(self) -> str:
        return self.runs[-1].facts.config_key

    @property
    def dispatcher(self) -> str:
        return self.runs[-1].dispatcher or ""

    @cached_property
    def estimates(self) -> list[RunEstimate]:
        return [run.facts.estimate for run in self.runs]

    @cached_property
    def values(self) -> FloatArray:
        return np.array([estimate.log_step_time for estimate in self.estimates])

    @cached_property
    def log_step_time(self) -> float:
        return centre(self.values)

    @cached_property
    def noise(self) -> float:
        """Return the mean squared standard error within runs."""
        return float(np.mean([estimate.se**2 for estimate in self.estimates]))

    @cached_property
    def variance(self) -> float:
        """Return the variance of ln(step time) between launches, shrunk towards the family's."""
        return moderated_variance(self.prior, self.values)

    @cached_property
    def half_width(self) -> float:
        """Return the half width of the 95 % interval of the configuration's step time over launches, in ln."""
        return interval_half_width(len(self.runs), self.variance, self.noise, self.prior)

    @cached_property
    def peak_memory_gib(self) -> float | None:
        stated = [estimate.peak_memory_bytes for estimate in self.estimates]
        values = [value for value in stated if value is not None and math.isfinite(value) and value > 0]
        return float(np.median(values)) / BYTES_PER_GIB if values else None

    @cached_property
    def level(self) -> str:
        """Return the strongest evidence level that at least half of its runs reach; at most `screen` for one run."""
        needed = (len(self.runs) + 1) // 2
        level = next(
            (level for level in reversed(EVIDENCE_LEVELS) if self.runs_at(level) >= needed), EVIDENCE_LEVELS[0]
        )
        return "screen" if reaches(level, "screen") and len(self.runs) < FEWEST_VALIDATED else level

    def runs_at(self, level: str) -> int:
        return sum(reaches(run.evidence_level, level) for run in self.runs)


def pool(runs: Sequence[RankedRun], prior: Prior) -> Pool:
    """Pool the eligible runs of one configuration in one segment, oldest first, at least one.

    Short runs count only when there are no others. The newest 20 runs represent it, without outliers, by the rule for
    the baseline of a verdict.
    """
    full = [run for run in runs if not run.directional]
    offered = full or list(runs)
    # A verdict's baseline excludes short runs. Here they may represent the configuration, and the result says so.
    estimates = [replace(run.facts.estimate, short=False) for run in offered]
    chosen = {estimate.run for estimate in select_baseline(estimates, prior.variance).used}
    used = tuple(run for run in offered if run.name in chosen) or tuple(offered[-1:])
    taken = {run.name for run in used}
    dropped = tuple(DroppedRun(run.name, _why(run, bool(full))) for run in runs if run.name not in taken)
    return Pool(used, dropped, not full, prior)


class Pools:
    """Caches results by their runs, because most evidence floors leave the same runs."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._by_runs: dict[tuple[str, ...], Pool] = {}

    def pool(self, runs: Sequence[RankedRun]) -> Pool:
        names = tuple(run.name for run in runs)
        if names not in self._by_runs:
            self._by_runs[names] = pool(runs, self._prior)
        return self._by_runs[names]


def log_work(pool: Pool, figures: Sequence[float | None]) -> float | None:
    """Return the mean of ln(figure x step time) over runs: the work of a step in units of the figure."""
    pairs = zip(figures, pool.estimates, strict=True)
    logs = [math.log(value) + estimate.log_step_time for value, estimate in pairs if value is not None and value > 0]
    return sum(logs) / len(logs) if logs else None


def _why(run: RankedRun, full_runs_exist: bool) -> str:
    if run.directional and full_runs_exist:
        return "short, while this configuration has longer runs"
    return "an outlier among the runs of this configuration, or older than the newest 20"


# --- Segments of a stack's history: dispatchers are compared only between two changes of the stack's speed.
#
# A change in any configuration counts as a change of the code that all of them run. It lies between the last run of the
# old level and the first run of the new one; runs of other configurations in between belong to neither.

LOOK_BACK = 400
"""The newest runs of a configuration in which levels are detected, as for a verdict."""

HistoryPosition = tuple[float, int, str]


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A change of speed: after the run at `last` of the old level, at the latest at `first` of the new level.

    `at`: history position of `first`.
    """

    last: HistoryPosition
    first: HistoryPosition
    at: datetime

    def passed(self, position: HistoryPosition) -> int:
        """Return 0 before the change, 2 after it, 1 within it.

        Runs of one commit are on one side in any order of arrival.
        """
        by_commit = self.last[0] < self.first[0]
        before = position[0] <= self.last[0] if by_commit else position <= self.last
        after = position[0] >= self.first[0] if by_commit else position >= self.first
        return 0 if before else 2 if after else 1


class Segments:
    """Numbers the segments of a stack from its eligible `runs` of one class, oldest first."""

    def __init__(self, runs: Sequence[RankedRun], prior: Prior) -> None:
        self.changes = merged(_changes(runs, prior))
        recent = (run for group in _by_configuration(runs).values() for run in group[-LOOK_BACK:])
        self._numbers = {run.name: number_of(run.history_position, self.changes) for run in recent}
        self.newest = max(self._numbers.values(), default=0)

    def number(self, run: RankedRun) -> int | None:
        """Return the segment of a run, None for a run before LOOK_BACK.

        Numbers are even and ascend with time; odd ones lie within a change.
        """
        return self._numbers.get(run.name)

    def grouped(self, runs: Iterable[RankedRun]) -> dict[int, list[RankedRun]]:
        """Return the runs by segment, without runs that are older than the segments reach."""
        groups: dict[int, list[RankedRun]] = {}
        for run in runs:
            if (number := self.number(run)) is not None:
                groups.setdefault(number, []).append(run)
        return groups

    def changes_between(self, first: int, second: int) -> int:
        """Return how many changes lie, or may lie, between runs of two segments."""
        return len(between(self.changes, first, second))

    def changed_after(self, number: int) -> SpeedChange | None:
        """Return the first change after a segment."""
        position = (number + 1) // 2
        return self.changes[position] if position < len(self.changes) else None


def number_of(position: HistoryPosition, changes: Iterable[SpeedChange]) -> int:
    """Return the segment of a position: even, ascending with time; odd within a change."""
    return sum(change.passed(position) for change in changes)


def between(changes: Sequence[SpeedChange], a: int, b: int) -> Sequence[SpeedChange]:
    """Return the changes that lie, or may lie, between runs of two segments."""
    first, last = sorted((a, b))
    return changes[first // 2 : (last + 1) // 2]


def _by_configuration(runs: Sequence[RankedRun]) -> dict[str, list[RankedRun]]:
    groups: dict[str, list[RankedRun]] = {}
    for run in runs:
        groups.setdefault(run.facts.config_key, []).append(run)
    return groups


def _changes(runs: Sequence[RankedRun], prior: Prior) -> list[SpeedChange]:
    """Return the changes of each configuration. Short runs form no level, unless they are declared to count in full."""
    changes = []
    for group in _by_configuration([run for run in runs if not run.directional]).values():
        recent = group[-LOOK_BACK:]
        starts = level_starts([_in_full(run.facts) for run in recent], prior)
        pairs = ((recent[at - 1], recent[at]) for at in starts)
        changes += [SpeedChange(old.history_position, new.history_position, new.ordered_at) for old, new in pairs]
    return changes


def _in_full(facts: RunFacts) -> RunFacts:
    """Return facts that level detection accepts; a baseline would leave out short runs."""
    return replace(facts, estimate=replace(facts.estimate, short=False)) if facts.estimate.short else facts


def merged(changes: Iterable[SpeedChange]) -> tuple[SpeedChange, ...]:
    """Return changes in order of time; overlapping changes become one, in the range that all of them allow."""
    result: list[SpeedChange] = []
    for change in sorted(changes, key=lambda change: (change.first, change.last)):
        if result and change.last < result[-1].first:
            result[-1] = replace(result[-1], last=max(result[-1].last, change.last))
        else:
            result.append(change)
    return tuple(result)
