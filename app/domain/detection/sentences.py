"""A verdict in plain words. How a change is written: `app/domain/changes.py`; how sure it is: `certainty.py`."""

import math
from collections.abc import Iterator

from app.domain.changes import change_text
from app.domain.detection.certainty import certainty, is_wider, shows_no_difference, within
from app.domain.detection.values import DroppedRun, LossChange, MemoryChange, Prior, StepTimeChange, Verdict
from app.domain.numbers import THIN, counted, percent


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
