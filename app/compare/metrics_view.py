"""Figures of both sides as rows of one table, with the change drawn as a bar on a common axis."""

from dataclasses import dataclass

from app.compare.comparison import Comparison
from app.domain.comparison import MetricOutcome
from app.domain.contract.fields import METRICS
from app.domain.numbers import THIN, figure, grouped, significant
from app.domain.run import Metric
from app.web.interval_bar import Bar, bar_of, bar_span
from app.web.series_groups import series_label

_SECONDS_FROM_MS = 10_000
_MACRO_DECISIONS = {"better": "improvement", "worse": "regression", "no_worse": "no_change", "not_finite": "failed"}


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
    span = bar_span(outcomes.values())
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
                bar_of(outcome, span),
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
        bar=bar_of(outcome, span),
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
