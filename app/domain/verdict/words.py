"""Sentences of verdicts: the short lines of reports first, then the full sentences of pages."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from app.domain.numbers import THE_SAME, THIN, change_text, contract_value, level_text, percent, plural, short_commit
from app.domain.run import Stated
from app.domain.text import capitalized, some_of
from app.domain.verdict import decide
from app.domain.verdict.assess import changed_field
from app.domain.verdict.baseline import LeftOut, NearMiss
from app.domain.verdict.comparability import Comparability, Difference, Suspect
from app.domain.verdict.document import MORE_MEMORY, MeasuredContrast, OtherBranch, RerunRequest, VerdictDocument
from app.domain.verdict.policy import ReferenceMove
from app.domain.verdict.step_time import (
    StepTimeChange,
    certainty,
    interval_level_pct,
    shows_no_difference,
    within,
)

Label = Callable[[str], str]

_SLOWER, _FASTER, _EQUAL = (
    level_text(interval_level_pct(decision, shift, 1))
    for decision, shift in (("", 1.0), ("", -1.0), ("no_change", 0.0))
)


def interval_text(level_pct: float | None = None) -> str:
    """Return `99 % interval of the deciding test`; without a level, those of all tests."""
    if level_pct is not None:
        return f"{level_text(level_pct)} interval of the deciding test"
    by_change = f"{_SLOWER} if slower, {_FASTER} if faster, {_EQUAL} if equal"
    return f"Interval of the deciding test: {by_change}; higher after early looks"


DECISIONS = {"no_change": "no change", "no_baseline": "no baseline", "not_judged": "not judged"}
"""Labels of decisions that differ from their names."""
MEASURED = {"regression": "worse", "improvement": "better"}
"""Labels for A/Bs and contrasts, which are not verdicts on the code."""
BASELINES = {
    "golden": "commit of the golden run",
    "same_config": "same configuration",
    "last_config": "other knobs",
    "nearest": "nearest run of the stack",
}
_AB = {"regression": "slower", "improvement": "faster"}
_MOST_LISTED = 4
_MOST_REASONS = 2
_NOT_COMPARABLE = "No earlier run is comparable."


def as_named(run: str) -> str:
    """Label a run with its own name."""
    return run


def decision_word(decision: str, *, is_verdict: bool = True) -> str:
    """Return `no change`, `regression`, ...; `worse` or `better` where the decision is not a verdict on the code."""
    return (None if is_verdict else MEASURED.get(decision)) or DECISIONS.get(decision, decision.replace("_", " "))


def badge_text(decision: str, label: str = "", *, is_ab: bool = False) -> str:
    """Return the text of a run's badge: `slower, unconfirmed`, `A/B slower`, `no change`. `label`: as of its badge."""
    if is_ab and label == MORE_MEMORY:
        return f"A/B {label}"
    if is_ab and decision not in ("no_baseline", "failed", ""):
        return f"A/B {_AB.get(decision) or decision_word(decision)}"
    return label or decision_word(decision)


def no_regression_because(document: VerdictDocument) -> str:
    """Return why a slower run opens no regression and confirms none; empty if it may, and for other decisions."""
    if document.decision != "regression" or document.comparability is None or document.alarms:
        return ""
    if document.quarantined:
        return "The run is quarantined, so it opens no regression."
    if document.raises_regression:
        return "The reference job is slower as well, so this opens no regression."
    if document.comparability.kind != "verdict":
        return "The configuration changed, so this is an A/B and opens no regression."
    return "The baseline is of another job, so this opens no regression."


