"""What a comparison says of each headline figure: better, worse, or, where no winner may be named, that it differs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.domain.comparison.sides import SideComparison
from app.domain.contract.fields import METRICS
from app.domain.detection.metric_changes import MetricChange, metric_changes
from app.domain.run import Metric

OutcomeWord = Literal["better", "worse", "differs", "no_change", "changed", "inconclusive", "not_judged"]


@dataclass(frozen=True, slots=True)
class MetricOutcome:
    """One figure of both sides. Percentages are of the figure itself; the interval is one of 99 %.

    A side's value is None where it is unknown; the change where nothing was measured.
    """

    baseline: float | None
    candidate: float | None
    delta_pct: float | None = None
    ci_low_pct: float | None = None
    ci_high_pct: float | None = None
    decision: OutcomeWord = "not_judged"


def metric_outcomes(
    comparison: SideComparison, metrics: Mapping[str, Mapping[str, Metric | None]]
) -> dict[str, MetricOutcome | None]:
    """Of every headline figure; None where no side knows it. `metrics`: those of each run, by its name."""
    measured = comparison.measured
    changes = dict.fromkeys(METRICS) if measured is None else metric_changes(measured, metrics)
    sides = [[metrics[run.run] for run in side] for side in (comparison.a, comparison.b)]
    return {name: _outcome(comparison, changes[name], *(_typical(name, side) for side in sides)) for name in METRICS}


def _outcome(
    comparison: SideComparison, change: MetricChange | None, a: float | None, b: float | None
) -> MetricOutcome | None:
    if change is None:
        return None if a is None and b is None else MetricOutcome(a, b)
    return MetricOutcome(
        baseline=change.baseline,
        candidate=change.candidate,
        delta_pct=change.delta_pct,
        ci_low_pct=change.ci_low_pct,
        ci_high_pct=change.ci_high_pct,
        decision=_word(change, may_name=not comparison.no_winner),
    )


def _word(change: MetricChange, *, may_name: bool) -> OutcomeWord:
    if change.decision in ("regression", "improvement"):
        if not may_name:
            return "differs"
        return "worse" if change.decision == "regression" else "better"
    return change.decision  # type: ignore[return-value]


def _typical(name: str, runs: list[Mapping[str, Metric | None]]) -> float | None:
    """The middle of what the runs of a side have; None when one of them does not have it."""
    values = sorted(metric.value for one in runs if (metric := one.get(name)) is not None)
    if not values or len(values) < len(runs):
        return None
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
