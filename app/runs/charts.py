"""Chart data -> a Vega-Lite specification: points by role, the steady window, and its figure.

Altair takes 0.5 s to import and some 50 ms to validate a chart, so it is imported on first use and its specifications
are cached: they differ in data and titles only. The data are separate, under `datasets`.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from app.domain.numbers import percent, signed, significant, step_time
from app.domain.performance.steady_state import Role, iteration_roles, steady_state
from app.domain.run import FloatArray, IntArray, SteadyState, Timer
from app.domain.verdict.comparison import step_times
from app.web import charts
from app.web.charts import series_label

# --- A stored series -> chart and table: the iterations, their roles, and a scale that fits them.

MAX_POINTS = 3000
"""More marks than screen columns only cost time. The slowest value of each group is always kept."""

_BESIDE_WINDOW = 1.0
"""Multiple of the window's range that the axis extends beyond it; values farther off go into the lane above it."""

_BAND_REACH = 3
"""A baseline farther off than this is left out, because the run itself would shrink to a line."""

_SECONDS_FROM_MS = 10_000
_HIDDEN = ("iteration", "log_line", "log_file", "step_time_true_ms")
_PER_TIME = ("tflops_per_gpu", "tokens_per_s_per_gpu")
"""Series that trainers divide by the printed step time, so they are corrected with it."""


@dataclass(frozen=True, slots=True)
class Points:
    """One series of a run, in the order of the log.

    `values` are in `unit`, NaN where nothing was printed. `log_lines` are lines of the log files `log_files`. `starts`:
    the first iterations of restarted processes. `printed_ms`: the printed step time where it is corrected.
    """

    name: str
    label: str
    unit: str
    iterations: IntArray
    values: FloatArray
    roles: Sequence[str]
    log_files: IntArray
    log_lines: IntArray
    printed_ms: FloatArray
    starts: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit and self.unit != self.label else self.label


@dataclass(frozen=True, slots=True)
class Scale:
    """`low` and `high` end the value axis; values beyond it go into the lane above it."""

    low: float
    high: float
    log: bool


@dataclass(frozen=True, slots=True)
class Band:
    """Step times of the baseline runs in the unit of the chart, sorted, and their centre."""

    values: tuple[float, ...]
    value: float
    label: str = "baseline"

    @property
    def low(self) -> float:
        return min(self.values[0], self.value)

    @property
    def high(self) -> float:
        return max(self.values[-1], self.value)


def series_names(columns: Mapping[str, FloatArray]) -> tuple[str, ...]:
    """Return the columns with at least one value, in canonical order."""
    return tuple(name for name, values in columns.items() if name not in _HIDDEN and np.isfinite(values).any())


def points(
    columns: Mapping[str, FloatArray],
    units: Mapping[str, str],
    name: str,
    steady: SteadyState | None,
    segment_starts: Sequence[int] = (0,),
) -> Points:
    """Return the series `name`.

    `segment_starts`: rows at which processes began. Raises KeyError when the run has no such series.
    """
    iterations = np.nan_to_num(columns["iteration"]).astype(np.int64)
    times = step_times(columns)
    printed = np.where(times == columns["step_time_ms"], np.nan, columns["step_time_ms"])
    values = times if name == "step_time_ms" else columns[name]
    if name in _PER_TIME:
        values = np.where(np.isnan(printed), values, values * printed / times)
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
        printed_ms=printed,
        starts=tuple(int(iterations[row]) for row in segment_starts if 0 < row < len(iterations)),
    )


def segment_roles(
    iterations: IntArray, times: FloatArray, steady: SteadyState | None, segment_starts: Sequence[int]
) -> list[Role]:
    """Return the role of each row. Each process has its own warm-up, also outside the window."""
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
    """Return the iterations first..last; 0 leaves that side open."""
    low = first or -np.inf
    high = last or np.inf
    return _chosen(data, np.flatnonzero((data.iterations >= low) & (data.iterations <= high)))


