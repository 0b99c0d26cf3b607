"""A demo job: its workload, its measurements, and the metadata that CI would send."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from app.domain.performance.flops import flops_per_step
from app.domain.performance.model_shape import Experts, GroupedQueryAttention, LatentAttention, ModelShape
from app.domain.run import FloatArray

# --- The workload: a model and how it is spread over GPUs.
#
# Shapes: the published configurations. Figures of Qwen3-30B-A3B: Megatron-Bridge's guides on MoE communication overlap
# and dispatcher selection, and its model verification card of 2026-07.


@dataclass(frozen=True, slots=True)
class Model:
    """A MoE model. The first `dense_layers` have no experts; `kv_groups` 0: multi-head latent attention."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_groups: int
    ffn: int
    experts: int
    top_k: int
    expert_ffn: int
    vocabulary: int
    dense_layers: int = 0
    shared_ffn: int = 0

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Return 1 for each layer with experts and 0 for each dense one."""
        return (0,) * self.dense_layers + (1,) * (self.layers - self.dense_layers)

    @property
    def shape(self) -> ModelShape:
        return ModelShape(
            layers=self.layers,
            hidden=self.hidden,
            vocabulary=self.vocabulary,
            ffn_width=self.ffn if self.dense_layers else 0,
            gated=True,
            attention=GroupedQueryAttention(self.heads, self.kv_groups, HEAD_CHANNELS)
            if self.kv_groups
            else LatentAttention(self.heads, **LATENT),
            experts=Experts(self.top_k, self.expert_ffn, self.moe_layers, self.shared_ffn),
        )


HEAD_CHANNELS = 128
LATENT = {"query_rank": 1536, "key_value_rank": 512, "head_width": 128, "rotary_width": 64, "value_width": 128}
"""Multi-head latent attention of DeepSeek-V3."""

QWEN3_30B = Model("Qwen3-30B-A3B", 48, 2048, 32, 4, 6144, 128, 8, 768, 151936)
QWEN3_235B = Model("Qwen3-235B-A22B", 94, 4096, 64, 4, 12288, 128, 8, 1536, 151936)
DEEPSEEK_V3 = Model("DeepSeek-V3", 61, 7168, 128, 0, 18432, 256, 8, 2048, 129280, dense_layers=3, shared_ffn=2048)

GPUS = 16
TOKENS_PER_STEP = 4096 * 1024
GPUS_PER_NODE = {"H100": 8, "GB200": 4}

Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
Precision = Literal["bf16", "fp8_sc", "fp8_mx"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model on GPUs with expert parallelism. The defaults are the settings of the smoke tests.

    The number of tokens per step does not depend on the sequence length: it is `share` times that of the smoke tests.
    """

    dispatcher: Dispatcher = "alltoall"
    ep_overlap: bool = False
    delay_wgrad: bool = False
    cuda_graphs: bool = False
    permute_fusion: bool = False
    micro_batch_size: int = 1
    iterations: int = 8
    sequence_length: int = 4096
    gpus: int = GPUS
    share: float = 1
    context_parallel: int = 1
    model: Model = QWEN3_30B
    gpu: Literal["H100", "GB200"] = "H100"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    virtual_stages: int | None = None
    pipeline_layout: str | None = None
    expert_parallel: int = GPUS
    precision: Precision = "bf16"
    recompute: tuple[str, ...] = ()

    @property
    def global_batch_size(self) -> int:
        return round(self.share * TOKENS_PER_STEP / self.sequence_length)

    @property
    def data_parallel(self) -> int:
        return self.gpus // (self.context_parallel * self.tensor_parallel * self.pipeline_parallel)


def tflops_per_gpu(step_time_ms: float, workload: Workload | None = None) -> float:
    """Return TFLOP/s/GPU of one step of this workload, as a trainer logs it."""
    workload = workload or Workload()
    return model_flops(workload) / workload.gpus / step_time_ms / 1e9


def model_flops(workload: Workload) -> float:
    shape = workload.model.shape
    return flops_per_step(shape, workload.global_batch_size, workload.sequence_length, discount_window=False)


# --- The measurements of each iteration: step times with realistic noise, losses, memory.
#
# The noise was measured on 1,873 Megatron-LM CI runs: within a run a coefficient of variation of 1.2 %, lag-1
# autocorrelation 0.4, spikes in 2 % of iterations (typically +25 %, a quarter of them over +70 %); between launches of
# one job 1.4 %, heavy-tailed.

Failure = Literal["deepep missing", "hybridep missing", "out of memory"]

WITHIN_RUN_CV = 0.012
AUTOCORRELATION = 0.4
SPIKE_SHARE = 0.02
SPIKE_MEDIAN = 0.25
SPIKE_SIGMA = 1.526
"""Of ln(spike size): puts the upper quartile at 70 %."""

