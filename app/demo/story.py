"""The story of the demo project, in the order in which it happened.

The centres are published figures of 16 H100 training Qwen3-30B-A3B: Megatron-Bridge's guide on MoE communication
overlap (smokes of 2026-05-18), its guide on dispatcher selection (2026-05-17), and its model verification card
(2026-07-25). The month of nightly jobs that follows begins at that card's level; its changes, containers, commits and
all noise are made up, and so are what profiles measured and the scaling study, which is uploaded last.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from app.demo import megatron_bridge, megatron_lm
from app.demo.job import Job
from app.demo.made_up import commit_of, random_for
from app.demo.nightlies import CI_MAX_ALLOCATED, CI_WORKLOAD, GIB, nightlies
from app.demo.recording import (
    Recording,
    never_started,
    record,
    smoke_step_times,
    smoke_step_times_with_rate,
)
from app.demo.scaling_study import scaling_study
from app.demo.workload import Workload, tflops_per_gpu

SMOKE_CONTAINER = "registry.example.com/moe/nemo:pytorch-25.11"
"""Without the packages of DeepEP and HybridEP, as the dispatcher case found."""
CARD_CONTAINER = "registry.example.com/moe/nemo:pytorch-26.05"
"""With HybridEP: the card's runs are of another container than the one that lacked it."""

OVERLAP_MEAN_MS = {"off": 41_250.0, "on": 31_310.0, "on, delayed wgrad": 31_200.0}
"""Means over iterations 3-8 of eight-iteration smokes."""

PROFILED = {
    "off": {"exposed_comm_frac": 0.3, "gpu_idle_frac": 0.05},
    "on": {"exposed_comm_frac": 0.06, "gpu_idle_frac": 0.18},
}
"""Made up: behind the wall that the overlap took away, communication, stands the host, for no graphs are captured."""

FALLBACK_MEAN_MS = 45_650.0
FALLBACK_TFLOPS = 132.9
FALLBACK_FINAL_LOSS = 11.44050
FALLBACK_MAX_ALLOCATED = 61.351e9
"""The alltoall fallback: five steps, means after the first, peak memory in bytes."""

CARD_MEAN_MS = {"off": 24_713.8, "on": 21_072.5}
"""HybridEP with captured router and preprocessing: means over iterations 5-20 without and with overlap."""


def story() -> Iterator[Job]:
    """Every job of the demo, in the order of their upload. The same at each call."""
    yield from _dispatcher_case()
    yield from _overlap_case()
    yield from _card_case()
    yield from nightlies()
    yield from scaling_study()


def render(job: Job) -> str:
    """The job's complete log in its trainer's format."""
    return megatron_lm.render(job) if job.trainer == "Megatron-LM" else megatron_bridge.render(job)


def _dispatcher_case() -> Iterator[Job]:
    workload = Workload(cuda_graphs=True, iterations=5)
    random = random_for("dispatcher")
    times = smoke_step_times_with_rate(random, FALLBACK_MEAN_MS, FALLBACK_TFLOPS, work=tflops_per_gpu(1.0))
    fallback = record(random, times, FALLBACK_MAX_ALLOCATED, last_loss=FALLBACK_FINAL_LOSS)
    day, tags = datetime(2026, 5, 17, 9, 0, tzinfo=UTC), ("dispatcher case",)
    smoke = _smoke("dispatcher smoke, alltoall fallback", workload, fallback, day, tags)
    yield replace(smoke, window=(2, 5))
    for hours, backend in ((1, "DeepEP"), (2, "HybridEP")):
        missing = never_started("deepep missing" if backend == "DeepEP" else "hybridep missing")
        asked = replace(workload, dispatcher="deepep" if backend == "DeepEP" else "hybridep")
        yield _smoke(f"dispatcher smoke, {backend}", asked, missing, day + timedelta(hours=hours), tags)


def _overlap_case() -> Iterator[Job]:
    day = datetime(2026, 5, 18, 9, 0, tzinfo=UTC)
    for hours, (overlap, mean_ms) in enumerate(OVERLAP_MEAN_MS.items()):
        random = random_for(f"overlap {overlap}")
        workload = Workload(ep_overlap=overlap != "off", delay_wgrad=overlap.endswith("wgrad"))
        recording = record(random, smoke_step_times(random, mean_ms, workload.iterations, first=3), 61.2 * GIB)
        smoke = _smoke(
            f"overlap smoke, EP overlap {overlap}", workload, recording, day + timedelta(hours=hours), ("overlap case",)
        )
        yield replace(smoke, window=(3, 8), facts=PROFILED.get(overlap, {}))


def _card_case() -> Iterator[Job]:
    day = datetime(2026, 7, 25, 9, 0, tzinfo=UTC)
    for hours, (overlap, mean_ms) in enumerate(CARD_MEAN_MS.items()):
        random = random_for(f"card {overlap}")
        workload = replace(CI_WORKLOAD, ep_overlap=overlap == "on", iterations=20)
        recording = record(random, smoke_step_times(random, mean_ms, workload.iterations, first=5), CI_MAX_ALLOCATED)
        smoke = _smoke(
            f"HybridEP search, EP overlap {overlap}",
            workload,
            recording,
            day + timedelta(hours=hours),
            ("overlap case",),
        )
        yield replace(smoke, container=CARD_CONTAINER, window=(5, 20))


def _smoke(name: str, workload: Workload, recording: Recording, when: datetime, tags: tuple[str, ...]) -> Job:
    return Job(
        name,
        "Megatron-Bridge",
        workload,
        recording,
        SMOKE_CONTAINER,
        when,
        commit_of(when),
        tags=tags,
        committed=when.replace(hour=6),
    )
