"""Two more model families in the demo: dispatcher boards, an EP sweep, long context, FP8, and a tuning journey.

The rates are published ones where a comment names a source; the others are invented and lie between them. Noise,
commits and profiles are generated. The runs date from September 2026, so that the month of nightly jobs stays the
newest, and are uploaded after everything else.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from app.demo.job import (
    DEEPSEEK_V3,
    QWEN3_235B,
    DemoJob,
    DemoTrial,
    Dispatcher,
    ProfileShares,
    Workload,
    ci_step_times,
    commit_of,
    committed_at,
    launch_level,
    model_flops,
    random_for,
    record,
)

CONTAINER = "registry.example.com/moe/train-ep:2026.10"
"""With the packages of DeepEP and HybridEP."""
BETWEEN_LAUNCHES_SD = 0.006
LAUNCHES = 2
GIB = 1024**3

MEMORY_SHARE: Mapping[Dispatcher, float] = {"allgather": 1.05, "alltoall": 1.03, "deepep": 1.0, "hybridep": 0.975}
"""Peak memory relative to DeepEP. Invented: Megatron-Bridge's guide on dispatchers only says that HybridEP leaves more
memory free than alltoall, without figures."""


@dataclass(frozen=True, slots=True)
class Study:
    """A workload with the TFLOP/s/GPU of each variant, all measured on one day. `memory_gib`: with DeepEP."""

    title: str
    day: int
    tag: str
    memory_gib: float
    variants: Mapping[str, tuple[Workload, float]]

    def jobs(self) -> Iterator[DemoJob]:
        """Yield the launches of all variants in turn, so that a drift would affect all of them."""
        hour = 0
        for launch in range(1, LAUNCHES + 1):
            for variant, (workload, tflops) in self.variants.items():
                name = f"{self.title}, {variant}, launch {launch}"
                yield job(name, workload, tflops, self.memory_gib, day=self.day, hour=hour, tags=(self.tag,))
                hour += 1


def job(
    name: str,
    workload: Workload,
    tflops: float,
    memory_gib: float,
    *,
    day: int,
    hour: int,
    tags: tuple[str, ...] = (),
    profile: ProfileShares | None = None,
) -> DemoJob:
    """Return a run of September 2026 that reaches `tflops` TFLOP/s/GPU, apart from noise. `memory_gib`: with DeepEP."""
    random = random_for(name)
    centre_ms = model_flops(workload) / workload.gpus / tflops / 1e9
    times = ci_step_times(random, centre_ms, workload.iterations, launch_level(random, BETWEEN_LAUNCHES_SD))
    when = datetime(2026, 9, day, 7, 0, tzinfo=UTC) + timedelta(minutes=30 * hour)
    return DemoJob(
        name,
        "Megatron-LM",
        workload,
        record(random, times, memory_gib * MEMORY_SHARE[workload.dispatcher] * GIB),
        CONTAINER,
        when,
        commit_of(when),
        tags=tags,
        committed=committed_at(when),
        profile=profile,
    )


def dispatchers(workload: Workload, tflops: Mapping[Dispatcher, float]) -> dict[str, tuple[Workload, float]]:
    return {name: (replace(workload, dispatcher=name), value) for name, value in tflops.items()}


QWEN3_235B_H100 = Workload(
    model=QWEN3_235B, gpus=256, share=2, tensor_parallel=2, pipeline_parallel=8, virtual_stages=4, expert_parallel=32,
    recompute=("layernorm", "moe_act"), iterations=30,
)  # fmt: skip
DEEPSEEK_V3_H100 = Workload(
    model=DEEPSEEK_V3, gpus=1024, share=8, tensor_parallel=2, pipeline_parallel=8, virtual_stages=4,
    pipeline_layout="Et|(tt|)*30L", expert_parallel=64, precision="fp8_sc", recompute=("mla_up_proj", "mlp"),
    iterations=30,
)  # fmt: skip
DEEPSEEK_V3_GB200 = Workload(
    model=DEEPSEEK_V3, gpu="GB200", gpus=256, share=4, pipeline_parallel=4, virtual_stages=4,
    pipeline_layout="Et*4|(t*4|)*14tL", expert_parallel=64, precision="fp8_mx", recompute=("mla_up_proj",),
    cuda_graphs=True, iterations=30,
)  # fmt: skip
QWEN3_30B_GB200 = Workload(
    gpu="GB200", gpus=8, share=0.5, micro_batch_size=4, expert_parallel=8, precision="fp8_mx", cuda_graphs=True,
    iterations=30,
)  # fmt: skip
SWEPT = Workload(
    model=QWEN3_235B, gpu="GB200", gpus=128, share=1, pipeline_parallel=4, virtual_stages=12, expert_parallel=32,
    iterations=30,
)  # fmt: skip
LONG = replace(
    QWEN3_235B_H100, share=1, tensor_parallel=4, expert_parallel=8, dispatcher="deepep", ep_overlap=False,
    recompute=("layernorm", "moe"),
)  # fmt: skip

EP_SWEEP: Mapping[Dispatcher, Mapping[int, float]] = {
    "alltoall": {4: 561, 8: 596, 16: 604, 32: 588},
    "hybridep": {4: 548, 8: 612, 16: 668, 32: 700},
}
"""TFLOP/s/GPU by expert-parallel size. Published: about 700 with HybridEP at EP 32."""

LONG_CONTEXT = {16384: (1, 295.0), 32768: (2, 335.0), 65536: (4, 368.0), 131072: (8, 389.0)}
"""Context-parallel size and TFLOP/s/GPU by sequence length: figures of the Megatron-MoE model zoo."""

STUDIES = (
    # Megatron-Bridge's hardware notes: about 370 with DeepEP and blockwise FP8.
    Study(
        "DeepSeek-V3 on 1,024 H100", 8, "dispatcher study", 69.8,
        dispatchers(DEEPSEEK_V3_H100, {"alltoall": 301, "deepep": 370, "hybridep": 366}),
    ),
    # Megatron-Bridge's model verification card: 1,231 with HybridEP and MXFP8.
    Study(
        "DeepSeek-V3 on 256 GB200", 9, "dispatcher study", 158.0,
        dispatchers(DEEPSEEK_V3_GB200, {"alltoall": 1041, "deepep": 1098, "hybridep": 1231}),
    ),
    # Megatron-Bridge's model verification card: 928 with HybridEP and MXFP8.
    Study(
        "Qwen3-30B on 8 GB200", 10, "dispatcher study", 141.0,
        dispatchers(QWEN3_30B_GB200, {"allgather": 688, "alltoall": 852, "deepep": 874, "hybridep": 928}),
    ),
    Study(
        "Qwen3-235B on 128 GB200", 11, "EP sweep", 163.0,
        {
            f"{dispatcher} with EP {size}": (replace(SWEPT, dispatcher=dispatcher, expert_parallel=size), tflops)
            for dispatcher, row in EP_SWEEP.items()
            for size, tflops in row.items()
        },
    ),
    Study(
        "Qwen3-235B on 256 H100", 14, "long context", 66.0,
        {
            f"sequence {length}": (replace(LONG, sequence_length=length, context_parallel=cp), tflops)
            for length, (cp, tflops) in LONG_CONTEXT.items()
        },
    ),
)  # fmt: skip


# --- The tuning journey of Qwen3-235B-A22B on 256 H100: an experiment in each state.
#
# DeepEP without and with overlap are the model zoo's figures: 245 and 276 TFLOP/s/GPU.

_FIRST = "Qwen3-235B on 256 H100, alltoall"
_MEMORY_GIB = 67.4
_DEEPEP = replace(QWEN3_235B_H100, dispatcher="deepep")
_OVERLAP = replace(_DEEPEP, ep_overlap=True)
_FUSED = replace(_OVERLAP, permute_fusion=True)


def studies() -> Iterator[DemoJob]:
    """Yield every run of the studies and the first of the journey, in the order of upload."""
    for study in STUDIES:
        yield from study.jobs()
    yield job(_FIRST, QWEN3_235B_H100, 203, _MEMORY_GIB, day=16, hour=0, tags=("journey",))


def journey() -> tuple[DemoTrial, ...]:
    """Return the experiments of the journey in the order in which they are planned."""
    deepep = _trial(
        "DeepEP in place of alltoall", _FIRST, {"dispatcher_type": "flex", "flex_backend": "deepep"},
        step=0, before=(QWEN3_235B_H100, 203), after=(_DEEPEP, 245),
        profile=ProfileShares(communication=0.27, exposed=0.24, idle=0.03),
    )  # fmt: skip
    overlap = _trial(
        "Overlap expert communication with compute", _candidate(deepep), {"ep_overlap": True},
        step=1, before=(_DEEPEP, 245), after=(_OVERLAP, 276),
        profile=ProfileShares(communication=0.28, exposed=0.09, idle=0.04), rule="eo-enable",
    )  # fmt: skip
    fused = _trial(
        "Fuse the permutation", _candidate(overlap), {"permute_fusion": True},
        step=2, before=(_OVERLAP, 276), after=(_FUSED, 287),
    )  # fmt: skip
    hybridep = _trial(
        "HybridEP in place of DeepEP", _candidate(fused),
        {"flex_backend": "hybridep", "dispatch_sms": 32, "hybridep_preproc_sms": 108},
        step=3, before=(_FUSED, 287), after=(replace(_FUSED, dispatcher="hybridep"), 279),
    )  # fmt: skip
    delayed = _trial(
        "Delay weight gradients", _candidate(fused), {"delay_wgrad": True},
        step=4, before=(_FUSED, 287), after=(replace(_FUSED, delay_wgrad=True), 287.5),
    )  # fmt: skip
    return (
        replace(deepep, decision="accepted", note="Cross-node dispatch is faster; loss as before."),
        replace(overlap, decision="accepted", note="Faster in every run; loss as before."),
        replace(fused, decision="accepted", note="Small, but on every launch."),
        replace(hybridep, decision="rejected", note="DeepEP stays: HybridEP is not shown to be faster on 32 nodes."),
        delayed,
        DemoTrial("More SMs for dispatch", _candidate(fused), {"dispatch_sms": 24}, runs_each=LAUNCHES),
        DemoTrial(
            "Save memory with full recomputation", _candidate(fused), {"recompute_granularity": "full"},
            runs_each=LAUNCHES, decision="withdrawn", note="Not needed: 67.4 of 80 GiB are in use.",
        ),
    )  # fmt: skip


def _trial(
    title: str,
    baseline: str,
    knobs: Mapping[str, object],
    *,
    step: int,
    before: tuple[Workload, float],
    after: tuple[Workload, float],
    profile: ProfileShares | None = None,
    rule: str = "",
) -> DemoTrial:
    """Return an experiment with one more run of the baseline and two of the candidate, all of the journey's commit."""
    runs = (("candidate", after, 1), ("candidate", after, 2), ("baseline", before, 2))
    jobs = tuple(
        (side, job(
            f"{title}, {side} {launch}", workload, tflops, _MEMORY_GIB, day=16, hour=1 + len(runs) * step + place,
            profile=profile if (side, launch) == ("candidate", 1) else None,
        ))
        for place, (side, (workload, tflops), launch) in enumerate(runs)
    )  # fmt: skip
    return DemoTrial(title, baseline, knobs, runs_each=LAUNCHES, jobs=jobs, rule=rule)


