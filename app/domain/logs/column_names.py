"""Maps the names that other tools give to values of an iteration to our columns, with their units.

Used for series from outside: the generic formats, imported histories, and lines that a user describes. A step time
needs a unit, in its name (`step_time_s`) or stated apart; a name without one is refused, never guessed.
"""

import re
from dataclasses import dataclass

from app.domain.logs.iterations import word

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3} | dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0)
"""Units of time in seconds."""

_BYTES = {
    "bytes": 1.0, "b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
}  # fmt: skip

_ITERATIONS = frozenset(
    {"iteration", "iterations", "iter", "iters", "it", "step", "steps", "global_step", "globalstep", "training_step",
     "train_step", "trainer_global_step", "train_global_step", "_step", "n_iter", "num_steps", "update", "updates"}
)  # fmt: skip
_STEP_TIMES = frozenset(
    {"step_time", "iteration_time", "iter_time", "step_duration", "iteration_duration", "time_per_step",
     "time_per_iteration", "elapsed_time_per_iteration", "train_step_timing", "train_step_time", "step_timing",
     "perf_time_per_step", "perf_step_time", "timing_step", "batch_time", "time_per_batch", "perf_train_step_time",
     "dt"}
)  # fmt: skip
_RATES = frozenset(
    {"iterations_per_s", "iterations_per_sec", "iterations_per_second", "iters_per_s", "iters_per_sec",
     "iters_per_second", "it_s", "its_per_s", "steps_per_s", "steps_per_sec", "steps_per_second",
     "train_steps_per_second", "global_step_sec", "batches_per_second"}
)  # fmt: skip
_PLAIN = {
    "lm_loss": "lm_loss", "loss": "loss", "train_loss": "loss", "training_loss": "loss",
    "reduced_train_loss": "lm_loss", "lm_loss_value": "lm_loss", "loss_train": "loss", "train_lm_loss": "lm_loss",
    "grad_norm": "grad_norm", "gradient_norm": "grad_norm", "train_grad_norm": "grad_norm",
    "lr": "learning_rate", "learning_rate": "learning_rate", "train_lr": "learning_rate",
    "train_learning_rate": "learning_rate",
    "tokens_per_s_per_gpu": "tokens_per_s_per_gpu", "tokens_per_sec_per_gpu": "tokens_per_s_per_gpu",
    "tokens_per_second_per_gpu": "tokens_per_s_per_gpu", "tokens_per_second_per_device": "tokens_per_s_per_gpu",
    "tokens_s_gpu": "tokens_per_s_per_gpu", "tokens_sec_gpu": "tokens_per_s_per_gpu", "tgs": "tokens_per_s_per_gpu",
    "throughput_device_tokens_per_sec": "tokens_per_s_per_gpu", "tps_per_gpu": "tokens_per_s_per_gpu",
    "tflops_per_gpu": "tflops_per_gpu", "tflop_s_gpu": "tflops_per_gpu", "tflops_per_device": "tflops_per_gpu",
    "throughput_per_gpu_tflop_s_gpu": "tflops_per_gpu", "throughput_tflops_device": "tflops_per_gpu",
    "tflop_s_device": "tflops_per_gpu", "model_tflops_per_gpu": "tflops_per_gpu", "tflops_gpu": "tflops_per_gpu",
    "gbs": "global_batch_size", "global_batch_size": "global_batch_size",
    "samples": "consumed_samples", "consumed_samples": "consumed_samples", "tokens": "tokens",
    "skipped_iterations": "skipped_iterations", "nan_iterations": "nan_iterations",
}  # fmt: skip
_MEMORY = frozenset(
    {"peak_memory", "max_memory", "max_memory_allocated", "peak_memory_allocated", "memory_peak", "max_allocated",
     "mem_max_allocated", "peak_allocated", "perf_max_memory_allocated", "max_mem_allocated", "peak_gpu_memory"}
)  # fmt: skip
KNOWN = frozenset(_PLAIN.values())
"""Columns besides iteration, times and memory that only a table of iterations has."""
RESERVED = frozenset({"step_time_true_ms", "log_file", "log_line", "total_iterations"})
"""Columns that we compute. Series from outside must not replace them."""


@dataclass(frozen=True, slots=True)
class Column:
    """Our name of a column. Its values are `scale` times those of the source, divided by them if `is_rate`."""

    name: str
    scale: float = 1.0
    is_rate: bool = False

    def value(self, number: float) -> float:
        if self.is_rate:
            return self.scale / number if number > 0 else float("nan")
        return number * self.scale


def column_of(printed: str, unit: str = "") -> Column:
    """Return our column for a name of another tool; `unit` is stated apart.

    Raises ValueError with a sentence for a step time without a unit, and for names that say nothing.
    """
    name = "_step" if printed.strip() == "_step" else word(printed)
    if name in _ITERATIONS:
        return Column("iteration")
    if name in _RATES:
        return Column("step_time_ms", 1000.0, is_rate=True)
    plain, unit = _with_unit(name, word(unit))
    if plain in _STEP_TIMES and unit not in SECONDS:
        raise ValueError(f"{printed[:100]!r} has no unit of time: call it {plain}_ms or {plain}_s, or state its unit")
    if not name or name in RESERVED:
        raise ValueError(f"{printed[:100]!r} cannot be the name of a column")
    column = Column(_PLAIN.get(name, name))
    if plain in _STEP_TIMES:
        column = Column("step_time_ms", SECONDS[unit] * 1000)
    elif plain in _MEMORY and unit in _BYTES:
        column = Column("peak_memory_bytes", _BYTES[unit])
    elif plain.startswith("timer_") and unit in SECONDS:
        column = Column(f"{plain}_ms", SECONDS[unit] * 1000)
    return column


_UNIT = re.compile(r"_(ns|us|ms|s|sec|secs|second|seconds|bytes|b|[kmgt]i?b)\Z")


def _with_unit(name: str, stated: str) -> tuple[str, str]:
    """Return a name without the unit at its end, and the unit: the stated one first."""
    match = _UNIT.search(name)
    plain = name[: match.start()] if match else name
    plain = plain.removesuffix("_in") if match else plain
    return plain, stated or (match[1] if match else "")
