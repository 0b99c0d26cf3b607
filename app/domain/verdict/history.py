"""The history of one config key: segments, change points, and whether a regression is over."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Literal

import numpy as np

from app.domain.performance.steady_state import mad, median
from app.domain.run import FloatArray
from app.domain.verdict.special import t_two_sided_p
from app.domain.verdict.step_time import CLIPPING_LOSS, DEFAULT_PRIOR, Prior

# --- The optimal segmentation of a series: PELT with squared error (Killick, Fearnhead and Eckley 2012).
# `ruptures` is not used: it needs SciPy for these thirty lines.

SHORTEST_SEGMENT = 3
"""One or two odd runs are handled by verdicts (or come from a bad node); three form a segment."""
_ENDS_AT_ONCE = 48
"""Segments up to this length use one table of errors.

A larger value saves calls, a smaller one prunes sooner; at least the shortest segment.
"""


def best_segments(values: FloatArray, penalty: float, shortest: int = SHORTEST_SEGMENT) -> list[int]:
    """Return where segments start, ascending, without 0.

    Minimises exactly the squared error about the segment means plus `penalty` per boundary, over all segmentations with
    at least `shortest` values per segment. A series too short for two segments has no boundaries.
    """
    n = len(values)
    if n < 2 * shortest:
        return []
    prefix = _prefix_sums(values)
    cost = np.full(n + 1, np.inf)  # of the optimal segmentation of the first t values
    cost[0] = -penalty
    last = np.zeros(n + 1, np.intp)  # where that division's last segment starts
    starts = np.array([0])
    for first in range(shortest, n + 1, _ENDS_AT_ONCE):
        ends = np.arange(first, min(first + _ENDS_AT_ONCE, n + 1))
        starts = np.append(starts, np.arange(max(shortest, first - shortest), ends[-1] + 1 - shortest))
        errors = _errors(prefix, starts, ends, shortest)
        for t, error in zip(ends.tolist(), errors, strict=True):
            reached = cost[starts] + error
            best = reached.argmin()
            cost[t], last[t] = reached[best] + penalty, starts[best]
        if len(ends) == _ENDS_AT_ONCE:
            # A start that is worse than a new segment at t stays worse, once that new segment is long enough.
            t = ends[-shortest]
            starts = starts[(starts > t - shortest) | (cost[starts] + errors[-shortest] <= cost[t])]
    return _walk_back(last, n)


def _errors(
    prefix: tuple[FloatArray, FloatArray],
    starts: np.typing.NDArray[np.intp],
    ends: np.typing.NDArray[np.intp],
    shortest: int,
) -> FloatArray:
    """Return the squared error of a segment from each start (column) to each end (row); infinite if too short."""
    sums, squares = prefix
    lengths = ends[:, None] - starts
    too_short = lengths < shortest
    lengths[too_short] = 1
    errors = squares[ends][:, None] - squares[starts] - (sums[ends][:, None] - sums[starts]) ** 2 / lengths
    errors[too_short] = np.inf
    return errors


def _prefix_sums(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return cumulative sums of values and squares about the median: step times far from zero would cancel badly."""
    centred = values - np.median(values)
    return np.append(0.0, np.cumsum(centred)), np.append(0.0, np.cumsum(centred**2))


def _walk_back(last: np.typing.NDArray[np.intp], n: int) -> list[int]:
    starts: list[int] = []
    at = int(last[n])
    while at > 0:
        starts.append(at)
        at = int(last[at])
    return starts[::-1]


FEWEST_RUNS = 12
"""Shorter histories are not segmented; only verdicts apply."""
LEAST_SHIFT = 0.01
MOST_P = 0.001
_MEDIAN_OF = 7
_CLIP = 2.5
_LEAST_SPREAD = 1e-4
_PENALTY = 6.0
_MOST_DF = 30.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment: runs from `start` up to but excluding `stop`, with the mean of their winsorised ln(step time)."""

    start: int
    stop: int
    level: float


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change point.

    `run`: index of the first run of the new segment. `shift`: in ln; `delta_pct`: of step time, positive is slower.
    """

    run: int
    shift: float
    delta_pct: float
    p_value: float


@dataclass(frozen=True, slots=True)
class History:
    """A segmented history. `values`: ln(step time) with single odd runs clipped, as used for the segments.

    `observed`: as they were. `spread`: sd of launches (ln), pooled over the segments and drawn towards the prior.
    """

    values: FloatArray
    observed: FloatArray
    spread: float
    segments: tuple[Segment, ...]
    change_points: tuple[ChangePoint, ...]

    @property
    def current(self) -> Segment:
        """Return the segment whose runs are the baseline."""
        return self.segments[-1]


