"""Figures of both sides as rows of one table, with the change drawn as a bar on a common axis."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from app.compare.comparison import Comparison
from app.domain.comparison import MetricOutcome
from app.domain.contract.fields import METRICS
from app.domain.numbers import THIN, figure, grouped, significant
from app.domain.run import Metric
from app.web.series_groups import series_label

_SECONDS_FROM_MS = 10_000
_WIDTH, _MIDDLE = 120.0, 60.0
"""Of the bar, in the units of its drawing."""
_LEAST_SPAN_PCT = 2.0
"""So that noise of a tenth of a per cent does not look like a change."""
_MACRO_DECISIONS = {"better": "improvement", "worse": "regression", "no_worse": "no_change", "not_finite": "failed"}


@dataclass(frozen=True, slots=True)
class Bar:
    """A change with its interval, in units of the drawing; `low` and `high` are equal where there is no interval."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class MetricRow:
    """`a` and `b` are texts, empty where the figure is unknown; `half` is of the run's own 95 % interval.

    `decision` is a word of a comparison, `word` the same as the pieces of pages know it.
    """

    name: str
    label: str
    meaning: str
    a: str
    a_half: str
    b: str
    b_half: str
    outcome: MetricOutcome
    decision: str
    word: str
    bar: Bar | None


def metric_rows(comparison: Comparison) -> tuple[MetricRow, ...]:
    outcomes = {name: outcome for name, outcome in comparison.outcomes.items() if outcome is not None}
    span = _span(outcomes.values())
    rows = [_row(comparison, name, outcome, span) for name, outcome in outcomes.items()]
    loss = comparison.loss
    if loss is not None:
        word = {"worse": "worse", "no_worse": "no_worse", "not_finite": "not_finite"}.get(loss.decision, "not_judged")
        outcome = MetricOutcome(loss.baseline, loss.candidate, loss.delta_pct)
        rows.append(
            MetricRow(
                "loss",
                "Loss at the end",
                "Median over the last iterations that all runs share.",
                _number(loss.baseline),
                "",
                _number(loss.candidate),
                "",
                outcome,
                word,
                _MACRO_DECISIONS.get(word, word),
                _bar(outcome, span),
            )
        )
    return tuple(rows)


def _row(comparison: Comparison, name: str, outcome: MetricOutcome, span: float) -> MetricRow:
    a, b = _texts(name, outcome.baseline, outcome.candidate)
    in_seconds = a.endswith(f"{THIN}s") or b.endswith(f"{THIN}s")
    return MetricRow(
        name=name,
        label=series_label(name),
        meaning=METRICS[name].meaning,
        a=a,
        a_half=_half(comparison.a[0].detail.metrics.get(name), name, in_seconds) if len(comparison.a) == 1 else "",
        b=b,
        b_half=_half(comparison.b[0].detail.metrics.get(name), name, in_seconds) if len(comparison.b) == 1 else "",
        outcome=outcome,
        decision=outcome.decision,
        word=_MACRO_DECISIONS.get(outcome.decision, outcome.decision),
        bar=_bar(outcome, span),
    )


def _texts(name: str, a: float | None, b: float | None) -> tuple[str, str]:
    """Both in the same unit: milliseconds beside seconds would have to be worked out."""
    known = [abs(value) for value in (a, b) if value is not None]
    if name == "step_time_ms" and known and max(known) >= _SECONDS_FROM_MS:
        first, second = ("" if value is None else f"{significant(value / 1000)}{THIN}s" for value in (a, b))
        return first, second
    first, second = ("" if value is None else figure(Metric(value, value, value, 0), name).text for value in (a, b))
    return first, second


def _half(metric: Metric | None, name: str, in_seconds: bool) -> str:
    """Half of the run's own interval, in the unit of the row."""
    if metric is None:
        return ""
    if in_seconds and metric.value < _SECONDS_FROM_MS:
        return grouped((metric.ci_high - metric.ci_low) / 2000, 3)
    return figure(metric, name).half


def _number(value: float | None) -> str:
    return "" if value is None else grouped(value, 4)


def _span(outcomes: Iterable[MetricOutcome]) -> float:
    """How many per cent the axis reaches to each side: the widest interval, in round numbers."""
    ends = [
        abs(value)
        for outcome in outcomes
        for value in (outcome.delta_pct, outcome.ci_low_pct, outcome.ci_high_pct)
        if value is not None and math.isfinite(value)
    ]
    return max([_LEAST_SPAN_PCT, *ends])


def _bar(outcome: MetricOutcome, span: float) -> Bar | None:
    if outcome.delta_pct is None:
        return None
    low = outcome.delta_pct if outcome.ci_low_pct is None else outcome.ci_low_pct
    high = outcome.delta_pct if outcome.ci_high_pct is None else outcome.ci_high_pct
    places = [
        round(_MIDDLE + (_MIDDLE - 4) * min(max(value / span, -1), 1), 1) for value in (low, outcome.delta_pct, high)
    ]
    return Bar(*places)
