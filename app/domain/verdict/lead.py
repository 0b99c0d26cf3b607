"""The verdict in one sentence of at most 16 words, with which the page of a run begins."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from app.domain.numbers import THE_SAME, THIN, change_text, metric_text, percent, plural, step_time, time_unit_of
from app.domain.performance.health import BYTES_PER_GIB
from app.domain.text import some_of
from app.domain.verdict.assess import changed_field
from app.domain.verdict.baseline import NearMiss
from app.domain.verdict.comparability import IDENTITY, Comparability, Difference
from app.domain.verdict.document import MeasuredContrast, VerdictDocument
from app.domain.verdict.step_time import MemoryChange, StepTimeChange, shows_no_difference
from app.domain.verdict.words import Label, badge_text, numbered, sides_text

_LONGEST_VALUE = 24
_MOST_FIELDS = 3
_NAMED = 12
"""Above this number of fields, their names say less than how many of them are unknown."""


@dataclass(frozen=True, slots=True)
class OngoingRegression:
    """The open regression that a run without a change continues. `usual_ms`: the level of its job before it.

    `before`: when that level was measured: `with train:2026.09`, `before #91`. `is_elsewhere`: it is of its
    job in another container or cluster.
    """

    id: int
    usual_ms: float
    before: str
    is_elsewhere: bool = False


def lead(
    document: VerdictDocument,
    cause: Difference | None = None,
    own_ms: float | None = None,
    ongoing: OngoingRegression | None = None,
    *,
    unsteady: str = "",
    recovered_from: int | None = None,
    label: Label = numbered,
    in_regression: Collection[str] = (),
    alternates: bool = False,
) -> str:
    """Return the change with both step times, and what changed. `cause`: the suspect that the evidence supports.

    `own_ms`: the step time of the run itself; the mean takes its place where reruns were judged together with it.
    `unsteady`: why the run is not steady (`drifts 12 %`). `recovered_from`: the regression whose slow runs are the
    baseline of a run that is as fast as before it. `label`: names another run. `in_regression`: the metrics of the
    regressions that the run is in. `alternates`: its job moves between two levels, whatever its code.
    """
    verdict, time = document.verdict, document.verdict.step_time
    metric = document.leading_metric(in_regression=in_regression)
    if verdict.decision == "failed":
        return verdict.reason
    if verdict.decision == "no_baseline":
        contrast = document.contrast if document.other_branch is None else None
        if contrast is None or (time := contrast.measured.step_time) is None:
            return _without_baseline(document, own_ms, unsteady, label)
        of_memory = _heavier_contrast(contrast) if metric == "peak_memory_gib" else ""
        return of_memory or _contrast(contrast, time, own_ms, unsteady, cause)
    memory = verdict.memory
    heavier = percent(memory.delta_pct) if memory is not None and memory.decision == "regression" else ""
    if metric == "lm_loss" and verdict.loss is not None:
        slower = change_text(time.delta_pct).figure if time is not None and time.decision == "regression" else ""
        also = f"{heavier} more memory" if heavier else slower
        higher = f"{percent(verdict.loss.delta_pct or 0.0)} higher"
        worse = f"The loss is {higher} than before: explain that first."
        if verdict.loss.since:
            worse = f"The loss has been {higher} since {label(verdict.loss.since)}."
        return f"{worse} Also {also}." if also else worse
    if time is None or metric == "peak_memory_gib":
        runs = plural(len(verdict.baseline_used), "run")
        return f"{_heavier(memory)} ({runs}){_also_faster(time)}." if memory is not None and heavier else verdict.reason
    knobs = document.comparability.knobs if document.comparability is not None else ()
    back = "" if recovered_from is None else f"Back to the level before regression {recovered_from}"
    baseline = verdict.baseline_used
    change = _continued(time, own_ms, ongoing, baseline, label) if ongoing else ""
    change = change or _change(time, own_ms, (len(verdict.candidates_used), len(baseline)), back)
    because = f"Also {heavier} more memory." if heavier else _because(time, cause, knobs, alternates=alternates)
    return " ".join(filter(None, (change, "" if back else because)))


def answer_line(badge: tuple[str, str], lead: str, *, is_ab: bool) -> str:
    """Return badge and lead as one line of plain text. `badge`: decision and label; `is_ab`: as in `badge_text`."""
    word, plain = badge_text(*badge, is_ab=is_ab), lead.replace("`", "")
    return f"{word} · {plain.removeprefix('Inconclusive: ')}" if word else plain


def _continued(
    time: StepTimeChange, own_ms: float | None, ongoing: OngoingRegression, baseline: Sequence[str], label: Label
) -> str:
    """Return that a run is as slow as its baseline, and than before the regression of both; empty if it differs."""
    own = time.candidate_ms if own_ms is None else own_ms
    unit, slower = time_unit_of((own, ongoing.usual_ms)), change_text(100 * (own / ongoing.usual_ms - 1)).figure
    before = f"before regression {ongoing.id}"
    if time.decision == "no_change":
        if ongoing.is_elsewhere:
            return f"Still {slower} than {before}: {step_time(own, unit)}."
        was = f"was {step_time(ongoing.usual_ms, unit)} {ongoing.before} (regression {ongoing.id})"
        return f"Still {slower}: {step_time(own, unit)}, {was}."
    if not shows_no_difference(time):
        return ""
    if abs(time.delta_pct) > time.equal_pct:
        unit = time_unit_of((own, time.baseline_ms))
        times = f"{step_time(own, unit)}, was {step_time(time.baseline_ms, unit)}"
        return f"Inconclusive: {times}; {slower} than {before}."
    runs = label(baseline[0]) if len(baseline) == 1 else f"the last {len(baseline)} runs"
    return f"As slow as {runs}: {step_time(own, unit)}, {slower} than {before}."


def _change(time: StepTimeChange, own_ms: float | None, counted: tuple[int, int], back: str) -> str:
    """Return `4.9 % slower: 19.57 s, was 18.66 s.`; with reruns their mean, which the percentage is about.

    `counted`: the number of runs whose mean the verdict judged, and of baseline runs. `back`: in place of the change.
    """
    pooled, baseline = counted
    own = time.candidate_ms if own_ms is None else own_ms
    shown, mean = (time.candidate_ms, f" ({pooled}-run mean)") if pooled > 1 else (own, "")
    unit = time_unit_of((shown, time.baseline_ms))
    times = f"{step_time(shown, unit)}{mean}, was {step_time(time.baseline_ms, unit)}"
    if shows_no_difference(time):
        return f"Inconclusive: {times}."
    if back:
        return f"{back}: {times}."
    change = change_text(time.delta_pct)
    if time.decision == "no_change" or change.word == THE_SAME:
        return f"As fast as before, within {time.equal_pct:g}{THIN}%: {times}."
    return f"{change.figure}{' than one run' if baseline == 1 else ''}: {times}."


def _because(time: StepTimeChange, cause: Difference | None, knobs: Sequence[Difference], *, alternates: bool) -> str:
    if time.decision == "no_change" or shows_no_difference(time):
        return ""
    if alternates:
        return "The job alternates, whatever its code."
    if cause is not None:
        return f"Likely cause: {_named(cause)}."
    if len(knobs) == 1:
        return f"Changed: {_named(knobs[0])}."
    return f"{len(knobs)} knobs changed." if knobs else ""


def _named(difference: Difference) -> str:
    """Return the field with both values, without them where they are long; of a commit the range."""
    before, after = sides_text(difference)
    if "commit" in difference.field:
        return f"code {before}..{after}"
    short = max(len(before), len(after)) <= _LONGEST_VALUE
    return f"`{difference.field}` {before} → {after}" if short else f"`{difference.field}`"


def _without_baseline(document: VerdictDocument, own_ms: float | None, unsteady: str, label: Label) -> str:
    if document.other_branch is not None:
        return f"No baseline on branch {document.other_branch.baseline_branch}."
    if document.misses:
        return _closest(document.misses[0], label)
    why = f", not steady ({unsteady})" if unsteady else ""
    own = f"{step_time(own_ms)} per step{why}. " if own_ms else ""
    return f"{own}Nothing to compare with yet."


def _closest(miss: NearMiss, label: Label) -> str:
    comparability = miss.comparability
    if not miss.fields:
        return f"No comparable run yet: the closest, {label(miss.run)}, cannot serve as baseline."
    unstated = {*comparability.unknown, *(item.field for item in comparability.stack if item.b is None)}
    if names := [f"`{name}`" for name in IDENTITY if name in unstated]:
        return f"No comparable run yet: {some_of(names, 2)} {plural(len(names), 'is', 'are', number=False)} unknown."
    if any(item.field == "model" and item.is_certain for item in comparability.stack):
        return "No run of this model to compare with yet."
    fields = some_of([f"`{name}`" for name in miss.fields], _MOST_FIELDS)
    if len(miss.fields) > _NAMED:
        unknown = sum(not item.is_certain for item in (*comparability.stack, *comparability.knobs))
        which = "all" if unknown == len(miss.fields) else f"{unknown} of them"
        fields = plural(len(miss.fields), "field") + (f", {which} unknown" if unknown else "")
    if miss.is_other_cell:
        return f"No baseline yet. The closest configuration, {label(miss.run)}, differs in {fields}: compare them."
    return f"No comparable run yet: the closest, {label(miss.run)}, differs in {fields}."


def _heavier(memory: MemoryChange) -> str:
    """Return `3.4 % more peak memory: 3.16 GiB, was 3.06 GiB`."""
    sides = (memory.candidate_bytes, memory.baseline_bytes)
    now, before = (metric_text("peak_memory_gib", side / BYTES_PER_GIB) for side in sides)
    return f"{percent(memory.delta_pct)} more peak memory: {now}, was {before}"


def _also_faster(time: StepTimeChange | None) -> str:
    return f"; {change_text(time.delta_pct).figure}" if time is not None and time.decision == "improvement" else ""


def _heavier_contrast(contrast: MeasuredContrast) -> str:
    memory, time = contrast.measured.memory, contrast.measured.step_time
    difference = changed_field(contrast.comparability)
    if memory is None:
        return ""
    return f"{_heavier(memory)} with {difference.field} {sides_text(difference)[0]}{_also_faster(time)}."


def _contrast(
    contrast: MeasuredContrast, time: StepTimeChange, own_ms: float | None, unsteady: str, cause: Difference | None
) -> str:
    difference = changed_field(contrast.comparability)
    before, _ = sides_text(difference)
    change = change_text(time.delta_pct)
    own = time.candidate_ms if own_ms is None else own_ms
    unit = time_unit_of((own, time.baseline_ms))
    times = f"{step_time(own, unit)}, was {step_time(time.baseline_ms, unit)}"
    if shows_no_difference(time):
        if unsteady and time.not_steady:
            return f"Inconclusive: not steady ({unsteady}), so not comparable with {difference.field} {before}."
        return f"Inconclusive: {times} with {difference.field} {before}."
    if contrast.is_unconfirmed:
        return f"{change.figure} than {contrast.counted} with {before}, not steady: rerun before acting."
    sentence = f"{'As fast' if change.word == THE_SAME else change.figure}: {times}"
    also = _also_changed(contrast.comparability, difference)
    is_changed = time.decision in ("regression", "improvement") and not contrast.comparability.two_jobs
    if cause is not None and is_changed and also:
        return f"{sentence}. Likely cause: {_named(cause)}."
    return f"{sentence} with {difference.field} {before}.{also}"


def _also_changed(comparability: Comparability, difference: Difference) -> str:
    """Return a sentence on what differs beside `difference`, after a space; empty if nothing does."""
    others = [f"`{other.field}`" for other in (*comparability.stack, *comparability.knobs) if other is not difference]
    if others:
        which = ", ".join(others) if len(others) <= _MOST_FIELDS else plural(len(others), "other field")
        return f" {which} {plural(len(others), 'differs', 'differ', number=False)}, too."
    return " The code changed as well." if comparability.other_code else ""
