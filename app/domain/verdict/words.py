"""Verdicts in words: labels, sentences and rows, the same on pages, in reports and on the command line."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from app.domain.numbers import THE_SAME, THIN, change_text, contract_value, counted, percent, short_commit
from app.domain.run import Stated
from app.domain.verdict import decide
from app.domain.verdict.assess import UPGRADES
from app.domain.verdict.baseline import LeftOut, NearMiss
from app.domain.verdict.comparability import Comparability, Suspect
from app.domain.verdict.decide import left_out_note
from app.domain.verdict.differences import Difference
from app.domain.verdict.document import MeasuredContrast, OtherBranch, VerdictDocument
from app.domain.verdict.step_time import (
    CERTAIN_ENOUGH,
    UNCERTAIN,
    StepTimeChange,
    Verdict,
    certainty,
    shows_no_difference,
    within,
)

Label = Callable[[str], str]

DECISIONS = {"no_change": "no change", "no_baseline": "no baseline", "not_judged": "not judged"}
"""Decisions whose word is not their name."""
MEASURED = {"regression": "worse", "improvement": "better"}
"""What is no verdict on the code is not called one: A/Bs and contrasts."""
BASELINES = {
    "golden": "pinned golden",
    "same_config": "same configuration",
    "last_config": "other knobs",
    "nearest": "nearest of its stack",
}
_MOST_LISTED = 4
_MOST_REASONS = 2


def as_named(run: str) -> str:
    return run


def decision_word(decision: str, *, is_verdict: bool = True) -> str:
    """`no change`, `regression`; `worse` where it is no verdict on the code."""
    return (None if is_verdict else MEASURED.get(decision)) or DECISIONS.get(decision, decision.replace("_", " "))


def headline(document: VerdictDocument, label: Label = as_named) -> str:
    """Line 1: the verdict, the worst change, and how sure it is."""
    aside = f"; quarantined, so it counts for nothing: {document.quarantined}" if document.quarantined else ""
    return f"{_verdict_line(document, label)}{aside}"


def _verdict_line(document: VerdictDocument, label: Label) -> str:
    verdict = document.verdict
    word = decision_word(verdict.decision)
    if verdict.decision == "no_baseline" and document.other_branch is not None:
        return f"{word}: {other_branch_text(document.other_branch)}"
    if verdict.decision == "no_baseline":
        measured = _measured_after_upgrade(document.contrast)
        return f"{word}; {measured}" if measured else f"{word}: {_what_stands_between(document.misses, label)}"
    if verdict.step_time is None or verdict.decision == "failed":
        return f"{word}: {verdict.reason}"
    if not document.raises_regression:
        word = f"A/B, {decision_word(verdict.decision, is_verdict=False)}"
    sure = confidence(verdict)
    if document.rests_on is not None:
        sure = f"a direction only, on {counted(document.rests_on, 'iteration')}"
    return f"{word}{' (provisional)' if document.provisional else ''}: {worst_change(verdict)}; {sure}"


def baseline_line(document: VerdictDocument, label: Label = as_named, offered: int | None = None) -> str:
    """Line 2: the baseline and what differs. `offered`: how many runs could have been one; those of the stack."""
    found = document.comparability
    if found is None:
        many = len(document.left_out) if offered is None else offered
        none_fits = f"none of {counted(many, 'run')} can be one{_why_none(document.left_out)}"
        beside = _contrast_beside(document.contrast, label)
        return f"baseline: {none_fits if many else 'no earlier run of its stack'}{beside}"
    kind = BASELINES.get(document.baseline_kind, document.baseline_kind.replace("_", " "))
    differ = [*found.stack, *found.knobs, *found.beside]
    listing = f"differs in {differences(differ)}" if differ else "nothing that is known differs"
    evidence = f" ({_evidence(found)})" if found.kind == "matched_ab" else ""
    runs = f"{counted(len(document.baseline), 'run')} ({listed_runs(document.baseline, label)})"
    return f"baseline: {runs}, {kind}; {listing}{evidence}"


def other_branch_text(other: OtherBranch) -> str:
    """Why runs of another branch are no baseline, and the setting that would make them one."""
    named = [branch for branch in other.branches if branch]
    branches = [f"the branch is {listed_runs(named)}"] if named else []
    branches += ["no branch is stated"] if "" in other.branches else []
    runs = counted(other.runs, "run")
    return (
        f"{runs} of this stack could be one, but {' or '.join(branches)}, and the project's baseline branch is "
        f"{other.baseline_branch}. Change the project's setting Baseline branch (`baseline_branch`), or state `branch`"
    )


def _why_none(left_out: Sequence[LeftOut]) -> str:
    """The most frequent reasons, with their numbers where there are several."""
    reasons = Counter(one.why for one in left_out).most_common(_MOST_REASONS)
    texts = [f"{why} ({counted(n, 'run')})" if len(reasons) > 1 else why for why, n in reasons]
    return f": {'; '.join(texts)}" if texts else ""


def worst_change(verdict: Verdict) -> str:
    """The change that made the verdict: `step time +3.4 % slower (2.1 to 4.7, 99 % interval)`."""
    memory, time = verdict.memory, verdict.step_time
    if memory is not None and memory.decision == "regression":
        worse_time = time is not None and time.decision == "regression" and time.delta_pct > memory.delta_pct
        if not worse_time:
            return f"peak memory +{percent(memory.delta_pct)} higher, where {percent(memory.alarm_pct)} is the limit"
    if time is None:
        return verdict.reason
    return f"step time{', no difference shown:' if shows_no_difference(time) else ''} {step_time_change(time)}"


def step_time_change(time: StepTimeChange) -> str:
    """`+3.4 % slower (2.1 to 4.7, 99 % interval)`."""
    told = change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct)
    return f"{told.figure} ({told.interval}, 99{THIN}% interval)"


def confidence(verdict: Verdict) -> str:
    time = verdict.step_time
    if verdict.loss is not None and verdict.loss.decision == "worse":
        return f"the loss is {percent(verdict.loss.delta_pct or 0.0)} higher, explain that first"
    if verdict.memory is not None and verdict.memory.decision == "regression":
        return CERTAIN_ENOUGH
    return UNCERTAIN if time is None else certainty(time)


def differences(found: Sequence[Difference]) -> str:
    """`ep_overlap (off -> on), commit (0f3c2a9d -> 77aa01bc)` and how many more there are."""
    shown = [f"{one.field} ({side_text(one.field, one.a)} -> {side_text(one.field, one.b)})" for one in found]
    more = len(found) - _MOST_LISTED
    return ", ".join(shown[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def side_text(field: str, stated: Stated | None) -> str:
    """One side of a difference: `unknown` when nobody states it, commits in eight characters."""
    if stated is None:
        return "unknown"
    text = contract_value(stated.value)
    return short_commit(text) if "commit" in field else text


def listed_runs(runs: Sequence[str], label: Label = as_named) -> str:
    """The oldest runs by name, and how many more there are."""
    more = len(runs) - _MOST_LISTED
    return ", ".join(label(run) for run in runs[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def contrast_lines(contrast: MeasuredContrast, label: Label = as_named) -> list[str]:
    """What a single-field contrast measured, and whose the difference is."""
    found = contrast.comparability
    where = f"{listed_runs(contrast.runs, label)}, in {differences(found.stack)}"
    lines = [f"Single-field contrast with {where}: {whose(found)}. This is no verdict on the code."]
    if found.one_is_benchmark_only:
        lines += [
            "One side is benchmark only (forced routing or made-up data): its speed promises nothing for training."
        ]
    if contrast.measured.step_time is not None:
        change = step_time_change(contrast.measured.step_time)
        lines += [f"Measured: step time {change}; {confidence(contrast.measured)}."]
    return lines


def whose(found: Comparability) -> str:
    """To what the difference of a contrast belongs, as far as contracts and commits can tell."""
    field = found.stack[0].field
    if found.knobs:
        return f"knobs differ, too, so it belongs to no single field: {differences(found.knobs)}"
    if found.attributed_to is None:
        return f"it may be {field}"
    if found.other_code:
        return f"it may be {field}, and it may be the code, which is another, too: {differences(found.other_code)}"
    return f"the difference belongs to {field}, as far as contracts can tell"


def sides_text(one: Difference) -> tuple[str, str]:
    """Both sides; of names in one folder (`nvcr.io/nvidia/nemo:26.06`) their last parts."""
    before, after = side_text(one.field, one.a), side_text(one.field, one.b)
    (folder, _, old), (other_folder, _, new) = before.rpartition("/"), after.rpartition("/")
    return (old, new) if folder and folder == other_folder else (before, after)


def miss_line(miss: NearMiss, label: Label = as_named) -> str:
    found = (*miss.comparability.stack, *miss.comparability.knobs)
    name = label(miss.run)
    text = f"{name} differs in {differences(found)}" if found else f"{name} differs in nothing that is known"
    return f"{text}; {miss.never_a_baseline_because}" if miss.never_a_baseline_because else text


def suspect_line(suspect: Suspect) -> str:
    """`commit (0f3c2a9d -> 77aa01bc): All code between the two commits.`"""
    if suspect.difference is not None:
        return f"{differences([suspect.difference])}: {suspect.reason}"
    return f"{suspect.field}: {suspect.reason}" if suspect.field else suspect.reason


def notes(document: VerdictDocument) -> list[str]:
    """The rest of the story. Runs that were left out have a list of their own."""
    if document.decision in ("no_baseline", "failed"):
        return []
    listed = {left_out_note(dropped) for dropped in document.verdict.dropped}
    return [note for note in document.verdict.notes if note not in listed]


def left_out(document: VerdictDocument, label: Label = as_named) -> list[str]:
    """Runs that count on neither side, each with the reason."""
    listed = [f"{label(run)}: {why}" for run, why in left_out_runs(document)]
    more = document.more_left_out
    return [*listed, f"{counted(more, 'older run')} of the stack"] if more else listed


def left_out_runs(document: VerdictDocument) -> list[tuple[str, str]]:
    chosen = [(one.run, one.why) for one in document.left_out]
    return list(dict.fromkeys([*chosen, *((one.run, one.why) for one in document.verdict.dropped)]))


def _what_stands_between(misses: Sequence[NearMiss], label: Label) -> str:
    if not misses:
        return "there is no earlier run to compare with"
    nearest = misses[0]
    if nearest.never_a_baseline_because and not nearest.fields:
        return f"{label(nearest.run)} is of the same stack, but {nearest.never_a_baseline_because}"
    differ = nearest.comparability.stack or nearest.comparability.knobs
    return f"{label(nearest.run)} differs in {differences(differ)}" if differ else f"{label(nearest.run)} came closest"


def _measured_after_upgrade(contrast: MeasuredContrast | None) -> str:
    """`against container train:2026.09: step time +6.8 % slower (...), a contrast; certain enough to act on`."""
    if contrast is None or contrast.measured.step_time is None:
        return ""
    found = contrast.comparability
    one = found.stack[0]
    if one.field not in UPGRADES:
        return ""
    others = f" and {counted(len(found.knobs), 'other knob')}" if found.knobs else ""
    against = f"against {one.field} {sides_text(one)[0]}{others}"
    return f"{against}: {worst_change(contrast.measured)}, a contrast; {confidence(contrast.measured)}"


def _contrast_beside(contrast: MeasuredContrast | None, label: Label) -> str:
    if contrast is None:
        return ""
    found = contrast.comparability
    runs = f"{counted(len(contrast.runs), 'run')} ({listed_runs(contrast.runs, label)})"
    return f"; contrast with {runs}, differs in {differences([*found.stack, *found.knobs, *found.other_code])}"


def _evidence(found: Comparability) -> str:
    """An A/B of two commits is evidence about both."""
    if found.other_code:
        return f"one knob and the code: evidence about {found.attributed_to} only as far as the code is not the cause"
    return f"matched A/B: evidence about {found.attributed_to}"


# --- A verdict in plain sentences, as a page begins with: the answer, what would decide, whose a difference is.
#
# The short lines of reports are in `verdict_words.py`. `label` turns the name of a run into what people call it.

_MOST_FIELDS = 5


def numbered(run: str) -> str:
    """How the service calls a run: `#1842`."""
    return f"#{run}"


def answer(document: VerdictDocument, label: Label = numbered) -> str:
    """One to three sentences: `3.4 % slower than the last 12 runs of this stack, certain enough to act on.`"""
    return " ".join(_sentences(document, label))


def what_would_decide(document: VerdictDocument) -> str:
    """How many runs would decide an inconclusive verdict; empty for another, and where it does not hang on runs."""
    return decide.what_would_decide(document.verdict)


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
