"""What a slow-down costs: GPU-hours a day = runs a day x extra time of a run x GPUs. Unknown stays unknown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

RATE_DAYS = 14
"""Two weeks: a nightly job counts 14 times, and a job that was stopped last month costs nothing any more."""
FEWEST_RUNS = 2
"""One run has no rate."""
_MS_PER_HOUR = 3_600_000.0


@dataclass(frozen=True, slots=True)
class Cost:
    """`gpu_hours_per_day` is None when a factor is unknown; `unknown_because` then says which, and is "" otherwise.

    The factors stay readable beside the number: `runs_per_day` x `extra_ms_per_step` x `steps_per_run` x `gpus`.
    """

    gpu_hours_per_day: float | None
    runs_per_day: float | None
    extra_ms_per_step: float | None
    steps_per_run: int | None
    gpus: int | None
    unknown_because: str = ""


def regression_cost(
    ordered_at: Sequence[datetime], extra_ms_per_step: float | None, steps_per_run: int | None, gpus: int | None
) -> Cost:
    """The cost of one stack's slow-down.

    `ordered_at`: places of the stack's runs in its history, in any order. `extra_ms_per_step` as by `extra_ms`, None
    for a regression of another metric than the step time. `steps_per_run` as by `steps_of_run`, of the slow run.
    """
    rate = runs_per_day(ordered_at)
    because = _unknown(rate, extra_ms_per_step, steps_per_run, gpus)
    if because or rate is None or extra_ms_per_step is None or steps_per_run is None or gpus is None:
        return Cost(None, rate, extra_ms_per_step, steps_per_run, gpus, because)
    hours = rate * extra_ms_per_step * steps_per_run * gpus / _MS_PER_HOUR
    return Cost(hours, rate, extra_ms_per_step, steps_per_run, gpus)


def runs_per_day(ordered_at: Sequence[datetime]) -> float | None:
    """Over the last 14 days before the newest run, or since the first when that is less, but a day at least.

    The window leaves out its beginning, as the first of 15 nightly runs in 14 days is not part of the rate. None with
    fewer than two runs in it.
    """
    if not ordered_at:
        return None
    last = max(ordered_at)
    window = min(max(last - min(ordered_at), timedelta(days=1)), timedelta(days=RATE_DAYS))
    counted = sum(last - window < at <= last for at in ordered_at)
    inside = sum(last - window <= at <= last for at in ordered_at)
    return counted / (window / timedelta(days=1)) if inside >= FEWEST_RUNS else None


def extra_ms(usual_level: float, slow_level: float) -> float:
    """Milliseconds that a step takes more, from two levels in ln(milliseconds)."""
    return math.exp(slow_level) - math.exp(usual_level)


def steps_of_run(slices: Sequence[Mapping[str, Any]], health: Mapping[str, Any]) -> int | None:
    """Steps that a run's processes went through, repeated ones too: all of them took time. None when none was read.

    `slices` and `health` as they are stored with the run. A log that prints every tenth iteration still took them all.
    """
    spans = (part["last_iteration"] - part["first_iteration"] + 1 for part in slices)
    return max(sum(span for span in spans if span > 0), health.get("iterations") or 0) or None


def total_cost(costs: Sequence[float | None]) -> float | None:
    """The cost of a regression from those of its members: the sum of the known ones, None when none is known."""
    known = [cost for cost in costs if cost is not None]
    return math.fsum(known) if known else None


def _unknown(rate: float | None, extra: float | None, steps: int | None, gpus: int | None) -> str:
    if extra is None or not math.isfinite(extra):
        return "the step time did not change, so no GPU time is lost by it"
    if extra <= 0:
        return "the slow level is not slower than the usual one"
    if rate is None:
        return f"this stack has fewer than {FEWEST_RUNS} runs in {RATE_DAYS} days, so nobody knows how often it runs"
    if not steps:
        return "no step was read from the slow run"
    if not gpus:
        return "the number of GPUs is unknown"
    return ""
