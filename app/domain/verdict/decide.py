"""Judge a run: the step-time test, the memory and loss guards, and the overall verdict."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from app.domain.contract.fields import METRICS
from app.domain.numbers import THIN, change_text, percent, plural, share_text
from app.domain.performance.health import BYTES_PER_GIB
from app.domain.run import Metric
from app.domain.text import capitalized
from app.domain.verdict.policy import DEFAULTS, Thresholds
from app.domain.verdict.step_time import (
    ALARM_PCT,
    DEFAULT_PRIOR,
    PLANNED_LOOKS,
    Baseline,
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
    select_baseline,
    shows_no_difference,
    unsteady,
    within,
)

# --- Memory and loss: a faster step must not cost either.
#
# Neither gets a t-test, because the variance between launches is often exactly zero.

SAME_MEMORY_PCT = 0.1
"""Equal within 0.1 % in 77 % of adjacent versions of one job."""
FAR_BELOW_PCT = 10.0
"""A loss that far below its reference shows broken data or labels rather than better training."""
_RANGES = 3  # an increase must also stand out from what the baseline itself does


def compare_memory(
    candidates: Sequence[RunEstimate], baseline: Sequence[RunEstimate], bound_pct: float = ALARM_PCT
) -> MemoryChange | None:
    """Compare medians of peak memory; None when one side has no value. `bound_pct`: the least increase to call."""
    new, old = _measured(r.peak_memory_bytes for r in candidates), _measured(r.peak_memory_bytes for r in baseline)
    if not new or not old:
        return None
    delta, alarm = _delta_and_alarm(new, old, bound_pct)
    return MemoryChange(
        decision=_memory_decision(delta, alarm),
        baseline_bytes=median(old),
        candidate_bytes=median(new),
        delta_pct=delta,
        alarm_pct=alarm,
    )


def compare_loss(
    candidates: Sequence[RunEstimate], baseline: Sequence[RunEstimate], bound_pct: float = ALARM_PCT
) -> LossChange | None:
    """Compare median losses; one iteration without a finite loss makes it `not_finite`. None when unknown."""
    if not_finite := sum(run.not_finite_iterations for run in candidates):
        return LossChange("not_finite", not_finite_iterations=not_finite)
    new, old = _measured(r.loss for r in candidates), _measured(r.loss for r in baseline)
    if not new or not old:
        return None
    delta, alarm = _delta_and_alarm(new, old, bound_pct)
    return LossChange(
        decision="worse" if delta > alarm else "no_worse",
        delta_pct=delta,
        alarm_pct=alarm,
        baseline=median(old),
        candidate=median(new),
    )


def _worse_since(change: LossChange, offered: Sequence[RunEstimate], against: Baseline) -> str:
    """Return the oldest of the newest dropped runs in a row whose loss equals that of the candidates."""
    used, since = {run.run for run in against.used}, ""
    for run in reversed(offered):
        if run.run in used:
            break
        if run.loss and change.candidate:
            if abs(100 * (run.loss / change.candidate - 1)) > (change.alarm_pct or 0.0):
                break
            since = run.run
    return since


def _memory_decision(delta: float, alarm: float) -> MemoryDecision:
    if abs(delta) <= SAME_MEMORY_PCT:
        return "no_change"
    if abs(delta) <= alarm:
        return "changed"
    return "regression" if delta > 0 else "improvement"


def _measured(values: Iterable[float | None]) -> list[float]:
    """Drop missing values; logs print zero where nothing was measured."""
    return [value for value in values if value is not None and math.isfinite(value) and value > 0]


def _delta_and_alarm(new: Sequence[float], old: Sequence[float], bound_pct: float) -> tuple[float, float]:
    """Return the difference and the alarm threshold, both in percent of the baseline's median."""
    middle = median(old)
    baseline_range = 100 * (max(old) - min(old)) / middle
    return 100 * (median(new) - middle) / middle, max(bound_pct, _RANGES * baseline_range)


# --- Changes of the headline figures: throughput follows from the one test of step time, memory has its own rule.

MetricDecision = Decision | MemoryDecision | Literal["not_judged"]

