"""How suggestions are put into words."""

from app.domain.numbers import counted
from app.recommendations.measured_here import MeasuredHere


def sentence(title: str) -> str:
    """A title with its full stop."""
    return title if title.endswith((".", "?")) else f"{title}."


def gain_text(percent: float) -> str:
    """`+18.2 %`: of throughput, so that more is faster."""
    word = "faster" if percent > 0 else "slower"
    return f"{percent:+.1f}\u202f% {word}"


def measured_text(found: MeasuredHere) -> str:
    """`measured here: +18.2 % faster (3 A/Bs on this stack)`."""
    result = found.result
    where = "on this stack" if result.same_contract else f"on {counted(len(result.stacks), 'other stack')}"
    return f"measured here: {gain_text(result.median_gain_pct)} ({counted(result.n, 'A/B')} {where})"
