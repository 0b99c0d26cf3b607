"""Throughput from the steady step time. Each figure is a constant over step time: same interval, sign flipped."""

from dataclasses import replace

from app.domain.run import Metric, SteadyState

MS = 1000.0


def tokens_per_s_per_gpu(step_time_ms: float, tokens_per_step: float, gpus: int) -> float:
    """Tokens a second on each GPU. Raises ValueError on a non-positive time or GPU count."""
    _check(step_time_ms, gpus)
    return tokens_per_step * MS / (step_time_ms * gpus)


def tflops_per_gpu(step_time_ms: float, flops_per_step: float, gpus: int) -> float:
    """Model TFLOP/s of each GPU.

    Counts model FLOPs only, without recomputation, as Megatron-LM's `num_floating_point_operations` does. Raises
    ValueError on a non-positive time or GPU count.
    """
    _check(step_time_ms, gpus)
    return flops_per_step * MS / (step_time_ms * gpus * 1e12)


def mfu_pct(tflops: float, peak_tflops: float) -> float:
    """Share of the dense peak, in per cent. Raises ValueError on a peak that is not positive."""
    if peak_tflops <= 0:
        raise ValueError(f"a peak must be positive, got {peak_tflops}")
    return 100 * tflops / peak_tflops


def _check(step_time_ms: float, gpus: int) -> None:
    if step_time_ms <= 0 or gpus <= 0:
        raise ValueError(f"throughput needs a positive time and GPU count, got {step_time_ms} ms on {gpus} GPUs")


def step_time_metric(steady: SteadyState) -> Metric:
    """The steady step time itself, in ms."""
    return Metric(steady.step_time_ms, steady.ci_low_ms, steady.ci_high_ms, steady.n)


def inverse_metric(value: float, steady: SteadyState, note: str = "") -> Metric:
    """A figure that is a constant over step time and has `value` at the median: its interval is the time's, flipped."""
    constant = value * steady.step_time_ms
    return Metric(value, constant / steady.ci_high_ms, constant / steady.ci_low_ms, steady.n, note)


def scaled_metric(metric: Metric, factor: float, note: str = "") -> Metric:
    """A figure that is `factor` times another one, with the same relative interval."""
    return Metric(metric.value * factor, metric.ci_low * factor, metric.ci_high * factor, metric.n, note)


def rounded_metric(metric: Metric, half_digit: float) -> Metric:
    """A figure that was printed rounded: its interval is wider by what rounding may have taken, relative to it."""
    if half_digit >= metric.value:
        return metric
    share = half_digit / metric.value
    return replace(metric, ci_low=metric.ci_low * (1 - share), ci_high=metric.ci_high * (1 + share))
