"""Two experiments after the month, one that was accepted and one that waits for its runs. All made up.

Both are planned through the API, as a person would; their runs carry the tag that the plan gives.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from app.demo.job import Job
from app.demo.made_up import commit_of, committed_at, random_for
from app.demo.nightlies import (
    BETWEEN_LAUNCHES_SD,
    CI_MAX_ALLOCATED,
    CI_WORKLOAD,
    CONTAINERS,
    FIRST_NIGHT,
    MAIN,
    NIGHTS,
    factor,
)
from app.demo.recording import ci_step_times, launch_level, record
from app.demo.workload import Workload

_NIGHT = FIRST_NIGHT + timedelta(days=NIGHTS - 1)
BEGAN = FIRST_NIGHT + timedelta(days=NIGHTS, hours=9)
DELAYED = replace(CI_WORKLOAD, delay_wgrad=True)
FASTER_BY = 0.962


@dataclass(frozen=True, slots=True)
class Trial:
    """`baseline`: the job that it is planned from. `accepted`: the note of whoever accepts it, empty while it waits."""

    title: str
    baseline: str
    knobs: Mapping[str, object]
    runs_each: int
    accepted: str = ""


TRIALS = (
    Trial(
        "Delay weight gradients behind communication",
        f"nightly {_NIGHT.date()}",
        {"delay_wgrad": True},
        runs_each=2,
        accepted="Faster on every launch, memory and loss as before.",
    ),
    Trial(
        "Is permute fusion still worth it?", "delayed weight gradients, run 2", {"permute_fusion": False}, runs_each=3
    ),
)


def trial_runs() -> Iterator[tuple[Trial, str, Job]]:
    """Each run with its experiment and its side, in the order in which they ran."""
    first, second = TRIALS
    unfused = replace(DELAYED, permute_fusion=False)
    for hour, (trial, side, name, workload, slower) in enumerate(
        (
            (first, "candidate", "delayed weight gradients, run 1", DELAYED, FASTER_BY),
            (first, "candidate", "delayed weight gradients, run 2", DELAYED, FASTER_BY),
            (first, "baseline", "weight gradients as before, run 2", CI_WORKLOAD, 1.0),
            (second, "candidate", "delayed and not fused, run 1", unfused, FASTER_BY * 1.008),
        )
    ):
        yield trial, side, _job(name, workload, slower, hour)


def _job(name: str, workload: Workload, slower: float, hour: int) -> Job:
    random = random_for(name)
    chance = launch_level(random, BETWEEN_LAUNCHES_SD)
    times = ci_step_times(random, MAIN.centre_ms * factor(MAIN, NIGHTS) * slower, workload.iterations, chance)
    return Job(
        name,
        "Megatron-LM",
        workload,
        record(random, times, CI_MAX_ALLOCATED),
        CONTAINERS[1],
        BEGAN + timedelta(hours=hour),
        commit_of(_NIGHT),
        committed=committed_at(_NIGHT),
    )
