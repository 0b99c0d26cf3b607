"""The report of a run as text for the terminal and as Markdown for a change request."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from app.domain.contract.fields import METRICS
from app.domain.numbers import THIN, absolute, figure, level_text, plural, signed
from app.domain.report.what_changed import AXIS_TITLES, TextChange, WhatChanged
from app.domain.run import LineExample, Metric
from app.domain.text import cut, one_line, short_cause, some_of
from app.domain.verdict.decide import MetricChange
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.evidence import RankedSuspect
from app.domain.verdict.regression_text import RegressionSummary
from app.domain.verdict.step_time import Verdict
from app.domain.verdict.words import (
    Label,
    as_named,
    baseline_line,
    contrast_lines,
    decision_word,
    left_out,
    miss_line,
    notes,
    suspect_line,
)

MOVED_COLUMNS = ("figure", "before", "after", "change", "interval", "decision")
_MOST_SUSPECTS = 6
_MOST_FIELDS = 15
"""Fields to state in a comment: about as many as a stack has. The run's page lists all."""


@dataclass(frozen=True, slots=True)
class MovedRow:
    """One figure that changed, as text in the order of MOVED_COLUMNS; empty cells where not applicable."""

    figure: str
    baseline: str
    candidate: str
    change: str
    interval: str
    decision: str

    @property
    def cells(self) -> tuple[str, ...]:
        return self.figure, self.baseline, self.candidate, self.change, self.interval, self.decision


@dataclass(frozen=True, slots=True)
class VerdictText:
    """A verdict as text. `baseline`: line 2. `still`: replaces the table when nothing changed.

    `suspects`: each with the sentences of its evidence. `supply`: fields to state; `supply_why`: why they matter.
    """

    baseline: str
    moved: tuple[MovedRow, ...]
    still: str
    notes: tuple[str, ...]
    contrast: tuple[str, ...]
    contrast_moved: tuple[MovedRow, ...]
    misses: tuple[str, ...]
    suspects: tuple[tuple[str, tuple[str, ...]], ...]
    left_out: tuple[str, ...]
    supply_why: str
    supply: tuple[str, ...]


def verdict_text(
    document: VerdictDocument,
    badge: tuple[str, str],
    *,
    label: Label = as_named,
    offered: int | None = None,
    suspects: Sequence[RankedSuspect] | None = None,
) -> VerdictText:
    """Render a verdict. `badge`: of its run. `label`: names a run. `offered`: as in `baseline_line`.

    `suspects`: ranked, with evidence.
    """
    contrast, by_contrast = document.contrast, badge if badge[1] else None
    moved = moved_rows(document.metrics, document.verdict, badge if document.raises_regression else None)
    return VerdictText(
        baseline=baseline_line(document, label, offered),
        moved=moved,
        still="No figure changed." if not moved and document.decision == "no_change" else "",
        notes=tuple(notes(document)),
        contrast=() if contrast is None else tuple(contrast_lines(contrast, label)),
        contrast_moved=() if contrast is None else moved_rows(contrast.metrics, contrast.measured, by_contrast),
        misses=tuple(miss_line(miss, label) for miss in document.misses),
        suspects=_suspects(document, suspects)[:_MOST_SUSPECTS],
        left_out=tuple(left_out(document, label)),
        supply_why="Provisional, not stated:" if document.provisional else "Not stated on both sides:",
        supply=document.to_supply,
    )


def moved_rows(
    changes: Mapping[str, MetricChange | None], verdict: Verdict, badge: tuple[str, str] | None
) -> tuple[MovedRow, ...]:
    """Return a row per changed figure. An undecided step time has one row, because all speeds are one test.

    `badge`: of the run, which names the decision on its speed; None where that is not a verdict on the code.
    """
    time = verdict.step_time
    rows = [
        _row(name, change, badge, "" if time is None else f" at {level_text(time.interval_level_pct)}")
        for name, change in changes.items()
        if change is not None
        and change.decision != "no_change"
        and (change.decision != "inconclusive" or name == "step_time_ms")
    ]
    if verdict.loss is not None and verdict.loss.decision == "worse":
        rows.append(MovedRow("Loss at the end", "", "", signed(verdict.loss.delta_pct or 0.0), "", "worse"))
    return tuple(rows)


