"""Chart data -> a Vega-Lite specification: points by role, the steady window, the figure it gave.

Altair takes half a second to import and some 50 ms to check a chart, so it is imported when first needed and what it
makes is kept: specifications differ in data and titles only. Data travels beside them, under `datasets`.
"""

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from app.domain.run import SteadyState
from app.runs.chart_data import Band, Points, Scale
from app.web import chart_theme as theme
from app.web.numbers import significant, step_time

_JOINED_POINTS = 1000
"""More points than this are not joined by a line: it would cover what it joins."""
_HATCH_LINES = 110
"""Lines of a hatch over the whole width; a warm-up of a tenth of it gets a tenth of them."""
_HATCH_SLANT = 10
"""Lines that one line crosses on its way up: at 110 lines on a usual chart that is a slope of about 60 degrees."""


def series_chart(
    data: Points, scale: Scale, steady: SteadyState | None, pointed_at: int = 0, baseline: Band | None = None
) -> dict[str, Any]:
    """A Vega-Lite specification that app.js embeds; `pointed_at` is the iteration that a log line led to, or 0."""
    low, high = int(data.iterations.min()), int(data.iterations.max())
    datasets = _datasets(data, scale, steady, low, high)
    datasets["baseline"] = _baseline_rows(baseline, scale, low, max(high, low + 1))
    datasets["pointed"] = [{"iteration": pointed_at}] if low <= pointed_at <= high else []
    # A layer without data would have no extent, which Vega warns of.
    drawn = {name for name, rows in datasets.items() if rows}
    if len(data.iterations) <= _JOINED_POINTS:
        drawn.add("line")
    spec = dict(_specification(data.title, scale.log, frozenset(drawn)))
    spec["datasets"] = datasets
    spec["description"] = _description(data, steady)
    return spec


def _datasets(data: Points, scale: Scale, steady: SteadyState | None, low: int, high: int) -> dict[str, list[Any]]:
    first, last = _shown_window(steady, low, high)
    return {
        "points": _rows(data, scale),
        "window": [{"first": first, "last": last, "label": _window_label(steady)}] if first < last else [],
        "hatch": [line for start, end in _warm_ups(data) for line in _hatch(start, end, high - low)],
        "restarts": [{"iteration": start, "label": "restart"} for start in data.starts if low < start <= high],
        "figure": _figure_rows(data, scale, steady, first, last),
        "frame": [{"iteration": low, "shown": scale.low}, {"iteration": max(high, low + 1), "shown": scale.high}],
    }


@lru_cache(maxsize=256)
def _specification(title: str, log: bool, drawn: frozenset[str]) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    x = alt.X("iteration:Q", title="iteration", scale=alt.Scale(zero=False, nice=False, padding=6))
    x = x.axis(tickMinStep=1, format=",d")
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False, nice=False)
    y = alt.Y("shown:Q", title=title, scale=scale)
    layers = [_frame(alt, x, y)]
    layers += [layer for name, parts in _behind(alt) if name in drawn for layer in parts]
    layers += [_line(alt, x, y)] if "line" in drawn else []
    layers += [_marks(alt, x, y), _hit_area(alt, x, y, title)]
    chart = alt.layer(*layers).properties(width="container", height=theme.HEIGHT, config=theme.CONFIG)
    chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: dict[str, Any] = chart.to_dict()
    return spec


def _frame(alt: Any, x: Any, y: Any) -> Any:
    """Invisible points in two corners: they set both axes, whatever else is drawn."""
    return alt.Chart(alt.NamedData("frame")).mark_point(opacity=0, tooltip=None).encode(x, y)


def _behind(alt: Any) -> list[tuple[str, list[Any]]]:
    """What lies under the points, by the dataset that it needs."""
    return [
        ("baseline", _baseline(alt)),
        ("hatch", [_hatching(alt)]),
        ("window", _window(alt)),
        ("figure", _figure(alt)),
        ("restarts", _restarts(alt)),
        ("pointed", [_pointer(alt)]),
    ]


