"""Which of the offered runs are the baseline, and where its centre lies (DETECTION section 2, steps 1 and 3)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.domain.detection.values import DroppedRun, RunEstimate
from app.domain.robust import mad, median
from app.domain.run import FloatArray

MOST_BASELINE_RUNS = 20
_FEWEST_TO_CLEAN = 3  # of two runs that disagree, nobody can say which is the bad one
_FEWEST_TO_HUBER = 5
_LEAST_OUTLIER = 0.05
_HUBER_CLIP = 2.5


@dataclass(frozen=True, slots=True)
class Baseline:
    """The runs that count, oldest first, and those that do not, each with the reason."""

    used: tuple[RunEstimate, ...]
    dropped: tuple[DroppedRun, ...]

    @property
    def log_step_times(self) -> FloatArray:
        return np.array([run.log_step_time for run in self.used])


def select_baseline(offered: Sequence[RunEstimate], prior_variance: float, *, also_short: bool = False) -> Baseline:
    """The newest 20 usable runs of `offered` (oldest first), without those far off the others.

    `also_short`: short runs count, too, where a direction is all that is asked for.
    """
    refused = {run.run: why for run in offered if (why := unusable_as_baseline(run, also_short=also_short))}
    newest = [run for run in offered if run.run not in refused][-MOST_BASELINE_RUNS:]
    outliers = _outliers(newest, prior_variance)
    return Baseline(
        used=tuple(run for run in newest if run.run not in outliers),
        dropped=tuple(DroppedRun(run, why) for run, why in (refused | outliers).items()),
    )


def centre(log_step_times: FloatArray) -> float:
    """The mean; from five runs on a one-step Huber mean, which one stray run moves less."""
    if len(log_step_times) < _FEWEST_TO_HUBER:
        return float(np.mean(log_step_times))
    middle = median(log_step_times)
    limit = _HUBER_CLIP * mad(log_step_times)
    return middle + float(np.mean(np.clip(log_step_times - middle, -limit, limit)))


def range_if_apart(log_step_times: Sequence[float], variance: float) -> float:
    """The range (ln) of launches of one job when it is more than their variation allows, else 0.

    Of a few all must lie together: which one is the bad one, nobody can say. Of five and more it takes one that would
    be left out of a baseline.
    """
    values = np.array(log_step_times)
    allowed = max(5 * math.sqrt(variance), _LEAST_OUTLIER)
    width = float(np.ptp(values))
    if len(values) >= _FEWEST_TO_HUBER:
        furthest = float(np.max(np.abs(values - median(values))))
        return width if furthest > max(allowed, 6 * mad(values)) else 0.0
    return width if width > allowed else 0.0


def unusable_as_baseline(run: RunEstimate, *, also_short: bool = False) -> str:
    """Why a run's figures can be no baseline, empty when they can: stricter than what a candidate needs."""
    if why := run.unusable_because:
        return why
    if run.not_finite_iterations:
        return f"the loss was not finite in {run.not_finite_iterations} iterations"
    return "too short to tell a steady run from one still warming up" if run.short and not also_short else ""


def _outliers(runs: Sequence[RunEstimate], prior_variance: float) -> dict[str, str]:
    if len(runs) < _FEWEST_TO_CLEAN:
        return {}
    values = np.array([run.log_step_time for run in runs])
    middle = median(values)
    limit = max(6 * mad(values), 5 * math.sqrt(prior_variance), _LEAST_OUTLIER)
    shifts = {run.run: run.log_step_time - middle for run in runs}
    return {run: _off_the_others(shift) for run, shift in shifts.items() if abs(shift) > limit}


def _off_the_others(shift: float) -> str:
    return f"{abs(100 * math.expm1(shift)):.1f} % {'slower' if shift > 0 else 'faster'} than the other baseline runs"