def find_changes(log_step_times: Sequence[float] | FloatArray, prior: Prior = DEFAULT_PRIOR) -> History:
    """Segment a history.

    `log_step_times`: estimates of the steady runs of one config key, in commit order; at least one and all finite, or
    ValueError. `prior`: the run-to-run variation of the family. A change is visible once three runs follow it.
    """
    y = np.asarray(log_step_times, dtype=np.float64)
    if y.ndim != 1 or not len(y) or not np.isfinite(y).all():
        raise ValueError("a history needs at least one run, and a finite ln(step time) of each")
    z = winsorise(y)
    starts = _merge(z, _candidates(z), prior) if len(z) >= FEWEST_RUNS else []
    segments = _segments(z, starts)
    return History(z, y, math.sqrt(_pooled(z, segments, prior)[0]), segments, _change_points(z, segments, prior))


def winsorise(y: FloatArray) -> FloatArray:
    """Clip every value to within 2.5 robust spreads of the running median of seven, reflecting the ends.

    Repeating the last value instead would make it its own median, and a single slow run at the end a change. With fewer
    than seven values, all share one median, because reflection would put the middle of three on every side.
    """
    if len(y) < _MEDIAN_OF:
        reach = _CLIP * max(mad(y), _LEAST_SPREAD)
        return np.clip(y, median(y) - reach, median(y) + reach)
    padded = np.pad(y, _MEDIAN_OF // 2, mode="reflect")
    running = np.median(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN_OF), axis=1)
    reach = _CLIP * max(mad(y - running), _LEAST_SPREAD)
    return np.clip(y, running - reach, running + reach)


def _candidates(z: FloatArray) -> list[int]:
    # Differences of neighbours contain the noise and hardly any shifts.
    spread = max(mad(np.diff(z)) / math.sqrt(2), _LEAST_SPREAD)
    return best_segments(z, _PENALTY * spread**2 * math.log(len(z)))


def _merge(z: FloatArray, starts: list[int], prior: Prior) -> list[int]:
    """Remove boundaries that are uncertain or too small, the smallest shift first, until none is left."""
    starts = _without_small(z, starts)
    while starts:
        points = _change_points(z, _segments(z, starts), prior)
        weak = [point for point in points if point.p_value > MOST_P]
        if not weak:
            return starts
        smallest = min(weak, key=lambda point: abs(point.shift))
        starts = _without_small(z, [start for start in starts if start != smallest.run])
    return starts


def _without_small(z: FloatArray, starts: list[int]) -> list[int]:
    """Remove shifts under 1 %, the smallest first: they are weak regardless of p, and noisy series have hundreds."""
    sums = np.append(0.0, np.cumsum(z - median(z)))
    bounds = np.array([0, *starts, len(z)])
    while len(bounds) > 2:
        shifts = np.abs(np.diff(np.diff(sums[bounds]) / np.diff(bounds)))
        smallest = int(np.argmin(shifts))
        if shifts[smallest] >= LEAST_SHIFT:
            break
        bounds = np.delete(bounds, smallest + 1)
    return [int(start) for start in bounds[1:-1]]


def _segments(z: FloatArray, starts: list[int]) -> tuple[Segment, ...]:
    bounds = [0, *starts, len(z)]
    return tuple(Segment(start, stop, float(z[start:stop].mean())) for start, stop in pairwise(bounds))


def _change_points(z: FloatArray, segments: tuple[Segment, ...], prior: Prior) -> tuple[ChangePoint, ...]:
    """Return change points by a two-sample t-test, with a variance pooled over all segments and the prior."""
    variance, df = _pooled(z, segments, prior)
    return tuple(_change_point(a, b, variance, min(df, _MOST_DF)) for a, b in pairwise(segments))


def _pooled(z: FloatArray, segments: tuple[Segment, ...], prior: Prior) -> tuple[float, float]:
    """Return the variance of launches over all levels, drawn towards the prior, and its degrees of freedom."""
    rss = sum(float(((z[s.start : s.stop] - s.level) ** 2).sum()) for s in segments)
    d0 = prior.degrees_of_freedom
    df = d0 + len(z) - len(segments)
    return (d0 * prior.variance + CLIPPING_LOSS * rss) / df, df


def _change_point(before: Segment, after: Segment, variance: float, df: float) -> ChangePoint:
    shift = after.level - before.level
    error = math.sqrt(variance * (1 / (before.stop - before.start) + 1 / (after.stop - after.start)))
    return ChangePoint(after.start, shift, 100 * math.expm1(shift), t_two_sided_p(shift / error, df))


# --- Whether a regression is over or came back. The result is a proposal; users decide.

SAME_LEVEL = 0.01
"""Segments within 1 % have the same level."""

FollowUpState = Literal["open", "fixed", "reopened"]