def _candidate(trial: DemoTrial) -> str:
    """Return the name of the candidate run that the next experiment is planned from."""
    return next(run.name for side, run in trial.jobs if side == "candidate")


# --- The second demo project: real step times of Megatron-LM's public CI, as golden values of its functional tests.
# `megatron_lm_ci.json.gz` restates the published numbers; `bench/public_ci.py` derives it, and NOTICE names the
# source. Each run is uploaded as a `golden-run/1` document, which the service reads like any other.

PUBLIC_PROJECT = "Megatron-LM CI (public)"
REPOSITORY = "https://github.com/NVIDIA/Megatron-LM"
TAG = "real"
SCHEMA = "threewalls.public-ci/1"
DATA = Path(__file__).with_name("megatron_lm_ci.json.gz")


@dataclass(frozen=True, slots=True)
class PublicRun:
    """A run to upload: its metadata, its document and its idempotency key."""

    metadata: Mapping[str, object]
    document: Mapping[str, object]
    key: str


def public_runs() -> Iterator[PublicRun]:
    """Yield every run in the order of its commits."""
    data = json.loads(gzip.decompress(DATA.read_bytes()))
    for run in data["runs"]:
        yield _public_run(run, data)


def _public_run(run: Mapping[str, Any], tables: Mapping[str, Any]) -> PublicRun:
    platform = "/".join(part for part in (run["platform"], run["environment"]) if part)
    name = f"{run['test'].removeprefix('gpt3_')} {run['platform']} {run['commit_time'][:10]}"
    series = {"iteration-time": _series(tables["steps"][run["steps"]], run["step_time_s"])}
    if run["lm_loss"]:
        series["lm loss"] = _series(tables["steps"][run["loss_steps"]], run["lm_loss"])
    if run["max_allocated_bytes"] is not None:
        series["mem-max-allocated-bytes"] = _series([tables["steps"][run["steps"]][-1]], [run["max_allocated_bytes"]])
    document = {
        "schema": "golden-run/1",
        "run_id": f"{run['test']} {platform} {run['commit']}",
        "test_case": run["test"],
        "environment": platform,
        "gpu": run["gpu"],
        "world_size": run["gpus"],
        "recipe": {"gpus_per_node": run["gpus_per_node"]},
        "container": {"image": run["image"]},
        "launch_args": tables["arguments"][run["arguments"]],
        "env_vars": tables["variables"][run["variables"]],
        "series": series,
    }
    metadata = {
        "name": name,
        "project": PUBLIC_PROJECT,
        "purpose": "ci",
        "branch": "main" if run["on_main"] else "other",
        "commit": run["commit"],
        "commit_time": run["commit_time"],
        "ci_url": f"{REPOSITORY}/blob/{run['commit']}/{run['path']}",
        "tags": [TAG, "golden values"],
    }
    return PublicRun(metadata, document, key=f"public CI: {run['commit'][:12]} {run['blob']}")


def _series(steps: list[int], values: list[float | None]) -> dict[str, object]:
    return {"start_step": steps[0], "step_interval": 1, "steps": steps, "values": values}
