"""Levels and change points of the runs of one config key (DETECTION section 3)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from app.domain.detection.special import t_two_sided_p
from app.domain.detection.values import DEFAULT_PRIOR, Prior
from app.domain.history.segmentation import best_segments
from app.domain.robust import mad, median
from app.domain.run import FloatArray

FEWEST_RUNS = 12
"""In shorter histories nothing is divided: the verdict alone speaks."""
LEAST_SHIFT = 0.01
MOST_P = 0.001
_MEDIAN_OF = 7
_CLIP = 2.5
_LEAST_SPREAD = 1e-4
_PENALTY = 6.0
_CLIPPING_LOSS = 1.15
"""Clipping takes this much from the residual sum of squares of normal data with a few heavy tails."""
_MOST_DF = 30.0


@dataclass(frozen=True, slots=True)
class Segment:
    """Runs `start` up to, not including, `stop` that share one level: the mean of their winsorised ln(step time)."""

    start: int
    stop: int
    level: float


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """`run`: index of the first run of the new level. `shift` in ln, `delta_pct` of step time: positive is slower."""

    run: int
    shift: float
    delta_pct: float
    p_value: float


@dataclass(frozen=True, slots=True)
class History:
    """`values`: ln(step time) with single odd runs clipped, as the levels were computed from them."""

    values: FloatArray
    segments: tuple[Segment, ...]
    change_points: tuple[ChangePoint, ...]

    @property
    def current(self) -> Segment:
        """The segment whose runs are the baseline."""
        return self.segments[-1]


def find_changes(log_step_times: Sequence[float] | FloatArray, prior: Prior = DEFAULT_PRIOR) -> History:
    """Divide a history into levels.

    `log_step_times`: estimates of the steady runs of one config key, in the order of their commits; at least one, all
    finite, or ValueError. `prior`: the run-to-run variation of the family. A change shows once three runs follow it.
    """
    y = np.asarray(log_step_times, dtype=np.float64)
    if y.ndim != 1 or not len(y) or not np.isfinite(y).all():
        raise ValueError("a history needs at least one run, and a finite ln(step time) of each")
    z = winsorise(y)
    starts = _merge(z, _candidates(z), prior) if len(z) >= FEWEST_RUNS else []
    segments = _segments(z, starts)
    return History(z, segments, _change_points(z, segments, prior))


def winsorise(y: FloatArray) -> FloatArray:
    """Clip every value to within 2.5 robust spreads of the running median of seven, edges repeated."""
    padded = np.pad(y, _MEDIAN_OF // 2, mode="edge")
    running = np.median(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN_OF), axis=1)
    reach = _CLIP * max(mad(y - running), _LEAST_SPREAD)
    return np.clip(y, running - reach, running + reach)


def _candidates(z: FloatArray) -> list[int]:
    # Differences of neighbours see the noise and, but for a few, none of the shifts.
    spread = max(mad(np.diff(z)) / math.sqrt(2), _LEAST_SPREAD)
    return best_segments(z, _PENALTY * spread**2 * math.log(len(z)))


def _merge(z: FloatArray, starts: list[int], prior: Prior) -> list[int]:
    """Remove boundaries that are uncertain or too small, the smallest shift first, until none is left."""
    starts = _without_small(z, starts)
    while starts:
        found = _change_points(z, _segments(z, starts), prior)
        weak = [point for point in found if point.p_value > MOST_P]
        if not weak:
            return starts
        smallest = min(weak, key=lambda point: abs(point.shift))
        starts = _without_small(z, [start for start in starts if start != smallest.run])
    return starts


def _without_small(z: FloatArray, starts: list[int]) -> list[int]:
    """The smallest shift under 1 % goes first, and is weak whatever its p: of a noisy series these are hundreds."""
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
    """Two-sample t of neighbouring levels, with a variance pooled over all segments and drawn towards the prior."""
    rss = sum(float(((z[s.start : s.stop] - s.level) ** 2).sum()) for s in segments)
    d0 = prior.degrees_of_freedom
    df = d0 + len(z) - len(segments)
    variance = (d0 * prior.variance + _CLIPPING_LOSS * rss) / df
    return tuple(_change_point(a, b, variance, min(df, _MOST_DF)) for a, b in pairwise(segments))


def _change_point(before: Segment, after: Segment, variance: float, df: float) -> ChangePoint:
    shift = after.level - before.level
    error = math.sqrt(variance * (1 / (before.stop - before.start) + 1 / (after.stop - after.start)))
    return ChangePoint(after.start, shift, 100 * math.expm1(shift), t_two_sided_p(shift / error, df))
