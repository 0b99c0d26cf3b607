"""A change with its interval as a small bar on an axis that the rows of a table share; zero stands in the middle."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

_MIDDLE = 60.0
"""Of a drawing that is 120 wide (`.interval` in compare.css)."""
_LEAST_SPAN_PCT = 2.0
"""So that noise of a tenth of a per cent does not look like a change."""


class Changed(Protocol):
    """In percent; None where it is unknown."""

    @property
    def delta_pct(self) -> float | None: ...
    @property
    def ci_low_pct(self) -> float | None: ...
    @property
    def ci_high_pct(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Bar:
    """In units of the drawing; `low` and `high` are equal where there is no interval."""

    low: float
    middle: float
    high: float


def bar_span(changes: Iterable[Changed]) -> float:
    """How many per cent the axis reaches to each side: the widest interval."""
    ends = [
        abs(value)
        for one in changes
        for value in (one.delta_pct, one.ci_low_pct, one.ci_high_pct)
        if value is not None and math.isfinite(value)
    ]
    return max([_LEAST_SPAN_PCT, *ends])


def bar_of(change: Changed, span: float) -> Bar | None:
    if change.delta_pct is None:
        return None
    low = change.delta_pct if change.ci_low_pct is None else change.ci_low_pct
    high = change.delta_pct if change.ci_high_pct is None else change.ci_high_pct
    places = [
        round(_MIDDLE + (_MIDDLE - 4) * min(max(value / span, -1), 1), 1) for value in (low, change.delta_pct, high)
    ]
    return Bar(*places)
