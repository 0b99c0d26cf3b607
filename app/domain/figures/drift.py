"""Whether a window is steady: a spread that one mode explains, and no drift from its start to its end."""

import math

import numpy as np

from app.domain.robust import clip_around_median, long_run_variance, mad, median, theil_sen_slope
from app.domain.run import FloatArray

MIN_WINDOW = 5
"""Under five values neither spread nor drift can be told."""
SHORT_WINDOW = 15
"""Under fifteen values no drift test has power: a run that still warms up looks steady but slow."""
MAX_SPREAD = 0.15
"""A larger MAD of the logarithms is two modes, not noise."""
MIN_DRIFT = 0.02
"""Drift under 2 % is never worth calling."""
Z = 3.0
"""Standard errors that a drift must exceed: 3 % false alarms over both tests together (measured at 50 iterations)."""
MEDIAN_EFFICIENCY = 1.2533
"""Standard error of a median over that of a mean, for normal data: sqrt(pi / 2)."""


def reasons_not_steady(window: FloatArray, from_warm_up: FloatArray) -> tuple[str, ...]:
    """Why a window of ln(step time) is not steady, in plain words; empty when it is.

    `from_warm_up`: the logarithms from the first end of warm-up on, on which the slope is measured.
    """
    k = len(window)
    if k < MIN_WINDOW:
        return (f"it holds {k} step times; {MIN_WINDOW} are the least that can show whether it is steady",)
    reasons = []
    if mad(window) > MAX_SPREAD:
        reasons.append(f"step times scatter by {100 * math.expm1(mad(window)):.0f} %, as if the run had two speeds")
    if k >= SHORT_WINDOW:
        reasons.extend(_drift_reasons(window, from_warm_up))
    return tuple(reasons)


def _drift_reasons(window: FloatArray, from_warm_up: FloatArray) -> list[str]:
    shift = drift_between_thirds(window)
    if shift is not None:
        return [f"the last third of the window is {_percent(shift)} than the first"]
    change = drift_along_line(from_warm_up)
    if change is not None:
        return [f"step times drift: the end is {_percent(change)} than the start"]
    return []


def _percent(log_change: float) -> str:
    word = "slower" if log_change > 0 else "faster"
    return f"{100 * abs(math.expm1(log_change)):.1f} % {word}"


def drift_between_thirds(window: FloatArray) -> float | None:
    """Change of the median from the first to the last third, when it exceeds noise; else None."""
    clipped = clip_around_median(window, mad(window), 3.0)
    thirds = np.array_split(clipped, 3)
    shift = median(thirds[2]) - median(thirds[0])
    noise = long_run_variance(np.concatenate([third - np.median(third) for third in thirds]))
    limit = max(MIN_DRIFT, Z * MEDIAN_EFFICIENCY * math.sqrt(6 * noise / len(clipped)))
    return shift if abs(shift) > limit else None


def drift_along_line(values: FloatArray) -> float | None:
    """Change along the Theil-Sen line over the whole length, when it exceeds noise; else None."""
    clipped = clip_around_median(values, mad(values), 3.0)
    q = len(clipped)
    slope = theil_sen_slope(clipped)
    noise = long_run_variance(clipped - slope * np.arange(q))
    limit = max(MIN_DRIFT, Z * q * math.sqrt(12 * noise / q**3))
    return slope * q if abs(slope) * q > limit else None
