"""The report of a run as text for a terminal and as Markdown for a change request."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from app.domain.contract.fields import METRICS
from app.domain.numbers import THIN, absolute, counted, daily_cost, figure, signed
from app.domain.report.what_changed import AXIS_TITLES, Change, WhatChanged
from app.domain.run import LineExample, Metric
from app.domain.text import one_line
from app.domain.verdict.decide import MetricChange
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.evidence import RankedSuspect
from app.domain.verdict.step_time import Verdict
from app.domain.verdict.words import (
    Label,
    as_named,
    baseline_line,
    contrast_lines,
    decision_word,
    headline,
    left_out,
    miss_line,
    notes,
    suspect_line,
)

MOVED_COLUMNS = ("figure", "baseline", "candidate", "change", "99 % interval", "decision")
_MOST_SUSPECTS = 6


@dataclass(frozen=True, slots=True)
class MovedRow:
    """One figure that moved, as text, in the order of MOVED_COLUMNS; empty where there is nothing to say."""

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
    """`headline` and `baseline` are lines 1 and 2. `still`: what is said in place of the table when nothing moved.

    `suspects`: each with the sentences of its evidence. `supply`: fields to state, and why they matter.
    """

    headline: str
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
    *,
    label: Label = as_named,
    offered: int | None = None,
    suspects: Sequence[RankedSuspect] | None = None,
) -> VerdictText:
    """`label`: what people call a run; `offered` as in `baseline_line`; `suspects`: ranked, with evidence."""
    contrast = document.contrast
    moved = moved_rows(document.metrics, document.verdict, is_verdict=document.raises_regression)
    return VerdictText(
        headline=headline(document, label),
        baseline=baseline_line(document, label, offered),
        moved=moved,
        still="No figure moved." if not moved and document.decision == "no_change" else "",
        notes=tuple(notes(document)),
        contrast=() if contrast is None else tuple(contrast_lines(contrast, label)),
        contrast_moved=() if contrast is None else moved_rows(contrast.metrics, contrast.measured, is_verdict=False),
        misses=tuple(miss_line(miss, label) for miss in document.misses),
        suspects=_suspects(document, suspects)[:_MOST_SUSPECTS],
        left_out=tuple(left_out(document, label)),
        supply_why="Provisional: nobody states" if document.provisional else "Not known on both sides:",
        supply=document.to_supply,
    )


def moved_rows(
    changes: Mapping[str, MetricChange | None], verdict: Verdict, *, is_verdict: bool
) -> tuple[MovedRow, ...]:
    """What moved; of an undecided step time one row, as all speeds are one test. Empty when nothing did."""
    rows = [
        _row(name, change, is_verdict=is_verdict)
        for name, change in changes.items()
        if change is not None
        and change.decision != "no_change"
        and (change.decision != "inconclusive" or name == "step_time_ms")
    ]
    if verdict.loss is not None and verdict.loss.decision == "worse":
        rows.append(MovedRow("Loss at the end", "", "", signed(verdict.loss.delta_pct or 0.0), "", "worse"))
    return tuple(rows)


def _row(name: str, change: MetricChange, *, is_verdict: bool) -> MovedRow:
    field = METRICS[name]
    baseline, candidate = (figure(Metric(v, v, v, 0), name).text for v in (change.baseline, change.candidate))
    interval = ""
    if change.ci_low_pct is not None and change.ci_high_pct is not None:
        interval = f"{signed(change.ci_low_pct)} to {signed(change.ci_high_pct)}"
    return MovedRow(
        figure=f"{field.label}, {field.unit}" if "/" in field.unit else field.label,
        baseline=baseline,
        candidate=candidate,
        change=signed(change.delta_pct),
        interval=interval,
        decision=decision_word(change.decision, is_verdict=is_verdict),
    )


def _suspects(
    document: VerdictDocument, ranked: Sequence[RankedSuspect] | None
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if ranked is None:
        return tuple((suspect_line(suspect), ()) for suspect in document.suspects)
    return tuple((suspect_line(suspect.suspect), suspect.evidence) for suspect in ranked)


# --- Untrusted text inside Markdown: names, values and log lines must not become markup, links or mentions.
#
# The forges link `@name`, `#12`, `!12` and bare addresses after rendering, so a backslash does not stop them: a space
# of no width does.

_NO_WIDTH = "&#8203;"
_MARKUP = re.compile(r"[\\`*_\[\]|~]")
_REFERENCE = re.compile(r"@(?=\w)|[#!](?=\d)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
_BLOCK_AT_START = re.compile(r"^(?=(#+|[+=-]+|\d{1,9}[.)])(\s|$))")
"""A heading, list, rule or underline, which need a blank or nothing behind their mark; `>` is an entity by then."""
LONGEST = 500


def escaped(text: str, most: int = LONGEST) -> str:
    """One line that renders as what it says."""
    line = one_line(text)
    line = line if len(line) <= most else line[: most - 1] + "…"
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(lambda match: "\\" + match[0], line)
    line = _REFERENCE.sub(lambda match: match[0] + _NO_WIDTH, line)
    return _BLOCK_AT_START.sub(_NO_WIDTH, line)


def link(text: str, address: str) -> str:
    """`[text](address)`; the text alone without an address of the web."""
    if not address.startswith(("https://", "http://")):
        return escaped(text)
    safe = re.sub(r"[\s()<>\\\"`|]", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), address)
    return f"[{escaped(text)}]({safe})"


# --- The report of a run: what its verdict says, what changed, and which regression it is part of; or why it has none.

Status = Literal["judged", "pending", "failed", "unread"]


@dataclass(frozen=True, slots=True)
class LinkedRun:
    id: str
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class RegressionOfRun:
    """A regression that covers the run's stack. `opened_by_it`: this run, or a rerun of it, made its stack a member."""

    id: int
    address: str
    state: str
    cause: str
    stacks: int
    assignee: str
    external_url: str
    gpu_hours_per_day: float | None
    opened_by_it: bool


