"""The runs of the demo project, in chronological order.

The central values are published figures of Qwen3-30B-A3B on 16 H100: Megatron-Bridge's guide on MoE communication
overlap (smoke tests of 2026-05-18), its guide on dispatcher selection (2026-05-17), and its model verification card
(2026-07-25). The following month of nightly jobs starts at the level of that card. Its changes, containers, commits and
noise are generated, as are the profiles and the scaling study, which is uploaded last.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from app.demo import megatron_bridge, megatron_lm
from app.demo.job import (
    GPUS,
    DemoJob,
    DemoTrial,
    ProfileShares,
    Recording,
    Workload,
    ci_step_times,
    commit_of,
    committed_at,
    launch_level,
    model_flops,
    never_started,
    random_for,
    record,
    smoke_step_times,
    smoke_step_times_with_rate,
    tflops_per_gpu,
)

# --- A month of nightly CI with three jobs. Only the initial level is a published figure.
#
# The constants below describe the events by night (1 is 2026-09-01). Before that, five other jobs run on three nights
# each: they show how much launches vary, which verdicts on few runs need.

GIB = 1024**3
CONTAINERS = ("registry.example.com/moe/train:2026.09", "registry.example.com/moe/train:2026.10")
CALIBRATIONS, NIGHTS = 3, 30
FIRST_NIGHT = datetime(2026, 9, 1, 3, 0, tzinfo=UTC)

CI_CENTRE_MS = 20_992.0
CI_MAX_ALLOCATED = 62.166 * GIB
"""From the model verification card: the repetition of the faster side, iterations 41-50 of 50."""

CI_WORKLOAD = Workload(dispatcher="hybridep", ep_overlap=True, cuda_graphs=True, permute_fusion=True, iterations=50)
DRAW = 30
"""Seed of the random numbers, selected so that noise alone raises no alarm and the events below are visible."""

BETWEEN_LAUNCHES_SD = 0.006
"""Noise of a quiet cluster: real ones have 0.6 to 1.4 %."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A nightly job. `upgrade` is the slowdown factor of the second container."""

    suffix: str
    workload: Workload
    max_allocated_bytes: float
    upgrade: float

    @property
    def centre_ms(self) -> float:
        """Return the usual step time: that of the published job, scaled by the FLOPs of a step."""
        return CI_CENTRE_MS * model_flops(self.workload) / model_flops(CI_WORKLOAD)


MAIN = Suite("", CI_WORKLOAD, CI_MAX_ALLOCATED, upgrade=1.065)
LONG = Suite(", sequence 8192", replace(CI_WORKLOAD, sequence_length=8192), 71.4 * GIB, upgrade=1.06)
SHORT = Suite(", sequence 2048", replace(CI_WORKLOAD, sequence_length=2048), 57.5 * GIB, upgrade=1.055)
SUITES = (MAIN, LONG, SHORT)
MATRIX = tuple(
    Suite(f", sequence {length}", replace(CI_WORKLOAD, sequence_length=length), gib * GIB, upgrade=1.0)
    for length, gib in ((512, 52.4), (1024, 55.1), (16384, 73.0), (32768, 74.9), (65536, 76.6))
)
"""Jobs that run only on the three nights before the month."""

SLOW_COMMITS = range(14, 18)
SLOW_BY = 1.06
"""A commit slows down the jobs with long sequences (MAIN and LONG), and a later commit fixes it."""

FASTER_FROM = 10
FASTER_BY = 0.94
"""A commit speeds up the job with short sequences."""

UPGRADE_FROM = 22
"""The project moves to the second container, which slows down all jobs."""

UNFUSED_FROM = 27
UNFUSED_BY = 1.05
"""Permute fusion is turned off in the job with short sequences."""

DOUBTFUL_NIGHT = 28
DOUBTFUL_LAUNCHES = (0.016, 0.001, -0.003)
"""One launch of LONG is slow by chance, and two reruns of its commit are not."""

USUAL_SHARES = ProfileShares(communication=0.24, exposed=0.06, idle=0.06)
"""Of a step in the first container. What the second one adds to a step is exposed communication."""


