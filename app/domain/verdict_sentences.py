"""A verdict in plain sentences, as a page begins with: the answer, what would decide, whose a difference is.

The short lines of reports are in `verdict_words.py`. `label` turns the name of a run into what people call it.
"""

from collections.abc import Iterator, Sequence

from app.domain.changes import THE_SAME, change_text
from app.domain.detection import StepTimeChange
from app.domain.matching import Difference, NearMiss
from app.domain.numbers import THIN, counted, percent
from app.domain.verdict_document import MeasuredContrast, VerdictDocument
from app.domain.verdict_words import Label, differences, listed_runs, side_text

_MOST_FIELDS = 5
_CERTAINTY = {
    "regression": "certain enough to act on",
    "improvement": "beyond what launches of the same job vary",
    "inconclusive": "too uncertain to call",
}


def numbered(run: str) -> str:
    """How the service calls a run: `#1842`."""
    return f"#{run}"


def answer(document: VerdictDocument, label: Label = numbered) -> str:
    """One to three sentences: `3.4 % slower than the last 12 runs of this stack, certain enough to act on.`"""
    return " ".join(_sentences(document, label))


def what_would_decide(document: VerdictDocument) -> str:
    """How many runs would decide an inconclusive verdict; empty for another, and where it does not hang on runs."""
    time = document.verdict.step_time
    if document.decision != "inconclusive" or time is None or time.decision != "inconclusive":
        return ""
    if time.need_runs is not None:
        more = counted(time.need_runs, "more run")
        return f"{more} of this commit would decide, if the difference stays what it is."
    if time.alternative is None:
        return "Not even 20 runs on each side would decide: the difference lies too close to what counts as one."
    reruns = time.alternative.reruns
    with_reruns = f" and {counted(reruns, 'more run')} of this commit" if reruns else ""
    return (
        "More runs of this commit alone would not decide: the baseline is what limits. "
        f"{counted(time.alternative.baseline_runs, 'baseline run')} instead of {len(document.verdict.baseline_used)}"
        f"{with_reruns} would."
    )


def further_notes(document: VerdictDocument) -> tuple[str, ...]:
    """The notes of the verdict without what stands elsewhere: what was left out, and what would decide."""
    elsewhere = ("Left out: ", "More runs of this commit alone", "Not even 20 runs")
    notes = (note for note in document.verdict.notes if not note.startswith(elsewhere))
    return tuple(note for note in notes if "of this commit would decide" not in note)


def contrast_sentence(contrast: MeasuredContrast) -> str:
    """What was measured against another stack, and whose the difference is."""
    found, time = contrast.comparability, contrast.measured.step_time
    one = found.stack[0]
    before, after = sides_text(one)
    n = counted(len(contrast.measured.baseline_used or contrast.runs), "run")
    whose = f"It may be {one.field}"
    if found.knobs:
        whose = f"Knobs differ, too, so it belongs to no single field: {differences(found.knobs)}"
    elif found.attributed_to:
        whose = f"The difference belongs to {one.field}, as far as contracts can tell"
    if time is None:
        return f"{n} that had {one.field} {before} instead of {after} came closest, and cannot be measured against."
    against = f"than {n} with {one.field} {before} instead of {after}, {_certain(time)}"
    return f"{_size(time)} {against}. {whose}. A single-field contrast, no verdict on the code."


def sides_text(one: Difference) -> tuple[str, str]:
    """Both sides; of names in one folder (`nvcr.io/nvidia/nemo:26.06`) their last parts."""
    before, after = side_text(one.field, one.a), side_text(one.field, one.b)
    (folder, _, old), (other_folder, _, new) = before.rpartition("/"), after.rpartition("/")
    return (old, new) if folder and folder == other_folder else (before, after)


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
    if document.contrast is not None:
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
    against, found = baseline_words(document), document.comparability
    if not document.raises_regression and found is not None and found.kind == "matched_ab":
        knob = found.knobs[0]
        before, after = sides_text(knob)
        against = f"with {knob.field} {after} instead of {before}"
        if time.decision == "no_change":
            return f"As fast {against}, to within 2{THIN}% (matched A/B, one knob)."
        return f"{_size(time)} {against} (matched A/B, one knob), {_certainty(document, time)}."
    if time.decision == "no_change":
        text = f"As fast as {against}, to within 2{THIN}%"
    else:
        text = f"{_size(time)} than {against}, {_certainty(document, time)}"
    if not document.raises_regression and found is not None and found.kind == "side_by_side":
        return f"{text}. {counted(len(found.knobs), 'knob')} differ, so it is evidence about none of them alone."
    return f"{text}."


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _size(time: StepTimeChange) -> str:
    change = change_text(time.delta_pct)
    return "As fast" if change.word == THE_SAME else f"{change.size} {change.word}"


def _certainty(document: VerdictDocument, time: StepTimeChange) -> str:
    if document.rests_on is not None:
        return f"directional: {counted(document.rests_on, 'iteration')}"
    return _certain(time)


def _certain(time: StepTimeChange) -> str:
    if time.needs_confirmation:
        return "but on few iterations: a full run must confirm it"
    return _CERTAINTY.get(time.decision, f"to within 2{THIN}%")
