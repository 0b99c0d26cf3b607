"""Series of several runs on one axis: iterations counted from the start of each run's steady window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.compare.comparison import Comparison
from app.compare.queries import ComparedRun
from app.compare.selection import Side
from app.domain.comparison.distribution import step_times
from app.domain.run import FloatArray, IntArray
from app.web.series_groups import series_label

MOST_POINTS = 2400
"""Of all lines together: a screen has no more columns. Of each stretch the lowest and the highest value stay."""
_LEAST_POINTS = 120
_SECONDS_FROM_MS = 10_000
_BESIDE_WINDOW = 0.25
"""The axis reaches this many times the range of the windows beyond it; what lies farther off is drawn at its edge."""


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


def thinned(line: Line, lines: int) -> IntArray:
    """Indexes of the points to draw: all, or of every stretch the lowest and the highest."""
    budget = max(MOST_POINTS // max(lines, 1), _LEAST_POINTS)
    everything = np.arange(len(line.values))
    if len(everything) <= budget:
        return everything
    stretches = np.array_split(everything, budget // 2)
    kept = [index for one in stretches for index in (one[line.values[one].argmin()], one[line.values[one].argmax()])]
    return np.unique(np.array([*kept, everything[0], everything[-1]]))


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
    values = np.concatenate([line.values for line in lines])
    inside = np.concatenate([line.values[line.inside > 0] for line in lines])
    low, high = float(values.min()), float(values.max())
    if len(inside) > 1 and (span := float(np.ptp(inside))) > 0:
        low = max(low, float(inside.min()) - _BESIDE_WINDOW * span)
        high = min(high, float(inside.max()) + _BESIDE_WINDOW * span)
    margin = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin
