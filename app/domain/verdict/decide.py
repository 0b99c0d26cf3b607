"""Decides on a run: the step-time test, the guards of memory and loss, and the overall verdict."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from app.domain.contract.fields import METRICS
from app.domain.numbers import THIN, change_text, counted, percent
from app.domain.performance.health import BYTES_PER_GIB
from app.domain.run import Metric
from app.domain.verdict.step_time import (
    DEFAULT_PRIOR,
    Decision,
    DroppedRun,
    LossChange,
    MemoryChange,
    MemoryDecision,
    Outcome,
    Prior,
    RunEstimate,
    StepTimeChange,
    Verdict,
    certainty,
    compare_step_time,
    is_wider,
    select_baseline,
    shows_no_difference,
    within,
)

# --- Memory and loss: what a fast step must not have paid with (DETECTION section 2, last rule; PRODUCT, promise 12).
#
# Neither gets a t-test: the variance between launches is often exactly zero.

SAME_MEMORY_PCT = 0.1
"""Equal within 0.1 % in 77 % of adjacent versions of one job."""
ALARM_PCT = 1.0
"""For memory and for loss: the loss of one job moved by less than 0.5 % in 99 % of 318 pairs of adjacent CI runs."""
_RANGES = 3  # an increase must also stand out from what the baseline itself does


def compare_memory(candidates: Sequence[RunEstimate], baseline: Sequence[RunEstimate]) -> MemoryChange | None:
    """Medians of peak memory; None when it is unknown on one side."""
    new, old = _known(r.peak_memory_bytes for r in candidates), _known(r.peak_memory_bytes for r in baseline)
    if not new or not old:
        return None
    delta, alarm = _delta_and_alarm(new, old)
    return MemoryChange(
        decision=_memory_decision(delta, alarm),
        baseline_bytes=median(old),
        candidate_bytes=median(new),
        delta_pct=delta,
        alarm_pct=alarm,
    )


def compare_loss(candidates: Sequence[RunEstimate], baseline: Sequence[RunEstimate]) -> LossChange | None:
    """`worse` only when clearly so; a single iteration without a finite loss is `not_finite`. None when unknown."""
    if not_finite := sum(run.not_finite_iterations for run in candidates):
        return LossChange("not_finite", not_finite_iterations=not_finite)
    new, old = _known(r.loss for r in candidates), _known(r.loss for r in baseline)
    if not new or not old:
        return None
    delta, alarm = _delta_and_alarm(new, old)
    return LossChange("worse" if delta > alarm else "no_worse", delta_pct=delta, alarm_pct=alarm)


def _memory_decision(delta: float, alarm: float) -> MemoryDecision:
    if abs(delta) <= SAME_MEMORY_PCT:
        return "no_change"
    if abs(delta) <= alarm:
        return "changed"
    return "regression" if delta > 0 else "improvement"


def _known(values: Iterable[float | None]) -> list[float]:
    """Zero is what a log prints where nothing was measured."""
    return [value for value in values if value is not None and math.isfinite(value) and value > 0]


def _delta_and_alarm(new: Sequence[float], old: Sequence[float]) -> tuple[float, float]:
    """Percent of the baseline's median: the difference, and the increase from which it is an alarm."""
    middle = median(old)
    baseline_range = 100 * (max(old) - min(old)) / middle
    return 100 * (median(new) - middle) / middle, max(ALARM_PCT, _RANGES * baseline_range)


# --- What a verdict says of each headline figure: one test of step time, seen as throughput, and the rule for memory.

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


# --- A verdict in plain words. How a change is written: `app/domain/numbers.py`; how sure it is: `certainty.py`.


