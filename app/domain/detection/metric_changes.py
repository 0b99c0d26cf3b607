"""What a verdict says of each headline figure: one test of step time, seen as throughput, and the rule for memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.contract.fields import METRICS
from app.domain.detection import MemoryChange, StepTimeChange, Verdict
from app.domain.detection.values import Decision, MemoryDecision
from app.domain.health import BYTES_PER_GIB
from app.domain.run import Metric

MetricDecision = Decision | MemoryDecision | Literal["not_judged"]

SAME_WORK = 0.005
"""In ln. Trainers print TFLOP/s with one decimal, so the work of a step that they imply moves a little by itself."""


@dataclass(frozen=True, slots=True)
class MetricChange:
    """Percentages are of the metric itself, so a slower step is less throughput. Memory has no interval: None.

    `not_judged`: both sides do, or count, other work in a step, so that this figure does not follow the step time.
    """

    baseline: float
    candidate: float
    delta_pct: float
    ci_low_pct: float | None
    ci_high_pct: float | None
    decision: MetricDecision


def metric_changes(
    verdict: Verdict, metrics: Mapping[str, Mapping[str, Metric | None]]
) -> dict[str, MetricChange | None]:
    """Of every headline figure; None where it is unknown on a side. `metrics`: those of each run, by its name."""
    changes: dict[str, MetricChange | None] = dict.fromkeys(METRICS)
    if verdict.memory is not None:
        changes["peak_memory_gib"] = _memory(verdict.memory)
    time = verdict.step_time
    if time is None:
        return changes
    changes["step_time_ms"] = MetricChange(
        time.baseline_ms, time.candidate_ms, time.delta_pct, time.ci_low_pct, time.ci_high_pct, time.decision
    )
    new, old = ([metrics[run] for run in runs] for runs in (verdict.candidates_used, verdict.baseline_used))
    for name in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct"):
        changes[name] = _throughput(time, _work(name, old), _work(name, new))
    return changes


def _memory(memory: MemoryChange) -> MetricChange:
    baseline, candidate = memory.baseline_bytes / BYTES_PER_GIB, memory.candidate_bytes / BYTES_PER_GIB
    return MetricChange(baseline, candidate, memory.delta_pct, None, None, memory.decision)


def _work(name: str, runs: Sequence[Mapping[str, Metric | None]]) -> float | None:
    """Mean ln of figure times step time (ms): what a step is worth in units of the figure."""
    found = []
    for metrics in runs:
        metric, step_time = metrics.get(name), metrics.get("step_time_ms")
        if metric is None or step_time is None or metric.value <= 0:
            return None
        found.append(math.log(metric.value) + math.log(step_time.value))
    return sum(found) / len(found)


def _throughput(time: StepTimeChange, old_work: float | None, new_work: float | None) -> MetricChange | None:
    if old_work is None or new_work is None:
        return None
    more_work = new_work - old_work
    shift = more_work - time.shift
    half = (math.log1p(time.ci_high_pct / 100) - math.log1p(time.ci_low_pct / 100)) / 2
    low, middle, high = (100 * math.expm1(value) for value in (shift - half, shift, shift + half))
    return MetricChange(
        baseline=math.exp(old_work) / time.baseline_ms,
        candidate=math.exp(new_work) / time.candidate_ms,
        delta_pct=middle,
        ci_low_pct=low,
        ci_high_pct=high,
        decision=time.decision if abs(more_work) <= SAME_WORK else "not_judged",
    )
