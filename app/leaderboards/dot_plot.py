"""Figures with their intervals as dots and lines on one axis, drawn into the table that holds them: no script needed.

Positions are in percent of the axis, so that a plot is as wide as its cell and a dot stays round.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from app.domain.ranking.standings import Interval

_ROOM = 0.06
"""Free share of the axis at each end: a dot has a radius."""


@dataclass(frozen=True, slots=True)
class Dot:
    """In percent of the axis, as text; `low` is `high` where there is no interval."""

    at: str
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, and not from zero: differences of a few per cent are what is looked for."""

    low: float
    high: float

    def dot(self, figure: Interval) -> Dot:
        ends = (figure.low, figure.high)
        low, high = (figure.value if end is None or not math.isfinite(end) else end for end in ends)
        return Dot(self._place(figure.value), self._place(low), self._place(high))

    def _place(self, value: float) -> str:
        share = (value - self.low) / (self.high - self.low)
        return f"{100 * min(max(share, 0.0), 1.0):.2f}"


def axis_of(figures: Iterable[Interval]) -> Axis | None:
    """One that holds all figures with their intervals; None without any."""
    ends = [end for one in figures for end in (one.value, one.low, one.high) if end is not None and math.isfinite(end)]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    # A single figure without an interval stands in the middle.
    room = (high - low) * _ROOM / (1 - 2 * _ROOM) or abs(high) * 0.01 or 1.0
    return Axis(low - room, high + room)
