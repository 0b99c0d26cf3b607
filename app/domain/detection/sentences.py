"""A verdict in plain words. Intervals are given in the direction of the word: `3.4 % faster (2.1 to 4.7)`."""

import math
from collections.abc import Iterator

from app.domain.detection.values import LossChange, MemoryChange, Prior, StepTimeChange, Verdict


def reason(verdict: Verdict, obstacle: str) -> str:
    """The sentence that is read first. `obstacle`: why no step time of the candidate could be compared, if so."""
    if verdict.decision == "no_baseline":
        return "There is no usable run to compare with."
    if verdict.decision == "failed":
        iterations = count(verdict.loss.not_finite_iterations, "iteration") if verdict.loss else "some iterations"
        return f"The loss was not finite in {iterations}: the speed of this run is no evidence of anything."
    return " ".join(_reasons(verdict, obstacle))


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
    return tuple(_notes(verdict))


def _notes(verdict: Verdict) -> Iterator[str]:
    if verdict.step_time is not None:
        yield from _what_next(verdict.step_time, len(verdict.baseline_used))
    if verdict.memory is not None and verdict.memory.decision != "regression":
        yield _memory_note(verdict.memory)
    if verdict.looks > 1:
        yield f"This is look {verdict.looks} at this commit: each look is another chance of a false alarm."
    if verdict.step_time is not None:
        yield prior_sentence(verdict.prior, len(verdict.baseline_used), verdict.step_time.run_to_run_sd)
        callable_from = percent(verdict.step_time.smallest_callable_pct)
        yield f"The smallest slow-down this comparison could have called is {callable_from}."
    yield from (f"Left out: {dropped.run} ({dropped.why})." for dropped in verdict.dropped)


def prior_sentence(prior: Prior, baseline_runs: int, sd: float) -> str:
    """Where the run-to-run variation came from: this baseline, other configurations, or an assumption."""
    runs = count(baseline_runs, "baseline run")
    others = f"{prior.configurations} other configurations" if prior.configurations else ""
    assumed = percent(100 * math.sqrt(prior.variance))
    if baseline_runs == 1:
        origin = f"from {others} ({assumed})" if others else f"{assumed}, nothing learned yet"
        return f"{runs}; run-to-run variation assumed {origin}."
    return f"{runs}; run-to-run variation {percent(100 * sd)}, from these and {others or f'an assumed {assumed}'}."


def percent(value: float) -> str:
    """One decimal, two below 1 %."""
    decimals = 2 if abs(value) < 0.995 else 1
    return f"{_number(value, decimals)} %"


def count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _step_time_sentence(change: StepTimeChange, baseline_runs: int) -> str:
    against = f"{_change(change)} than its {count(baseline_runs, 'baseline run')}"
    match change.decision:
        case "regression" if change.needs_confirmation:
            return f"{against}, but on few iterations: a full run must confirm it."
        case "regression":
            return f"{against}, certain enough to act on."
        case "improvement":
            return f"{against}, beyond what launches of the same job vary."
        case "no_change":
            return f"As fast as its {count(baseline_runs, 'baseline run')}, to within 2 %: {_change(change)}."
        case "inconclusive":
            return f"{against}: too uncertain to call."


def _change(change: StepTimeChange) -> str:
    slower = change.delta_pct >= 0
    low, high = (change.ci_low_pct, change.ci_high_pct) if slower else (-change.ci_high_pct, -change.ci_low_pct)
    decimals = 2 if max(abs(low), abs(high)) < 0.995 else 1
    interval = f"({_number(low, decimals)} to {_number(high, decimals)})"
    return f"{percent(abs(change.delta_pct))} {'slower' if slower else 'faster'} {interval}"


def _what_next(change: StepTimeChange, baseline_runs: int) -> Iterator[str]:
    if change.decision != "inconclusive":
        return
    if change.need_runs is not None:
        yield f"{count(change.need_runs, 'more run')} of this commit would decide, if the difference stays what it is."
    elif change.alternative is None:
        yield "Not even 20 runs on each side would decide: the difference lies too close to what counts as one."
    else:
        reruns = change.alternative.reruns
        with_reruns = f" and {count(reruns, 'more run')} of this commit" if reruns else ""
        yield (
            f"More runs of this commit alone would not decide: the baseline is what limits. "
            f"{change.alternative.baseline_runs} baseline runs instead of {baseline_runs}{with_reruns} would."
        )


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


def _number(value: float, decimals: int) -> str:
    # Adding zero turns -0.0 into 0.0, which would print as "-0.0".
    return f"{round(value, decimals) + 0.0:.{decimals}f}"