@dataclass(frozen=True, slots=True)
class OpenedRegression:
    """A regression when it was opened. `run`: index of the slow run; levels are ln(step time), slow > usual."""

    run: int
    usual_level: float
    slow_level: float


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The state. `run`: index of the first run of the segment that determines it; the slow run itself while open."""

    state: FollowUpState
    run: int


def follow_up(regression: OpenedRegression, history: History, stated_fixed_at: int | None = None) -> FollowUp:
    """Return the state after the last run of `history`.

    `stated_fixed_at`: the run from which a user considers it fixed. `fixed`: two consecutive runs after the slow
    one are back, or a segment of at least three runs returned to within 1 % of the usual level, or below, with less
    than half of the change left. So an alarm that no second run confirms ends here too. `reopened`: a later segment
    returned to within 1 % of the slow level, or above; a level in between is a separate regression. Single runs change
    nothing.
    """
    now = FollowUp("open", regression.run)
    first = regression.run + (not _is_back(regression, history, regression.run))
    if stated_fixed_at is not None:
        now, first = FollowUp("fixed", stated_fixed_at), max(first, stated_fixed_at)
    levels = _levels_from(first, history)
    back = min(regression.usual_level + SAME_LEVEL, (regression.usual_level + regression.slow_level) / 2)
    pair = _first_pair(regression, history, first) if now.state == "open" else None
    if pair is not None and all(start > pair or level > back for start, level in levels):
        now = FollowUp("fixed", pair)
        levels = _levels_from(pair + 2, history)
    for start, level in levels:
        if now.state != "fixed" and level <= back:
            now = FollowUp("fixed", start)
        elif now.state == "fixed" and level > back:
            came_back = level >= regression.slow_level - SAME_LEVEL
            now = FollowUp("reopened", start) if came_back else now
    return now


_CLEAR = 2.6
"""Two runs that are back lie below the slow level by so many standard errors of their mean: 99.5 %."""


def _first_pair(regression: OpenedRegression, history: History, first: int) -> int | None:
    """Return the first of two consecutive runs from `first` on that are back within the old level."""
    limit = regression.slow_level - _CLEAR * history.spread * math.sqrt(0.5)
    values = history.observed
    for run in range(max(first, 0), len(values) - 1):
        both = values[run : run + 2]
        if _is_back(regression, history, run) and _is_back(regression, history, run + 1) and both.mean() <= limit:
            return run
    return None


def _is_back(regression: OpenedRegression, history: History, run: int) -> bool:
    """Return whether a run is within the old level: 1 % above it, or two of its spreads."""
    if not 0 <= run < len(history.observed):
        return False
    value = float(history.observed[run])
    reach = max(SAME_LEVEL, 2 * history.spread)
    return value <= regression.usual_level + reach and value < (regression.usual_level + regression.slow_level) / 2


def ends_back(regression: OpenedRegression, history: History) -> bool:
    """Return whether the newest run is later than the slow one and back within the old level."""
    last = len(history.observed) - 1
    return last > regression.run and _is_back(regression, history, last)


def _levels_from(run: int, history: History) -> list[tuple[int, float]]:
    """Return first run and level of each segment, without the part before `run`, if three runs remain."""
    cut = [(max(segment.start, run), segment.stop) for segment in history.segments]
    return [(a, float(np.mean(history.values[a:b]))) for a, b in cut if b - a >= SHORTEST_SEGMENT]


# --- Both levels of a regression according to its history: the first slow run alone overestimates most changes.

_NEAR = 2
"""Maximum distance in runs between a segment boundary and the run that raised the alarm."""


def settled_levels(regression: OpenedRegression, history: History) -> tuple[float, float] | None:
    """Return the usual and the slow level (ln) from the segments next to the slow run; None without a slow segment of
    three runs.

    Without earlier runs, as after an upgrade, the usual level is kept. In a history too short for segmentation, the
    consecutive slow runs are the slow level.
    """
    middle = (regression.usual_level + regression.slow_level) / 2
    if len(history.values) < FEWEST_RUNS:
        following = list(takewhile(lambda value: value > middle, history.values[max(regression.run, 0) :]))
        return (regression.usual_level, float(np.mean(following))) if len(following) >= SHORTEST_SEGMENT else None
    for number, segment in enumerate(history.segments):
        # The first two slow runs may form a segment with an earlier usual one; its level lies in between.
        slow = history.values[max(segment.start, regression.run) : segment.stop]
        near = abs(segment.start - regression.run) <= _NEAR and len(slow) >= SHORTEST_SEGMENT
        if near and (level := float(np.mean(slow))) > middle:
            before = history.segments[number - 1].level if number else regression.usual_level
            return (before if before < middle else regression.usual_level), level
    return None
