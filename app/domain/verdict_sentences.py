"""A verdict in plain sentences, as a page begins with: the answer, what would decide, whose a difference is.

The short lines of reports are in `verdict_words.py`. `label` turns the name of a run into what people call it.
"""

from collections.abc import Iterator, Sequence

from app.domain.changes import THE_SAME, change_text
from app.domain.detection import StepTimeChange, sentences
from app.domain.detection.certainty import certainty, shows_no_difference, within
from app.domain.matching import NearMiss
from app.domain.numbers import counted, percent
from app.domain.verdict_document import MeasuredContrast, VerdictDocument
from app.domain.verdict_words import Label, listed_runs, notes, other_branch_text, sides_text, whose

_MOST_FIELDS = 5


def numbered(run: str) -> str:
    """How the service calls a run: `#1842`."""
    return f"#{run}"


def answer(document: VerdictDocument, label: Label = numbered) -> str:
    """One to three sentences: `3.4 % slower than the last 12 runs of this stack, certain enough to act on.`"""
    return " ".join(_sentences(document, label))


def what_would_decide(document: VerdictDocument) -> str:
    """How many runs would decide an inconclusive verdict; empty for another, and where it does not hang on runs."""
    return sentences.what_would_decide(document.verdict)


def further_notes(document: VerdictDocument) -> tuple[str, ...]:
    """The notes of the verdict without what stands elsewhere: what was left out, and what would decide."""
    told = what_would_decide(document)
    return tuple(note for note in notes(document) if note != told)


def contrast_sentence(contrast: MeasuredContrast) -> str:
    """What was measured against another stack, and whose the difference is."""
    found, time = contrast.comparability, contrast.measured.step_time
    one = found.stack[0]
    before, after = sides_text(one)
    n = counted(len(contrast.measured.baseline_used or contrast.runs), "run")
    if time is None:
        return f"{n} that had {one.field} {before} instead of {after} came closest, and cannot be measured against."
    told = _measured(time, "than", "against", f"{n} with {one.field} {before} instead of {after}", certainty(time))
    return f"{told}. {_first(whose(found))}. A single-field contrast, no verdict on the code."


def baseline_words(document: VerdictDocument) -> str:
    """`the last 12 runs of this stack`."""
    n = len(document.verdict.baseline_used)
    if document.baseline_kind == "golden":
        return "the pinned run" if n == 1 else f"the pinned run and {counted(n - 1, 'rerun')} of its commit"
    if document.baseline_kind == "nearest":
        return (
            "the nearest run of this stack"
            if n == 1
            else f"the nearest run of this stack and {counted(n - 1, 'rerun')}"
        )
    runs = "the last run of this stack" if n == 1 else f"the last {n} runs of this stack"
    return runs if document.baseline_kind == "same_config" else f"{runs}, which had other knobs"


def _sentences(document: VerdictDocument, label: Label) -> Iterator[str]:
    verdict, time = document.verdict, document.verdict.step_time
    if verdict.decision == "failed":
        yield verdict.reason
        return
    if verdict.decision == "no_baseline":
        yield from _without_baseline(document, label)
        return
    too_much_memory = verdict.memory is not None and verdict.memory.decision == "regression"
    if verdict.memory is not None and too_much_memory:
        more, limit = percent(verdict.memory.delta_pct), percent(verdict.memory.alarm_pct)
        yield f"{more} more peak memory than {baseline_words(document)}, where {limit} more counts as a regression."
    if time is not None:
        yield _speed(document, time)
    elif not too_much_memory:
        yield verdict.reason
    if verdict.loss is not None and verdict.loss.decision == "worse":
        bought = time is not None and time.decision == "improvement"
        explain = "speed bought with loss is no improvement" if bought else "explain that first"
        yield f"The loss is {percent(verdict.loss.delta_pct or 0.0)} higher: {explain}."
    if document.provisional:
        yield f"Provisional: {listed_runs(document.to_supply)} {_is(document.to_supply)} not known on both sides."


def _without_baseline(document: VerdictDocument, label: Label) -> Iterator[str]:
    if document.other_branch is not None:
        yield f"No baseline: {other_branch_text(document.other_branch)}."
    elif document.contrast is not None:
        yield "No run of this stack can be its baseline yet."
        yield contrast_sentence(document.contrast)
    elif not document.misses:
        yield "There is no earlier run to compare with."
    else:
        yield f"No earlier run may be compared. {_closest(document.misses[0], label)}"


def _closest(miss: NearMiss, label: Label) -> str:
    """Names alone: what the values are stands in a table below."""
    run = label(miss.run)
    if not miss.fields:
        return f"The closest, {run}, is of the same stack, but {miss.never_a_baseline_because or 'is no baseline'}."
    fields = miss.fields[:_MOST_FIELDS]
    more = len(miss.fields) - len(fields)
    names = ", ".join(fields) + (f" and {counted(more, 'more field')}" if more else "")
    return f"The closest, {run}, differs in {names}."


def _speed(document: VerdictDocument, time: StepTimeChange) -> str:
    against, found, sure = baseline_words(document), document.comparability, _certainty(document, time)
    if not document.raises_regression and found is not None and found.kind == "matched_ab":
        knob = found.knobs[0]
        before, after = sides_text(knob)
        against = f"{knob.field} {after} instead of {before} (matched A/B, one knob)"
        if time.decision == "no_change":
            return f"As fast with {against}, to {within(time)}."
        return f"{_measured(time, 'with', 'with', against, sure)}."
    if time.decision == "no_change":
        text = f"As fast as {against}, to {within(time)}"
    else:
        text = _measured(time, "than", "against", against, sure)
    if not document.raises_regression and found is not None and found.kind == "side_by_side":
        return f"{text}. {counted(len(found.knobs), 'knob')} differ, so it is evidence about none of them alone."
    return f"{text}."


def _measured(time: StepTimeChange, than: str, against: str, other: str, sure: str) -> str:
    """`3.4 % slower than ...`; of what may be either: `No difference shown against ...: 0.31 % slower (...)`."""
    told = change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct)
    if shows_no_difference(time):
        return f"No difference shown {against} {other}: {told.sentence} ({told.interval}), {sure}"
    size = "As fast" if told.word == THE_SAME else told.sentence
    return f"{size} {than} {other}, {sure}"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _first(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _certainty(document: VerdictDocument, time: StepTimeChange) -> str:
    if document.rests_on is not None:
        return f"directional: {counted(document.rests_on, 'iteration')}"
    return certainty(time)