def baseline_line(document: VerdictDocument, label: Label = as_named, offered: int | None = None) -> str:
    """Return line 2 of a report: the baseline and what differs from it.

    `offered`: number of earlier runs of the stack, where `document.left_out` lists only some of them.
    """
    comparability = document.comparability
    if comparability is None:
        many = len(document.left_out) if offered is None else offered
        none = f"{plural(many, 'earlier run')} cannot serve as baseline{_why_none(document.left_out)}"
        contrast = _contrast_beside(document.contrast, label)
        return f"baseline: none; {none if many else 'this is the first run of its stack'}{contrast}"
    kind = BASELINES.get(document.baseline_kind, document.baseline_kind.replace("_", " "))
    differ = [*comparability.stack, *comparability.knobs, *comparability.beside]
    listing = f"differs in {differences(differ)}" if differ else "no known difference"
    evidence = f" ({_evidence(comparability)})" if comparability.kind == "matched_ab" else ""
    used = document.verdict.baseline_used or document.baseline
    runs = f"{plural(len(used), 'run')} ({listed_runs(used, label)})"
    if document.branch_point:
        runs = f"{runs} up to branch point {short_commit(document.branch_point)}"
    return f"baseline: {runs}, {kind}; {listing}{evidence}"


def other_branch_text(other: OtherBranch) -> str:
    """Explain why runs of another branch cannot serve as baseline, and which setting would allow it."""
    named = [branch for branch in other.branches if branch]
    on, unstated = (plural(other.runs, *verbs, number=False) for verbs in (("is", "are"), ("states", "state")))
    branches = [f"{on} on branch {listed_runs(named)}"] if named else []
    branches += [f"{unstated} no branch"] if "" in other.branches else []
    return (
        f"{plural(other.runs, 'run')} of this stack {' or '.join(branches)}, but the project's baseline branch is "
        f"{other.baseline_branch}. Change the project setting Baseline branch (`baseline_branch`), or state `branch`"
    )


def _why_none(left_out: Sequence[LeftOut]) -> str:
    """Return the most frequent reasons, with counts when there are several."""
    reasons = Counter(run.why for run in left_out).most_common(_MOST_REASONS)
    texts = [f"{why} ({plural(n, 'run')})" if len(reasons) > 1 else why for why, n in reasons]
    return f": {'; '.join(texts)}" if texts else ""


def step_time_change(time: StepTimeChange) -> str:
    """Return `3.4 % slower (2.1 to 4.7)`."""
    return change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct).text


def differences(listed: Sequence[Difference]) -> str:
    """List differences with both values: `ep_overlap (off → on), commit (0f3c2a9d → 77aa01bc) and 2 more`."""
    shown = [f"{item.field} ({' → '.join(sides_text(item))})" for item in listed]
    return some_of(shown, _MOST_LISTED)


def side_text(field: str, stated: Stated | None) -> str:
    """Return one side of a difference: `unknown` when it is not stated, commits in eight characters."""
    if stated is None:
        return "unknown"
    text = contract_value(stated.value)
    return short_commit(text) if "commit" in field else text


def knobs_text(knobs: Sequence[Difference], most: int = 1) -> str:
    """Return the new values of at most `most` knobs (`permute_fusion off`), else `3 knobs changed`; empty without."""
    if len(knobs) > most:
        return f"{len(knobs)} knobs changed"
    return ", ".join(f"{item.field} {side_text(item.field, item.b)}" for item in knobs)


def listed_runs(runs: Sequence[str], label: Label = as_named) -> str:
    """List the first runs by name and count the rest."""
    return some_of([label(run) for run in runs], _MOST_LISTED)


def contrast_lines(contrast: MeasuredContrast, label: Label) -> list[str]:
    """Describe a contrast: difference, attribution and measurement."""
    comparability = contrast.comparability
    where = f"{listed_runs(contrast.compared_with, label)}, in {differences(comparability.stack)}"
    kind = capitalized(_contrast_kind(comparability))
    lines = [f"{kind} with {where}: {attribution(comparability)}. This is not a verdict on the code."]
    if comparability.one_is_benchmark_only:
        lines += ["One side is benchmark only (forced routing or synthetic data): its speed does not predict training."]
    if contrast.measured.step_time is not None:
        change = step_time_change(contrast.measured.step_time)
        lines += [f"Measured: step time {change}; {certainty(contrast.measured.step_time)}."]
    return lines


