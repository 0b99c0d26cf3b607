"""Memory and loss: what a fast step must not have paid with (DETECTION section 2, last rule; PRODUCT, promise 12).

Neither gets a t-test: the variance between launches is often exactly zero.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median

from app.domain.detection.values import LossChange, MemoryChange, MemoryDecision, RunEstimate

SAME_MEMORY_PCT = 0.1
"""Equal within 0.1 % in 77 % of adjacent versions of one job."""
ALARM_PCT = 1.0
"""For memory and for loss: the loss of one job moved by less than 0.5 % in 99 % of 318 pairs of adjacent CI runs."""
_RANGES = 3  # an increase must also stand out from what the baseline itself does


def compare_memory(candidates: Sequence[RunEstimate], baseline: Sequence[RunEstimate]) -> MemoryChange | None:
    """Medians of peak memory; None when it is unknown on one side."""
    new, old = _known(r.peak_memory_bytes for r in candidates), _known(r.peak_memory_bytes for r in baseline)
    if not new or not old:
        return None
    delta, alarm = _delta_and_alarm(new, old)
    return MemoryChange(
        decision=_memory_decision(delta, alarm),
        baseline_bytes=median(old),
        candidate_bytes=median(new),
        delta_pct=delta,
        alarm_pct=alarm,
    )


def compare_loss(candidates: Sequence[RunEstimate], baseline: Sequence[RunEstimate]) -> LossChange | None:
    """`worse` only when clearly so; a single iteration without a finite loss is `not_finite`. None when unknown."""
    if not_finite := sum(run.not_finite_iterations for run in candidates):
        return LossChange("not_finite", not_finite_iterations=not_finite)
    new, old = _known(r.loss for r in candidates), _known(r.loss for r in baseline)
    if not new or not old:
        return None
    delta, alarm = _delta_and_alarm(new, old)
    return LossChange("worse" if delta > alarm else "no_worse", delta_pct=delta, alarm_pct=alarm)


def _memory_decision(delta: float, alarm: float) -> MemoryDecision:
    if abs(delta) <= SAME_MEMORY_PCT:
        return "no_change"
    if abs(delta) <= alarm:
        return "changed"
    return "regression" if delta > 0 else "improvement"


def _known(values: Iterable[float | None]) -> list[float]:
    """Zero is what a log prints where nothing was measured."""
    return [value for value in values if value is not None and math.isfinite(value) and value > 0]


def _delta_and_alarm(new: Sequence[float], old: Sequence[float]) -> tuple[float, float]:
    """Percent of the baseline's median: the difference, and the increase from which it is an alarm."""
    middle = median(old)
    baseline_range = 100 * (max(old) - min(old)) / middle
    return 100 * (median(new) - middle) / middle, max(ALARM_PCT, _RANGES * baseline_range)