def reason(verdict: Verdict, obstacle: str) -> str:
    """The sentence that is read first. `obstacle`: why no step time of the candidate could be compared, if so."""
    if verdict.decision == "no_baseline":
        return "There is no usable run to compare with."
    if verdict.decision == "failed":
        iterations = counted(verdict.loss.not_finite_iterations, "iteration") if verdict.loss else "some iterations"
        return f"The loss was not finite in {iterations}: the speed of this run is no evidence of anything."
    return _plain(" ".join(_reasons(verdict, obstacle)))


def _reasons(verdict: Verdict, obstacle: str) -> Iterator[str]:
    if verdict.memory is not None and verdict.memory.decision == "regression":
        yield _memory_alarm(verdict.memory)
    if verdict.step_time is None:
        yield f"The step time cannot be judged: {obstacle}."
    else:
        yield _step_time_sentence(verdict.step_time, len(verdict.baseline_used))
    if verdict.loss is not None and verdict.loss.decision == "worse":
        faster = verdict.step_time is not None and verdict.step_time.decision == "improvement"
        yield _loss_alarm(verdict.loss, faster)


def notes(verdict: Verdict) -> tuple[str, ...]:
    """Everything else that a careful reader would ask, one sentence each, most important first."""
    return tuple(map(_plain, _notes(verdict)))


def _notes(verdict: Verdict) -> Iterator[str]:
    if told := what_would_decide(verdict):
        yield told
    if verdict.memory is not None and verdict.memory.decision != "regression":
        yield _memory_note(verdict.memory)
    if verdict.looks > 1:
        yield f"This is look {verdict.looks} at this commit: each look is another chance of a false alarm."
    if verdict.step_time is not None:
        yield prior_sentence(verdict.prior, len(verdict.baseline_used), verdict.step_time.run_to_run_sd)
        callable_from = percent(verdict.step_time.smallest_callable_pct)
        yield f"The smallest slow-down this comparison could have called is {callable_from}."
    yield from (left_out_note(dropped) for dropped in verdict.dropped)


def what_would_decide(verdict: Verdict) -> str:
    """How many runs would decide an inconclusive verdict; empty for another, and where it does not hang on runs."""
    change = verdict.step_time
    if verdict.decision != "inconclusive" or change is None or change.decision != "inconclusive":
        return ""
    if change.reruns_apart_pct is not None:
        return (
            "Reruns of one job that lie so far apart were not the same job, or one of them had a bad node: "
            "quarantine the one that is wrong."
        )
    if change.need_runs is not None:
        more = counted(change.need_runs, "more run")
        return f"{more} of this commit would decide, if the difference stays what it is."
    if change.alternative is None:
        return "Not even 20 runs on each side would decide: the difference lies too close to what counts as one."
    reruns = change.alternative.reruns
    with_reruns = f" and {counted(reruns, 'more run')} of this commit" if reruns else ""
    return (
        "More runs of this commit alone would not decide: the baseline is what limits. "
        f"{counted(change.alternative.baseline_runs, 'baseline run')} instead of {len(verdict.baseline_used)}"
        f"{with_reruns} would."
    )


def left_out_note(dropped: DroppedRun) -> str:
    return f"Left out: {dropped.run} ({dropped.why})."


def prior_sentence(prior: Prior, baseline_runs: int, sd: float) -> str:
    """Where the run-to-run variation came from: this baseline, other configurations, or an assumption."""
    runs = counted(baseline_runs, "baseline run")
    others = f"{prior.configurations} other configurations" if prior.configurations else ""
    assumed = percent(100 * math.sqrt(prior.variance))
    if baseline_runs == 1:
        origin = f"from {others} ({assumed})" if others else f"{assumed}, nothing learned yet"
        return f"{runs}; run-to-run variation assumed {origin}."
    return f"{runs}; run-to-run variation {percent(100 * sd)}, from these and {others or f'an assumed {assumed}'}."