def attribution(comparability: Comparability) -> str:
    """State what a contrast's difference can be attributed to, as far as contracts and commits show."""
    difference = changed_field(comparability)
    field = difference.field
    others = [other for other in (*comparability.stack, *comparability.knobs) if other is not difference]
    if others:
        also = differences(others)
        return f"other fields also differ, so no single field explains the difference: {also}"
    if comparability.two_jobs:
        return "these are two jobs, so the difference is not attributed to any field"
    if comparability.attributed_to is None:
        return f"the difference may come from {field}"
    if comparability.other_code:
        return f"{field} and {differences(comparability.other_code)} changed together"
    return f"the contracts attribute the difference to {field}"


def _contrast_kind(comparability: Comparability) -> str:
    is_single = comparability.attributed_to is not None and not comparability.other_code
    return "single-field contrast" if is_single else "contrast"


def sides_text(difference: Difference) -> tuple[str, str]:
    """Return both sides as text; of paths in the same folder (`nvcr.io/nvidia/nemo:26.06`) only the last parts."""
    return last_parts(side_text(difference.field, difference.a), side_text(difference.field, difference.b))


def last_parts(before: str, after: str) -> tuple[str, str]:
    """Return both without the folder that they share."""
    (folder, _, old), (other_folder, _, new) = before.rpartition("/"), after.rpartition("/")
    return (old, new) if folder and folder == other_folder else (before, after)


def miss_line(miss: NearMiss, label: Label) -> str:
    """Describe a near miss: the fields that differ, and why the run cannot serve as baseline in any case."""
    differing = (*miss.comparability.stack, *miss.comparability.knobs)
    name = label(miss.run)
    text = f"{name} differs in {differences(differing)}" if differing else f"{name} has no known difference"
    return f"{text}; {miss.never_a_baseline_because}" if miss.never_a_baseline_because else text


def suspect_line(suspect: Suspect) -> str:
    """Return `commit (0f3c2a9d -> 77aa01bc): All changes between the two commits.`"""
    if suspect.difference is not None:
        return f"{differences([suspect.difference])}: {suspect.reason}"
    return f"{suspect.field}: {suspect.reason}" if suspect.field else suspect.reason


def notes(document: VerdictDocument) -> tuple[str, ...]:
    """Return the notes of the verdict; none without a judged step time."""
    return () if document.decision in ("no_baseline", "failed") else document.verdict.notes


def left_out(document: VerdictDocument, label: Label = as_named) -> list[str]:
    """List the runs that count on neither side, each with its reason."""
    listed = [f"{label(run)}: {why}" for run, why in left_out_runs(document)]
    more = document.more_left_out
    return [*listed, f"{plural(more, 'older run')} of the stack"] if more else listed


def left_out_runs(document: VerdictDocument) -> list[tuple[str, str]]:
    """Return runs and reasons: those that were not chosen as baseline, then those dropped from the test."""
    chosen = [(run.run, run.why) for run in document.left_out]
    return list(dict.fromkeys([*chosen, *((run.run, run.why) for run in document.verdict.dropped)]))


def _contrast_beside(contrast: MeasuredContrast | None, label: Label) -> str:
    if contrast is None:
        return ""
    comparability = contrast.comparability
    runs = f"{contrast.counted} ({listed_runs(contrast.compared_with, label)})"
    differing = [*comparability.stack, *comparability.knobs, *comparability.other_code]
    return f"; contrast with {runs}, differs in {differences(differing)}"


def _evidence(comparability: Comparability) -> str:
    if comparability.other_code:
        return f"one knob and the code differ: evidence about {comparability.attributed_to}, or about the code"
    return f"matched A/B: evidence about {comparability.attributed_to}"


# --- Full sentences, with which a page begins. `label` turns the name of a run into the text shown for it.

_MOST_FIELDS = 5


def numbered(run: str) -> str:
    """Return the run number as pages show it: `#1842`."""
    return f"#{run}"


def answer(document: VerdictDocument, label: Label = numbered) -> str:
    """Answer in short: `3.4 % slower than the last 12 runs of this stack, beyond run-to-run variation.`"""
    return " ".join((*_sentences(document, label), *remarks(document, label)))


def what_would_decide(document: VerdictDocument) -> str:
    """Say what would decide an inconclusive verdict; empty for other verdicts and where more runs would not help."""
    return decide.what_would_decide(document.verdict)


