"""The test on step time, and what would decide where it cannot (DETECTION section 2, steps 3 to 6).

Step time, tokens/s and TFLOP/s/GPU are a constant apart in ln: this is the test of all three.
Moderated t: Smyth 2004. Equivalence by two one-sided tests: Schuirmann 1987.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.domain.detection.baseline import MOST_BASELINE_RUNS, Baseline, centre, range_if_apart
from app.domain.detection.prior import degrees_of_freedom, moderated_variance
from app.domain.detection.special import t_quantile
from app.domain.detection.values import Decision, Prior, RunEstimate, RunsNeeded, StepTimeChange

RELEVANT_SHIFT = 0.01
"""Below 1 % nothing is called, however certain: nobody would act on it."""
EQUIVALENCE_LIMIT = 0.02
REGRESSION_P = 0.995
IMPROVEMENT_P = 0.998
"""Stricter than for a regression: a false improvement corrupts the baseline."""
EQUIVALENCE_P = 0.95
MOST_RERUNS = 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """A shift and all that its standard error is made of, so that other numbers of runs can be asked about.

    `variance` is the moderated run-to-run variance; `candidate_noise` and `baseline_noise` are mean squared standard
    errors inside the runs. All in ln(step time).
    """

    shift: float
    variance: float
    prior: Prior
    candidate_noise: float
    baseline_noise: float

    def standard_error(self, k: int, m: int) -> float:
        """SE of the shift with k reruns against m baseline runs."""
        return math.sqrt(max(self.variance, self.candidate_noise) / k + max(self.variance, self.baseline_noise) / m)

    def half_width(self, p: float, k: int, m: int) -> float:
        return t_quantile(p, degrees_of_freedom(self.prior, m)) * self.standard_error(k, m)

    def smallest_callable_shift(self, k: int, m: int) -> float:
        """The smallest slow-down, in ln, that k against m runs could have called a regression."""
        return max(RELEVANT_SHIFT, self.half_width(REGRESSION_P, k, m))

    def smallest_seen_shift(self, power: float, k: int, m: int) -> float:
        """The smallest speed-up, in ln and positive, that k against m runs call with probability `power`, above 0.5."""
        limit = max(RELEVANT_SHIFT, self.half_width(IMPROVEMENT_P, k, m))
        return limit + self.half_width(power, k, m)

    def decide(self, k: int, m: int, looks: int = 1) -> Decision:
        """`looks`: how many times it may be asked before the end; each answer is as much surer (Bonferroni)."""
        shift = self.shift
        if shift >= RELEVANT_SHIFT and shift > self.half_width(_surer(REGRESSION_P, looks), k, m):
            return "regression"
        if shift <= -RELEVANT_SHIFT and -shift > self.half_width(_surer(IMPROVEMENT_P, looks), k, m):
            return "improvement"
        if abs(shift) + self.half_width(_surer(EQUIVALENCE_P, looks), k, m) <= EQUIVALENCE_LIMIT:
            return "no_change"
        return "inconclusive"

    def need_runs(self, k: int, m: int) -> int | None:
        """The fewest further reruns that decide if shift and variance stay; None when 20 do not."""
        more = range(1, MOST_RERUNS + 1)
        return next((n for n in more if self.decide(k + n, m) != "inconclusive"), None)

    def cheapest_alternative(self, k: int, m: int) -> RunsNeeded | None:
        """The fewest runs, on both sides together, that decide with a larger baseline; None when 20 and 20 do not."""
        enough = [
            RunsNeeded(reruns=n, baseline_runs=larger)
            for larger in range(m + 1, MOST_BASELINE_RUNS + 1)
            for n in range(MOST_RERUNS + 1)
            if self.decide(k + n, larger) != "inconclusive"
        ]
        return min(enough, key=lambda needed: (needed.reruns + needed.baseline_runs, needed.reruns), default=None)


def compare_step_time(candidates: Sequence[RunEstimate], baseline: Baseline, prior: Prior) -> StepTimeChange:
    """Judge k >= 1 usable reruns, pooled, against m >= 1 clean baseline runs. Reruns that contradict each other decide
    nothing: their mean is a step time that none of them had.
    """
    k, m = len(candidates), len(baseline.used)
    comparison = _comparison(candidates, baseline, prior)
    change = _describe(comparison, k, m, centre(baseline.log_step_times))
    apart = range_if_apart(
        [run.log_step_time for run in candidates], max(comparison.variance, comparison.candidate_noise)
    )
    if apart:
        return replace(change, decision="inconclusive", reruns_apart_pct=_pct(apart))
    if change.decision == "inconclusive":
        need = comparison.need_runs(k, m)
        alternative = comparison.cheapest_alternative(k, m) if need is None else None
        return replace(change, need_runs=need, alternative=alternative)
    rests_on_short = change.decision == "regression" and any(run.short for run in candidates)
    return replace(change, needs_confirmation=rests_on_short)


def decide_step_time(
    candidates: Sequence[RunEstimate], baseline: Baseline, prior: Prior, *, looks: int = 1
) -> Decision:
    """What the test says of runs that are pooled, without all that is told beside it. `looks` as in `decide`."""
    return _comparison(candidates, baseline, prior).decide(len(candidates), len(baseline.used), looks)


def throughput_pct(change: StepTimeChange) -> tuple[float, float, float]:
    """The same change in tokens/s or TFLOP/s/GPU: `(delta, low, high)` in percent, positive is faster."""
    delta, slow, fast = (_inverse_pct(p) for p in (change.delta_pct, change.ci_high_pct, change.ci_low_pct))
    return delta, slow, fast


def _comparison(candidates: Sequence[RunEstimate], baseline: Baseline, prior: Prior) -> Comparison:
    values = baseline.log_step_times
    return Comparison(
        shift=float(np.mean([run.log_step_time for run in candidates])) - centre(values),
        variance=moderated_variance(prior, values),
        prior=prior,
        candidate_noise=float(np.mean([run.se**2 for run in candidates])),
        baseline_noise=float(np.mean([run.se**2 for run in baseline.used])),
    )


def _describe(comparison: Comparison, k: int, m: int, baseline_centre: float) -> StepTimeChange:
    shift, half = comparison.shift, comparison.half_width(REGRESSION_P, k, m)
    return StepTimeChange(
        decision=comparison.decide(k, m),
        shift=shift,
        standard_error=comparison.standard_error(k, m),
        degrees_of_freedom=degrees_of_freedom(comparison.prior, m),
        delta_pct=_pct(shift),
        ci_low_pct=_pct(shift - half),
        ci_high_pct=_pct(shift + half),
        smallest_callable_pct=_pct(comparison.smallest_callable_shift(k, m)),
        baseline_ms=math.exp(baseline_centre),
        candidate_ms=math.exp(baseline_centre + shift),
        run_to_run_sd=math.sqrt(comparison.variance),
    )


def _surer(p: float, looks: int) -> float:
    return 1 - (1 - p) / looks


def _pct(shift: float) -> float:
    return 100 * math.expm1(shift)


def _inverse_pct(pct: float) -> float:
    return 100 * (1 / (1 + pct / 100) - 1)
