"""Words of the history pages that more than one of their parts uses."""

from collections.abc import Sequence

from app.domain.history_view import HistoryRun, VersionChange
from app.domain.matching import Difference
from app.domain.numbers import contract_value

VERDICTS = {
    "regression": "regression",
    "improvement": "improvement",
    "no_change": "no change",
    "inconclusive": "inconclusive",
    "no_baseline": "no baseline",
    "failed": "failed",
}


def difference_text(difference: Difference) -> str:
    """`driver 550.54 to 560.35`; what nobody stated is unknown."""
    a, b = (contract_value(side.value) if side else "unknown" for side in (difference.a, difference.b))
    return f"{difference.field} {a} to {b}"


def version_text(change: VersionChange, runs: Sequence[HistoryRun]) -> str:
    """What changed, and between which runs where they are no neighbours."""
    told = "; ".join(difference_text(one) for one in change.differences)
    between = "" if change.run == change.before + 1 else f" (after #{runs[change.before].id})"
    return f"{told}{between}"
