"""How many runs a side it takes to see an effect, by the power of the verdict's own test (`docs/experiments.md`).

What launches of the job vary is known from its own earlier runs, from other configurations of its family, or, where
neither is there, by default. All of it is drawn together as for a verdict, and becomes the prior of the experiment.
"""

import math
from collections.abc import Sequence

from app.domain.detection import DEFAULT_PRIOR, Prior, RunEstimate
from app.domain.detection.baseline import select_baseline
from app.domain.detection.prior import moderated_variance
from app.domain.detection.step_time import EQUIVALENCE_LIMIT, Comparison
from app.domain.experiments.values import SizePoint, Sizing, SpreadSource

DEFAULT_EFFECT_PCT = 100 * EQUIVALENCE_LIMIT
"""Within 2 % two step times count as the same, so 2 % is the smallest effect that an experiment has to tell from it."""
POWER = 0.8
MOST_EACH = 10
"""Runs a side that are planned without being asked for; from there on the test gains little by another one."""
MOST_ASKED_EACH = 20
"""A verdict takes the newest 20 runs of a baseline."""
RUNS_EACH = f"must be a whole number from 1 to {MOST_ASKED_EACH}"
"""What is said of another number of runs a side."""
_OWN_FROM = 5
"""Own launches from which their spread weighs as much as the default prior's four degrees of freedom."""
_CURVE = (1, 2, 3, 5, 8, 10, 15, 20)


def size(
    history: Sequence[RunEstimate],
    family: Prior = DEFAULT_PRIOR,
    *,
    noise: float = 0.0,
    effect_pct: float = DEFAULT_EFFECT_PCT,
    runs_each: int | None = None,
) -> Sizing:
    """`history`: earlier launches of the baseline's configuration in its current level, without those of the experiment
    itself; `noise`: standard error inside one run (ln). `runs_each`: chosen by a person, else by the effect.
    """
    values = select_baseline(history, family.variance).log_step_times
    prior = family
    if len(values):
        df = family.degrees_of_freedom + len(values) - 1
        prior = Prior(moderated_variance(family, values), df, family.configurations)
    comparison = _comparison(prior, noise)
    needed = next((n for n in range(1, MOST_ASKED_EACH + 1) if _seen_pct(comparison, n) <= effect_pct), None)
    chosen = runs_each or min(needed or MOST_EACH, MOST_EACH)
    return Sizing(
        effect_pct=effect_pct,
        power=POWER,
        runs_each=chosen,
        needed=needed,
        most=MOST_ASKED_EACH,
        smallest_pct=_seen_pct(comparison, chosen),
        spread_pct=100 * math.sqrt(prior.variance),
        spread_from=_source(len(values), family),
        spread_runs=len(values),
        noise=noise,
        prior=prior,
        curve=tuple(SizePoint(n, _seen_pct(comparison, n)) for n in _CURVE),
    )


def smallest_pct(sizing: Sizing, runs_each: int) -> float:
    """What another number of runs a side would see."""
    return _seen_pct(_comparison(sizing.prior, sizing.noise), runs_each)


def _comparison(prior: Prior, noise: float) -> Comparison:
    return Comparison(
        shift=0.0, variance=prior.variance, prior=prior, candidate_noise=noise**2, baseline_noise=noise**2
    )


def _source(own: int, family: Prior) -> SpreadSource:
    if own >= _OWN_FROM:
        return "series"
    return "family" if family.configurations else "default"


def _seen_pct(comparison: Comparison, runs_each: int) -> float:
    """In percent of step time, of a step that gets shorter."""
    return -100 * math.expm1(-comparison.smallest_seen_shift(POWER, runs_each, runs_each))
