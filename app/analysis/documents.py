"""The JSON of `analyze` and `compare` (docs/cli.md), with the names of the API. NaN and infinity become null."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.analysis.reading import LogAnalysis
from app.domain.contract.fields import FIELDS, METRICS, STACK_FIELDS
from app.domain.contract.values import explained
from app.domain.logs.line_template import draft_template
from app.domain.numbers import THIN, contract_value, figure, percent, plural, step_time
from app.domain.report.text import MOVED_COLUMNS, MovedRow, verdict_text
from app.domain.report.values import exit_code, storable, verdict_json
from app.domain.run import Failure, RunSummary, Stated, SteadyState, evidence_label
from app.domain.text import cut
from app.domain.verdict.assess import Assessment
from app.domain.verdict.baseline import LeftOut
from app.domain.verdict.document import VerdictDocument, verdict_document
from app.domain.verdict.lead import answer_line, lead
from app.domain.verdict.words import as_named

ANALYSIS_SCHEMA = "threewalls.analysis/1"
_OF_THE_WINDOW = ("first_iteration", "last_iteration", "n", "method", "is_steady", "reasons", "short", "profiled")
_OF_THE_SUMMARY = (
    "files", "status", "error", "trainer", "metrics", "unknown", "provisional", "stack_key", "config_key", "warnings",
    "failures", "health", "evidence_level", "semantic_class", "activity", "availability", "timers", "slices",
    "fair_for_timing", "definition_version", "definitions",
)  # fmt: skip


def as_json(document: object) -> str:
    return json.dumps(storable(document), indent=2, ensure_ascii=False, allow_nan=False)


def analysis_document(run: LogAnalysis) -> dict[str, object]:
    summary, steady = run.summary, run.summary.steady_state
    return {
        "schema": ANALYSIS_SCHEMA,
        "name": run.metadata.name or run.name,
        **{name: getattr(summary, name) for name in _OF_THE_SUMMARY},
        **{name: getattr(run.metadata, name) for name in ("project", "purpose", "branch", "commit")},
        "steady_state": None if steady is None else {name: getattr(steady, name) for name in _OF_THE_WINDOW},
        "contract": {
            name: {"value": fact.value, "source": fact.source, "detail": explained(fact)}
            for name, fact in summary.contract.items()
        },
    }


@dataclass(frozen=True, slots=True)
class LocalComparison:
    """The result of `compare`. `document` is the stored verdict of a service, with file names instead of run numbers.

    `candidates` are the run and its reruns, `earlier` the named baseline runs, oldest first.
    """

    document: VerdictDocument
    candidates: tuple[LogAnalysis, ...]
    earlier: tuple[LogAnalysis, ...]

    @property
    def exit_code(self) -> int:
        return exit_code(self.document.decision, raises_regression=self.document.raises_regression)


def make_comparison(
    assessment: Assessment,
    candidates: Sequence[LogAnalysis],
    earlier: Sequence[LogAnalysis],
    of_other_stacks: Sequence[LeftOut],
) -> LocalComparison:
    """Build the comparison. `of_other_stacks` are named baseline runs that are not comparable, with reasons."""
    metrics = {run.name: run.summary.metrics for run in (*candidates, *earlier)}
    names = tuple(run.name for run in candidates)
    document = verdict_document(assessment, names, metrics, candidates[-1].summary.definition_version)
    document = replace(document, left_out=(*document.left_out, *of_other_stacks))
    return LocalComparison(document, tuple(candidates), tuple(earlier))


SCHEMA = "threewalls.comparison/1"


def comparison_document(comparison: LocalComparison) -> dict[str, object]:
    warnings = {run.name: run.summary.warnings for run in (*comparison.earlier, *comparison.candidates)}
    return {"schema": SCHEMA, **verdict_json(comparison.document), "warnings": warnings}


# --- The text of `analyze` and `compare` for a terminal or a CI log.


def plain(text: str) -> str:
    """Replace the thin spaces of the pages, which terminals draw with varying width."""
    return text.replace(THIN, " ")


def table(rows: Sequence[Sequence[str]], indent: int = 0) -> list[str]:
    """Align the cells of each column. All rows have the same number of cells."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        (" " * indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def listed(title: str, items: Sequence[str]) -> list[str]:
    """Return an empty line, a title and the items; nothing without items."""
    return ["", title, *(f"  - {item}" for item in items)] if items else []


_OUTCOMES = {
    "completed": "the job completed",
    "failed": "the job failed",
    "out_of_memory": "the job ran out of memory",
    "not_finite": "the loss or the gradient was not finite",
    "stopped": "the job was stopped by a time limit or a signal",
    "truncated": "the log ends before the training does",
}
_LONGEST_VALUE, _LONGEST_DETAIL = 60, 80


def analysis_text(run: LogAnalysis) -> str:
    summary = run.summary
    lines = [f"{run.name}: {_answer(summary)}", _facts(summary)]
    if summary.error is None:
        lines += ["", *table(list(_figures(summary))), *_window(summary.steady_state)]
    steps = [f"line {step.line}: {cut(step.example, 160)}" for step in summary.step_lines]
    lines += listed("Lines that look like steps", steps)
    if draft := draft_template(summary.step_lines):
        lines += ["", f"To read it, name the numbers: --read-as '{draft}'"]
    lines += listed("Failures", [_failure(failure, summary) for failure in summary.failures])
    lines += listed("Warnings", list(summary.warnings))
    if summary.status == "unread":
        return plain("\n".join(lines))
    lines += _unknown(summary)
    lines += ["", f"Contract ({len(summary.contract)} fields)", *_contract(summary.contract)]
    return plain("\n".join(lines))


