"""Unions of half-open intervals in nanoseconds, and how much of a window they cover."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Disjoint intervals in order. `before` of a moment is the time that they cover up to it."""

    start: Times
    end: Times
    _done: Times
    """Covered time before each interval."""

    @classmethod
    def of(cls, start: Times, end: Times) -> "Coverage":
        """Return the union of the intervals, which may overlap and come in any order."""
        whole = end > start
        if not whole.all():
            start, end = start[whole], end[whole]
        if not start.size:
            empty = np.zeros(0, np.int64)
            return cls(empty, empty, empty)
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        reach = np.maximum.accumulate(end)
        begins = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
        first, last = start[begins], reach[np.concatenate((begins[1:] - 1, [start.size - 1]))]
        return cls(first, last, np.concatenate(([0], np.cumsum(last - first)[:-1])))

    @classmethod
    def join(cls, parts: Sequence["Coverage"]) -> "Coverage":
        """Return the union of several unions."""
        parts = [part for part in parts if part.start.size] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        return cls.of(np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts]))

    def before(self, moment: Any) -> Any:
        """Return the covered time before each moment."""
        if not self.start.size:
            return np.zeros_like(moment)
        at = np.searchsorted(self.start, moment, "right") - 1
        inside = np.minimum(moment, self.end[at]) - self.start[at]
        return np.where(at < 0, 0, self._done[at] + inside)

    def between(self, first: Any, last: Any) -> Any:
        """Return the covered time of each window [first, last)."""
        return self.before(last) - self.before(first)

    def within(self, first: int, last: int) -> tuple[Times, Times]:
        """Return starts and ends of the intervals of the window [first, last), cut to it."""
        begin, end = np.searchsorted(self.end, first, "right"), np.searchsorted(self.start, last, "left")
        if begin >= end:
            return self.start[:0], self.end[:0]
        return np.maximum(self.start[begin:end], first), np.minimum(self.end[begin:end], last)

    def gaps(self, first: int, last: int) -> tuple[Times, Times]:
        """Return starts and ends of what the intervals leave of the window [first, last)."""
        start, end = self.within(first, last)
        after, before = np.concatenate(([first], end)), np.concatenate((start, [last]))
        is_open = before > after
        return after[is_open], before[is_open]

    def minus(self, other: "Coverage") -> "Coverage":
        """Return what these intervals cover and the others do not."""
        if not self.start.size or not other.start.size:
            return self
        begin = np.searchsorted(other.end, self.start, "right")
        count = np.searchsorted(other.start, self.end, "left") - begin  # others that cut each interval
        own = np.repeat(np.arange(self.start.size), count + 1)
        piece = np.arange(own.size) - np.repeat(np.cumsum(count + 1) - count - 1, count + 1)
        cut = begin[own] + piece
        start, end = self.start[own], self.end[own]
        after, before = piece > 0, piece < count[own]
        start[after] = np.maximum(start[after], other.end[cut[after] - 1])
        end[before] = np.minimum(end[before], other.start[cut[before]])
        return Coverage.of(start, end)

    def outside(self, other: "Coverage", first: int, last: int) -> int:
        """Return the time of [first, last) that these intervals cover and the others do not."""
        start, end = self.within(first, last)
        return int((end - start).sum() - other.between(start, end).sum())

    def contains(self, moments: Times) -> npt.NDArray[np.bool_]:
        """Return for each moment whether an interval covers it."""
        if not self.start.size:
            return np.zeros(moments.shape, np.bool_)
        at = np.searchsorted(self.start, moments, "right") - 1
        return (at >= 0) & (moments < self.end[at])