def _shares(suite: Suite, night: int) -> ProfileShares:
    added = suite.upgrade - 1 if night >= UPGRADE_FROM else 0.0
    slower = (1 + added) * (UNFUSED_BY if suite is SHORT and night >= UNFUSED_FROM else 1.0)
    return ProfileShares(
        (USUAL_SHARES.communication + added) / slower,
        (USUAL_SHARES.exposed + added) / slower,
        USUAL_SHARES.idle / slower,
    )


def nightlies() -> Iterator[DemoJob]:
    """Yield every job of the month in chronological order."""
    for night in range(1 - CALIBRATIONS, 1):
        when = FIRST_NIGHT + timedelta(days=night - 1)
        for hour, suite in enumerate(MATRIX):
            yield from _night(suite, night, when + timedelta(hours=hour))
    for night in range(1, NIGHTS + 1):
        when = FIRST_NIGHT + timedelta(days=night - 1)
        for hour, suite in enumerate(SUITES):
            yield from _night(suite, night, when + timedelta(hours=hour))
        yield from _experiments(night, when)
    yield _release(UPGRADE_FROM - 1)
    yield _release(NIGHTS)
    last = FIRST_NIGHT + timedelta(days=NIGHTS)
    yield _ci("nightly with DeepEP", replace(CI_WORKLOAD, dispatcher="deepep"), never_started("deepep missing"), last)
    yield _out_of_memory(last + timedelta(hours=2))


def factor(suite: Suite, night: int) -> float:
    """Return the slowdown factor of a job relative to the first night, without the variation of launches."""
    factor = 1.0
    if suite in (MAIN, LONG) and night in SLOW_COMMITS:
        factor *= SLOW_BY
    if suite is SHORT and night >= FASTER_FROM:
        factor *= FASTER_BY
    if night >= UPGRADE_FROM:
        factor *= suite.upgrade
    if suite is SHORT and night >= UNFUSED_FROM:
        factor *= UNFUSED_BY
    return factor


def _night(suite: Suite, night: int, when: datetime) -> Iterator[DemoJob]:
    name = f"nightly {when.date()}{suite.suffix}"
    workload = suite.workload
    if suite is SHORT and night >= UNFUSED_FROM:
        workload = replace(workload, permute_fusion=False)
    if suite is not LONG or night != DOUBTFUL_NIGHT:
        job = _ci(name, workload, _measured(name, suite, night), when)
        is_profiled = night == NIGHTS or (suite is MAIN and night in (UPGRADE_FROM - 1, UPGRADE_FROM))
        yield replace(job, profile=_shares(suite, night)) if is_profiled else job
        return
    for rerun, launch in enumerate(DOUBTFUL_LAUNCHES):
        again = f"{name}, rerun {rerun}" if rerun else name
        yield _ci(again, workload, _measured(again, suite, night, launch), when + timedelta(hours=3 * rerun))


def _measured(name: str, suite: Suite, night: int, launch: float | None = None, slower: float = 1.0) -> Recording:
    random = random_for(f"{DRAW} {name}")
    chance = launch_level(random, BETWEEN_LAUNCHES_SD)
    centre_ms = suite.centre_ms * factor(suite, night) * slower
    times = ci_step_times(random, centre_ms, suite.workload.iterations, chance if launch is None else launch)
    return record(random, times, suite.max_allocated_bytes)


OVERLAP_OFF = 24_713.8 / 21_072.5
"""From the model verification card; the other slowdowns are invented for the demo."""
EXPERIMENTS = {
    11: ("A/B: EP overlap off", replace(CI_WORKLOAD, ep_overlap=False), OVERLAP_OFF),
    12: ("A/B: alltoall in place of HybridEP", replace(CI_WORKLOAD, dispatcher="alltoall"), 1.12),
    13: ("A/B: permute fusion off", replace(CI_WORKLOAD, permute_fusion=False), 1.045),
    20: ("A/B: CUDA graphs off", replace(CI_WORKLOAD, cuda_graphs=False), 1.03),
    25: ("A/B: permute fusion off, new container", replace(CI_WORKLOAD, permute_fusion=False), 1.048),
}
"""Night -> name, workload and slowdown factor of an experiment."""


