"""What reruns gain: the chance to detect a slowdown of a given size, and the launches that a smaller one would take.

The plan of verdicts (one launch, then the reruns that it requests) is simulated with normal launches of a known spread,
always with the same random numbers, so that a page shows the same figures each time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.domain.run import FloatArray
from app.domain.verdict.decide import CONFIRMING, MOST_REQUESTED
from app.domain.verdict.policy import DEFAULTS, Thresholds
from app.domain.verdict.special import t_quantile
from app.domain.verdict.step_time import MOST_BASELINE_RUNS, MOST_TEST_DF, PLANNED_LOOKS, REGRESSION_P

_DRAWS = 20_000
_MOST_LAUNCHES = 500


@dataclass(frozen=True, slots=True)
class Power:
    """The chance, 0 to 1, that a slowdown of `change_pct` is called: by one launch, and with the requested reruns.

    `reruns`: how many of these a commit with this slowdown takes on average.
    """

    change_pct: float
    alone: float
    with_reruns: float
    reruns: float


def power(change_pct: float, spread: float, baseline_runs: int, thresholds: Thresholds = DEFAULTS) -> Power:
    """Return the power against a slowdown. `spread`: sd of launches (ln); 0 % gives the false alarms."""
    m = max(1, min(baseline_runs, MOST_BASELINE_RUNS))
    draw = np.random.default_rng(1)
    launches = math.log1p(change_pct / 100) + spread * draw.standard_normal((_DRAWS, 1 + MOST_REQUESTED))
    baseline = spread / math.sqrt(m) * draw.standard_normal(_DRAWS)
    first = launches[:, 0] - baseline
    alone = first > _limit(1, m, spread, 1, thresholds)
    wanted = np.zeros(_DRAWS, dtype=int)
    for more in range(MOST_REQUESTED, 0, -1):
        decides = first > _limit(1 + more, m, spread, 1, thresholds)
        wanted = np.where(decides & (first >= thresholds.relevant_shift) & ~alone, more, wanted)
    wanted = np.where(alone, CONFIRMING, wanted)
    called = np.zeros(_DRAWS, dtype=bool)
    for more in range(1, MOST_REQUESTED + 1):
        together = launches[:, : 1 + more].mean(axis=1) - baseline
        called |= (wanted == more) & (together > _limit(1 + more, m, spread, PLANNED_LOOKS, thresholds))
    return Power(change_pct, _share(alone), _share(called), float(wanted.mean()))


def launches_needed(
    change_pct: float, spread: float, baseline_runs: int = MOST_BASELINE_RUNS, thresholds: Thresholds = DEFAULTS
) -> int | None:
    """Return the launches of a commit that call such a slowdown in nine of ten cases; None when 500 do not.

    No number of launches calls a slowdown at or below the smallest change that the thresholds report.
    """
    m, shift = max(1, min(baseline_runs, MOST_BASELINE_RUNS)), math.log1p(change_pct / 100)
    for k in range(1, _MOST_LAUNCHES + 1):
        error = spread * math.sqrt(1 / k + 1 / m)
        if shift - _limit(k, m, spread, 1, thresholds) >= _NINE_OF_TEN * error:
            return k
    return None


_NINE_OF_TEN = 1.2816


def powers(spread: float, baseline_runs: int, thresholds: Thresholds) -> Iterator[Power]:
    """Yield the power against slowdowns of 1, 2, 3 and 5 %, and the chance of a false alarm, of 0 %."""
    return (power(change, spread, baseline_runs, thresholds) for change in (0.0, 1.0, 2.0, 3.0, 5.0))


def _limit(k: int, m: int, spread: float, looks: int, thresholds: Thresholds) -> float:
    certainty = 1 - (1 - REGRESSION_P) / looks
    error = spread * math.sqrt(1 / k + 1 / m)
    return max(thresholds.relevant_shift, t_quantile(certainty, MOST_TEST_DF) * error)


def _share(values: FloatArray | np.typing.NDArray[np.bool_]) -> float:
    return float(np.mean(values))
