"""The nightly job on more GPUs, at the commit of one of the nights: weak and strong scaling can be seen. All made up.

Weak: the batch grows with the GPUs. Strong: it stays. And a sequence so long that two GPUs share it (CP 2). Twice each,
so that launches can be told from sizes. It ran in the first container, on the code of the nightly job of the same
workload on 16 GPUs, between two changes of its speed: across one, sizes are not held against each other. It is uploaded
last, so that no verdict of the month knows of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from app.demo.job import Job
from app.demo.made_up import commit_of, committed_at, random_for
from app.demo.nightlies import (
    BETWEEN_LAUNCHES_SD,
    CI_CENTRE_MS,
    CI_WORKLOAD,
    CONTAINERS,
    FIRST_NIGHT,
    GIB,
)
from app.demo.recording import ci_step_times, launch_level, record
from app.demo.workload import GPUS, Workload, model_flops

NIGHT = 20
"""After the long sequences' slow commits, and before the second container."""
LONGEST_NIGHT = 5
"""Of the longest sequence: before any change of the speed, as the jobs of other lengths that ran before the month."""
LAUNCHES = 2


@dataclass(frozen=True, slots=True)
class Size:
    """`efficiency`: throughput per GPU against 16 of them; of a longer sequence by FLOPs."""

    kind: str
    gpus: int
    share: int
    efficiency: float
    max_allocated_gib: float
    sequence_length: int = CI_WORKLOAD.sequence_length
    context_parallel: int = 1
    night: int = NIGHT

    @property
    def name(self) -> str:
        if self.context_parallel > 1:
            return f"sequence {self.sequence_length} with CP {self.context_parallel}"
        return f"{self.kind} scaling, {self.gpus} GPUs"

    @property
    def workload(self) -> Workload:
        return replace(
            CI_WORKLOAD,
            gpus=self.gpus,
            share=self.share,
            sequence_length=self.sequence_length,
            context_parallel=self.context_parallel,
        )

    @property
    def centre_ms(self) -> float:
        work = model_flops(self.workload) / model_flops(CI_WORKLOAD)
        return CI_CENTRE_MS * work * GPUS / self.gpus / self.efficiency


SIZES = (
    Size("weak", 32, 2, 0.984, 58.9),
    Size("weak", 64, 4, 0.957, 57.2),
    Size("weak", 128, 8, 0.921, 56.4),
    Size("strong", 32, 1, 0.942, 58.7),
    Size("strong", 64, 1, 0.853, 57.0),
)
LONGEST = Size("sequence_tokens", GPUS, 1, 0.961, 77.3, sequence_length=131072, context_parallel=2, night=LONGEST_NIGHT)


def scaling_study() -> Iterator[Job]:
    """Every job of it, in the order in which they ran."""
    for number, (size, launch) in enumerate(
        (size, launch) for size in (*SIZES, LONGEST) for launch in range(1, LAUNCHES + 1)
    ):
        when = FIRST_NIGHT + timedelta(days=size.night - 1, hours=8 + number)
        name = f"{size.name}, launch {launch}"
        random = random_for(name)
        times = ci_step_times(random, size.centre_ms, CI_WORKLOAD.iterations, launch_level(random, BETWEEN_LAUNCHES_SD))
        yield Job(
            name,
            "Megatron-LM",
            size.workload,
            record(random, times, size.max_allocated_gib * GIB),
            CONTAINERS[0],
            when,
            commit_of(when),
            tags=("scaling study",),
            committed=committed_at(when),
        )
