"""The comment to post on a change. Line 1 verdict; line 2 baseline; what moved; the rest folded; a link to the run."""

from collections.abc import Iterable, Iterator, Sequence

from app.domain.changes import daily_cost
from app.domain.numbers import THIN, counted
from app.domain.report.markdown_text import escaped, link
from app.domain.report.run_report import RegressionOfRun, RunReport
from app.domain.report.text import MOVED_COLUMNS, MovedRow, VerdictText
from app.domain.report.what_changed import AXIS_TITLES, Change, WhatChanged

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
    return ["", _row(MOVED_COLUMNS), _row(_NUMBERS), *(_row(escaped(cell) for cell in row.cells) for row in rows)]


def _row(cells: Iterable[str]) -> str:
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
        "Lines that look like steps", [escaped(f"line {one.line}: {one.example}") for one in report.step_lines]
    )
    yield from _list("What went wrong", [escaped(problem) for problem in report.problems])
    yield from _list("Regression", [_regression(one) for one in report.regressions])
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
    yield from _list("Suspects", [" ".join([escaped(line), *map(escaped, found)]) for line, found in text.suspects])
    if text.contrast:
        yield from ("", *(escaped(line) for line in text.contrast), *_moved(text.contrast_moved))
    yield from _list("Nearest misses", [escaped(miss) for miss in text.misses])
    yield from _list("Notes", [escaped(note) for note in text.notes])


def _changes(changed: WhatChanged) -> Iterator[str]:
    for axis, changes in changed.axes:
        yield from _list(f"Changed: {AXIS_TITLES[axis].lower()}", [_change(one, changed) for one in changes])


def _change(one: Change, changed: WhatChanged) -> str:
    before, after = escaped(one.before, 120), escaped(one.after, 120)
    if one.field == "commit" and changed.commit_range is not None:
        commits = changed.commit_range
        before, after = link(one.before, commits.first_address), link(one.after, commits.last_address)
    follows = f" (follows {escaped(one.follows)})" if one.follows else ""
    return f"{escaped(one.field)}: {before} → {after}{follows}"


def _regression(one: RegressionOfRun) -> str:
    how = "opened by this run" if one.opened_by_it else "covers this level"
    parts = [
        f"{link(f'regression {one.id}', one.address)}, {escaped(one.state)}, {how}: {escaped(one.cause)}",
        f"{counted(one.stacks, 'stack')}",
        daily_cost(one.gpu_hours_per_day) if one.gpu_hours_per_day is not None else "",
        f"with {escaped(one.assignee)}" if one.assignee else "",
        link("issue", one.external_url) if one.external_url else "",
    ]
    return "; ".join(part for part in parts if part)


def _list(title: str, items: Sequence[str]) -> list[str]:
    return ["", f"**{title}**", "", *(f"- {item}" for item in items)] if items else []
