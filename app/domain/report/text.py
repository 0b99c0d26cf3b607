"""All that is said of a verdict, in lines and rows: what the command line prints and the comment on a change holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.changes import signed
from app.domain.contract.fields import METRICS
from app.domain.detection import Verdict
from app.domain.detection.metric_changes import MetricChange
from app.domain.numbers import figure
from app.domain.run import Metric
from app.domain.suspect_evidence import RankedSuspect
from app.domain.verdict_document import VerdictDocument
from app.domain.verdict_words import (
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
        return tuple((suspect_line(one), ()) for one in document.suspects)
    return tuple((suspect_line(one.suspect), one.evidence) for one in ranked)