def _experiments(night: int, when: datetime) -> Iterator[DemoJob]:
    if night in EXPERIMENTS:
        name, workload, slower = EXPERIMENTS[night]
        job = _ci(name, workload, _measured(name, MAIN, night, slower=slower), when + timedelta(hours=9))
        yield replace(job, purpose="experiment", branch="", tags=("one knob",))


def _release(night: int) -> DemoJob:
    when = FIRST_NIGHT + timedelta(days=night - 1, hours=12)
    name = f"release {_container(when).rpartition(':')[2]}"
    job = _ci(name, CI_WORKLOAD, _measured(name, MAIN, night), when)
    return replace(
        job,
        purpose="release",
        branch="release",
        pinned="The released version is the reference for later runs.",
        profile=_shares(MAIN, night),
    )


def _out_of_memory(when: datetime) -> DemoJob:
    """Return a job with twice the micro-batch, which runs out of memory after some iterations."""
    random = random_for("out of memory")
    times = ci_step_times(random, CI_CENTRE_MS * MAIN.upgrade * 0.97, n=14)
    recording = replace(record(random, times, max_allocated_bytes=74.6 * GIB), failure="out of memory")
    return _ci("micro-batch of 2", replace(CI_WORKLOAD, micro_batch_size=2), recording, when)


def _ci(name: str, workload: Workload, recording: Recording, when: datetime) -> DemoJob:
    return DemoJob(
        name,
        "Megatron-LM",
        workload,
        recording,
        _container(when),
        when,
        commit_of(when),
        purpose="ci",
        branch="main",
        committed=committed_at(when),
    )


def _container(when: datetime) -> str:
    upgraded = FIRST_NIGHT.date() + timedelta(days=UPGRADE_FROM - 1)
    return CONTAINERS[when.date() >= upgraded]


# --- Two generated experiments after the month: one is accepted, one waits for its runs.
#
# Both are planned through the API; their runs carry the tag of the plan.

_NIGHT = FIRST_NIGHT + timedelta(days=NIGHTS - 1)
BEGAN = FIRST_NIGHT + timedelta(days=NIGHTS, hours=9)
DELAYED = replace(CI_WORKLOAD, delay_wgrad=True)
TRIAL_FASTER_BY = 0.962


def trials() -> tuple[DemoTrial, DemoTrial]:
    """Return both experiments with their runs in chronological order."""
    unfused = replace(DELAYED, permute_fusion=False)
    runs = [
        _job(name, workload, slower, hour)
        for hour, (name, workload, slower) in enumerate(
            (
                ("delayed weight gradients, run 1", DELAYED, TRIAL_FASTER_BY),
                ("delayed weight gradients, run 2", DELAYED, TRIAL_FASTER_BY),
                ("weight gradients as before, run 2", CI_WORKLOAD, 1.0),
                ("delayed and not fused, run 1", unfused, TRIAL_FASTER_BY * 1.008),
            )
        )
    ]
    first = DemoTrial(
        "Delay weight gradients behind communication",
        f"nightly {_NIGHT.date()}",
        {"delay_wgrad": True},
        runs_each=2,
        jobs=(("candidate", runs[0]), ("candidate", runs[1]), ("baseline", runs[2])),
        decision="accepted",
        note="Faster on every launch, memory and loss as before.",
    )
    second = DemoTrial(
        "Is permute fusion still worth it?",
        runs[1].name,
        {"permute_fusion": False},
        runs_each=3,
        jobs=(("candidate", runs[3]),),
    )
    return first, second


def _job(name: str, workload: Workload, slower: float, hour: int) -> DemoJob:
    random = random_for(name)
    chance = launch_level(random, BETWEEN_LAUNCHES_SD)
    times = ci_step_times(random, MAIN.centre_ms * factor(MAIN, NIGHTS) * slower, workload.iterations, chance)
    return DemoJob(
        name,
        "Megatron-LM",
        workload,
        record(random, times, CI_MAX_ALLOCATED),
        CONTAINERS[1],
        BEGAN + timedelta(hours=hour),
        commit_of(_NIGHT),
        committed=committed_at(_NIGHT),
    )