def drawable(data: Points, log: bool) -> Points:
    """Return the points that the value axis can show.

    With very many points, each group keeps its lowest, middle and highest.
    """
    keep = np.flatnonzero(np.isfinite(data.values) & ((data.values > 0) | (not log)))
    if len(keep) > MAX_POINTS:
        stretches = np.array_split(keep, MAX_POINTS // 3)
        ordered = (stretch[np.argsort(data.values[stretch])] for stretch in stretches)
        chosen = [index for stretch in ordered for index in (stretch[0], stretch[len(stretch) // 2], stretch[-1])]
        keep = np.unique(np.array([*chosen, keep[0], keep[-1]]))
    return _chosen(data, keep.astype(np.int64))


def baseline_band(
    step_times_ms: Sequence[float], centre_ms: float | None, unit: str, label: str = "baseline"
) -> Band | None:
    """Return the band of the baseline runs in `unit` (ms or s); None without a baseline."""
    if not step_times_ms or centre_ms is None:
        return None
    per_ms = 1e-3 if unit == "s" else 1.0
    return Band(tuple(sorted(per_ms * ms for ms in step_times_ms)), per_ms * centre_ms, label)


def fitting_scale(data: Points, log: bool, bands: Sequence[Band] = (), earlier: Points | None = None) -> Scale:
    """Return an axis that shows the steady windows and the bands in detail: not from zero, and without spikes."""
    values = data.values[np.isfinite(data.values)]
    if len(values) == 0:
        return Scale(0, 1, False)
    inside = _in_window(data)
    if earlier is not None:
        inside = np.concatenate([inside, _in_window(earlier)])
        values = np.concatenate([values, inside])
    if log:
        low, high = float(values.min()), float(values.max())
        margin = max((high / low) ** 0.05, 1.01)
        return Scale(low / margin, high * margin, True)
    low, high = float(values.min()), float(values.max())
    if len(inside) > 1 and (span := float(np.ptp(inside))) > 0:
        low = max(low, float(inside.min()) - _BESIDE_WINDOW * span)
        high = min(high, float(inside.max()) + _BESIDE_WINDOW * span)
    for band in bands:
        if low / _BAND_REACH < band.value < high * _BAND_REACH:
            low, high = min(low, band.low), max(high, band.high)
    margin = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return Scale(low - margin, high + margin, False)


def _in_window(data: Points) -> FloatArray:
    inside = np.array([role == "window" for role in data.roles], dtype=bool) & np.isfinite(data.values)
    values: FloatArray = data.values[inside]
    return values


def outside(data: Points, scale: Scale) -> list[float]:
    """Return the values beyond the axis."""
    values = data.values[np.isfinite(data.values)]
    return [value for value in values.tolist() if not scale.low <= value <= scale.high]


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
        printed_ms=data.printed_ms[index],
        starts=data.starts,
    )


def _whole(columns: Mapping[str, FloatArray], name: str, n: int) -> IntArray:
    return np.nan_to_num(columns.get(name, np.zeros(n))).astype(np.int64)


_JOINED_POINTS = 1000
"""More points than this are not joined: the line would cover them."""
_HATCH_LINES = 110
"""Hatch lines over the full width; a warm-up of a tenth of it gets a tenth of them."""
_HATCH_SLANT = 10
"""Hatch lines that a line crosses on its way up: a slope of about 60 degrees with 110 lines on a usual chart."""


def series_chart(
    data: Points,
    scale: Scale,
    steady: SteadyState | None,
    pointed_at: int = 0,
    baseline: Band | None = None,
    *,
    earlier: Points | None = None,
    usual: Band | None = None,
) -> dict[str, Any]:
    """Return the Vega-Lite specification that app.js embeds.

    `pointed_at`: the iteration of the selected log line, or 0. `earlier`: the same series of a baseline run.
    `usual`: the level before the regression that the run continues.
    """
    low, high = int(data.iterations.min()), int(data.iterations.max())
    datasets = _datasets(data, scale, steady, baseline)
    datasets["usual"] = _baseline_rows(usual, scale, low, max(high, low + 1), data.unit)
    datasets["pointed"] = [{"iteration": pointed_at}] if low <= pointed_at <= high else []
    datasets["earlier"] = [] if earlier is None else _earlier_rows(between(earlier, low, high), scale)
    # A layer without data would have no extent, and Vega would print a warning.
    drawn = {name for name, rows in datasets.items() if rows}
    if datasets["points"] and len(data.iterations) <= _JOINED_POINTS:
        drawn.add("line")
    spec = dict(_specification(data.title, scale.log, frozenset(drawn)))
    spec["datasets"] = datasets
    spec["description"] = _description(data, steady)
    return spec


def _datasets(data: Points, scale: Scale, steady: SteadyState | None, baseline: Band | None) -> dict[str, list[Any]]:
    low, high = int(data.iterations.min()), int(data.iterations.max())
    first, last = _shown_window(steady, low, high)
    rows = _rows(data, scale)
    figure = _figure_rows(data, scale, steady, first, last)
    band = _baseline_rows(baseline, scale, low, max(high, low + 1), data.unit)
    is_slower = bool(figure and band) and figure[0]["value"] >= band[0]["value"]
    return {
        "points": [row for row in rows if "shown" in row],
        "lane": charts.lane_labels([row for row in rows if "shown" not in row], "iteration", high - low),
        "window": [{"first": first, "last": last}] if first < last else [],
        "hatch": [line for start, end in _warm_ups(data) for line in _hatch(start, end, high - low)],
        "level": _level_rows(data, steady, low, high),
        "restarts": [{"iteration": start, "label": "restart"} for start in data.starts if low < start <= high],
        "figure": [row | {"below": bool(band) and not is_slower} for row in figure],
        "interval": [row for row in figure if "low" in row],
        "baseline": [row | {"below": is_slower} for row in band],
        "baseline_runs": _each_run(baseline, scale) if band else [],
        "frame": [{"iteration": low, "shown": scale.low}, {"iteration": max(high, low + 1), "shown": scale.high}],
    }


@lru_cache(maxsize=256)
def _specification(title: str, log: bool, drawn: frozenset[str]) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    x = alt.X("iteration:Q", title="iteration", scale=alt.Scale(zero=False, nice=False, padding=6))
    x = x.axis(tickMinStep=1, tickCount=10, format=",d")
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False, nice=False)
    if "lane" in drawn:
        scale = alt.Scale(zero=False, nice=False, range=[alt.expr("height"), charts.LANE])
    y = alt.Y("shown:Q", title=title, scale=scale, axis=alt.Axis() if log else alt.Axis(tickCount=6))
    layers = [_frame(alt, x, y)]
    layers += [layer for name, parts in _behind(alt) if name in drawn for layer in parts]
    layers += [_line(alt, x, y)] if "line" in drawn else []
    layers += _lane(alt, x, title) if "lane" in drawn else []
    if "points" in drawn:
        layers += [_marks(alt, x, y), charts.hit_area(alt, x, y, field="iteration", tip=_tip(title), size=140)]
    return charts.finished(alt.layer(*layers), charts.HEIGHT)


def _frame(alt: Any, x: Any, y: Any) -> Any:
    """Draw invisible points in two corners, which set both axes regardless of other layers."""
    return alt.Chart(alt.NamedData("frame")).mark_point(opacity=0, tooltip=None).encode(x, y)


def _behind(alt: Any) -> list[tuple[str, list[Any]]]:
    """Return the layers behind the points, each with the name of its dataset."""
    return [
        ("baseline_runs", [_baseline_runs(alt)]),
        ("earlier", [_earlier(alt)]),
        ("usual", _level(alt, "usual", [2, 3])),
        ("baseline", _level(alt, "baseline", [6, 3])),
        ("hatch", [_hatching(alt)]),
        ("window", _window(alt)),
        ("interval", _interval(alt)),
        ("figure", _figure(alt)),
        ("level", _changed_level(alt)),
        ("restarts", _restarts(alt)),
        ("pointed", [_pointer(alt)]),
    ]


def _level(alt: Any, name: str, dash: list[int]) -> list[Any]:
    data = alt.NamedData(name)
    place = {"x": alt.X("first:Q"), "x2": "last:Q"}
    rule = alt.Chart(data).mark_rule(color=charts.BASELINE, strokeWidth=1.5, strokeDash=dash, clip=True)
    return [
        rule.encode(**place, y=alt.Y("value:Q")),
        _line_label(alt, data, charts.BASELINE),
    ]


def _earlier(alt: Any) -> Any:
    line = alt.Chart(alt.NamedData("earlier")).mark_line(color=charts.BASELINE, strokeWidth=1.5, strokeDash=[6, 3])
    return line.encode(alt.X("iteration:Q"), alt.Y("value:Q"), order=alt.Order("iteration:Q"))


def _baseline_runs(alt: Any) -> Any:
    # A tick per run: a range would not show that most of them are close together and one is not. Inside the plot, so
    # that it is not read as the minus sign of a figure next to the plot.
    tick = alt.Chart(alt.NamedData("baseline_runs")).mark_rule(color=charts.BASELINE, strokeWidth=1.5)
    return tick.encode(x=alt.value(alt.expr("width - 5")), x2=alt.value(alt.expr("width")), y=alt.Y("value:Q"))


def _line_label(alt: Any, data: Any, colour: str) -> Any:
    """Label a level right of the plot, where there are no points, on the side away from the other level."""
    side = alt.expr("datum.below ? 'top' : 'bottom'")
    text = alt.Chart(data).mark_text(align="left", dx=6, fontWeight=600, color=colour, baseline=side)
    return text.encode(x=alt.value("width"), y=alt.Y("value:Q"), text="label:N")


def _hatching(alt: Any) -> Any:
    drawn = alt.Chart(alt.NamedData("hatch")).mark_rule(color=charts.WARM_UP, opacity=0.28, strokeWidth=1, clip=True)
    heights = {"y": alt.Y("from_y:Q", scale=None), "y2": "to_y:Q"}
    return drawn.encode(x=alt.X("from:Q"), x2="to:Q", **heights)


def _window(alt: Any) -> list[Any]:
    data = alt.NamedData("window")
    band = alt.Chart(data).mark_rect(color=charts.ACCENT, opacity=0.06).encode(x=alt.X("first:Q"), x2="last:Q")
    return [band]


def _interval(alt: Any) -> list[Any]:
    band = alt.Chart(alt.NamedData("interval")).mark_rect(color=charts.ACCENT, opacity=charts.BAND_OPACITY, clip=True)
    return [band.encode(x=alt.X("first:Q"), x2="last:Q", y=alt.Y("low:Q"), y2="high:Q")]


def _figure(alt: Any) -> list[Any]:
    data = alt.NamedData("figure")
    rule = alt.Chart(data).mark_rule(color=charts.ACCENT, strokeWidth=1.5, clip=True)
    return [
        rule.encode(x=alt.X("first:Q"), x2="last:Q", y=alt.Y("value:Q")),
        _line_label(alt, data, charts.ACCENT),
    ]


def _changed_level(alt: Any) -> list[Any]:
    data = alt.NamedData("level")
    place = alt.X("iteration:Q")
    rule = alt.Chart(data).mark_rule(color=charts.SPIKE, strokeDash=[4, 3])
    text = alt.Chart(data).mark_text(align="right", baseline="top", dx=-5, color=charts.SPIKE, fontWeight=600)
    return [rule.encode(x=place), text.encode(x=place, y=alt.value(charts.LANE), text="label:N")]


def _restarts(alt: Any) -> list[Any]:
    data = alt.NamedData("restarts")
    place = alt.X("iteration:Q")
    rule = alt.Chart(data).mark_rule(color=charts.MUTED, strokeDash=[2, 3])
    mark = alt.Chart(data).mark_point(shape="triangle-right", filled=True, size=60, opacity=1, color=charts.MUTED, dx=3)
    return [rule.encode(x=place), mark.encode(x=place, y=alt.value(alt.expr("height - 5")))]


def _line(alt: Any, x: Any, y: Any) -> Any:
    line = alt.Chart(alt.NamedData("points")).mark_line(color=charts.MUTED, opacity=0.45, strokeWidth=1)
    return line.encode(x, y, order=alt.Order("iteration:Q"))


def _lane(alt: Any, x: Any, title: str) -> list[Any]:
    """Draw the values off the scale in a lane above the axis, each as text where there is room for it."""
    data = alt.Chart(alt.NamedData("lane"))
    mark = data.mark_point(strokeWidth=1.5, opacity=1, size=46, cursor="pointer")
    text = data.mark_text(baseline="bottom", dy=-6, color=charts.TEXT, fontSize=11)
    place = alt.value(charts.LANE - 10)
    shapes, colours, _ = _looks(alt)
    return [
        mark.encode(x, y=place, shape=shapes, stroke=colours, tooltip=alt.value(alt.expr(_tip(title)))),
        text.encode(x, y=place, text="lane:N"),
    ]


def _looks(alt: Any) -> tuple[Any, Any, Any]:
    """Return shape, stroke and fill by role."""
    roles = ["window", "spike", "warm-up", "outside"]
    shapes = alt.Scale(domain=roles, range=["circle", "diamond", "circle", "circle"])
    colours = alt.Scale(domain=roles, range=[charts.ACCENT, charts.SPIKE, charts.WARM_UP, charts.WARM_UP])
    return (
        alt.Shape("role:N", scale=shapes, legend=None),
        alt.Stroke("role:N", scale=colours, legend=None),
        alt.Fill("role:N", scale=colours, legend=None),
    )


def _marks(alt: Any, x: Any, y: Any) -> Any:
    shapes, colours, fill = _looks(alt)
    filled = alt.when("datum.role == 'window'").then(alt.value(1)).otherwise(alt.value(0))
    size = alt.when("datum.role == 'window'").then(alt.value(14)).otherwise(alt.value(46))
    return (
        alt.Chart(alt.NamedData("points"))
        .mark_point(strokeWidth=1.5, opacity=1)
        .encode(
            x,
            y,
            shape=shapes,
            stroke=colours,
            fill=fill,
            fillOpacity=filled,
            size=size,
        )
    )


def _pointer(alt: Any) -> Any:
    return (
        alt.Chart(alt.NamedData("pointed"))
        .mark_rule(color=charts.TEXT, strokeDash=[4, 3])
        .encode(x=alt.X("iteration:Q"))
    )


def _tip(title: str) -> str:
    """Return the expression for the row of the nearest point.

    Vega-Lite's own tooltip fields read text fields of such marks as "undefined": the row is one level deeper.
    """
    row = "(datum.datum || datum)"
    parts = {
        "iteration": f"{row}.iteration",
        title: f"{row}.text",
        "counts as": f"{row}.role",
        "log line": f"{row}.line",
    }
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in parts.items()) + "}"


def _rows(data: Points, scale: Scale) -> list[dict[str, Any]]:
    """Return a row for each value. Only values on the axis have `shown`, their place on it."""
    return [
        {
            "iteration": int(iteration),
            "value": float(value),
            "text": significant(float(value)),
            "role": role,
            "file": int(file),
            "line": int(line),
        }
        | ({"shown": float(value)} if scale.low <= value <= scale.high else {})
        for iteration, value, role, file, line in zip(
            data.iterations, data.values, data.roles, data.log_files, data.log_lines, strict=True
        )
    ]


def _figure_rows(data: Points, scale: Scale, steady: SteadyState | None, first: int, last: int) -> list[dict[str, Any]]:
    """Return the figure and its interval, cut to the axis so that they do not stretch it; nothing beyond the axis.

    Without the interval if the window is not steady: it has no single level to be sure of.
    """
    if data.name != "step_time_ms" or steady is None or first >= last:
        return []
    per_ms = 1e-3 if data.unit == "s" else 1.0
    low, value, high = (per_ms * ms for ms in (steady.ci_low_ms, steady.step_time_ms, steady.ci_high_ms))
    if not scale.low <= value <= scale.high:
        return []
    interval = {"low": max(low, scale.low), "high": min(high, scale.high)} if steady.is_steady else {}
    label = step_time(steady.step_time_ms)
    return [{"first": first, "last": last, "value": value, "label": label} | interval]


def _level_rows(data: Points, steady: SteadyState | None, low: int, high: int) -> list[dict[str, Any]]:
    """Return where a window that is not steady changes its level, and by how much."""
    if data.name != "step_time_ms" or steady is None:
        return []
    match steady.unsteadiness:
        case ("level", size, int(iteration)) if low < iteration <= high:
            return [{"iteration": iteration, "label": signed(size)}]
    return []


def _baseline_rows(band: Band | None, scale: Scale, first: int, last: int, unit: str) -> list[dict[str, Any]]:
    """Return the centre over the full width; nothing where it lies beyond the axis."""
    if band is None or not scale.low <= band.value <= scale.high:
        return []
    label = step_time(band.value * (1000 if unit == "s" else 1))
    return [{"first": first, "last": last, "value": band.value, "label": label}]


def _earlier_rows(earlier: Points, scale: Scale) -> list[dict[str, Any]]:
    """Return the values on the axis."""
    data = drawable(earlier, scale.log)
    rows = zip(data.iterations.tolist(), data.values.tolist(), strict=True)
    return [{"iteration": i, "value": value} for i, value in rows if scale.low <= value <= scale.high]


def _each_run(band: Band | None, scale: Scale) -> list[dict[str, Any]]:
    """Return a mark for each of several baseline runs on the axis."""
    values = band.values if band is not None and len(band.values) > 1 else ()
    return [{"value": value} for value in values if scale.low <= value <= scale.high]


def _shown_window(steady: SteadyState | None, low: int, high: int) -> tuple[int, int]:
    if steady is None:
        return low, low
    return max(steady.first_iteration, low), min(steady.last_iteration, high)


def _warm_ups(data: Points) -> Iterator[tuple[int, int]]:
    """Yield the first iteration of each warm-up and the first one after it."""
    begun: int | None = None
    for iteration, role in zip(data.iterations, data.roles, strict=True):
        is_warm, at_start = role == "warm-up", int(iteration) in data.starts
        if begun is not None and (not is_warm or at_start):
            yield begun, int(iteration)
            begun = None
        if is_warm and begun is None:
            begun = int(iteration)
    if begun is not None:
        yield begun, int(data.iterations[-1])


def _hatch(first: int, last: int, width: int) -> list[dict[str, float]]:
    """Return slanted lines over a warm-up, cut at its sides.

    The axis is `width` long; heights are pixels from the top.
    """
    if last <= first:
        return []
    step = max(width, 1) / _HATCH_LINES
    slant = _HATCH_SLANT * step
    lines = []
    for k in range(-_HATCH_SLANT, math.ceil((last - first) / step)):
        foot = first + k * step
        start, stop = max(foot, first), min(foot + slant, last)
        if start < stop:
            heights = [charts.HEIGHT * (1 - (x - foot) / slant) for x in (start, stop)]
            lines.append({"from": start, "to": stop, "from_y": heights[0], "to_y": heights[1]})
    return lines


def _description(data: Points, steady: SteadyState | None) -> str:
    """Describe the chart for screen readers; the table below it has the same values."""
    text = f"{data.title} by iteration, {len(data.iterations)} points."
    if steady is not None:
        window = "steady window" if steady.is_steady else "window, which is not steady,"
        text += f" The {window} is {steady.first_iteration} to {steady.last_iteration}."
    return text


# --- Where the step time goes: the timers of a run as horizontal bars, longest first.

ROW = 26
"""Pixels per bar."""
SHOWN = 16
"""Most bars; the table has all timers."""


def sorted_timers(timers: Sequence[Timer]) -> list[Timer]:
    return sorted(timers, key=lambda timer: -timer.median_ms)


def timer_name(name: str) -> str:
    return name.removeprefix("timer_").removesuffix("_ms").replace("_", " ").replace("-", " ")


def chart_height(timers: Sequence[Timer]) -> int:
    """Return the height of the bars, without the axis below them."""
    return min(len(timers), SHOWN) * ROW


def timer_chart(timers: Sequence[Timer]) -> dict[str, Any]:
    """Return the Vega-Lite specification that charts.js embeds."""
    shown = sorted_timers(timers)[:SHOWN]
    # Labels follow the bars, so the axis is a quarter longer than the longest bar.
    longest = max((timer.share_of_step for timer in shown), default=1.0)
    spec = dict(_timer_chart_specification(chart_height(timers), math.ceil(longest * 1.25 * 10) / 10))
    spec["datasets"] = {
        "timers": [
            {
                "timer": timer_name(timer.name),
                "share": timer.share_of_step,
                "label": percent(timer.share_of_step * 100),
                "median": step_time(timer.median_ms),
                "spread": f"{timer.max_over_min:.2f}" if timer.max_over_min else "not printed",
            }
            for timer in shown
        ]
    }
    spec["description"] = f"Share of the step by timer, {len(shown)} timers. The table below has the same values."
    return spec


@lru_cache(maxsize=64)
def _timer_chart_specification(height: int, end: float) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    y = alt.Y("timer:N", sort=None, title=None, axis=alt.Axis(labelLimit=220, labelFontSize=12))
    ticks = [tick / 5 for tick in range(6) if tick / 5 <= end]
    x = alt.X("share:Q", title="share of the step", axis=alt.Axis(format="%", grid=True, domain=False, values=ticks))
    x = x.scale(alt.Scale(domain=[0, end], nice=False))
    bars = alt.Chart(alt.NamedData("timers")).mark_bar(color=charts.ACCENT, opacity=0.8, height={"band": 0.62})
    bars = bars.encode(
        x,
        y,
        tooltip=[
            alt.Tooltip("timer:N", title="timer"),
            alt.Tooltip("median:N", title="median"),
            alt.Tooltip("spread:N", title="slowest over fastest rank"),
        ],
    )
    labels = alt.Chart(alt.NamedData("timers")).mark_text(align="left", dx=6, color=charts.TEXT)
    chart = alt.layer(bars, labels.encode(x, y, text="label:N"))
    return charts.finished(chart, height)
