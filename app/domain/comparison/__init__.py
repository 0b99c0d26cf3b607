"""Two runs, or two sets of runs, side by side: what differs, what was measured, and what may be said of it.

compare_sides(a, b) -> SideComparison    a is the baseline, b the candidate
told(comparison) -> Told                 the same in sentences
"""

from app.domain.comparison.decisions import MetricOutcome, metric_outcomes
from app.domain.comparison.sentences import Told, told
from app.domain.comparison.sides import LeftOutRun, SideComparison, compare_sides
from app.domain.comparison.winner import Winner
from app.domain.comparison.within import Within, within

__all__ = [
    "LeftOutRun",
    "MetricOutcome",
    "SideComparison",
    "Told",
    "Winner",
    "Within",
    "compare_sides",
    "metric_outcomes",
    "told",
    "within",
]
