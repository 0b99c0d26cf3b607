"""A stored series -> what a chart and its table show: which iterations, their roles, and the scale that fits them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from app.domain.figures.steady_state import Role, iteration_roles, steady_state
from app.domain.run import FloatArray, IntArray, SteadyState
from app.web.series_groups import series_label

MAX_POINTS = 3000
"""More marks than a screen has columns only cost time; the slowest of a stretch is never thinned out."""

_BESIDE_WINDOW = 0.5
"""The axis reaches this many times the window's range beyond it; warm-up that lies farther off is drawn at its edge."""

_BAND_REACH = 1.5
"""A baseline farther off than this is not worth an axis on which the run itself becomes a line."""

_SECONDS_FROM_MS = 10_000
_HIDDEN = ("iteration", "log_line", "log_file", "step_time_true_ms")


@dataclass(frozen=True, slots=True)
class Points:
    """One series of a run, in the order of the log. `values` in `unit`, NaN where nothing was printed.

    `log_lines` are lines of the log files `log_files`. `starts` are the first iterations of restarted processes.
    """

    name: str
    label: str
    unit: str
    iterations: IntArray
    values: FloatArray
    roles: Sequence[str]
    log_files: IntArray
    log_lines: IntArray
    starts: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit and self.unit != self.label else self.label


@dataclass(frozen=True, slots=True)
class Scale:
    """`low` and `high` of the value axis; what lies beyond is drawn at its edge."""

    low: float
    high: float
    log: bool


@dataclass(frozen=True, slots=True)
class Band:
    """Where the runs of the baseline lie, in the unit of the chart: their lowest, their centre, their highest."""

    low: float
    value: float
    high: float
    runs: int


def series_names(columns: Mapping[str, FloatArray]) -> tuple[str, ...]:
    """The columns that can be drawn, in the canonical order: those with a value at all."""
    return tuple(name for name, values in columns.items() if name not in _HIDDEN and np.isfinite(values).any())


def step_times(columns: Mapping[str, FloatArray]) -> FloatArray:
    """Step times in ms as they were; as printed where the printed value is an artefact that cannot be resolved."""
    printed = columns["step_time_ms"]
    true = columns.get("step_time_true_ms", printed)
    return np.where(np.isfinite(true), true, printed)


def points(
    columns: Mapping[str, FloatArray],
    units: Mapping[str, str],
    name: str,
    steady: SteadyState | None,
    segment_starts: Sequence[int] = (0,),
) -> Points:
    """The series `name`; `segment_starts` are the rows at which processes began. Raises KeyError when there is none."""
    iterations = np.nan_to_num(columns["iteration"]).astype(np.int64)
    times = step_times(columns)
    values = times if name == "step_time_ms" else columns[name]
    unit = units.get(name, "")
    if name == "step_time_ms" and np.isfinite(values).any() and np.nanmedian(values) >= _SECONDS_FROM_MS:
        values, unit = values / 1000, "s"
    return Points(
        name=name,
        label=series_label(name),
        unit=unit,
        iterations=iterations,
        values=values,
        roles=segment_roles(iterations, times, steady, segment_starts),
        log_files=_whole(columns, "log_file", len(iterations)),
        log_lines=_whole(columns, "log_line", len(iterations)),
        starts=tuple(int(iterations[row]) for row in segment_starts if 0 < row < len(iterations)),
    )


def segment_roles(
    iterations: IntArray, times: FloatArray, steady: SteadyState | None, segment_starts: Sequence[int]
) -> list[Role]:
    """What each row counts as. A process that has no part in the window has a warm-up of its own all the same."""
    starts = sorted({row for row in segment_starts if 0 <= row < len(iterations)} | {0})
    roles = iteration_roles(iterations, times, steady, starts)
    for first, end in pairwise([*starts, len(iterations)]):
        if set(roles[first:end]) != {"outside"}:
            continue
        own = steady_state(iterations[first:end], times[first:end])
        if own is not None:
            warm = int(np.searchsorted(iterations[first:end], own.first_iteration))
            roles[first : first + warm] = ["warm-up"] * warm
    return roles


def between(data: Points, first: int, last: int) -> Points:
    """The iterations first..last; 0 leaves that side open."""
    low = first or -np.inf
    high = last or np.inf
    return _chosen(data, np.flatnonzero((data.iterations >= low) & (data.iterations <= high)))


def drawable(data: Points, log: bool) -> Points:
    """The points that the value axis can hold; of very many, the lowest, middle and highest of every stretch."""
    keep = np.flatnonzero(np.isfinite(data.values) & ((data.values > 0) | (not log)))
    if len(keep) > MAX_POINTS:
        stretches = np.array_split(keep, MAX_POINTS // 3)
        ordered = (stretch[np.argsort(data.values[stretch])] for stretch in stretches)
        chosen = [index for stretch in ordered for index in (stretch[0], stretch[len(stretch) // 2], stretch[-1])]
        keep = np.unique(np.array([*chosen, keep[0], keep[-1]]))
    return _chosen(data, keep.astype(np.int64))


def baseline_band(step_times_ms: Sequence[float], centre_ms: float | None, unit: str) -> Band | None:
    """Of the runs of a baseline, in `unit` (ms or s). None without one."""
    if not step_times_ms or centre_ms is None:
        return None
    per_ms = 1e-3 if unit == "s" else 1.0
    low, high = min(*step_times_ms, centre_ms), max(*step_times_ms, centre_ms)
    return Band(per_ms * low, per_ms * centre_ms, per_ms * high, len(step_times_ms))


def fitting_scale(data: Points, log: bool, band: Band | None = None) -> Scale:
    """An axis on which the steady window can be read, and the band beside it. It does not start at zero."""
    values = data.values[np.isfinite(data.values)]
    if len(values) == 0:
        return Scale(0, 1, False)
    inside = np.array(
        [value for value, role in zip(data.values, data.roles, strict=True) if role in ("window", "spike")]
    )
    inside = inside[np.isfinite(inside)]
    if log:
        low, high = float(values.min()), float(values.max())
        margin = max((high / low) ** 0.05, 1.01)
        return Scale(low / margin, high * margin, True)
    low, high = float(values.min()), float(values.max())
    if len(inside) > 1 and (span := float(np.ptp(inside))) > 0:
        low = max(low, float(inside.min()) - _BESIDE_WINDOW * span)
        high = min(high, float(inside.max()) + _BESIDE_WINDOW * span)
    if band is not None and low / _BAND_REACH < band.value < high * _BAND_REACH:
        low, high = min(low, band.low), max(high, band.high)
    margin = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return Scale(low - margin, high + margin, False)


def outside(data: Points, scale: Scale) -> int:
    """How many values lie beyond the axis."""
    return 0 if scale.log else int(((data.values < scale.low) | (data.values > scale.high)).sum())


def _chosen(data: Points, index: IntArray) -> Points:
    return Points(
        name=data.name,
        label=data.label,
        unit=data.unit,
        iterations=data.iterations[index],
        values=data.values[index],
        roles=[data.roles[int(k)] for k in index],
        log_files=data.log_files[index],
        log_lines=data.log_lines[index],
        starts=data.starts,
    )


def _whole(columns: Mapping[str, FloatArray], name: str, n: int) -> IntArray:
    return np.nan_to_num(columns.get(name, np.zeros(n))).astype(np.int64)
