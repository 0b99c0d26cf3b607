"""The cost of a slowdown in GPU-hours per day: runs per day x extra time per run x GPUs; unknown if a factor is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

RATE_DAYS = 14
"""Window of the run rate: a nightly job counts 14 times, a job stopped last month costs nothing."""
CONTINUES = "its job continues in another stack"
"""Why a stack costs nothing that its slow job left."""
FEWEST_RUNS = 2
"""Fewest runs that make a rate."""
_MS_PER_HOUR = 3_600_000.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost with its factors: `runs_per_day` x `extra_ms_per_step` x `steps_per_run` x `gpus`.

    `gpu_hours_per_day` is None if a factor is unknown, with the reason in `unknown_because`, and 0 if nothing is
    lost now, with the reason in `nothing_because`. Both reasons are empty otherwise.
    """

    gpu_hours_per_day: float | None
    runs_per_day: float | None
    extra_ms_per_step: float | None
    steps_per_run: int | None
    gpus: int | None
    unknown_because: str = ""
    nothing_because: str = ""


def regression_cost(
    ordered_at: Sequence[datetime],
    extra_ms_per_step: float | None,
    steps_per_run: int | None,
    gpus: int | None,
    *,
    now: datetime,
    is_over: bool = False,
) -> Cost:
    """Compute the cost of one stack's slowdown at `now` (see `clock`). `is_over`: its runs have recovered.

    `ordered_at`: history positions of the stack's runs, in any order. `extra_ms_per_step`: from `extra_ms`, None for a
    regression of another metric than the step time. `steps_per_run`: from `steps_of_run`, of the slow run.
    """
    rate = runs_per_day(ordered_at, now)
    because = _unknown(rate, extra_ms_per_step, steps_per_run, gpus)
    nothing = "" if extra_ms_per_step is None else _nothing(rate, is_over=is_over)
    if nothing:
        return Cost(0.0, rate, extra_ms_per_step, steps_per_run, gpus, nothing_because=nothing)
    if because or rate is None or extra_ms_per_step is None or steps_per_run is None or gpus is None:
        return Cost(None, rate, extra_ms_per_step, steps_per_run, gpus, because)
    hours = rate * extra_ms_per_step * steps_per_run * gpus / _MS_PER_HOUR
    return Cost(hours, rate, extra_ms_per_step, steps_per_run, gpus)


def clock(newest_place: datetime | None, newest_upload: datetime | None, now: datetime, *, is_replay: bool) -> datetime:
    """Return the time at which costs of a project are computed: the position of its newest step time, at most `now`.

    So an imported history keeps the cost at its end. For a project without uploads in 14 days it is `now`.
    `is_replay`: the history is a replay, so the time never moves on to `now`.
    """
    lives = newest_upload is not None and now - newest_upload <= timedelta(days=RATE_DAYS)
    return now if newest_place is None or not (lives or is_replay) else min(newest_place, now)


def runs_per_day(ordered_at: Sequence[datetime], now: datetime) -> float | None:
    """Return the run rate over the 14 days before `now`, or since the first run if that is later, but at least a day.

    The window excludes its start, because 15 nightly runs span 14 days. None with one run in it, 0 without any.
    """
    past = [at for at in ordered_at if at <= now]
    window = min(max(now - min(past, default=now), timedelta(days=1)), timedelta(days=RATE_DAYS))
    inside = sum(now - window <= at for at in past)
    if inside == 0:
        return 0.0
    counted = sum(now - window < at for at in past)
    return counted / (window / timedelta(days=1)) if inside >= FEWEST_RUNS else None


def extra_ms(usual_level: float, slow_level: float) -> float:
    """Return the extra milliseconds per step, from two levels in ln(milliseconds)."""
    return math.exp(slow_level) - math.exp(usual_level)


def steps_of_run(slices: Sequence[Mapping[str, Any]], health: Mapping[str, Any]) -> int | None:
    """Return the steps that a run's processes executed, including repeated ones; None when none was read.

    `slices` and `health`: as stored with the run. Iterations that the log does not print count, too.
    """
    spans = (part["last_iteration"] - part["first_iteration"] + 1 for part in slices)
    return max(sum(span for span in spans if span > 0), health.get("iterations") or 0) or None


def stored_cost(cost: Cost, hours: float | None) -> Cost:
    """Return a computed cost with the stored figure, which lists and sums show, and the run rate of that time."""
    if hours == cost.gpu_hours_per_day or cost.extra_ms_per_step is None:
        return cost
    if hours is None:
        because = _unknown(None, cost.extra_ms_per_step, cost.steps_per_run, cost.gpus)
        return replace(cost, gpu_hours_per_day=None, runs_per_day=None, unknown_because=because, nothing_because="")
    if not hours:
        return replace(cost, gpu_hours_per_day=0.0, runs_per_day=0.0, nothing_because=_nothing(0.0, is_over=False))
    if not cost.steps_per_run or not cost.gpus:
        return cost
    rate = hours * _MS_PER_HOUR / (cost.extra_ms_per_step * cost.steps_per_run * cost.gpus)
    return replace(cost, gpu_hours_per_day=hours, runs_per_day=rate, unknown_because="", nothing_because="")


def total_cost(costs: Sequence[float | None]) -> float | None:
    """Sum the known costs of a regression's members; None when none is known."""
    stated = [cost for cost in costs if cost is not None]
    return math.fsum(stated) if stated else None


def _nothing(rate: float | None, *, is_over: bool) -> str:
    if is_over:
        return "its runs have returned to the usual level"
    return f"no run in the last {RATE_DAYS} days" if rate == 0 else ""


def _unknown(rate: float | None, extra: float | None, steps: int | None, gpus: int | None) -> str:
    if extra is None or not math.isfinite(extra):
        return "the step time did not change, so no GPU time is lost"
    if extra <= 0:
        return "the slow level is not slower than the usual level"
    if rate is None:
        return f"this stack has fewer than {FEWEST_RUNS} runs in {RATE_DAYS} days, so its run rate is unknown"
    if not steps:
        return "no step was read from the slow run"
    if not gpus:
        return "the number of GPUs is unknown"
    return ""
