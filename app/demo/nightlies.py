"""A month of nightly CI of three jobs, with what a month brings: made up, but for the level that it starts from.

What happens, night by night (1 is 2026-09-01), stands below. Before it, five other jobs are run on three nights each:
from them the service learns how much launches vary, without which no verdict on a few runs can be sharp.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from app.demo.job import Job
from app.demo.made_up import commit_of, committed_at, random_for
from app.demo.recording import Recording, ci_step_times, launch_level, never_started, record
from app.demo.workload import Workload, model_flops

GIB = 1024**3
CONTAINERS = ("registry.example.com/moe/train:2026.09", "registry.example.com/moe/train:2026.10")
CALIBRATIONS, NIGHTS = 3, 30
FIRST_NIGHT = datetime(2026, 9, 1, 3, 0, tzinfo=UTC)

CI_CENTRE_MS = 20_992.0
CI_MAX_ALLOCATED = 62.166 * GIB
"""The model verification card's independent repetition of its faster side, over iterations 41-50 of 50."""

CI_WORKLOAD = Workload(dispatcher="hybridep", ep_overlap=True, cuda_graphs=True, permute_fusion=True, iterations=50)
DRAW = 30
"""Of the random numbers: one in which chance raises no alarm of its own, so that the month shows what is told below."""

BETWEEN_LAUNCHES_SD = 0.006
"""The demo's cluster is a quiet one: real ones have 0.6 to 1.4 %."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One nightly job. `upgrade`: how much slower the second container makes it."""

    suffix: str
    workload: Workload
    max_allocated_bytes: float
    upgrade: float

    @property
    def centre_ms(self) -> float:
        """Its usual step time: that of the published job, by as many times as its steps have more FLOPs."""
        return CI_CENTRE_MS * model_flops(self.workload) / model_flops(CI_WORKLOAD)


MAIN = Suite("", CI_WORKLOAD, CI_MAX_ALLOCATED, upgrade=1.065)
LONG = Suite(", sequence 8192", replace(CI_WORKLOAD, sequence_length=8192), 71.4 * GIB, upgrade=1.06)
SHORT = Suite(", sequence 2048", replace(CI_WORKLOAD, sequence_length=2048), 57.5 * GIB, upgrade=1.055)
SUITES = (MAIN, LONG, SHORT)
MATRIX = tuple(
    Suite(f", sequence {length}", replace(CI_WORKLOAD, sequence_length=length), gib * GIB, upgrade=1.0)
    for length, gib in ((512, 52.4), (1024, 55.1), (16384, 73.0), (32768, 74.9), (65536, 76.6))
)
"""Jobs that are run on the three nights before the month only."""

SLOW_COMMITS = range(14, 18)
SLOW_BY = 1.06
"""A commit makes the jobs of long sequences slower (MAIN and LONG), and another one puts that right."""

FASTER_FROM = 10
FASTER_BY = 0.94
"""A commit makes the job of short sequences faster."""

UPGRADE_FROM = 22
"""The project moves to the second container, which is slower for all."""

UNFUSED_FROM = 27
UNFUSED_BY = 1.05
"""Somebody turns permute fusion off in the job of short sequences."""

DOUBTFUL_NIGHT = 28
DOUBTFUL_LAUNCHES = (0.016, 0.001, -0.003)
"""One launch of LONG is slow by chance, and two reruns of its commit show that it was chance."""


def nightlies() -> Iterator[Job]:
    """Every job of the month, in the order in which they ran."""
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
    yield _failed_import(last)
    yield _out_of_memory(last + timedelta(hours=2))


def factor(suite: Suite, night: int) -> float:
    """How much slower than at first the job is, launches aside."""
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


def _night(suite: Suite, night: int, when: datetime) -> Iterator[Job]:
    name = f"nightly {when.date()}{suite.suffix}"
    workload = suite.workload
    if suite is SHORT and night >= UNFUSED_FROM:
        workload = replace(workload, permute_fusion=False)
    if suite is not LONG or night != DOUBTFUL_NIGHT:
        yield _ci(name, workload, _measured(name, suite, night), when)
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
"""By the model verification card; the other two are made up."""
EXPERIMENTS = {
    11: ("A/B: EP overlap off", replace(CI_WORKLOAD, ep_overlap=False), OVERLAP_OFF),
    12: ("A/B: alltoall in place of HybridEP", replace(CI_WORKLOAD, dispatcher="alltoall"), 1.12),
    13: ("A/B: permute fusion off", replace(CI_WORKLOAD, permute_fusion=False), 1.045),
    25: ("A/B: permute fusion off, new container", replace(CI_WORKLOAD, permute_fusion=False), 1.048),
}
"""Night -> name, what was run in place of the nightly job's workload, and how much slower that is."""


def _experiments(night: int, when: datetime) -> Iterator[Job]:
    if night in EXPERIMENTS:
        name, workload, slower = EXPERIMENTS[night]
        job = _ci(name, workload, _measured(name, MAIN, night, slower=slower), when + timedelta(hours=9))
        yield replace(job, purpose="experiment", branch="", tags=("one knob",))


def _release(night: int) -> Job:
    when = FIRST_NIGHT + timedelta(days=night - 1, hours=12)
    name = f"release {_container(when).rpartition(':')[2]}"
    job = _ci(name, CI_WORKLOAD, _measured(name, MAIN, night), when)
    return replace(job, purpose="release", branch="release", pinned="What was released is what later runs are held to.")


def _failed_import(when: datetime) -> Job:
    """The first night that asks for DeepEP finds that the new container does not have it."""
    return _ci("nightly with DeepEP", replace(CI_WORKLOAD, dispatcher="deepep"), never_started("deepep missing"), when)


def _out_of_memory(when: datetime) -> Job:
    """Twice the micro-batch fits at first, until the allocator finds no piece of memory large enough."""
    random = random_for("out of memory")
    times = ci_step_times(random, CI_CENTRE_MS * MAIN.upgrade * 0.97, n=14)
    recording = replace(record(random, times, max_allocated_bytes=74.6 * GIB), failure="out of memory")
    return _ci("micro-batch of 2", replace(CI_WORKLOAD, micro_batch_size=2), recording, when)


def _ci(name: str, workload: Workload, recording: Recording, when: datetime) -> Job:
    return Job(
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
