"""The same code for every size of a series: an efficiency across a change of the code says nothing of scaling.

The sizes of a series are of different stacks, which have no history in common. What is known of the code they ran is
when any of these stacks changed its speed: the changes of all of them together cut the time into stretches. Runs of one
stretch are held against each other, and within a change runs of one commit are. Of the stretches that of most sizes is
taken, of several the newest; a size that was not measured on it has its figures, and no efficiency.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.domain.ranking.duels import gain
from app.domain.ranking.scaling_pool import ScalingPool, ScalingRuns
from app.domain.ranking.standings import Interval
from app.domain.ranking.stretches import Change, between, merged, number_of

_DAY = 86_400.0

Code = tuple[int, float]
"""A stretch; within a change also the place of the commit, else 0. Ascending with time."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A configuration of one size: `tokens` of a step, over `gpus`."""

    size: int
    tokens: int
    gpus: int
    cp: int | None
    runs: ScalingRuns

    @property
    def log_tokens(self) -> float:
        """Of a step and GPU."""
        return math.log(self.tokens / self.gpus)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a size came to. `compared`: it is held against others of the same code, `smallest` of them; None is itself.

    `changed_at`: see `ScalingPoint`.
    """

    size: Sized
    pool: ScalingPool
    compared: bool
    smallest: "Measured | None" = None
    changed_at: tuple[datetime, ...] = ()

    @property
    def step_time_ms(self) -> Interval:
        middle, half = self.pool.log_step_time, self.pool.half_width
        return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))

    @property
    def directional(self) -> bool:
        return self.pool.directional or (self.smallest is not None and self.smallest.pool.directional)

    @property
    def days_apart(self) -> float:
        if self.smallest is None:
            return 0.0
        one, other = self.pool, self.smallest.pool
        gap = max((one.first_at - other.last_at).total_seconds(), (other.first_at - one.last_at).total_seconds())
        return max(0.0, gap) / _DAY

    @property
    def tokens_pct(self) -> Interval | None:
        return self._throughput(lambda one: one.size.log_tokens)

    @property
    def flops_pct(self) -> Interval | None:
        """None, too, where a log shows no FLOPs."""
        return self._throughput(lambda one: one.pool.of.log_flops)

    def _throughput(self, log_work: Callable[["Measured"], float | None]) -> Interval | None:
        """Percent of the smallest size's; that one is 100 by definition, without an interval. `log_work` of a step."""
        work, least = log_work(self), log_work(self.smallest or self)
        if not self.compared or work is None or least is None:
            return None
        if self.smallest is None:
            return Interval(100.0, 100.0, 100.0)
        factor = math.exp(work - least)
        value, low, high = (factor * (100 + pct) for pct in gain(self.pool, self.smallest.pool))
        return Interval(value, low, high)


Made = dict[tuple[str, tuple[int, ...]], ScalingPool]
"""Results by configuration and runs: one is part of series of several kinds, and made once."""


def measured(sizes: Sequence[Sized], pools: Made) -> tuple[Measured, ...]:
    """One for each size, smallest first; `sizes`: configurations of one series, several of a size where there are."""
    changes = merged(one.change for one in {change for size in sizes for change in size.runs.changes})
    found: dict[Code, dict[int, list[_Chosen]]] = {}
    for size in sizes:
        for code, chosen in _by_code(size.runs, changes).items():
            found.setdefault(code, {}).setdefault(size.size, []).append(_Chosen(size, tuple(chosen)))
    here = max(found, key=lambda code: (len(found[code]), _full(found[code]), code))
    several = len(found[here]) > 1
    made: list[Measured] = []
    for number in sorted({size.size for size in sizes}):
        # Where it was not measured: on the nearest code to it, of two as near the newer.
        codes = [code for code, of_sizes in found.items() if number in of_sizes]
        code = min(codes, key=lambda code: (len(_apart(changes, code, here)), code != here, -code[0], -code[1]))
        best = min((_measured(one, pools) for one in found[code][number]), key=lambda one: one.order)
        compared = several and code == here
        smallest = next((one for one in made if one.compared), None) if compared else None
        changed_at = tuple(change.at for change in _apart(changes, code, here))
        made.append(Measured(best.size, best.pool, compared, smallest, changed_at))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Runs of one configuration on one stretch, by their places in it."""

    size: Sized
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    size: Sized
    pool: ScalingPool

    @property
    def order(self) -> tuple[bool, float, str]:
        """Of several configurations of one size, a full one, and then the fastest, stands for it."""
        return self.pool.directional, self.pool.log_step_time, self.pool.of.config_key


def _measured(one: _Chosen, pools: Made) -> _Candidate:
    key = (one.size.runs.config_key, one.runs)
    if key not in pools:
        pools[key] = ScalingPool(one.size.runs, one.runs)
    return _Candidate(one.size, pools[key])


def _by_code(runs: ScalingRuns, changes: Sequence[Change]) -> Mapping[Code, Sequence[int]]:
    if not changes:
        return {(0, 0.0): range(len(runs.runs))}
    found: dict[Code, list[int]] = {}
    for index in range(len(runs.runs)):
        number = number_of(runs.place(index), changes)
        found.setdefault((number, runs.at[index] if number % 2 else 0.0), []).append(index)
    return found


def _full(sizes: Mapping[int, Sequence[_Chosen]]) -> int:
    """How many sizes have full runs."""
    return sum(any(not one.size.runs.directional for one in own) for own in sizes.values())


def _apart(changes: Sequence[Change], one: Code, other: Code) -> Sequence[Change]:
    return () if one == other else between(changes, one[0], other[0])
