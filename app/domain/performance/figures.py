"""The headline figures of a run, each with its interval, or a sentence about the missing values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from app.domain.contract.fields import METRICS
from app.domain.contract.values import GPU_MEMORY_GIB, MAX_WHOLE
from app.domain.numbers import THIN, plural, significant
from app.domain.performance.flops import Inputs, explain_difference, flops_per_step, peak_flops
from app.domain.performance.health import BYTES_PER_GIB
from app.domain.performance.model_shape import read_shape
from app.domain.performance.steady_state import usable
from app.domain.run import FloatArray, Metric, ParsedLog, Stated, SteadyState


def too_much_memory(contract: Mapping[str, Stated], peak_gib: float | None) -> str:
    """Return why the stated GPU cannot be right: it has less memory than the run used; empty if it can."""
    size = GPU_MEMORY_GIB.get(str(contract["gpu"].value)) if "gpu" in contract else None
    if size is None or peak_gib is None or peak_gib <= size:
        return ""
    return (
        f"stated GPU cannot be right: peak {significant(peak_gib)}{THIN}GiB, {contract['gpu'].value} has "
        f"{size}{THIN}GiB"
    )


# --- Throughput from the steady step time. Each figure is a constant over step time: same interval, sign flipped.

MS = 1000.0


def tokens_per_s_per_gpu(step_time_ms: float, tokens_per_step: float, gpus: int) -> float:
    """Return tokens per second and GPU. Raises ValueError for a non-positive time or GPU count."""
    _check(step_time_ms, gpus)
    return tokens_per_step * MS / (step_time_ms * gpus)


def tflops_per_gpu(step_time_ms: float, flops_per_step: float, gpus: int) -> float:
    """Return model TFLOP/s per GPU.

    Counts model FLOPs without recomputation, like Megatron-LM's `num_floating_point_operations`. Raises ValueError for
    a non-positive time or GPU count.
    """
    _check(step_time_ms, gpus)
    return flops_per_step * MS / (step_time_ms * gpus * 1e12)


def mfu_pct(tflops: float, peak_tflops: float) -> float:
    """Return the percentage of the dense peak. Raises ValueError for a non-positive peak."""
    if peak_tflops <= 0:
        raise ValueError(f"a peak must be positive, got {peak_tflops}")
    return 100 * tflops / peak_tflops


def _check(step_time_ms: float, gpus: int) -> None:
    if step_time_ms <= 0 or gpus <= 0:
        raise ValueError(f"throughput needs a positive time and GPU count, got {step_time_ms} ms on {gpus} GPUs")


def step_time_metric(steady: SteadyState) -> Metric:
    return Metric(steady.step_time_ms, steady.ci_low_ms, steady.ci_high_ms, steady.n)


def inverse_metric(value: float, steady: SteadyState, note: str = "") -> Metric:
    """Return a figure that is a constant divided by step time and has `value` at the median, with inverted interval."""
    constant = value * steady.step_time_ms
    return Metric(value, constant / steady.ci_high_ms, constant / steady.ci_low_ms, steady.n, note)


def scaled_metric(metric: Metric, factor: float, note: str) -> Metric:
    """Return a figure that is `factor` times another one, with the same relative interval."""
    return Metric(metric.value * factor, metric.ci_low * factor, metric.ci_high * factor, metric.n, note)


def rounded_metric(metric: Metric, half_digit: float) -> Metric:
    """Return a metric whose interval includes the rounding of the printed figure."""
    if half_digit >= metric.value:
        return metric
    share = half_digit / metric.value
    return replace(metric, ci_low=metric.ci_low * (1 - share), ci_high=metric.ci_high * (1 + share))


FORMULA = "FLOPs formula of Megatron-LM, 2026-08"
"""The formula's name in notes; its version is `flops` of `definitions.py`."""

PRINTED_DIGIT = 0.05
"""Half of the last printed digit: trainers print TFLOP/s with one decimal, which is 3 % of a figure of 1.6."""

MEDIANS_DIFFER = 1e-4
"""The median of printed figures is not that of step times where an even window has two middle values."""

LARGEST = {"tokens_per_s_per_gpu": 1e12, "tflops_per_gpu": 1e5, "peak_memory_gib": 1e4}
"""Upper limits by metric: seven times the fastest peak stated anywhere (14,700 TFLOP/s), thirty times the largest
memory (288 GB), and a token per picosecond. A larger number means damage."""

SMALLEST = 1e-9
"""Lower limit in every metric's unit; the smallest test models are far above it."""


