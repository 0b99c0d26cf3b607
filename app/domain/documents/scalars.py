"""Maps the scalars that Megatron-LM and Megatron-Bridge write to columns.

Tags: Megatron-LM `megatron/training/training.py` `training_log`, Megatron-Bridge `training/utils/train_utils.py`.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from app.domain.contract.values import read_value
from app.domain.documents.document import Document, read_json
from app.domain.documents.environment import stated_by_image, stated_by_variables
from app.domain.documents.launch_command import stated_by_flags
from app.domain.logs.iterations import word
from app.domain.run import FloatArray, Stated, Value

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


# --- Reads Megatron-LM golden values: the scalars of one functional-test run as JSON. Layouts: upstream's own since
# 2025 (`{"metric": {"start_step", "end_step", "step_interval", "values": {"1": ...}}}`), the older one with a list of
# values, additional single numbers (`iteration_timing_avg`), and `golden-run/1`, which adds the launch arguments.
# `tests/functional_tests/python_test_utils/common.py` writes them from TensorBoard scalars.

MAX_METRICS = 500
MAX_STEPS = 200_000
"""The longest golden run has 10,173 values per metric."""
MAX_STEP = 10**12

GOLDEN_RUN = "golden-run/1"
_WHERE = "golden values"
_FIELDS = {"world_size": "gpus", "gpu": "gpu", "cluster": "cluster"}
"""Keys of golden-run/1 that map directly to contract fields."""


def read_golden_values(text: str | bytes) -> Document:
    """Read the series of one golden-values file. Raises ValueError with a sentence for other documents.

    `iteration-time` is in seconds and becomes milliseconds. Since January 2026, step 1 has no value and step 2 is the
    mean of both, so `step_time_true_ms` is NaN there.
    """
    document = read_json(text)
    if not isinstance(document, Mapping):
        raise ValueError("Golden values must be a JSON object.")
    is_run = document.get("schema") == GOLDEN_RUN
    metrics = document.get("series") if is_run else document
    if not isinstance(metrics, Mapping) or not any(_is_metric(metric) for metric in metrics.values()):
        raise ValueError("These are not golden values: no metric has start_step and values.")
    problems: list[str] = []
    series: dict[str, tuple[Sequence[int], Sequence[float]]] = {}
    for name, metric in list(metrics.items())[:MAX_METRICS]:
        if _is_metric(metric):
            steps, values, skipped = _points(metric)
            series[str(name)[:200]] = (steps, values)
            if skipped:
                problems.append(f"{str(name)[:100]}: {skipped} values were skipped because they are not numbers.")
    columns, left_out = columns_from_points(series)
    stated: dict[str, Stated] = {}
    if is_run:
        stated, warnings = _stated_by_run(document)
        problems += warnings
    facts = {"run_id": str(document["run_id"])[:300]} if is_run and "run_id" in document else {}
    if is_run and document.get("test_case"):
        # One test may run in several environments, each with its own container.
        facts["job"] = "/".join(str(document[key]) for key in ("test_case", "environment") if document.get(key))[:300]
    return Document("golden values", stated, columns, facts, (*problems, *left_out))


def _is_metric(metric: object) -> bool:
    return (
        isinstance(metric, Mapping)
        and "start_step" in metric
        and "step_interval" in metric
        and isinstance(metric.get("values"), list | Mapping)
    )


def _points(metric: Mapping[object, object]) -> tuple[list[int], list[float], int]:
    """Return steps, values and the number of skipped entries. NaN, null and "nan" mean that no value was recorded."""
    raw = metric["values"]
    pairs = (
        list(raw.items()) if isinstance(raw, Mapping) else list(zip(_list_steps(metric), _as_list(raw), strict=False))
    )
    steps: list[int] = []
    values: list[float] = []
    skipped = max(len(_as_list(raw)) - len(pairs), 0) if isinstance(raw, list) else 0
    for raw_step, raw_value in pairs[:MAX_STEPS]:
        step, value = _step(raw_step), _value(raw_value)
        if step is None or value is None:
            skipped += 1
            continue
        steps.append(step)
        values.append(value)
    return steps, values, skipped + max(len(pairs) - MAX_STEPS, 0)


def _as_list(raw: object) -> list[object]:
    return raw if isinstance(raw, list) else []


def _list_steps(metric: Mapping[object, object]) -> list[object]:
    """Return the iteration of each value of a list.

    The old layout counts from 0: `start_step` and the interval are positions in the list of recorded scalars, which
    begins with iteration 1.
    """
    steps = metric.get("steps")
    if isinstance(steps, list):
        return steps
    start, interval = _step(metric["start_step"]), _step(metric["step_interval"])
    if start is None or interval is None or interval < 1:
        return []
    first = start + 1 if start == 0 else start
    return [first + place * interval for place in range(min(len(_as_list(metric["values"])), MAX_STEPS + 1))]


def _step(raw: object) -> int | None:
    if isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) <= 12:
        raw = int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= MAX_STEP:
        return raw
    return None


def _value(raw: object) -> float | None:
    if raw is None:
        return math.nan
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        return float(raw)
    except (ValueError, OverflowError):
        return None


def _stated_by_run(document: Mapping[str, object]) -> tuple[dict[str, Stated], list[str]]:
    """Return the contract fields of a golden-run/1 document: launch arguments, then other keys; and problems."""
    arguments = document.get("launch_args")
    flags = {str(flag): value for flag, value in arguments.items()} if isinstance(arguments, Mapping) else {}
    stated, problems, _ = stated_by_flags(flags, f"{_WHERE}: launch_args")
    variables = document.get("env_vars")
    if isinstance(variables, Mapping):
        stated |= stated_by_variables(
            {str(name): str(value) for name, value in variables.items()}, f"{_WHERE}: env_vars"
        )
    for key, name in _FIELDS.items():
        _state(stated, name, document.get(key), key)
    recipe = document.get("recipe")
    if isinstance(recipe, Mapping):
        _state(stated, "gpus_per_node", recipe.get("gpus_per_node"), "recipe.gpus_per_node")
    container = document.get("container")
    if isinstance(container, Mapping) and isinstance(container.get("image"), str):
        stated |= stated_by_image(container["image"], f"{_WHERE}: container.image, declared by the CI at that commit")
    return stated, problems


def _state(stated: dict[str, Stated], name: str, raw: object, key: str) -> None:
    if raw is None:
        return
    try:
        value: Value = read_value(name, raw)
    except ValueError:
        return
    stated[name] = Stated(value, "metadata", f"{_WHERE}: {key} = {value}")