BETWEEN_RUNS_SD = 0.014
BETWEEN_RUNS_DF = 4
"""Degrees of freedom of the Student distribution that gives the heavy tails."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The values of a job, one per iteration. All arrays have the same length. Memory is in bytes of rank 0."""

    step_time_ms: FloatArray
    lm_loss: FloatArray
    load_balancing_loss: FloatArray
    grad_norm: FloatArray
    max_allocated_bytes: float
    failure: Failure | None = None

    @property
    def n(self) -> int:
        return len(self.step_time_ms)


def record(
    random: np.random.Generator, step_time_ms: FloatArray, max_allocated_bytes: float, last_loss: float | None = None
) -> Recording:
    """Return a job with these step times and a falling loss, which ends at `last_loss` if given."""
    n = len(step_time_ms)
    iteration = np.arange(n)
    lm_loss = 7.9 + 4.45 * np.exp(-iteration / 18) + random.normal(0, 0.012, n)
    if last_loss is not None:
        lm_loss += (last_loss - lm_loss[-1]) * (iteration + 1) / n
    return Recording(
        step_time_ms=step_time_ms,
        lm_loss=lm_loss,
        load_balancing_loss=1 + np.abs(random.normal(0, 4e-4, n)),
        grad_norm=1.5 + 18 * np.exp(-iteration / 12) * random.lognormal(0, 0.05, n),
        max_allocated_bytes=max_allocated_bytes,
    )


def never_started(failure: Failure) -> Recording:
    """Return a job without iterations, which failed while it built its model."""
    empty = np.empty(0)
    return Recording(empty, empty, empty, empty, max_allocated_bytes=0, failure=failure)


def launch_level(random: np.random.Generator, sd: float = BETWEEN_RUNS_SD) -> float:
    """Draw how much slower than usual a launch is, as a natural logarithm."""
    return float(sd / np.sqrt(BETWEEN_RUNS_DF / (BETWEEN_RUNS_DF - 2)) * random.standard_t(BETWEEN_RUNS_DF))


def ci_step_times(random: np.random.Generator, centre_ms: float, n: int, launch: float | None = None) -> FloatArray:
    """Draw the step times of a CI job: the level of this launch around `centre_ms`, noise, spikes and a slow start."""
    level = centre_ms * np.exp(launch_level(random) if launch is None else launch)
    spikes = (random.random(n) < SPIKE_SHARE) * random.lognormal(np.log(SPIKE_MEDIAN), SPIKE_SIGMA, n)
    times = level * np.exp(_correlated_noise(random, n)) * (1 + np.minimum(spikes, 3))
    return _with_slow_start(random, times)


def smoke_step_times(random: np.random.Generator, mean_ms: float, n: int, first: int) -> FloatArray:
    """Draw the step times of a smoke test whose mean over iterations `first` to `n` is the published `mean_ms`."""
    times = np.exp(_correlated_noise(random, n))
    times *= mean_ms / times[first - 1 :].mean()
    return _with_slow_start(random, times, until=first - 1)


def smoke_step_times_with_rate(
    random: np.random.Generator, mean_ms: float, mean_rate: float, work: float
) -> FloatArray:
    """Draw five steps whose last four have both published means: of the time, and of `work / time`.

    The two means differ by an amount that depends on the spread of the steps (the mean of ratios is not the ratio of
    means), so together they determine the spread.
    """
    shape = np.array([1.0, -0.93, 0.91, -0.98]) + random.normal(0, 0.01, 4)
    shape -= shape.mean()
    low, high = 0.0, 0.5
    for _ in range(60):  # bisection: the mean rate grows with the spread
        spread = (low + high) / 2
        if np.mean(work / (mean_ms * (1 + spread * shape))) < mean_rate:
            low = spread
        else:
            high = spread
    return _with_slow_start(random, mean_ms * np.concatenate(([1.0], 1 + low * shape)), until=1)


def _correlated_noise(random: np.random.Generator, n: int) -> FloatArray:
    innovation = WITHIN_RUN_CV * np.sqrt(1 - AUTOCORRELATION**2)
    noise = np.empty(n)
    noise[0] = random.normal(0, WITHIN_RUN_CV)
    for i in range(1, n):
        noise[i] = AUTOCORRELATION * noise[i - 1] + random.normal(0, innovation)
    return noise


def _with_slow_start(random: np.random.Generator, times: FloatArray, until: int = 2) -> FloatArray:
    """Slow down the first iteration (compilation, allocation, connections) and the warm-up up to `until`."""
    times = times.copy()
    times[0] += random.uniform(75_000, 110_000)
    times[1:until] *= 1 + random.uniform(0.03, 0.08)
    return times


