"""What a slow-down costs: GPU-hours a day = runs a day x extra time of a run x GPUs. Unknown stays unknown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

RATE_DAYS = 14
"""Two weeks up to now: a nightly job counts 14 times, and a job that was stopped last month costs nothing any more."""
FEWEST_RUNS = 2
"""One run has no rate."""
_MS_PER_HOUR = 3_600_000.0


@dataclass(frozen=True, slots=True)
class Cost:
    """`gpu_hours_per_day` is None when a factor is unknown; `unknown_because` then says which, and is "" otherwise.
    It is 0 when nothing is lost any more; `nothing_because` then says why, and is "" otherwise.

    The factors stay readable beside the number: `runs_per_day` x `extra_ms_per_step` x `steps_per_run` x `gpus`.
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
    """The cost of one stack's slow-down at `now`, a time of its history (`clock`). `is_over`: its runs are back.

    `ordered_at`: places of the stack's runs in its history, in any order. `extra_ms_per_step` as by `extra_ms`, None
    for a regression of another metric than the step time. `steps_per_run` as by `steps_of_run`, of the slow run.
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
    """What time it is in the history of a project: the place of its newest run, up to `now`, while runs come in.

    So a history that is loaded today costs what it cost at its end. A project that nothing was uploaded to in 14 days
    has stopped: there it is `now`. `is_replay`: the history is never more than a replay, and stands still.
    """
    lives = newest_upload is not None and now - newest_upload <= timedelta(days=RATE_DAYS)
    return now if newest_place is None or not (lives or is_replay) else min(newest_place, now)


def runs_per_day(ordered_at: Sequence[datetime], now: datetime) -> float | None:
    """Over the 14 days before `now`, or since the first run when that is less, but a day at least.

    The window leaves out its beginning, as the first of 15 nightly runs in 14 days is not part of the rate. None with
    one run in it, 0 without any.
    """
    past = [at for at in ordered_at if at <= now]
    window = min(max(now - min(past, default=now), timedelta(days=1)), timedelta(days=RATE_DAYS))
    inside = sum(now - window <= at for at in past)
    if inside == 0:
        return 0.0
    counted = sum(now - window < at for at in past)
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
    stated = [cost for cost in costs if cost is not None]
    return math.fsum(stated) if stated else None


def _nothing(rate: float | None, *, is_over: bool) -> str:
    if is_over:
        return "its runs are back at the usual level"
    return f"it had no run in the last {RATE_DAYS} days" if rate == 0 else ""


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