def further_notes(document: VerdictDocument) -> tuple[str, ...]:
    """Return the notes of the verdict that the page does not show elsewhere."""
    decisive = what_would_decide(document)
    return tuple(note for note in notes(document) if note != decisive)


def remarks(document: VerdictDocument, label: Label) -> tuple[str, ...]:
    """Return what an upgrade, the project's reference job and fixed limits add to a verdict."""
    moved = () if document.reference is None else (reference_text(document.reference, label),)
    upgrade = () if document.since_upgrade is None else upgrade_text(document.since_upgrade)
    return (*upgrade, *moved, *(breach.text() for breach in document.breaches))


def upgrade_text(upgrade: MeasuredContrast) -> tuple[str, ...]:
    """Say what the upgrade that a stack began with changed; nothing while that is undecided."""
    time, difference = upgrade.measured.step_time, changed_field(upgrade.comparability)
    if time is None or time.decision not in ("regression", "improvement") or upgrade.side_by_side:
        return ()
    n, m = len(upgrade.measured.candidates_used), len(upgrade.measured.baseline_used)
    since = f"Since {difference.field} {sides_text(difference)[1]}"
    # Without the change itself: the regression that it belongs to states its size, with later runs.
    change = change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct)
    return (f"{since}: step time {change.interval}{THIN}% {change.word}, over {plural(n, 'run')} against {m} before.",)


def rerun_text(request: RerunRequest, decision: str, run: str) -> str:
    """Return how many reruns a verdict requests, why, and which command starts them. `run`: its number."""
    commit = f" of commit {short_commit(request.commit)}" if request.commit else ""
    reruns = f"{plural(request.runs, 'rerun')}{commit}"
    if str(request.requested_by) != run:
        return f"Missing: {reruns}, which run {request.requested_by} requested."
    if decision == "regression":
        why = f"One launch: {reruns} can confirm it"
    else:
        why = f"{reruns} would decide if the difference stays the same"
    return f"{why}. Start with `threewalls rerun {run} --exec CMD`."


def reference_text(reference: ReferenceMove, label: Label) -> str:
    """Say that the machine changed, so that a slowdown is not alarmed."""
    size = "" if reference.delta_pct is None else f", {change_text(reference.delta_pct, None, None).figure}"
    return (
        f"The reference job {reference.job} moved on {reference.cluster} as well ({label(reference.run)}{size}): the "
        "machine changed, so this raises no alarm."
    )


def contrast_sentence(contrast: MeasuredContrast, label: Label = numbered) -> str:
    """State the difference from another stack, the runs that do not count, and its attribution."""
    comparability, time = contrast.comparability, contrast.measured.step_time
    difference = changed_field(comparability)
    before, after = sides_text(difference)
    n = contrast.counted
    if time is None:
        return f"{n} that had {difference.field} {before} instead of {after} cannot be compared: no usable step time."
    measured = _measured(
        time, "than", "from", f"{n} with {difference.field} {before} instead of {after}", certainty(time)
    )
    because = capitalized(attribution(comparability))
    dropped = "; ".join(f"{label(run.run)}, {run.why}" for run in contrast.measured.dropped)
    left_out = f" Left out: {dropped}." if dropped else ""
    return f"{measured}.{left_out} {because}. This is a {_contrast_kind(comparability)}, not a verdict on the code."


def baseline_words(document: VerdictDocument) -> str:
    """Return the baseline as a noun phrase: `the last 12 runs of this stack`."""
    n = len(document.verdict.baseline_used)
    if document.baseline_kind == "golden":
        return "the pinned run" if n == 1 else f"the pinned run and {plural(n - 1, 'rerun')} of its commit"
    if document.baseline_kind == "nearest":
        return (
            "the nearest run of this stack" if n == 1 else f"the nearest run of this stack and {plural(n - 1, 'rerun')}"
        )
    runs = "the last run of this stack" if n == 1 else f"the last {n} runs of this stack"
    return runs if document.baseline_kind == "same_config" else f"{runs}, which used other knobs"


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
        yield f"{more} more peak memory than {baseline_words(document)} (limit {limit})."
    if time is not None:
        yield _speed(document, time)
    elif not too_much_memory:
        yield verdict.reason
    if verdict.loss is not None and verdict.loss.decision == "worse":
        bought = time is not None and time.decision == "improvement"
        explain = "a faster run with a worse loss is not an improvement" if bought else "explain that first"
        higher, since = f"{percent(verdict.loss.delta_pct or 0.0)} higher", verdict.loss.since
        yield f"The loss has been {higher} since {label(since)}." if since else f"The loss is {higher}: {explain}."
    if why := provisional_because(document):
        yield why