def _step_time_sentence(change: StepTimeChange, baseline_runs: int) -> str:
    told = change_text(change.delta_pct, change.ci_low_pct, change.ci_high_pct)
    level = f", 99{THIN}% interval" if change.decision == "no_change" and is_wider(change) else ""
    size, runs = f"{told.sentence} ({told.interval}{level})", f"its {counted(baseline_runs, 'baseline run')}"
    if change.decision == "no_change":
        return f"As fast as {runs}, to {within(change)}: {size}."
    if shows_no_difference(change):
        return f"No difference shown against {runs}: {size}, {certainty(change)}."
    return f"{size} than {runs}, {certainty(change)}."


def _memory_alarm(memory: MemoryChange) -> str:
    return (
        f"Peak memory is {percent(memory.delta_pct)} higher than in the baseline "
        f"(an increase over {percent(memory.alarm_pct)} is a regression)."
    )


def _memory_note(memory: MemoryChange) -> str:
    if memory.decision == "no_change":
        return "Peak memory is unchanged."
    side = "higher" if memory.delta_pct > 0 else "lower"
    return f"Peak memory is {percent(abs(memory.delta_pct))} {side}" + (
        ": less than counts as a regression." if memory.delta_pct > 0 else "."
    )


def _loss_alarm(loss: LossChange, faster: bool) -> str:
    higher = f"{percent(loss.delta_pct or 0.0)} higher"
    if faster:
        return f"But the loss is {higher}: speed bought with loss is no improvement. Explain the loss first."
    return f"The loss is {higher}: explain that first."


def _plain(sentence: str) -> str:
    """With the spaces of text: reasons and notes are values of the API, too."""
    return sentence.replace(THIN, " ")


def judge(
    candidates: Sequence[RunEstimate],
    baseline: Sequence[RunEstimate],
    prior: Prior = DEFAULT_PRIOR,
    *,
    looks: int = 1,
    directional: bool = False,
) -> Verdict:
    """Judge reruns of one commit and config, pooled as one candidate, against earlier comparable runs.

    `baseline`: runs of the same config key in the current segment of its history, oldest first; unusable ones and
    outliers are left out and named. `prior`: from `family_prior`. `looks`: how many times this commit was judged so
    far, this time included; it changes no threshold, but the verdict says it. `directional`: a baseline of short runs
    counts, and the result is an indication. Raises ValueError without a candidate.
    """
    if not candidates:
        raise ValueError("a verdict needs at least one run to judge")
    against = select_baseline(baseline, prior.variance, also_short=directional)
    usable = [run for run in candidates if not run.unusable_because]
    step_time = compare_step_time(usable, against, prior) if usable and against.used else None
    # Memory and loss are facts of every rerun, also of one whose step time never settled.
    memory = compare_memory(candidates, against.used)
    loss = compare_loss(candidates, against.used)
    refused = [DroppedRun(run.run, why) for run in candidates if (why := run.unusable_because)]
    verdict = Verdict(
        decision=_overall(bool(against.used), step_time, memory, loss),
        reason="",
        notes=(),
        candidates_used=tuple(run.run for run in usable),
        baseline_used=tuple(run.run for run in against.used),
        # A single run that cannot be judged is not left out of anything: it is the reason itself.
        dropped=(*(refused if len(candidates) > 1 else ()), *against.dropped),
        prior=prior,
        looks=looks,
        step_time=step_time,
        memory=memory,
        loss=loss,
    )
    obstacle = refused[0].why if refused else ""
    return replace(verdict, reason=reason(verdict, obstacle), notes=notes(verdict))


def _overall(
    has_baseline: bool, step_time: StepTimeChange | None, memory: MemoryChange | None, loss: LossChange | None
) -> Outcome:
    if loss is not None and loss.decision == "not_finite":
        return "failed"
    if not has_baseline:
        return "no_baseline"
    if memory is not None and memory.decision == "regression":
        return "regression"
    if step_time is None:
        return "inconclusive"
    if loss is not None and loss.decision == "worse" and step_time.decision != "regression":
        return "inconclusive"
    return step_time.decision