def _baseline(alt: Any) -> list[Any]:
    data = alt.NamedData("baseline")
    place = {"x": alt.X("first:Q"), "x2": "last:Q"}
    band = alt.Chart(data).mark_rect(color=theme.BASELINE, opacity=theme.BAND_OPACITY, clip=True)
    rule = alt.Chart(data).mark_rule(color=theme.BASELINE, strokeWidth=1.5, strokeDash=[6, 3], clip=True)
    return [
        band.encode(**place, y=alt.Y("low:Q"), y2="high:Q"),
        rule.encode(**place, y=alt.Y("value:Q")),
    ]


def _hatching(alt: Any) -> Any:
    drawn = alt.Chart(alt.NamedData("hatch")).mark_rule(color=theme.WARM_UP, opacity=0.28, strokeWidth=1)
    heights = {"y": alt.Y("from_y:Q", scale=None), "y2": "to_y:Q"}
    return drawn.encode(x=alt.X("from:Q"), x2="to:Q", **heights)


def _window(alt: Any) -> list[Any]:
    data = alt.NamedData("window")
    band = alt.Chart(data).mark_rect(color=theme.ACCENT, opacity=0.06).encode(x=alt.X("first:Q"), x2="last:Q")
    label = alt.Chart(data).mark_text(align="right", baseline="top", dx=-6, dy=4, color=theme.MUTED)
    return [band, label.encode(x=alt.X("last:Q"), y=alt.value(0), text="label:N")]


def _figure(alt: Any) -> list[Any]:
    data = alt.NamedData("figure")
    place = {"x": alt.X("first:Q"), "x2": "last:Q"}
    band = alt.Chart(data).mark_rect(color=theme.ACCENT, opacity=theme.BAND_OPACITY, clip=True)
    rule = alt.Chart(data).mark_rule(color=theme.ACCENT, strokeWidth=1.5, clip=True)
    return [
        band.encode(**place, y=alt.Y("low:Q"), y2="high:Q"),
        rule.encode(**place, y=alt.Y("value:Q")),
    ]


def _restarts(alt: Any) -> list[Any]:
    data = alt.NamedData("restarts")
    place = alt.X("iteration:Q")
    rule = alt.Chart(data).mark_rule(color=theme.MUTED, strokeDash=[2, 3])
    mark = alt.Chart(data).mark_point(shape="triangle-right", filled=True, size=60, opacity=1, color=theme.MUTED, dx=3)
    return [rule.encode(x=place), mark.encode(x=place, y=alt.value(theme.HEIGHT - 5))]


def _line(alt: Any, x: Any, y: Any) -> Any:
    line = alt.Chart(alt.NamedData("points")).mark_line(color=theme.MUTED, opacity=0.45, strokeWidth=1)
    return line.encode(x, y, order=alt.Order("iteration:Q"))


def _marks(alt: Any, x: Any, y: Any) -> Any:
    shapes = alt.Scale(
        domain=["window", "spike", "warm-up", "outside", "above", "below"],
        range=["circle", "diamond", "circle", "circle", "triangle-up", "triangle-down"],
    )
    colours = alt.Scale(
        domain=["window", "spike", "warm-up", "outside"],
        range=[theme.ACCENT, theme.SPIKE, theme.WARM_UP, theme.WARM_UP],
    )
    filled = alt.when("datum.role == 'window'").then(alt.value(1)).otherwise(alt.value(0))
    size = alt.when("datum.role == 'window'").then(alt.value(14)).otherwise(alt.value(46))
    return (
        alt.Chart(alt.NamedData("points"))
        .mark_point(strokeWidth=1.5, opacity=1)
        .encode(
            x,
            y,
            shape=alt.Shape("mark:N", scale=shapes, legend=None),
            stroke=alt.Stroke("role:N", scale=colours, legend=None),
            fill=alt.Fill("role:N", scale=colours, legend=None),
            fillOpacity=filled,
            size=size,
        )
    )


