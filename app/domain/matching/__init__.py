"""Which runs may be compared, which earlier runs a run is judged against, and which fields stand in between.

compare_contracts(a, b) -> Comparability     what may be said about two runs
choose_baseline(run, earlier, rules)         the earlier runs that count, and why the others do not
assess(reruns, earlier, rules=...)           both, with the verdict, suspects and nearest misses
"""

from app.domain.matching.assessment import Assessment, Contrast, assess
from app.domain.matching.baseline import BaselineChoice, LeftOut, choose_baseline
from app.domain.matching.comparability import Comparability, Comparable, Kind, compare_contracts
from app.domain.matching.differences import AXES, Axis, Difference, axis_of
from app.domain.matching.near_misses import NearMiss, nearest_misses
from app.domain.matching.record import RunFacts, RunRecord, not_finite_iterations, shape_of
from app.domain.matching.selection import BaselineKind, BaselineRules
from app.domain.matching.shared_loss import shared_losses
from app.domain.matching.suspects import Suspect, suspects

__all__ = [
    "AXES",
    "Assessment",
    "Axis",
    "BaselineChoice",
    "BaselineKind",
    "BaselineRules",
    "Comparability",
    "Comparable",
    "Contrast",
    "Difference",
    "Kind",
    "LeftOut",
    "NearMiss",
    "RunFacts",
    "RunRecord",
    "Suspect",
    "assess",
    "axis_of",
    "choose_baseline",
    "compare_contracts",
    "nearest_misses",
    "not_finite_iterations",
    "shape_of",
    "shared_losses",
    "suspects",
]
