"""How sure a change of the step time is, in words: the same in every place that tells it."""

from app.domain.detection.values import StepTimeChange
from app.domain.numbers import THIN, percent

UNCERTAIN = "too uncertain to call"
CERTAIN_ENOUGH = "certain enough to act on"
_DECIDED = {
    "regression": CERTAIN_ENOUGH,
    "improvement": "beyond what launches of the same job vary",
}
_EQUAL_PCT = 2.0


def certainty(time: StepTimeChange) -> str:
    """`certain enough to act on`; of what is undecided although its interval has one direction, why it is."""
    if time.needs_confirmation:
        return "but on few iterations: a full run must confirm it"
    if time.decision == "no_change":
        return f"shown to be {within(time)}"
    return _DECIDED.get(time.decision) or _undecided(time)


def within(time: StepTimeChange) -> str:
    """`within 2 %`; with the level of that test where the 99 % interval that stands beside it is wider.

    They are two tests: an alarm has to be sure to 99.5 %, that nothing changed to 95 % (two one-sided tests).
    """
    return f"within 2{THIN}%" + (f" with 95{THIN}% certainty" if is_wider(time) else "")


def is_wider(time: StepTimeChange) -> bool:
    """Whether the 99 % interval of what is shown to be the same reaches beyond 2 %."""
    return time.ci_low_pct < -_EQUAL_PCT or time.ci_high_pct > _EQUAL_PCT


def _undecided(time: StepTimeChange) -> str:
    if time.reruns_apart_pct is not None:
        return f"but its runs lie {percent(time.reruns_apart_pct)} apart, so together they decide nothing"
    if time.ci_high_pct < 0:
        return f"{UNCERTAIN}: an improvement has to be sure to 99.8{THIN}%, and this is sure to 99.5{THIN}%"
    return UNCERTAIN


def shows_no_difference(time: StepTimeChange) -> bool:
    """It may be slower as well as faster, and is not known to be the same."""
    return time.decision == "inconclusive" and time.ci_low_pct <= 0 <= time.ci_high_pct
