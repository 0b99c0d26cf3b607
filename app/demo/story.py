"""The story of the demo project, in the order in which it happened.

The centres are published figures of 16 H100 training Qwen3-30B-A3B: Megatron-Bridge's guide on MoE communication
overlap (smokes of 2026-05-18), its guide on dispatcher selection (2026-05-17), and its model verification card
(2026-07-25). The slower container and all noise are made up; no such container exists.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from app.demo import megatron_bridge, megatron_lm
from app.demo.job import Job
from app.demo.recording import (
    Recording,
    ci_step_times,
    never_started,
    record,
    smoke_step_times,
    smoke_step_times_with_rate,
)
from app.demo.workload import Workload, tflops_per_gpu

SEED = 20260518
GIB = 1024**3
SMOKE_CONTAINER = "registry.example.com/moe/nemo:pytorch-25.11"
CI_CONTAINERS = ("registry.example.com/moe/train:2026.09", "registry.example.com/moe/train:2026.10")

OVERLAP_MEAN_MS = {"off": 41_250.0, "on": 31_310.0, "on, delayed wgrad": 31_200.0}
"""Means over iterations 3-8 of eight-iteration smokes."""

FALLBACK_MEAN_MS = 45_650.0
FALLBACK_TFLOPS = 132.9
FALLBACK_FINAL_LOSS = 11.44050
FALLBACK_MAX_ALLOCATED = 61.351e9
"""The alltoall fallback: five steps, means after the first, peak memory in bytes."""

CARD_MEAN_MS = {"off": 24_713.8, "on": 21_072.5}
"""HybridEP with captured router and preprocessing: means over iterations 5-20 without and with overlap."""

CI_CENTRE_MS = 20_992.0
CI_MAX_ALLOCATED = 62.166 * GIB
"""The card's independent repetition of its faster side, over iterations 41-50 of 50."""

CI_WORKLOAD = Workload(dispatcher="hybridep", ep_overlap=True, cuda_graphs=True, permute_fusion=True, iterations=50)
CI_COMMITS = (20, 8)
CI_SLOWDOWN = 1.065
"""How much slower the second container is. Made up: four times the spread between launches, so that it shows."""


def story() -> Iterator[Job]:
    """Every job of the demo, oldest first. The same at each call."""
    yield from _dispatcher_case()
    yield from _overlap_case()
    yield from _card_case()
    yield from _container_regression()
    yield _failed_import()
    yield _out_of_memory()


def render(job: Job) -> str:
    """The job's complete log in its trainer's format."""
    return megatron_lm.render(job) if job.trainer == "Megatron-LM" else megatron_bridge.render(job)


def _dispatcher_case() -> Iterator[Job]:
    workload = Workload(cuda_graphs=True, iterations=5)
    random = _random("dispatcher")
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
        random = _random(f"overlap {overlap}")
        workload = Workload(ep_overlap=overlap != "off", delay_wgrad=overlap.endswith("wgrad"))
        recording = record(random, smoke_step_times(random, mean_ms, workload.iterations, first=3), 61.2 * GIB)
        smoke = _smoke(
            f"overlap smoke, EP overlap {overlap}", workload, recording, day + timedelta(hours=hours), ("overlap case",)
        )
        yield replace(smoke, window=(3, 8))


def _card_case() -> Iterator[Job]:
    day = datetime(2026, 7, 25, 9, 0, tzinfo=UTC)
    for hours, (overlap, mean_ms) in enumerate(CARD_MEAN_MS.items()):
        random = _random(f"card {overlap}")
        workload = replace(CI_WORKLOAD, ep_overlap=overlap == "on", iterations=20)
        recording = record(random, smoke_step_times(random, mean_ms, workload.iterations, first=5), CI_MAX_ALLOCATED)
        smoke = _smoke(
            f"HybridEP search, EP overlap {overlap}",
            workload,
            recording,
            day + timedelta(hours=hours),
            ("overlap case",),
        )
        yield replace(smoke, window=(5, 20))


def _container_regression() -> Iterator[Job]:
    day = datetime(2026, 9, 1, 3, 0, tzinfo=UTC)
    for container, count, factor in zip(CI_CONTAINERS, CI_COMMITS, (1.0, CI_SLOWDOWN), strict=True):
        for _ in range(count):
            random = _random(f"ci {day.date()}")
            times = ci_step_times(random, CI_CENTRE_MS * factor, CI_WORKLOAD.iterations)
            yield _ci(f"nightly {day.date()}", CI_WORKLOAD, record(random, times, CI_MAX_ALLOCATED), day, container)
            day += timedelta(days=1)


def _failed_import() -> Job:
    """The first night that asks for DeepEP finds that the new container does not have it."""
    when = datetime(2026, 9, 29, 3, 0, tzinfo=UTC)
    workload = replace(CI_WORKLOAD, dispatcher="deepep")
    return _ci("nightly with DeepEP", workload, never_started("deepep missing"), when, CI_CONTAINERS[1])


def _out_of_memory() -> Job:
    """Twice the micro-batch fits at first, until the allocator finds no piece of memory large enough."""
    random = _random("out of memory")
    times = ci_step_times(random, CI_CENTRE_MS * CI_SLOWDOWN * 0.97, n=14)
    recording = replace(record(random, times, max_allocated_bytes=74.6 * GIB), failure="out of memory")
    when = datetime(2026, 9, 29, 5, 0, tzinfo=UTC)
    return _ci("micro-batch of 2", replace(CI_WORKLOAD, micro_batch_size=2), recording, when, CI_CONTAINERS[1])


def _smoke(name: str, workload: Workload, recording: Recording, when: datetime, tags: tuple[str, ...]) -> Job:
    return Job(name, "Megatron-Bridge", workload, recording, SMOKE_CONTAINER, when, _commit(when), tags=tags)


def _ci(name: str, workload: Workload, recording: Recording, when: datetime, container: str) -> Job:
    return Job(name, "Megatron-LM", workload, recording, container, when, _commit(when), purpose="ci", branch="main")


def _random(key: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *key.encode()])


def _commit(when: datetime) -> str:
    """A made-up commit, the same for all jobs of one day."""
    return hashlib.sha256(f"{SEED} {when.date()}".encode()).hexdigest()[:40]