PROJECT = "demo"
TAG = "generated"


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A generated job. `started` is the start time of the log, `window` the declared steady window (first, last).

    `committed` is the commit time, equal for reruns. `pinned` is the reason for pinning it as golden baseline, or
    empty. `facts` are measurements of a profile, by the names of the rules; `profile` is a trace to attach.
    """

    name: str
    trainer: Literal["Megatron-LM", "Megatron-Bridge"]
    workload: Workload
    recording: Recording
    container: str
    started: datetime
    commit: str
    purpose: Literal["ci", "experiment", "release"] = "experiment"
    branch: str = ""
    tags: tuple[str, ...] = ()
    window: tuple[int, int] | None = None
    committed: datetime | None = None
    pinned: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)
    profile: "ProfileShares | None" = None

    @property
    def key(self) -> str:
        """Return the idempotency key, so that seeding again adds nothing."""
        return f"demo: {self.name}"

    def metadata(self) -> dict[str, object]:
        """Return the `meta` document with everything that the log does not contain."""
        document: dict[str, object] = {
            "name": self.name,
            "project": PROJECT,
            "purpose": self.purpose,
            "branch": self.branch,
            "commit": self.commit,
            "tags": [TAG, *self.tags],
            "container": self.container,
            "model": self.workload.model.name,
            "task": "pretrain",
            "data_mode": "mock",
            "gpu": self.workload.gpu,
            "gpus": self.workload.gpus,
            "gpus_per_node": GPUS_PER_NODE[self.workload.gpu],
            "cluster": f"demo-{self.workload.gpu.lower()}",
            **self.facts,
        }
        if self.committed is not None:
            document["commit_time"] = self.committed.isoformat()
        if self.window is not None:
            document["window"] = {"first": self.window[0], "last": self.window[1]}
        return document


@dataclass(frozen=True, slots=True)
class ProfileShares:
    """Shares of the step in a generated trace: expert communication, its exposed part, and idle time."""

    communication: float
    exposed: float
    idle: float


Decision = Literal["", "accepted", "rejected", "withdrawn"]


@dataclass(frozen=True, slots=True)
class DemoTrial:
    """An experiment. `baseline` is the job that it is planned from, `jobs` its further runs with their sides.

    `rule`: the rule that suggests it, empty for a user's own idea.

    `decision` is empty for an experiment that waits for runs or for a decision.
    """

    title: str
    baseline: str
    knobs: Mapping[str, object]
    runs_each: int
    jobs: tuple[tuple[str, DemoJob], ...] = ()
    decision: Decision = ""
    note: str = ""
    rule: str = ""


# --- Reproducible random numbers and commits.

SEED = 20260518


def random_for(key: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *key.encode()])


def commit_of(when: datetime) -> str:
    """Return a generated commit, the same for all jobs of one day."""
    return hashlib.sha256(f"{SEED} {when.date()}".encode()).hexdigest()[:40]


def committed_at(when: datetime) -> datetime:
    """Return the commit time of a day: before its first job, on the date that its name has."""
    return datetime(when.year, when.month, when.day, 1, tzinfo=UTC)


# --- Failures, in the wording of Megatron-LM, PyTorch and torchrun.

IMPORT_ERRORS: dict[Failure, str] = {
    "deepep missing": (
        "ImportError: DeepEP is not installed. Please install DeepEP package from "
        "https://github.com/deepseek-ai/deepep."
    ),
    "hybridep missing": (
        "ImportError: HybridEP is not installed. Please install HybridEP package from "
        "https://github.com/deepseek-ai/DeepEP/tree/hybrid-ep."
    ),
}
"""Raised by `megatron/core/transformer/moe/token_dispatcher.py` while the model is built, on every rank."""

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU {gpu} has a total capacity of 79.11 "
    "GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the "
    "allocated memory 74.61 GiB is allocated by PyTorch, and 1.57 GiB is reserved by PyTorch but unallocated."
)
OUT_OF_MEMORY_RANK = 11


def last_words(failure: Failure, when: datetime) -> list[str]:
    """Return the last lines of a failed job: tracebacks of its ranks, then the summary of torchrun."""
    if failure == "out of memory":
        rank = OUT_OF_MEMORY_RANK
        error = OUT_OF_MEMORY.format(gpu=rank % GPUS_PER_NODE["H100"])
        return [*_traceback(rank, "megatron/training/training.py", "train_step", error), *_torchrun(rank, when)]
    source = "megatron/core/transformer/moe/token_dispatcher.py"
    tracebacks = [_traceback(rank, source, "__init__", IMPORT_ERRORS[failure]) for rank in range(GPUS)]
    return [line for lines in tracebacks for line in lines] + _torchrun(0, when)


def _traceback(rank: int, source: str, function: str, error: str) -> list[str]:
    return [
        f"[rank{rank}]: {line}"
        for line in (
            "Traceback (most recent call last):",
            '  File "/opt/megatron-lm/megatron/training/training.py", in pretrain',
            f'  File "/opt/megatron-lm/{source}", in {function}',
            error,
        )
    ]


def _torchrun(rank: int, when: datetime) -> list[str]:
    node, local_rank = divmod(rank, GPUS_PER_NODE["H100"])
    return [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "pretrain_gpt.py FAILED",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {when:%Y-%m-%d_%H:%M:%S}",
        f"  host      : demo-node-{node:02d}",
        f"  rank      : {rank} (local_rank: {local_rank})",
        f"  exitcode  : 1 (pid: {4100 + rank})",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "=" * 60,
    ]