def _pointer(alt: Any) -> Any:
    return (
        alt.Chart(alt.NamedData("pointed"))
        .mark_rule(color=theme.TEXT, strokeDash=[4, 3])
        .encode(x=alt.X("iteration:Q"))
    )


def _hit_area(alt: Any, x: Any, y: Any, title: str) -> Any:
    """Invisible marks that answer for the nearest point, so that nobody has to hit three pixels."""
    nearest = alt.selection_point(
        name="nearest", fields=["iteration"], nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    zoom = alt.selection_interval(name="zoom", encodings=["x"])
    area = alt.Chart(alt.NamedData("points")).mark_point(size=140, strokeWidth=2, filled=False, color=theme.TEXT)
    shown = alt.when(nearest).then(alt.value(1)).otherwise(alt.value(0))
    return area.encode(x, y, opacity=shown, tooltip=alt.value(alt.expr(_tip(title)))).add_params(nearest, zoom)


def _tip(title: str) -> str:
    """The row of the nearest point, as an expression.

    Vega-Lite's own tooltip fields read text fields of such marks wrongly ("undefined"): the row is one level deeper.
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
    shown = np.clip(data.values, scale.low, scale.high)
    return [
        {
            "iteration": int(iteration),
            "shown": float(at),
            "text": significant(float(value)),
            "role": role,
            "mark": "above" if value > scale.high else "below" if value < scale.low else role,
            "file": int(file),
            "line": int(line),
        }
        for iteration, value, at, role, file, line in zip(
            data.iterations, data.values, shown, data.roles, data.log_files, data.log_lines, strict=True
        )
    ]


def _figure_rows(
    data: Points, scale: Scale, steady: SteadyState | None, first: int, last: int
) -> list[dict[str, float]]:
    """The figure and its interval, cut to the axis: it must not stretch what the points fit."""
    if data.name != "step_time_ms" or steady is None or first >= last:
        return []
    per_ms = 1e-3 if data.unit == "s" else 1.0
    low, value, high = (per_ms * ms for ms in (steady.ci_low_ms, steady.step_time_ms, steady.ci_high_ms))
    return [{"first": first, "last": last, "value": value, "low": max(low, scale.low), "high": min(high, scale.high)}]


def _baseline_rows(band: Band | None, scale: Scale, first: int, last: int) -> list[dict[str, float]]:
    """Over the whole width, cut to the axis; nothing where it lies beyond."""
    if band is None or not scale.low <= band.value <= scale.high:
        return []
    low, high = max(band.low, scale.low), min(band.high, scale.high)
    return [{"first": first, "last": last, "value": band.value, "low": low, "high": high}]


def _shown_window(steady: SteadyState | None, low: int, high: int) -> tuple[int, int]:
    if steady is None:
        return low, low
    return max(steady.first_iteration, low), min(steady.last_iteration, high)


def _warm_ups(data: Points) -> Iterator[tuple[int, int]]:
    """Where each warm-up begins, and where what follows it begins."""
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
    """Slanted lines over a warm-up, cut at its sides, on an axis `width` long; heights in pixels from the top."""
    if last <= first:
        return []
    step = max(width, 1) / _HATCH_LINES
    slant = _HATCH_SLANT * step
    lines = []
    for k in range(-_HATCH_SLANT, math.ceil((last - first) / step)):
        foot = first + k * step
        start, stop = max(foot, first), min(foot + slant, last)
        if start < stop:
            heights = [theme.HEIGHT * (1 - (x - foot) / slant) for x in (start, stop)]
            lines.append({"from": start, "to": stop, "from_y": heights[0], "to_y": heights[1]})
    return lines


def _window_label(steady: SteadyState | None) -> str:
    if steady is None:
        return ""
    return f"steady window, {steady.method}: {step_time(steady.step_time_ms)}"


def _description(data: Points, steady: SteadyState | None) -> str:
    """For those who hear the page: the table below holds the same values."""
    text = f"{data.title} by iteration, {len(data.iterations)} points."
    if steady is not None:
        text += f" The steady window is {steady.first_iteration} to {steady.last_iteration}."
    return text