def provisional_because(document: VerdictDocument) -> str:
    """Return why other facts may explain the result; empty if it is not provisional."""
    if not document.provisional or document.comparability is None:
        return ""
    if document.to_supply:
        verb = plural(len(document.to_supply), "is", "are", number=False)
        return f"Provisional: {listed_runs(document.to_supply)} {verb} not known on both sides."
    also = differences([*document.comparability.other_software, *document.comparability.other_code])
    return f"Provisional, because the sides also differ in {also}."


def _without_baseline(document: VerdictDocument, label: Label) -> Iterator[str]:
    if document.other_branch is not None:
        yield f"No baseline: {other_branch_text(document.other_branch)}."
    elif document.contrast is not None:
        yield "This stack has no baseline yet."
        yield contrast_sentence(document.contrast, label)
    elif not document.misses:
        yield "No earlier run to compare with."
    else:
        first = "This configuration has no baseline yet." if document.misses[0].is_other_cell else _NOT_COMPARABLE
        yield f"{first} {_closest(document.misses[0], label)}"


def _closest(miss: NearMiss, label: Label) -> str:
    """Name the closest run and the fields that differ; the page shows their values in a table below."""
    run = label(miss.run)
    if not miss.fields:
        why = miss.never_a_baseline_because or "it is not eligible"
        return f"The closest, {run}, is on the same stack but cannot serve as baseline: {why}."
    fields = miss.fields[:_MOST_FIELDS]
    more = len(miss.fields) - len(fields)
    names = ", ".join(fields) + (f" and {plural(more, 'more field')}" if more else "")
    if miss.is_other_cell:
        return f"Compare it with {run}, which differs in {names}."
    return f"The closest, {run}, differs in {names}."


def _speed(document: VerdictDocument, time: StepTimeChange) -> str:
    against, comparability, sure = baseline_words(document), document.comparability, _certainty(document, time)
    if not document.raises_regression and comparability is not None and comparability.kind == "matched_ab":
        knob = comparability.knobs[0]
        before, after = sides_text(knob)
        against = f"{knob.field} {after} instead of {before} (matched A/B, one knob)"
        if time.decision == "no_change":
            return f"As fast with {against}, {within(time)}."
        return f"{_measured(time, 'with', 'with', against, sure)}."
    if time.decision == "no_change":
        text = f"As fast as {against}, {within(time)}"
    else:
        text = _measured(time, "than", "from", against, sure)
    if not document.raises_regression and comparability is not None and comparability.kind == "side_by_side":
        knobs = plural(len(comparability.knobs), "knob")
        return f"{text}. {knobs} differ, so the change is not attributed to any of them."
    return f"{text}."


def _measured(time: StepTimeChange, than: str, difference_to: str, other: str, sure: str) -> str:
    """Return `3.4 % slower than ...`, or `No significant difference from ...: 0.31 % slower (...)`."""
    change = change_text(time.delta_pct, time.ci_low_pct, time.ci_high_pct)
    if shows_no_difference(time):
        return f"No significant difference {difference_to} {other}: {change.figure} ({change.interval}), {sure}"
    if change.word == THE_SAME:
        return f"As fast {than.replace('than', 'as')} {other}, {sure}"
    return f"{change.figure} {than} {other}, {sure}"


def _certainty(document: VerdictDocument, time: StepTimeChange) -> str:
    if document.rests_on is not None:
        return f"directional: {plural(document.rests_on, 'iteration')}"
    return certainty(time)