def _row(name: str, change: MetricChange, badge: tuple[str, str] | None, at_level: str) -> MovedRow:
    field = METRICS[name]
    label = badge[1] if badge and badge[0] == change.decision and name != "peak_memory_gib" else ""
    baseline, candidate = (figure(Metric(v, v, v, 0), name).text for v in (change.baseline, change.candidate))
    interval = ""
    if change.ci_low_pct is not None and change.ci_high_pct is not None:
        interval = f"{signed(change.ci_low_pct)} to {signed(change.ci_high_pct)}{at_level}"
    return MovedRow(
        figure=f"{field.label}, {field.unit}" if "/" in field.unit else field.label,
        baseline=baseline,
        candidate=candidate,
        change=signed(change.delta_pct),
        interval=interval,
        decision=label or decision_word(change.decision, is_verdict=badge is not None),
    )


def _suspects(
    document: VerdictDocument, ranked: Sequence[RankedSuspect] | None
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if ranked is None:
        return tuple((suspect_line(suspect), ()) for suspect in document.suspects)
    return tuple((f"{item.label}: {suspect_line(item.suspect)}", item.evidence) for item in ranked)


# --- Untrusted text inside Markdown: names, values and log lines must not become markup, links or mentions.
#
# Forges link `@name`, `#12`, `!12` and bare addresses after rendering, so a backslash does not prevent it; a zero-width
# space does.

_NO_WIDTH = "&#8203;"
_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")
"""A `_` between letters is not markup, so `permute_fusion` stays readable where the text is shown as it is."""
_REFERENCE = re.compile(r"@(?=\w)|[#!](?=\d)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_BLOCK_AT_START = re.compile(r"^(?=(#+|[+=-]+|\d{1,9}[.)])(\s|$)|>)")
"""A heading, list, rule or underline: a mark followed by a blank or the end; or a quote."""
LONGEST = 500


def escaped(text: str, most: int = LONGEST) -> str:
    """Return `text` as one line that Markdown renders literally."""
    line = cut(one_line(text), most)
    line = line.replace("&", "&amp;").replace("<", "&lt;")
    line = _MARKUP.sub(lambda match: "\\" + match[0], line)
    line = _REFERENCE.sub(lambda match: match[0] + _NO_WIDTH, line)
    return _BLOCK_AT_START.sub(_NO_WIDTH, line)


def link(text: str, address: str) -> str:
    """Return `[text](address)`, or only the text when the address is not http(s)."""
    if not address.startswith(("https://", "http://")):
        return escaped(text)
    safe = re.sub(r"[\s()<>\\\"`|]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), address)
    return f"[{escaped(text)}]({safe})"


# --- The report of a run: verdict, changes and regressions, or why there is no verdict.

Status = Literal["judged", "pending", "failed", "unread"]


@dataclass(frozen=True, slots=True)
class LinkedRun:
    id: str
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class RegressionOfRun:
    """A regression that covers the run's stack. `proposal`: the state in which the service proposes to close it.
    `opened_by_it`: this run or a rerun of it opened it for the stack. `elsewhere`: it is about the job of this run in
    another stack."""

    id: int
    address: str
    state: str
    proposal: str
    cause: str
    stacks: int
    assignee: str
    external_url: str
    gpu_hours_per_day: float | None
    opened_by_it: bool
    elsewhere: bool
    summary: RegressionSummary


@dataclass(frozen=True, slots=True)
class ProfiledChange:
    """The explanation from the profiles before and after the change, in one sentence; `address` compares them."""

    sentence: str
    address: str


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of a run in any state. `decision`: that of its badge, whose shape precedes line 1.

    `headline`, `baseline`: lines 1 and 2. `text`: None unless it was judged.

    `problems`: failures of a run without figures, with advice. `step_lines`: step-like lines of an unknown log.
    `remarks`: requested reruns, the reference job, broken limits. `baseline_runs`: those that counted.
    `nothing_processed_since`: for a pending run, the last activity of a worker; None while one is active.
    """

    run: LinkedRun
    status: Status
    decision: str
    headline: str
    baseline: str
    text: VerdictText | None = None
    changed: WhatChanged | None = None
    baseline_runs: tuple[LinkedRun, ...] = ()
    regressions: tuple[RegressionOfRun, ...] = ()
    problems: tuple[str, ...] = ()
    step_lines: tuple[LineExample, ...] = ()
    nothing_processed_since: datetime | None = None
    profiled: ProfiledChange | None = None
    remarks: tuple[str, ...] = ()


def pending_report(run: LinkedRun, status: str, nothing_processed_since: datetime | None) -> RunReport:
    """Build the report of a run without verdict; `status`: of the run."""
    waits = {"received": "the run is queued", "processing": "the run is being processed"}
    headline = f"pending: {waits.get(status, 'the run was processed; its verdict is queued')}"
    baseline = "baseline: not chosen yet; try again in a minute"
    if nothing_processed_since is not None:
        headline += f". Nothing has been processed since {absolute(nothing_processed_since)}: no worker is running"
        baseline = "baseline: not chosen yet; try again when a worker is running"
    return RunReport(run, "pending", "", headline, baseline, nothing_processed_since=nothing_processed_since)


def failed_report(run: LinkedRun, error: str, problems: tuple[str, ...]) -> RunReport:
    """Build the report of a run without figures."""
    headline = f"failed: {error or 'no iteration could be read from this run.'}"
    return RunReport(run, "failed", "failed", headline, "baseline: not needed", problems=problems)


def unread_report(run: LinkedRun, error: str, step_lines: tuple[LineExample, ...]) -> RunReport:
    """Build the report of a run whose log has an unknown format."""
    headline = f"{error[:1].lower()}{error[1:]}"
    return RunReport(run, "unread", "unread", headline, "baseline: not needed", step_lines=step_lines)


# --- The comment on a change: verdict, baseline, changed figures, folded details, link to the run.

_SHAPES = {
    "regression": "↗",
    "improvement": "↘",
    "no_change": "=",
    "inconclusive": "○",
    "no_baseline": "◌",
    "failed": "✕",
    "unread": "◌",
    "": "…",
}
"""Shape of each decision, an arrow for the step time; comments have no colours."""
_NUMBERS = ("---", "---:", "---:", "---:", "---:", "---")


def markdown(report: RunReport, *, is_folded: bool = True) -> str:
    """Render the comment, ending with a newline. Text from users and logs is escaped.

    `is_folded`: fold the details, which takes HTML.
    """
    shape = _SHAPES.get(report.decision, "")
    # Two blanks end a line without ending its paragraph.
    lines = [f"**{shape} {escaped(report.headline)}**  ", f"{escaped(report.baseline)}{_commits(report.changed)}"]
    if report.text is not None:
        lines += _moved(report.text.moved)
        lines += ["", escaped(report.text.still)] if report.text.still else []
    if report.profiled is not None:
        profiled = report.profiled
        lines += ["", f"By profiles: {escaped(profiled.sentence, 600)} {link('Compare them', profiled.address)}"]
    lines += [line for remark in report.remarks for line in ("", escaped(remark.replace("`", "")))]
    folded = [*_folded(report)]
    if not is_folded:
        lines += folded
    elif folded:
        lines += ["", f"<details><summary>{_summary(report)}</summary>", *folded, "", "</details>"]
    lines += ["", link(f"{report.run.name} (run {report.run.id})", report.run.address)]
    return "\n".join(lines).replace(THIN, " ") + "\n"


def _commits(changed: WhatChanged | None) -> str:
    commits = changed.commit_range if changed is not None else None
    return f" ({link(commits.text, commits.address)})" if commits is not None and commits.address else ""


def _moved(rows: Sequence[MovedRow]) -> list[str]:
    if not rows:
        return []
    return [
        "",
        _markdown_row(MOVED_COLUMNS),
        _markdown_row(_NUMBERS),
        *(_markdown_row(escaped(cell) for cell in row.cells) for row in rows),
    ]


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _summary(report: RunReport) -> str:
    """Summarise the folded part: `2 suspects, 1 regression, 3 runs left out`."""
    text = report.text
    if text is None:
        return "Lines that look like steps" if report.step_lines else "Failures"
    parts = [
        plural(len(text.suspects), "suspect") if text.suspects else "",
        plural(len(report.regressions), "regression") if report.regressions else "",
        plural(len(text.misses), "closest run") if text.misses else "",
        "fields to state" if text.supply else "",
        f"{plural(len(text.left_out), 'run')} left out" if text.left_out else "",
    ]
    return ", ".join(part for part in parts if part) or "Details"


def _folded(report: RunReport) -> Iterator[str]:
    yield from _list(
        "Lines that look like steps", [escaped(f"line {item.line}: {item.example}") for item in report.step_lines]
    )
    yield from _list("Failures", [escaped(problem) for problem in report.problems])
    yield from _list("Regression", [_regression(item) for item in report.regressions])
    if report.text is not None:
        yield from _verdict_details(report.text)
    if report.changed is not None:
        yield from _changes(report.changed)
    runs = [link(f"{run.name} (run {run.id})", run.address) for run in report.baseline_runs]
    yield from _list("Baseline", runs)
    if report.text is not None:
        yield from _list("Left out", [escaped(text) for text in report.text.left_out])


def _verdict_details(text: VerdictText) -> Iterator[str]:
    if text.supply:
        names = some_of([f"`{name}`" for name in text.supply], _MOST_FIELDS)
        yield from (
            "", f"{text.supply_why} {names}. State each in `meta`, in the job's log, or on the run's page."
        )  # fmt: skip
    yield from _list(
        "Suspects", [" ".join([escaped(line), *map(escaped, evidence)]) for line, evidence in text.suspects]
    )
    if text.contrast:
        yield from ("", *(escaped(line) for line in text.contrast), *_moved(text.contrast_moved))
    yield from _list("Closest runs", [escaped(miss) for miss in text.misses])
    yield from _list("Notes", [escaped(note) for note in text.notes])


def _changes(changed: WhatChanged) -> Iterator[str]:
    for axis, changes in changed.axes:
        yield from _list(f"Changed: {AXIS_TITLES[axis].lower()}", [_change(change, changed) for change in changes])


def _change(change: TextChange, changed: WhatChanged) -> str:
    before, after = escaped(change.before, 120), escaped(change.after, 120)
    if change.field == "commit" and changed.commit_range is not None:
        commits = changed.commit_range
        before, after = link(change.before, commits.first_address), link(change.after, commits.last_address)
    follows = f" (follows {escaped(change.follows)})" if change.follows else ""
    return f"{escaped(change.field)}: {before} → {after}{follows}"


def _regression(regression: RegressionOfRun) -> str:
    how = "opened by this run" if regression.opened_by_it else "explains this level"
    how = "of this job in another stack" if regression.elsewhere else how
    address, summary = link(f"regression {regression.id}", regression.address), regression.summary
    parts = [
        f"{address}, {summary.state_text}, {how}: {summary.change}",
        escaped(summary.text.removesuffix(".")),
        escaped(short_cause(regression.cause)),
        f"assigned to {escaped(regression.assignee)}" if regression.assignee else "",
        link("issue", regression.external_url) if regression.external_url else "",
    ]
    return "; ".join(part for part in parts if part)


def _list(title: str, items: Sequence[str]) -> list[str]:
    return ["", f"**{title}**", "", *(f"- {item}" for item in items)] if items else []