SAME_WORK = 0.005
"""In ln. Trainers print TFLOP/s with one decimal, so the work per step derived from it varies a little."""


@dataclass(frozen=True, slots=True)
class MetricChange:
    """Percentages are of the metric itself, so a slower step is less throughput. Memory has no interval: None.

    `not_judged`: the two sides do or count different work per step, so the figure does not follow the step time, or
    an experiment waits for runs.
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
    """Return the change of each headline figure, None where one side is unknown. `metrics`: figures by run name."""
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
    """Return the mean ln(figure x step time in ms), i.e. the work of a step in units of the figure."""
    logs = []
    for metrics in runs:
        metric, step_time = metrics.get(name), metrics.get("step_time_ms")
        if metric is None or step_time is None or metric.value <= 0:
            return None
        logs.append(math.log(metric.value) + math.log(step_time.value))
    return sum(logs) / len(logs)


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


# --- Reason and notes of a verdict.


def reason(verdict: Verdict, obstacle: str) -> str:
    """Return the main sentence. `obstacle`: why the candidate's step time is uncertain or could not be compared."""
    if verdict.decision == "no_baseline":
        return "No usable run to compare with."
    if verdict.decision == "failed":
        iterations = plural(verdict.loss.not_finite_iterations, "iteration") if verdict.loss else "some iterations"
        return f"The loss was not finite in {iterations}, so the speed of this run does not count."
    return _plain(" ".join(_reasons(verdict, obstacle)))


def _reasons(verdict: Verdict, obstacle: str) -> Iterator[str]:
    if verdict.memory is not None and verdict.memory.decision == "regression":
        memory = verdict.memory
        yield (
            f"Peak memory is {percent(memory.delta_pct)} higher than in the baseline "
            f"(limit {percent(memory.alarm_pct)})."
        )
    if verdict.step_time is None:
        yield f"The step time cannot be judged: {obstacle}."
    else:
        yield _step_time_sentence(verdict.step_time, len(verdict.baseline_used))
        if verdict.step_time.not_steady:
            yield f"It is {obstacle}."
    if verdict.loss is not None and verdict.loss.decision == "worse":
        faster = verdict.step_time is not None and verdict.step_time.decision == "improvement"
        yield _loss_alarm(verdict.loss, faster)


def notes(verdict: Verdict) -> tuple[str, ...]:
    """Return further facts about the test, one sentence each, most important first."""
    return tuple(map(_plain, _notes(verdict)))


def _notes(verdict: Verdict) -> Iterator[str]:
    if advice := what_would_decide(verdict):
        yield advice
    if verdict.memory is not None and verdict.memory.decision != "regression":
        yield _memory_note(verdict.memory)
    if verdict.loss is not None and (verdict.loss.delta_pct or 0.0) < -FAR_BELOW_PCT:
        yield f"The loss is {percent(-(verdict.loss.delta_pct or 0.0))} lower: check the data and the labels."
    if verdict.looks > 1:
        planned = max(PLANNED_LOOKS, verdict.looks)
        yield f"This commit was judged {verdict.looks} times, so each judgement must be more certain ({planned} looks)."
    if verdict.step_time is not None:
        n = len(verdict.baseline_used)
        yield prior_sentence(plural(n, "baseline run"), n, verdict.prior, verdict.step_time.run_to_run_sd)
        callable_from = percent(verdict.step_time.smallest_callable_pct)
        yield f"The smallest slowdown that this comparison can detect is {callable_from}."


TOO_NOISY = "Not even 20 runs on each side would decide: the runs vary too much for a difference of this size."
"""Note on an inconclusive comparison that more runs cannot decide."""


