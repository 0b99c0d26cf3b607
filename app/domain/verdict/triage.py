"""The states of a regression, and which may follow which. People decide; the service opens, proposes and reopens."""

from collections.abc import Mapping
from typing import Literal

State = Literal["open", "acknowledged", "expected", "fixed", "invalid"]

STATES: tuple[State, ...] = ("open", "acknowledged", "expected", "fixed", "invalid")
ACTIVE: tuple[State, ...] = ("open", "acknowledged")
"""What still needs somebody."""
MEANING: Mapping[State, str] = {
    "open": "nobody has taken it up yet",
    "acknowledged": "somebody works on it",
    "expected": "it is the price of something that was wanted",
    "fixed": "the speed is back",
    "invalid": "it was no regression, for instance a bad node",
}
NEEDS_NOTE: tuple[State, ...] = ("expected",)
"""A slow-down that stays is a decision: whoever meets it later must find the reason."""

_NEXT: Mapping[State, tuple[State, ...]] = {
    "open": ("acknowledged", "expected", "fixed", "invalid"),
    "acknowledged": ("open", "expected", "fixed", "invalid"),
    "expected": ("open", "fixed", "invalid"),
    # What was closed is opened before it is anything else: its history then shows that it came back.
    "fixed": ("open",),
    "invalid": ("open",),
}


def next_states(state: str) -> tuple[State, ...]:
    """The states that may follow `state`, in the order in which they are offered."""
    return next((after for before, after in _NEXT.items() if before == state), STATES)


def refused_because(before: str, after: str) -> str:
    """Why a regression cannot go from one state to the other; empty when it can. Staying is no change."""
    if before == after or after in next_states(before):
        return ""
    allowed = next_states(before)
    words = f"{', '.join(allowed[:-1])} or {allowed[-1]}" if len(allowed) > 1 else allowed[0]
    return f"it is {before}, which only {words} may follow"