def _answer(summary: RunSummary) -> str:
    if summary.error is not None:
        return summary.error
    metric, steady = summary.metrics.get("step_time_ms"), summary.steady_state
    if metric is None or steady is None:
        return "too few iterations for a steady step time."
    shown = figure(metric, "step_time_ms")
    width = f" {shown.width}" if shown.width else ""
    where = f"iterations {steady.first_iteration:,} to {steady.last_iteration:,}"
    return f"{shown.text}{width} a step over {where}, {_steadiness(steady)}."


def _steadiness(steady: SteadyState) -> str:
    if not steady.is_steady:
        return "not steady"
    return f"only {plural(steady.n, 'iteration')}: confirm it with a longer run" if steady.short else "steady"


def _facts(summary: RunSummary) -> str:
    if summary.status == "unread":
        return f"unread, {plural(len(summary.files), 'file')}."
    count = summary.health.get("iterations")
    facts = (
        summary.trainer or "unknown trainer",
        plural(len(summary.files), "file"),
        plural(count if isinstance(count, int) else 0, "iteration"),
        _OUTCOMES.get(str(summary.health.get("outcome")), ""),
        f"evidence {evidence_label(summary.evidence_level)}",
        "" if summary.semantic_class == "unknown" else summary.semantic_class.replace("_", " "),
        "provisional" if summary.provisional else "",
    )
    return ", ".join(fact for fact in facts if fact) + "."


def _figures(summary: RunSummary) -> Iterator[tuple[str, ...]]:
    yield "figure", "value", "95 % interval", "n"
    for name, field in METRICS.items():
        metric = summary.metrics.get(name)
        label = f"{field.label}, {field.unit}" if "/" in field.unit else field.label
        if metric is None:
            yield label, "unknown", "", ""
            continue
        shown = figure(metric, name)
        yield label, shown.text, shown.interval if shown.width else "", f"{shown.n:,}"


def _window(steady: SteadyState | None) -> list[str]:
    if steady is None:
        return []
    spikes = f"{percent(100 * steady.spike_share)} spikes" if steady.spike_share else "no spikes"
    where = f"iterations {steady.first_iteration:,} to {steady.last_iteration:,} ({steady.n:,} used), {steady.method}"
    return ["", f"Window: {where}; {spikes}; mean {step_time(steady.mean_step_time_ms)}."]


def _failure(failure: Failure, summary: RunSummary) -> str:
    evidence = failure.evidence[0] if failure.evidence else None
    at = ""
    if evidence is not None:
        file = f"{summary.files[evidence.file]}, " if len(summary.files) > 1 else ""
        at = f" ({file}line {evidence.line}: {cut(evidence.text.strip(), 160)})"
    return f"{failure.title}{at}. {failure.explanation} {failure.advice}"


def _unknown(summary: RunSummary) -> list[str]:
    if not summary.unknown:
        return []
    stack = [name for name in summary.unknown if name in STACK_FIELDS]
    knobs = [name for name in summary.unknown if name not in STACK_FIELDS]
    rows = [("stack key", ", ".join(stack)), ("knobs", ", ".join(knobs))]
    return [
        "",
        f"Unknown ({len(summary.unknown)}), supply with --set NAME=VALUE",
        *table([row for row in rows if row[1]], indent=2),
    ]


def _contract(contract: Mapping[str, Stated]) -> list[str]:
    rows, groups = [], []
    for name, stated in contract.items():
        groups.append(FIELDS[name].group)
        value = cut(contract_value(stated.value), _LONGEST_VALUE)
        rows.append((name, value, stated.source, cut(explained(stated), _LONGEST_DETAIL)))
    lines: list[str] = []
    for group, line in zip(groups, table(rows, indent=4) if rows else [], strict=True):
        if f"  {group}" not in lines:
            lines.append(f"  {group}")
        lines.append(line)
    return lines


# --- `compare`


def comparison_text(comparison: LocalComparison) -> str:
    """Line 1 is the badge and the lead, as a service shows them; line 2 the baseline and what differs."""
    document = comparison.document
    badge = document.badge(
        in_regression=("step_time_ms",) if document.alarms and not document.needs_confirmation else ()
    )
    is_ab = document.comparability is not None and not document.raises_regression
    verdict = verdict_text(document, badge, offered=len(comparison.earlier))
    line = answer_line(badge, lead(document, label=as_named), is_ab=is_ab)
    lines = [line, verdict.baseline, *_moved(verdict.moved)]
    lines += ["", verdict.still] if verdict.still else []
    lines += listed("Notes", verdict.notes)
    lines += ["", *verdict.contrast, *_moved(verdict.contrast_moved)] if verdict.contrast else []
    lines += listed("Closest runs", verdict.misses)
    lines += listed("Suspects", [suspect for suspect, _ in verdict.suspects])
    lines += listed("Left out", verdict.left_out)
    if verdict.supply:
        names = ", ".join(verdict.supply)
        lines += [
            "",
            f"{verdict.supply_why} {names}. Supply them with --set NAME=VALUE (or --baseline-set, --candidate-set).",
        ]
    return plain("\n".join(lines))


def _moved(rows: Sequence[MovedRow]) -> list[str]:
    return ["", *table([MOVED_COLUMNS, *(row.cells for row in rows)])] if rows else []