def what_would_decide(verdict: Verdict) -> str:
    """Say what would decide an inconclusive verdict; empty for other verdicts and where more runs would not help."""
    change = verdict.step_time
    if verdict.decision != "inconclusive" or change is None or change.decision != "inconclusive":
        return ""
    if change.reruns_apart_pct is not None:
        return (
            "Reruns that differ this much were not the same job, or one of them had a bad node: quarantine the bad one."
        )
    if change.awaits:
        return f"Still missing: {plural(change.awaits, 'requested rerun')} of this commit. Then it is decided."
    if change.need_runs is not None:
        of_commit = f"{plural(change.need_runs, 'more run')} of this commit"
        more = of_commit if change.power is None else capitalized(more_per_side(change))
        return f"{more} would decide if the difference stays the same."
    if change.alternative is None:
        return "Rerun this commit: only a steady run can decide." if change.not_steady else TOO_NOISY
    reruns = change.alternative.reruns
    with_reruns = f" and {plural(reruns, 'more run')} of this commit" if reruns else ""
    runs = plural(change.alternative.baseline_runs, "baseline run")
    return f"{runs} (now {len(verdict.baseline_used)}){with_reruns} would decide."


def more_per_side(change: StepTimeChange) -> str:
    """Format what an experiment lacks: `about 6 more runs per side (80 % power)`. Earlier results have no power."""
    power = f" ({share_text(change.power)} power)" if change.power else ""
    return f"about {plural(change.need_runs or 0, 'more run')} per side{power}"


def prior_sentence(runs: str, baseline_runs: int, prior: Prior, sd: float) -> str:
    """Say how the run-to-run variation was estimated: from the baseline, other configurations, or an assumption.

    `runs`: the baseline runs with their number, as the sentence names them.
    """
    others = f"{prior.configurations} other configurations" if prior.configurations else ""
    assumed = percent(100 * math.sqrt(prior.variance))
    if baseline_runs == 1:
        origin = f"from {others} ({assumed})" if others else f"{assumed} (no data from other configurations yet)"
        return f"{runs}; run-to-run variation assumed {origin}."
    source = others or f"an assumed {assumed}"
    return f"{runs}; run-to-run variation {percent(100 * sd)}, estimated from them and {source}."


def _step_time_sentence(change: StepTimeChange, baseline_runs: int) -> str:
    text = change_text(change.delta_pct, change.ci_low_pct, change.ci_high_pct)
    size, runs = f"{text.figure} ({text.interval})", f"its {plural(baseline_runs, 'baseline run')}"
    if change.decision == "no_change":
        return f"As fast as {runs}, {within(change)}: {size}."
    if shows_no_difference(change):
        return f"No significant difference from {runs}: {size}, {certainty(change)}."
    return f"{size} than {runs}, {certainty(change)}."


def _memory_note(memory: MemoryChange) -> str:
    if memory.decision == "no_change":
        return "Peak memory is unchanged."
    side = "higher" if memory.delta_pct > 0 else "lower"
    return f"Peak memory is {percent(abs(memory.delta_pct))} {side}" + (
        ", below the limit for a regression." if memory.delta_pct > 0 else "."
    )


def _loss_alarm(loss: LossChange, faster: bool) -> str:
    higher = f"{percent(loss.delta_pct or 0.0)} higher"
    if loss.since:
        return f"The loss was already {higher} in the run before."
    if faster:
        return (
            f"But the loss is {higher}: a faster run with a worse loss is not an improvement. Explain the loss first."
        )
    return f"The loss is {higher}: explain that first."


def _plain(sentence: str) -> str:
    """Replace thin spaces: the API serves reasons and notes as plain text."""
    return sentence.replace(THIN, " ")


