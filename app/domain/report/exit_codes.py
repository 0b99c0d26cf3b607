"""What an exit code says of a verdict. They are a promise: additions are welcome, changes are not."""

from collections.abc import Mapping

from app.domain.detection import Outcome

FINE, REGRESSION, FAILED, NO_BASELINE, INCONCLUSIVE, UNREAD = 0, 1, 3, 4, 5, 6

_OF_DECISION: Mapping[Outcome, int] = {
    "regression": REGRESSION,
    "improvement": FINE,
    "no_change": FINE,
    "inconclusive": INCONCLUSIVE,
    "no_baseline": NO_BASELINE,
    "failed": FAILED,
}


def exit_code(decision: Outcome, *, raises_regression: bool) -> int:
    """An experiment is slower without being a regression."""
    code = _OF_DECISION[decision]
    return FINE if code == REGRESSION and not raises_regression else code
