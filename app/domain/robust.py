"""Robust statistics of one series: location, spread, autocorrelation, trend. All on float64 arrays in time order."""

import numpy as np

from app.domain.run import FloatArray

NORMAL_CONSISTENCY = 1.4826
"""The median absolute deviation times this is the standard deviation of normal data."""
_REACH = 3.0
"""So many times the distance of the quartiles an axis reaches beyond them: far for normal data, which end at 1.5."""
_LEAST_REACH = 0.004
_FEW = 64
MAX_TREND_POINTS = 600
"""Longer series are averaged down to so many blocks before slopes are taken pairwise: cost grows with the square."""


def median(values: FloatArray) -> float:
    """The median of a series that is not empty, to the last digit that of numpy, whose own takes longer for a few."""
    if not 0 < len(values) <= _FEW:
        return float(np.median(values))
    ordered = np.sort(values)  # NaN goes to the end
    middle = len(ordered) // 2
    if ordered[-1] != ordered[-1]:
        return float("nan")
    return float(ordered[middle]) if len(ordered) % 2 else (float(ordered[middle - 1]) + float(ordered[middle])) / 2


def mad(values: FloatArray) -> float:
    """The scaled median absolute deviation from the median."""
    return NORMAL_CONSISTENCY * median(np.abs(values - median(values)))


def readable_range(values: FloatArray) -> tuple[float, float]:
    """The ends of an axis on which most of `values`, at least one, can be told apart: a spike does not set it."""
    low, middle, high = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    reach = _REACH * max(high - low, _LEAST_REACH * abs(middle))
    return max(float(values.min()), low - reach), min(float(values.max()), high + reach)


def lag_one_correlation(values: FloatArray) -> float:
    """The lag-1 autocorrelation, corrected for its bias in short series (Marriott and Pope 1954), within 0 to 0.9.

    0.9 is where an AR(1) correction of a short window stops meaning anything. Needs five values or more.
    """
    k = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    r1 = float(centred[:-1] @ centred[1:]) / power if power > 0 else 0.0
    return float(np.clip((k * r1 + 1) / (k - 4), 0.0, 0.9))


def long_run_variance(residuals: FloatArray) -> float:
    """Variance of an AR(1) series as its sums feel it: `var (1 + rho) / (1 - rho)`."""
    rho = lag_one_correlation(residuals)
    return float(residuals.var(ddof=1)) * (1 + rho) / (1 - rho)


def clip_around_median(values: FloatArray, spread: float, widths: float) -> FloatArray:
    """The values, none further from their median than `widths` x `spread`."""
    centre = median(values)
    return np.clip(values, centre - widths * spread, centre + widths * spread)


def theil_sen_slope(values: FloatArray) -> float:
    """The median of all pairwise slopes, per step."""
    block = -(-len(values) // MAX_TREND_POINTS)
    kept = len(values) - len(values) % block
    points = values[:kept].reshape(-1, block).mean(axis=1)
    earlier, later = np.triu_indices(len(points), k=1)
    return float(np.median((points[later] - points[earlier]) / (later - earlier))) / block