def judge(
    candidates: Sequence[RunEstimate],
    baseline: Sequence[RunEstimate],
    prior: Prior = DEFAULT_PRIOR,
    *,
    looks: int = 1,
    awaits: int = 0,
    thresholds: Thresholds = DEFAULTS,
    directional: bool = False,
) -> Verdict:
    """Judge reruns of one commit and configuration, pooled as one candidate, against earlier comparable runs.

    `baseline`: runs of the same config key in the current segment of its history, oldest first; unusable runs and
    outliers are dropped and listed. `prior`: from `family_prior`. `looks`: how often this commit was judged so far,
    including this time; from the second on they are corrected for, two at least (Bonferroni). `awaits`:
    requested reruns that are missing; the step time decides nothing before they are in. `directional`: short baseline
    runs count, too, and the result only indicates a direction.
    Raises ValueError without a candidate.
    """
    if not candidates:
        raise ValueError("a verdict needs at least one run to judge")
    planned = max(PLANNED_LOOKS, looks) if looks > 1 else 1
    against = select_baseline(baseline, prior.variance, also_short=directional)
    usable = [run for run in candidates if not run.unusable_because] or unsteady(candidates)
    step_time = compare_step_time(usable, against, prior, planned, thresholds) if usable and against.used else None
    if step_time is not None and awaits:
        step_time = replace(step_time, decision="inconclusive", awaits=awaits)
    # Memory and loss count for every rerun, even one whose step time never became steady.
    memory = compare_memory(candidates, against.used, thresholds.memory_pct)
    loss = compare_loss(candidates, against.used, thresholds.loss_pct)
    if loss is not None and loss.decision == "worse":
        loss = replace(loss, since=_worse_since(loss, baseline, against))
    used = {run.run for run in usable}
    refused = [DroppedRun(run.run, run.unusable_because) for run in candidates if run.run not in used]
    verdict = Verdict(
        decision=_overall(bool(against.used), step_time, memory, loss, skips_more=_skips_more(usable, against.used)),
        reason="",
        notes=(),
        candidates_used=tuple(run.run for run in usable),
        baseline_used=tuple(run.run for run in against.used),
        # When the only candidate cannot be judged, the reason says so; nothing else was left out.
        dropped=(*(refused if len(candidates) > 1 else ()), *against.dropped),
        prior=prior,
        looks=looks,
        step_time=step_time,
        memory=memory,
        loss=loss,
    )
    obstacle = refused[0].why if refused else next((why for run in usable if (why := run.unusable_because)), "")
    skipped = max(run.skipped_share for run in candidates)
    skips = (f"It skipped {_plain(percent(100 * skipped))} of its optimizer steps.",) if skipped else ()
    return replace(verdict, reason=reason(verdict, obstacle), notes=(*skips, *notes(verdict)))


# --- Reruns: how many a verdict requests, and which look at a commit they are.

MOST_REQUESTED = 3
"""Maximum number of requested reruns: more would cost more than they decide."""
CONFIRMING = 1
"""Reruns that confirm a slowdown seen in a single launch, which a slow node may have caused."""


def reruns_wanted(first: Verdict) -> int:
    """Return how many reruns the verdict on a first launch requests; 0 when it is final or more would not help.

    A slowdown requests one that confirms it; an undecided change of 1 % or more requests the few that would decide.
    """
    time = first.step_time
    if time is None or len(first.candidates_used) != 1:
        return 0
    if first.decision == time.decision == "regression":
        return CONFIRMING
    few = time.need_runs is not None and time.need_runs <= MOST_REQUESTED
    undecided = first.decision == "inconclusive" and abs(time.shift) >= time.relevant_pct / 100
    return time.need_runs or 0 if few and undecided else 0


def look_number(launches: int, wanted: int) -> int:
    """Return the number of the look at `launches` of one commit, whose first launch requested `wanted` reruns.

    All requested reruns together are the second look, as planned. Every launch beyond them is one more look.
    """
    return 1 if launches == 1 else max(PLANNED_LOOKS, PLANNED_LOOKS + launches - 1 - max(wanted, 1))


def _overall(
    has_baseline: bool,
    step_time: StepTimeChange | None,
    memory: MemoryChange | None,
    loss: LossChange | None,
    *,
    skips_more: bool,
) -> Outcome:
    if loss is not None and loss.decision == "not_finite":
        return "failed"
    if not has_baseline:
        return "no_baseline"
    if memory is not None and memory.decision == "regression":
        return "regression"
    if step_time is None:
        return "inconclusive"
    worse_loss = loss is not None and loss.decision == "worse" and step_time.decision != "regression"
    less_work = skips_more and step_time.decision == "improvement"
    return "inconclusive" if worse_loss or less_work else step_time.decision


def _skips_more(candidates: Sequence[RunEstimate], baseline: Sequence[RunEstimate]) -> bool:
    """Return whether the runs skipped more of their optimizer steps than any baseline run; less work is faster."""
    most = max((run.skipped_share for run in baseline), default=0.0)
    return any(run.skipped_share > most for run in candidates)
