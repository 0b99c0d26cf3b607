"""Domain values for tests, which state only the values that they are about."""

from collections.abc import Mapping, Sequence

import numpy as np

from app.domain.run import LogEvent, LogProblem, MemoryReport, Metadata, ParsedLog, Source, Stated, Value, Window

QWEN3_30B: dict[str, Value] = {
    "num_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_query_groups": 4,
    "kv_channels": 128,
    "vocab_size": 151936,
    "swiglu": True,
    "num_experts": 128,
    "topk": 8,
    "moe_ffn_hidden_size": 768,
}
"""The shape of Qwen3-30B-A3B, by contract field."""

OVERLAP_CASE: dict[str, Value] = QWEN3_30B | {
    "gpus": 16,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 16,
    "etp": 1,
    "mbs": 1,
    "gbs": 1024,
    "seq_len": 4096,
    "precision": "bf16",
    "dispatcher_type": "alltoall",
    "data_mode": "mock",
    "ep_overlap": True,
}
"""Qwen3-30B-A3B on 16 GPUs, alltoall with overlap, made-up data."""


def make_stated(values: Mapping[str, Value], source: Source = "arguments") -> dict[str, Stated]:
    return {name: Stated(value, source, f"{name} = {value}") for name, value in values.items()}


def make_log(
    step_times_ms: Sequence[float] = (),
    *,
    stated: Mapping[str, Value] | None = None,
    arguments: Mapping[str, Value] | None = None,
    columns: Mapping[str, Sequence[float]] | None = None,
    true_times_ms: Sequence[float] | None = None,
    memory: Sequence[MemoryReport] = (),
    events: Sequence[LogEvent] = (),
    segment_starts: Sequence[int] = (0,),
    total_iterations: int | None = None,
    trainer: str = "Megatron-LM",
    truncated: bool = False,
    problems: Sequence[LogProblem] = (),
) -> ParsedLog:
    """A log with iterations 1, 2, ... on lines 101, 102, ...; with a dump when `stated` holds a shape."""
    n = len(step_times_ms)
    series = {
        "iteration": np.arange(1, n + 1, dtype=np.float64),
        "step_time_ms": np.asarray(step_times_ms, dtype=np.float64),
        "step_time_true_ms": np.asarray(step_times_ms if true_times_ms is None else true_times_ms, dtype=np.float64),
    }
    series |= {name: np.asarray(values, dtype=np.float64) for name, values in (columns or {}).items()}
    stated = stated or {}
    names = {name: value for name, value in stated.items() if name in ("num_layers", "hidden_size")}
    return ParsedLog(
        trainer=trainer,
        columns=series,
        line_numbers=np.arange(101, 101 + n, dtype=np.int64),
        segment_starts=tuple(segment_starts) if n else (),
        total_iterations=total_iterations,
        log_interval=1,
        stated=make_stated(stated),
        arguments=names | dict(arguments or {}),
        memory=tuple(memory),
        events=tuple(events),
        line_count=100 + n,
        first_lines=("first line",),
        last_lines=("last line",),
        truncated=truncated,
        problems=tuple(problems),
    )


def make_metadata(fields: Mapping[str, Value] | None = None, *, window: Window | None = None) -> Metadata:
    return Metadata(project="default", window=window, fields=make_stated(fields or {}, "metadata"))
