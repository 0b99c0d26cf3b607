"""What the command line's exit code says. They are a promise: additions are welcome, changes are not."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every command loads this module, and most need no arithmetic
    from app.domain.detection import Outcome

FINE = 0
REGRESSION = 1
USAGE = 2
UNREADABLE = 3
"""Upload or service: what was to be read, or reached, could not be. Of a comparison: the run itself failed."""
NO_BASELINE = 4
INCONCLUSIVE = 5

_OF_DECISION: "dict[Outcome, int]" = {
    "regression": REGRESSION,
    "improvement": FINE,
    "no_change": FINE,
    "inconclusive": INCONCLUSIVE,
    "no_baseline": NO_BASELINE,
    "failed": UNREADABLE,
}


def exit_code(decision: "Outcome", *, raises_regression: bool) -> int:
    """An experiment is slower without being a regression."""
    code = _OF_DECISION[decision]
    return FINE if code == REGRESSION and not raises_regression else code
