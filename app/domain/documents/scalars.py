"""Maps the scalars that Megatron-LM and Megatron-Bridge write to columns.

Tags: Megatron-LM `megatron/training/training.py` `training_log`, Megatron-Bridge `training/utils/train_utils.py`.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from app.domain.logs.iterations import word
from app.domain.run import FloatArray

MS_PER_S = 1000.0
BYTES_PER_GB = 1e9

MAX_CELLS = 8_000_000
"""Values of all columns together: 64 MB. A real run is far below (60 tags x 100,000 iterations is 6 million)."""

_COLUMNS = {
    "iteration-time": ("step_time_ms", MS_PER_S),
    "throughput": ("tflops_per_gpu", 1.0),
    "throughput/tflops/device": ("tflops_per_gpu", 1.0),
    "throughput/device/tokens_per_sec": ("tokens_per_s_per_gpu", 1.0),
    "batch-size": ("global_batch_size", 1.0),
    "iter-energy/gpu": ("energy_j_per_gpu", 1.0),
    "power/gpu": ("power_w_per_gpu", 1.0),
    "mem-max-allocated-bytes": ("peak_memory_bytes", 1.0),
    "mem-max-allocated-gigabytes": ("peak_memory_bytes", BYTES_PER_GB),
    "mem-allocated-bytes": ("allocated_memory_bytes", 1.0),
    "mem-allocated-gigabytes": ("allocated_memory_bytes", BYTES_PER_GB),
    "mem-reserved-bytes": ("reserved_memory_bytes", 1.0),
    "mem-reserved-gigabytes": ("reserved_memory_bytes", BYTES_PER_GB),
}
_AXIS_COPY = re.compile(r" vs (samples|steps)$")
"""The same scalar again, over consumed samples: its `step` is not an iteration."""

Points = tuple[Sequence[int], Sequence[float]]
"""Iterations and values of one scalar, in the order of recording."""


def column_of(tag: str) -> tuple[str, float] | None:
    """Return the canonical column of a tag and the factor to its unit; None for a copy over another axis.

    Timers are written in seconds (`core/timers.py` `write`) and become `..._time_ms`.
    """
    if _AXIS_COPY.search(tag):
        return None
    if tag in _COLUMNS:
        return _COLUMNS[tag]
    name = word(tag)
    if not name:
        return None
    return (f"{name}_ms", MS_PER_S) if tag.endswith("-time") else (name, 1.0)


LOSSES = frozenset({"lm_loss", "loss", "reduced_train_loss"})


def columns_from_points(series: Mapping[str, Points]) -> tuple[dict[str, FloatArray], tuple[str, ...]]:
    """Return canonical columns over all recorded iterations, and problems about omitted series.

    `series` is keyed by tag. An iteration recorded twice (a restart) keeps its later value.
    """
    named = _by_column(series)
    if not named:
        return {}, ()
    iterations = np.unique(np.concatenate([np.asarray(steps, np.int64) for steps, _, _ in named.values()]))
    chosen = dict(list(named.items())[: max(MAX_CELLS // len(iterations) - 3, 1)])
    problems: tuple[str, ...] = ()
    if len(chosen) < len(named):
        problems = (f"{len(named) - len(chosen)} of {len(named)} series were left out because there are too many.",)
    columns = {"iteration": iterations.astype(np.float64), "step_time_ms": _empty(iterations)}
    for column, (steps, values, factor) in chosen.items():
        filled = _empty(iterations)
        # numpy keeps the last of equal indexes, which is the later recording
        filled[np.searchsorted(iterations, np.asarray(steps, np.int64))] = np.asarray(values, np.float64) * factor
        columns[column] = filled
    for column in LOSSES & set(chosen):
        recorded = np.searchsorted(iterations, np.asarray(chosen[column][0], np.int64))
        lost = recorded[np.isnan(columns[column][recorded]) & np.isfinite(columns["step_time_ms"][recorded])]
        columns[column][lost] = np.inf  # recorded as NaN or null at a step that was made, unlike one that is left out
    columns["step_time_true_ms"] = _true_step_times(iterations, columns["step_time_ms"])
    return columns, problems


def _empty(iterations: npt.NDArray[np.int64]) -> FloatArray:
    return np.full(len(iterations), np.nan)


def _by_column(series: Mapping[str, Points]) -> dict[str, tuple[Sequence[int], Sequence[float], float]]:
    """Return columns with their points, known ones first, so that a limit drops unknown ones."""
    columns: dict[str, tuple[Sequence[int], Sequence[float], float]] = {}
    for tag in sorted(series, key=lambda tag: (tag not in _COLUMNS, "loss" not in tag)):
        target = column_of(tag)
        steps, values = series[tag]
        if target and len(steps) and target[0] not in ("iteration", "step_time_true_ms"):
            columns.setdefault(target[0], (steps, values, target[1]))
    return columns


def _true_step_times(iterations: npt.NDArray[np.int64], step_time_ms: FloatArray) -> FloatArray:
    """Return step times without the first value where it is the mean of the process's first two iterations.

    Since core v0.16, Megatron-LM neither records the first iteration nor resets its timer after it, so with log
    interval 1 the next value is (t1 + t2) / 2. t1 is not recorded, so the true value is unknown.
    """
    true = step_time_ms.copy()
    recorded = np.flatnonzero(np.isfinite(step_time_ms))
    if not len(recorded):
        return true
    first = recorded[0]
    every_iteration = len(recorded) == 1 or iterations[recorded[1]] == iterations[first] + 1
    others_one_before = first > 0 and iterations[first - 1] == iterations[first] - 1
    if every_iteration and (iterations[first] == 2 or others_one_before):
        true[first] = np.nan
    return true
