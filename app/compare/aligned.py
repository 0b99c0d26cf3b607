"""Series of several runs on one axis: iterations counted from the start of each run's steady window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.compare.comparison import Comparison
from app.compare.queries import ComparedRun
from app.compare.selection import Side
from app.domain.comparison.distribution import step_times
from app.domain.robust import readable_range
from app.domain.run import FloatArray, IntArray
from app.web.series_groups import series_label

MOST_POINTS = 1200
"""Of all lines together: a screen has no more columns. Of longer ones every stretch is a median and a range."""
_LEAST_POINTS = 120
_SECONDS_FROM_MS = 10_000


@dataclass(frozen=True, slots=True)
class Line:
    """One run. `offsets`: iterations since its steady window began, negative before; `inside` the window or not."""

    run: int
    side: Side
    offsets: IntArray
    iterations: IntArray
    values: FloatArray
    inside: FloatArray


@dataclass(frozen=True, slots=True)
class Overlay:
    """`values` of the lines in `unit`. `missing`: runs without this series; `thinned`: points that are not drawn."""

    name: str
    title: str
    lines: tuple[Line, ...]
    low: float
    high: float
    missing: tuple[int, ...]
    points: int

    @property
    def outside(self) -> int:
        """Values that lie beyond the axis."""
        return sum(int(((line.values < self.low) | (line.values > self.high)).sum()) for line in self.lines)


def overlay(comparison: Comparison, columns: Mapping[int, Mapping[str, FloatArray]], name: str, unit: str) -> Overlay:
    """The series `name` of all runs; `columns` hold it beside those that every comparison has."""
    sides: list[tuple[Side, ComparedRun]] = [("a", run) for run in comparison.a]
    sides += [("b", run) for run in comparison.b]
    lines = [line for side, run in sides if (line := _line(side, run, columns[run.id], name)) is not None]
    if name == "step_time_ms" and any(np.median(line.values) >= _SECONDS_FROM_MS for line in lines):
        unit = "s"
        lines = [Line(one.run, one.side, one.offsets, one.iterations, one.values / 1000, one.inside) for one in lines]
    low, high = _scale(lines)
    label = series_label(name)
    drawn = {line.run for line in lines}
    return Overlay(
        name=name,
        title=f"{label} ({unit})" if unit and unit != label else label,
        lines=tuple(lines),
        low=low,
        high=high,
        missing=tuple(run.id for run in comparison.runs if run.id not in drawn),
        points=sum(len(line.values) for line in lines),
    )


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is drawn of a line: its points, or of each stretch of them the median, the lowest and the highest.

    `stretch`: iterations that a point stands for, 1 when it is one.
    """

    offsets: IntArray
    iterations: IntArray
    values: FloatArray
    low: FloatArray
    high: FloatArray
    stretch: int


def drawn(line: Line, lines: int) -> Drawn:
    """A line that has as many points as a screen can show beside `lines` - 1 others."""
    budget = max(MOST_POINTS // max(lines, 1), _LEAST_POINTS)
    n = len(line.values)
    if n <= budget:
        return Drawn(line.offsets, line.iterations, line.values, line.values, line.values, 1)
    width = -(-n // budget)
    # What is left over at the end is filled up with the last value, so that all stretches have one length.
    filled = np.pad(line.values, (0, -n % width), mode="edge").reshape(-1, width)
    middles = np.minimum(np.arange(len(filled)) * width + width // 2, n - 1)
    return Drawn(
        offsets=line.offsets[middles],
        iterations=line.iterations[middles],
        values=np.median(filled, axis=1),
        low=filled.min(axis=1),
        high=filled.max(axis=1),
        stretch=width,
    )


def _line(side: Side, run: ComparedRun, columns: Mapping[str, FloatArray], name: str) -> Line | None:
    held = {**run.columns, **columns}
    if name not in held or "iteration" not in held:
        return None
    values = step_times(held) if name == "step_time_ms" else held[name]
    keep = np.isfinite(values) & np.isfinite(held["iteration"])
    if not keep.any():
        return None
    iterations = held["iteration"][keep].astype(np.int64)
    steady = run.detail.steady_state
    start = int(iterations[0]) if steady is None else steady.first_iteration
    end = int(iterations[-1]) if steady is None else steady.last_iteration
    inside = (iterations >= start) & (iterations <= end)
    return Line(run.id, side, iterations - start, iterations, values[keep], inside.astype(np.float64))


def _scale(lines: Sequence[Line]) -> tuple[float, float]:
    """An axis on which the windows can be read; it does not start at zero."""
    if not lines:
        return 0.0, 1.0
    # Of the windows, where there are any: what lies far off, before or within them, is drawn at the edge.
    ends = [readable_range(window if len(window := line.values[line.inside > 0]) else line.values) for line in lines]
    low, high = min(one[0] for one in ends), max(one[1] for one in ends)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin
