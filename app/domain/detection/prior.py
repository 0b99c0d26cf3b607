"""How much launches of the same job vary, learned from other configurations (DETECTION section 2, steps 2 and 3).

Moments of the log variances: Smyth 2004, "Linear models and empirical Bayes methods", section 6.2.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from app.domain.detection.baseline import select_baseline
from app.domain.detection.special import digamma, trigamma
from app.domain.detection.values import DEFAULT_PRIOR, Prior, RunEstimate
from app.domain.run import FloatArray

Sample = tuple[float, int]
"""Variance of ln(step time) between the runs of a configuration, and its degrees of freedom."""

FEWEST_CONFIGURATIONS = 5
_FEWEST_TO_WINSORISE = 10
_TAIL = 0.05
_LEAST_VARIANCE = 1e-4**2  # runs equal to the last digit: a logarithm needs something
_LEAST_SPREAD = 0.01
_LEAST_DF, _MOST_DF = 2.0, 20.0
_MOST_TEST_DF = 12.0  # pays for tails heavier than Student's


def family_prior(configurations: Iterable[Sequence[RunEstimate]]) -> Prior:
    """The prior of a family: same project, GPU and workload style.

    Each item holds the baseline runs of one *other* config key, oldest first; those with fewer than two clean runs do
    not count. With fewer than five that do, nothing was learned: `DEFAULT_PRIOR`.
    """
    return prior_of(sample_of(runs) for runs in configurations)


def sample_of(runs: Sequence[RunEstimate]) -> Sample | None:
    """What one configuration tells of the family; None with fewer than two clean runs."""
    values = select_baseline(runs, DEFAULT_PRIOR.variance).log_step_times
    return (float(np.var(values, ddof=1)), len(values) - 1) if len(values) >= 2 else None


def prior_of(found: Iterable[Sample | None]) -> Prior:
    """The prior from what each configuration tells."""
    samples = [one for one in found if one is not None]
    if len(samples) < FEWEST_CONFIGURATIONS:
        return DEFAULT_PRIOR
    variance, df = _fit(np.array([s for s, _ in samples]), [f for _, f in samples])
    return Prior(variance=variance, degrees_of_freedom=df, configurations=len(samples))


def moderated_variance(prior: Prior, log_step_times: FloatArray) -> float:
    """The baseline's own variance drawn towards the prior; with one run it is the prior's."""
    own_df = len(log_step_times) - 1
    own = own_df * float(np.var(log_step_times, ddof=1)) if own_df else 0.0
    d0 = prior.degrees_of_freedom
    return (d0 * prior.variance + own) / (d0 + own_df)


def degrees_of_freedom(prior: Prior, baseline_runs: int) -> float:
    """Degrees of freedom of the moderated t with `baseline_runs` runs."""
    return min(prior.degrees_of_freedom + baseline_runs - 1, _MOST_TEST_DF)


def _fit(variances: FloatArray, dfs: Sequence[int]) -> tuple[float, float]:
    """`(v0, d0)` of the scaled inverse chi-square from which the variances were drawn."""
    expected = np.array([math.log(f / 2) - digamma(f / 2) for f in dfs])
    e = np.log(np.maximum(variances, _LEAST_VARIANCE)) + expected
    if len(e) >= _FEWEST_TO_WINSORISE:
        e = np.clip(e, *np.quantile(e, [_TAIL, 1 - _TAIL]))
    spread = float(np.var(e, ddof=1)) - float(np.mean([trigamma(f / 2) for f in dfs]))
    d0 = _df_of_spread(spread)
    return math.exp(float(np.mean(e)) + digamma(d0 / 2) - math.log(d0 / 2)), d0


def _df_of_spread(spread: float) -> float:
    """The d0 in [2, 20] with trigamma(d0 / 2) = `spread`, by bisection: trigamma falls."""
    if spread <= max(_LEAST_SPREAD, trigamma(_MOST_DF / 2)):
        return _MOST_DF
    if spread >= trigamma(_LEAST_DF / 2):
        return _LEAST_DF
    low, high = _LEAST_DF, _MOST_DF
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if trigamma(middle / 2) > spread else (low, middle)
    return (low + high) / 2
