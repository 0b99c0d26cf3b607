"""The steady window of a run as a distribution: quantiles, and a density where there are values enough for one."""

from dataclasses import dataclass

import numpy as np

from app.domain.figures.step_times import usable
from app.domain.robust import mad
from app.domain.run import FloatArray, SteadyState

FEWEST_FOR_DENSITY = 15
"""Fewer values are better seen one by one."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_GRID = 120
_BINS = 600
_SILVERMAN = 0.9


@dataclass(frozen=True, slots=True)
class Distribution:
    """Step times of a steady window in ms. `quantiles` are those of QUANTILES; `spike_share` 0 to 1."""

    n: int
    quantiles: tuple[float, ...]
    mean_ms: float
    lowest_ms: float
    highest_ms: float
    spike_share: float

    @property
    def median_ms(self) -> float:
        return self.quantiles[2]


def step_times(columns: dict[str, FloatArray]) -> FloatArray:
    """Step times in ms as they were; as printed where the printed value is an artefact that cannot be resolved."""
    printed = columns["step_time_ms"]
    true = columns.get("step_time_true_ms", printed)
    return np.where(np.isfinite(true), true, printed)


def window_step_times(columns: dict[str, FloatArray], steady: SteadyState | None) -> FloatArray:
    """What counts of a run's step times, in ms; empty where the run has no window, or no series."""
    if steady is None or "step_time_ms" not in columns or "iteration" not in columns:
        return np.empty(0)
    times, iterations = step_times(columns), columns["iteration"]
    inside = (iterations >= steady.first_iteration) & (iterations <= steady.last_iteration) & usable(times)
    return times[inside]


def distribution(values: FloatArray, steady: SteadyState | None) -> Distribution | None:
    """None where there is nothing to describe."""
    if steady is None or not len(values):
        return None
    # Of logarithms, as the steady step time is: the median mark must be the figure that stands in the table above.
    quantiles = np.exp(np.quantile(np.log(values), QUANTILES))
    return Distribution(
        n=len(values),
        quantiles=tuple(float(value) for value in quantiles),
        mean_ms=float(values.mean()),
        lowest_ms=float(values.min()),
        highest_ms=float(values.max()),
        spike_share=float((values > steady.spike_threshold_ms).mean()),
    )


def density(values: FloatArray, low: float, high: float) -> tuple[FloatArray, FloatArray]:
    """A Gaussian kernel estimate on an even grid from `low` to `high`: places, and heights with 1 as the highest.

    Silverman's rule on the robust spread, because spikes would smear a bandwidth made from the standard deviation.
    """
    inside = values[(values >= low) & (values <= high)]
    places = np.linspace(low, high, _GRID)
    if not len(inside) or high <= low:
        return places, np.zeros(_GRID)
    width = (high - low) / _BINS
    # A series without a spread still has a width on the screen.
    bandwidth = max(_SILVERMAN * mad(values) * len(values) ** -0.2, 2 * width)
    counts, edges = np.histogram(inside, bins=_BINS, range=(low, high))
    centres = (edges[:-1] + edges[1:]) / 2
    heights = np.exp(-0.5 * ((places[:, None] - centres[None, :]) / bandwidth) ** 2) @ counts
    return places, heights / heights.max()