@dataclass(frozen=True, slots=True)
class RunReport:
    """`headline` and `baseline` are lines 1 and 2, whatever the run's state. `text` is None unless it was judged.

    `problems`: what went wrong in a run without figures, with advice. `step_lines`: of a log that no reader knows,
    lines that look like steps. `baseline_runs`: those that counted. `nothing_processed_since`: of a pending run, when
    a worker was last at work; None while one is.
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


def pending_report(run: LinkedRun, status: str, nothing_processed_since: datetime | None) -> RunReport:
    """Of a run that was not judged yet; `status` is that of the run."""
    waits = {"received": "the run waits to be read", "processing": "the run is being read"}
    headline = f"pending: {waits.get(status, 'the run was read and waits for its verdict')}"
    baseline = "baseline: not chosen yet; ask again in a minute"
    if nothing_processed_since is not None:
        headline += f". Nothing has been processed since {absolute(nothing_processed_since)}: no worker takes work"
        baseline = "baseline: not chosen yet; ask again when a worker runs"
    return RunReport(run, "pending", "", headline, baseline, nothing_processed_since=nothing_processed_since)


def failed_report(run: LinkedRun, error: str, problems: tuple[str, ...]) -> RunReport:
    """Of a run from which no figure could be read."""
    headline = f"failed: {error or 'no iteration could be read from this run.'}"
    return RunReport(run, "failed", "failed", headline, "baseline: none is needed", problems=problems)


def unread_report(run: LinkedRun, error: str, step_lines: tuple[LineExample, ...]) -> RunReport:
    """Of a run of whose log no reader knows a line."""
    headline = f"{error[:1].lower()}{error[1:]}"
    return RunReport(run, "unread", "unread", headline, "baseline: none is needed", step_lines=step_lines)


# --- The comment to post on a change. Line 1 verdict; line 2 baseline; what moved; the rest folded; a link to the run.

_SHAPES = {
    "regression": "↘",
    "improvement": "↗",
    "no_change": "=",
    "inconclusive": "○",
    "no_baseline": "◌",
    "failed": "✕",
    "unread": "◌",
    "": "…",
}
"""A verdict is a word and a shape; comments have no colours."""
_NUMBERS = ("---", "---:", "---:", "---:", "---:", "---")


def markdown(report: RunReport) -> str:
    """Ends with a newline. Text that people or logs wrote is escaped."""
    shape = _SHAPES.get(report.decision, "")
    # Two blanks end a line without ending its paragraph.
    lines = [f"**{shape} {escaped(report.headline)}**  ", f"{escaped(report.baseline)}{_commits(report.changed)}"]
    if report.text is not None:
        lines += _moved(report.text.moved)
        lines += ["", escaped(report.text.still)] if report.text.still else []
    folded = [*_folded(report)]
    if folded:
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
    """What is folded: `2 suspects, 1 open regression, 3 runs left out`."""
    text = report.text
    if text is None:
        return "Lines that look like steps" if report.step_lines else "What went wrong"
    parts = [
        counted(len(text.suspects), "suspect") if text.suspects else "",
        counted(len(report.regressions), "regression") if report.regressions else "",
        counted(len(text.misses), "nearest miss", "nearest misses") if text.misses else "",
        "what to state" if text.supply else "",
        f"{counted(len(text.left_out), 'run')} left out" if text.left_out else "",
    ]
    return ", ".join(part for part in parts if part) or "Details"


def _folded(report: RunReport) -> Iterator[str]:
    yield from _list(
        "Lines that look like steps", [escaped(f"line {item.line}: {item.example}") for item in report.step_lines]
    )
    yield from _list("What went wrong", [escaped(problem) for problem in report.problems])
    yield from _list("Regression", [_regression(item) for item in report.regressions])
    if report.text is not None:
        yield from _said(report.text)
    if report.changed is not None:
        yield from _changes(report.changed)
    runs = [link(f"{run.name} (run {run.id})", run.address) for run in report.baseline_runs]
    yield from _list("Baseline", runs)
    if report.text is not None:
        yield from _list("Left out", [escaped(text) for text in report.text.left_out])


def _said(text: VerdictText) -> Iterator[str]:
    if text.supply:
        names = ", ".join(f"`{name}`" for name in text.supply)
        yield from ("", f"{text.supply_why} {names}. State each in `meta`, in the job's log, or on the run's page.")
    yield from _list(
        "Suspects", [" ".join([escaped(line), *map(escaped, evidence)]) for line, evidence in text.suspects]
    )
    if text.contrast:
        yield from ("", *(escaped(line) for line in text.contrast), *_moved(text.contrast_moved))
    yield from _list("Nearest misses", [escaped(miss) for miss in text.misses])
    yield from _list("Notes", [escaped(note) for note in text.notes])


def _changes(changed: WhatChanged) -> Iterator[str]:
    for axis, changes in changed.axes:
        yield from _list(f"Changed: {AXIS_TITLES[axis].lower()}", [_change(change, changed) for change in changes])


def _change(change: Change, changed: WhatChanged) -> str:
    before, after = escaped(change.before, 120), escaped(change.after, 120)
    if change.field == "commit" and changed.commit_range is not None:
        commits = changed.commit_range
        before, after = link(change.before, commits.first_address), link(change.after, commits.last_address)
    follows = f" (follows {escaped(change.follows)})" if change.follows else ""
    return f"{escaped(change.field)}: {before} → {after}{follows}"


def _regression(regression: RegressionOfRun) -> str:
    how = "opened by this run" if regression.opened_by_it else "covers this level"
    address = link(f"regression {regression.id}", regression.address)
    parts = [
        f"{address}, {escaped(regression.state)}, {how}: {escaped(regression.cause)}",
        f"{counted(regression.stacks, 'stack')}",
        daily_cost(regression.gpu_hours_per_day) if regression.gpu_hours_per_day is not None else "",
        f"with {escaped(regression.assignee)}" if regression.assignee else "",
        link("issue", regression.external_url) if regression.external_url else "",
    ]
    return "; ".join(part for part in parts if part)


def _list(title: str, items: Sequence[str]) -> list[str]:
    return ["", f"**{title}**", "", *(f"- {item}" for item in items)] if items else []