class Figures:
    """Computes the metrics of one run; `warnings` name the values that a metric lacks."""

    def __init__(self, log: ParsedLog, contract: Mapping[str, Stated], steady: SteadyState | None) -> None:
        self.warnings: list[str] = []
        self.metrics: dict[str, Metric | None] = dict.fromkeys(METRICS)
        self._log = log
        self._contract = contract
        self._shape = read_shape({name: stated.value for name, stated in contract.items()})
        if steady is not None:
            self._rows = _rows_of_window(log, steady)
            self._batch = self._sequences_of_a_step()
            self._keep("step_time_ms", step_time_metric(steady))
            self._keep("tokens_per_s_per_gpu", self._tokens(steady))
            self._keep("tflops_per_gpu", self._tflops(steady))
            self._keep("mfu_pct", self._mfu(self.metrics["tflops_per_gpu"]))
        self._keep("peak_memory_gib", self._peak_memory(steady))

    def _keep(self, name: str, metric: Metric | None) -> None:
        """Store a figure, unless it is none: every reader of a run relies on finite, positive numbers."""
        if metric is None:
            return
        ends = (metric.value, metric.ci_low, metric.ci_high)
        if all(SMALLEST <= end < math.inf for end in ends) and max(ends) <= LARGEST.get(name, math.inf):
            self.metrics[name] = metric
        else:
            self.warnings.append(
                f"`{name}` is left out: {metric.value:g} (interval {metric.ci_low:g} to {metric.ci_high:g}) is not "
                f"plausible for a GPU. Check the log's numbers, `gpus`, `gbs`, `seq_len` and the model's shape."
            )

    def _count(self, name: str) -> int | None:
        value = self._contract[name].value if name in self._contract else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def _missing(self, what: str, names: Sequence[str]) -> None:
        listed = ", ".join(f"`{name}`" if name.replace("_", "").isalnum() else name for name in names)
        them = plural(len(names), "it", "them", number=False)
        self.warnings.append(f"{what} needs {listed}. State {them} in the metadata.")

    def _sequences_of_a_step(self) -> int | None:
        """Return the batch size printed in the window, unless the metadata state another one."""
        stated = self._contract.get("gbs")
        printed = self._in_window("global_batch_size")
        printed = printed[(printed >= 1) & (printed <= MAX_WHOLE)]
        if len(printed) and (stated is None or stated.source != "metadata"):
            return int(np.median(printed))
        return self._count("gbs")

    def _in_window(self, column: str) -> FloatArray:
        """Return the finite values of a column in the window; empty when it was not printed."""
        if column not in self._log.columns:
            return np.empty(0)
        inside: FloatArray = self._log.columns[column][self._rows]
        return inside[np.isfinite(inside)]

    def _printed(self, name: str) -> FloatArray:
        """Return a figure as printed in the window; some trainer versions print 0 when they cannot compute it."""
        printed = self._in_window(name)
        possible = printed[(printed >= SMALLEST) & (printed <= LARGEST[name])]
        damaged = printed[printed > LARGEST[name]]
        if len(damaged):
            self.warnings.append(
                f"The log prints `{name}` as {damaged[0]:g} in {len(damaged)} of {len(self._rows)} iterations of the "
                f"window, which is not plausible; such values are left out."
            )
        return possible

    def _tokens(self, steady: SteadyState) -> Metric | None:
        seq_len, gpus = self._count("seq_len"), self._count("gpus")
        if self._batch and seq_len and gpus:
            value = tokens_per_s_per_gpu(steady.step_time_ms, self._batch * seq_len, gpus)
            return inverse_metric(value, steady)
        printed = self._printed("tokens_per_s_per_gpu")
        if len(printed):
            return inverse_metric(float(np.median(printed)), steady, "printed by the trainer")
        tokens = self._tokens_of_a_step()
        if tokens and gpus:
            value = tokens_per_s_per_gpu(steady.step_time_ms, tokens, gpus)
            return inverse_metric(value, steady, "from the printed tokens of a step")
        needed = [("gpus", gpus)] if tokens else [("gbs", self._batch), ("seq_len", seq_len), ("gpus", gpus)]
        self._missing("Tokens per second", [name for name, value in needed if not value])
        return None

    def _tokens_of_a_step(self) -> float:
        """Return the median of the column `tokens`; 0 without it. One that always grows is a total of the job."""
        tokens = self._in_window("tokens")
        if not len(tokens) or (len(tokens) > 1 and (np.diff(tokens) > 0).all()):
            return 0.0
        return max(float(np.median(tokens)), 0.0)

    def _tflops(self, steady: SteadyState) -> Metric | None:
        computed = self._computed_tflops(steady)
        printed = self._printed("tflops_per_gpu")
        if len(printed):
            value, digit = float(np.median(printed)), _half_digit(printed)
            if computed is not None and abs(computed - value) <= PRINTED_DIGIT + MEDIANS_DIFFER * value:
                note = f"computed: {FORMULA}; the trainer prints {value:.1f}, which is the same, rounded"
                return inverse_metric(computed, steady, note)
            if computed is not None:
                self._compare(value, computed)
            return rounded_metric(inverse_metric(value, steady, "printed by the trainer"), digit)
        if computed is not None:
            return inverse_metric(computed, steady, f"computed: {FORMULA}")
        self._missing("Model TFLOP/s, which the log does not print,", self._missing_for_flops())
        return None

    def _computed_tflops(self, steady: SteadyState) -> float | None:
        seq_len, gpus = self._count("seq_len"), self._count("gpus")
        if self._shape.shape is None or not (self._batch and seq_len and gpus):
            return None
        flops = flops_per_step(self._shape.shape, self._batch, seq_len, discount_window=_discounts(self._log))
        return tflops_per_gpu(steady.step_time_ms, flops, gpus)

    def _missing_for_flops(self) -> list[str]:
        needed = (("gbs", self._batch), ("seq_len", self._count("seq_len")), ("gpus", self._count("gpus")))
        return [*(name for name, value in needed if not value), *self._shape.missing]

    def _compare(self, printed: float, computed: float) -> None:
        """Warn when printed and computed figures differ: an input of the formula is not what the run had."""
        shape, seq_len = self._shape.shape, self._count("seq_len")
        if shape is None or seq_len is None:
            return
        inputs = Inputs(shape, seq_len, _discounts(self._log), tp=self._count("tp") or 1)
        sentence = explain_difference(printed, computed, inputs, digit=PRINTED_DIGIT)
        if sentence:
            self.warnings.append(sentence)

    def _mfu(self, tflops: Metric | None) -> Metric | None:
        if tflops is None:
            return None
        gpu, precision = (
            self._contract[name].value if name in self._contract else None for name in ("gpu", "precision")
        )
        if not isinstance(gpu, str) or not isinstance(precision, str):
            self._missing("MFU", [name for name, value in (("gpu", gpu), ("precision", precision)) if not value])
            return None
        peak = peak_flops(gpu, precision)
        if peak is None:
            self.warnings.append(f"MFU is not computed: no known source states a dense peak of {gpu} at {precision}.")
            return None
        if tflops.value > peak.tflops:
            self.warnings.append(
                f"MFU is left out: {tflops.value:.0f} TFLOP/s/GPU exceeds the peak of a {peak.gpu} in {peak.format} "
                f"({peak.tflops:g}). One of `gpu`, `precision` and `gpus` is wrong, or `gbs`, `seq_len` or the model's "
                f"shape."
            )
            return None
        note = f"peak {peak.tflops:g} TFLOP/s ({peak.gpu}, {peak.format} dense; {peak.source})"
        return scaled_metric(tflops, mfu_pct(1.0, peak.tflops), note)

    def _peak_memory(self, steady: SteadyState | None) -> Metric | None:
        """Return the most memory that any rank had allocated up to the end of the window."""
        last = steady.last_iteration if steady else None
        reports = [r for r in self._log.memory if last is None or r.iteration is None or r.iteration <= last]
        values = [report.max_allocated_bytes for report in reports]
        column = self._log.columns.get("peak_memory_bytes")
        if column is not None:
            upto = column if last is None else column[self._log.columns["iteration"] <= last]
            values += list(upto[np.isfinite(upto)])
        if not values:
            self.warnings.append(
                "No memory line was read, so peak memory is unknown. Trainers print it on rank 0 after the first "
                "iterations: upload that rank's output too."
            )
            return None
        value = max(values) / BYTES_PER_GIB
        if contradiction := too_much_memory(self._contract, value):
            self.warnings.append(f"The {contradiction}. Correct `gpu`; comparisons of this run are of the stated GPU.")
        ranks = len({report.rank for report in reports})
        note = f"most allocated on {plural(ranks, 'rank')} that reported it" if reports else ""
        return Metric(value, value, value, len(values), note)


def _half_digit(printed: FloatArray) -> float:
    """Return half the last printed digit; 0 for figures with more decimals, as in documents."""
    return PRINTED_DIGIT if np.array_equal(printed, np.round(printed, 1)) else 0.0


def _discounts(log: ParsedLog) -> bool:
    """Return whether the trainer discounts windowed attention: Megatron-Bridge does, Megatron-LM does not."""
    return "bridge" in log.trainer.lower()


def _rows_of_window(log: ParsedLog, steady: SteadyState) -> npt.NDArray[np.intp]:
    inside = steady.contains(log.columns["iteration"])
    return np.flatnonzero(inside & usable(log.columns["step_time_true_ms"]))