# --- The scaling study: the nightly job on more GPUs, generated.
#
# Weak: the batch grows with the GPUs. Strong: it stays. One long sequence is split over two GPUs (CP 2). Each size has
# two launches, to separate their variation from the size. The study uses the first container and the code of the
# nightly job between two change points, because sizes are compared only within one segment. It is uploaded last, so
# that it does not affect the verdicts of the month.

NIGHT = 20
"""After the slow commits of the long sequences, and before the second container."""
LONGEST_NIGHT = 5
"""Night of the longest sequence: before any change point, like the jobs of other lengths before the month."""
LAUNCHES = 2


@dataclass(frozen=True, slots=True)
class Size:
    """A size of the study. `efficiency` is throughput per GPU relative to 16 GPUs, by FLOPs for a longer sequence."""

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


def scaling_study() -> Iterator[DemoJob]:
    """Yield every job of the study in chronological order."""
    for number, (size, launch) in enumerate(
        (size, launch) for size in (*SIZES, LONGEST) for launch in range(1, LAUNCHES + 1)
    ):
        when = FIRST_NIGHT + timedelta(days=size.night - 1, hours=8 + number)
        name = f"{size.name}, launch {launch}"
        random = random_for(name)
        times = ci_step_times(random, size.centre_ms, CI_WORKLOAD.iterations, launch_level(random, BETWEEN_LAUNCHES_SD))
        yield DemoJob(
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


SMOKE_CONTAINER = "registry.example.com/moe/nemo:pytorch-25.11"
"""Without the packages of DeepEP and HybridEP, as in the dispatcher case."""
CARD_CONTAINER = "registry.example.com/moe/nemo:pytorch-26.05"
"""With HybridEP, for the runs of the model verification card."""

OVERLAP_MEAN_MS = {"off": 41_250.0, "on": 31_310.0, "on, delayed wgrad": 31_200.0}
"""Means over iterations 3-8 of smoke tests with eight iterations."""

PROFILED = {
    "off": {"exposed_comm_frac": 0.3, "gpu_idle_frac": 0.05},
    "on": {"exposed_comm_frac": 0.06, "gpu_idle_frac": 0.18},
}
"""Invented profiles: without exposed communication, the host is the next bottleneck, because no graphs are captured."""

FALLBACK_MEAN_MS = 45_650.0
FALLBACK_TFLOPS = 132.9
FALLBACK_FINAL_LOSS = 11.44050
FALLBACK_MAX_ALLOCATED = 61.351e9
"""The alltoall fallback: five steps, means without the first, peak memory in bytes."""

CARD_MEAN_MS = {"off": 24_713.8, "on": 21_072.5}
"""HybridEP with captured router and preprocessing: means over iterations 5-20 without and with overlap."""


def story() -> Iterator[DemoJob]:
    """Yield every job of the demo in the order of upload, identical at each call."""
    yield from _dispatcher_case()
    yield from _overlap_case()
    yield from _card_case()
    yield from nightlies()
    yield from scaling_study()


def render(job: DemoJob) -> str:
    """Return the complete log of a job in the format of its trainer."""
    return megatron_lm.render(job) if job.trainer == "Megatron-LM" else megatron_bridge.render(job)


def _dispatcher_case() -> Iterator[DemoJob]:
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


def _overlap_case() -> Iterator[DemoJob]:
    day = datetime(2026, 5, 18, 9, 0, tzinfo=UTC)
    for hours, (overlap, mean_ms) in enumerate(OVERLAP_MEAN_MS.items()):
        random = random_for(f"overlap {overlap}")
        workload = Workload(ep_overlap=overlap != "off", delay_wgrad=overlap.endswith("wgrad"))
        recording = record(random, smoke_step_times(random, mean_ms, workload.iterations, first=3), 61.2 * GIB)
        smoke = _smoke(
            f"overlap smoke, EP overlap {overlap}", workload, recording, day + timedelta(hours=hours), ("overlap case",)
        )
        yield replace(smoke, window=(3, 8), facts=PROFILED.get(overlap, {}))


def _card_case() -> Iterator[DemoJob]:
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


def _smoke(name: str, workload: Workload, recording: Recording, when: datetime, tags: tuple[str, ...]) -> DemoJob:
    return DemoJob(
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
