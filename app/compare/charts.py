"""The series of both sides over each other -> a Vega-Lite specification. One colour per side, one axis."""

import json
from functools import lru_cache
from typing import Any

import numpy as np

from app.compare.queries import ComparedSides
from app.compare.views import Overlay, TraceLine, drawn
from app.domain.numbers import significant, step_time
from app.domain.performance.steady_state import readable_range
from app.domain.run import FloatArray
from app.domain.verdict.comparison import FEWEST_FOR_DENSITY, density, density_reach
from app.web import charts

SIDE_COLOURS = {"a": "--side-a", "b": "--side-b"}
HEIGHT = 280
_LANE_ROW = 26
"""Height (px) of the second row of the lane: each side has its own, so that no mark covers one of the other side."""


def series_chart(overlay: Overlay) -> dict[str, Any]:
    """Return the chart of all lines. Values beyond the axis are in a lane above it, as text, in a row of their side."""
    points = [row for line in overlay.lines for row in _rows(line, overlay)]
    ranges = any(row["stretch"] > 1 for row in points)
    offsets = [row["offset"] for row in points]
    first, last = min(offsets), max(offsets)
    off_scale = [[row for row in points if row["shown"] is None and row["side"] == side] for side in SIDE_COLOURS]
    lane: list[dict[str, Any]] = []
    height = 0
    for rows in filter(None, off_scale):
        height += _LANE_ROW if height else charts.LANE
        lane += charts.lane_labels([row | {"height": height - 10} for row in rows], "offset", last - first)
    spec = dict(_specification(overlay.title, len(overlay.lines) > 2, ranges, height))
    spec["datasets"] = {
        "points": points,
        "lane": lane,
        "start": [{"offset": 0, "label": "steady windows begin"}] if first <= 0 <= last else [],
        "frame": [{"offset": first, "shown": overlay.low}, {"offset": max(last, first + 1), "shown": overlay.high}],
    }
    spec["description"] = (
        f"{overlay.title} of {len(overlay.lines)} runs, by iteration since the start of the steady window. "
        "The table has the same values."
    )
    return spec


@lru_cache(maxsize=256)
def _specification(title: str, many: bool, ranges: bool, lane_height: int) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    x = alt.X("offset:Q", title="iterations since the steady window began", scale=alt.Scale(nice=False, padding=6))
    x = x.axis(tickMinStep=1, format=",d")
    scale = alt.Scale(zero=False, nice=False)
    if lane_height:
        scale = alt.Scale(zero=False, nice=False, range=[HEIGHT, lane_height])
    y = alt.Y("shown:Q", title=title, scale=scale)
    sides = alt.Scale(domain=list(SIDE_COLOURS), range=list(SIDE_COLOURS.values()))
    colour = alt.Color("side:N", scale=sides, legend=None)
    frame = alt.Chart(alt.NamedData("frame")).mark_point(opacity=0, tooltip=None).encode(x, y)
    rule = (
        alt.Chart(alt.NamedData("start")).mark_rule(color=charts.MUTED, strokeDash=[4, 3]).encode(x=alt.X("offset:Q"))
    )
    label = alt.Chart(alt.NamedData("start")).mark_text(align="left", baseline="top", dx=5, color=charts.MUTED)
    label = label.encode(x=alt.X("offset:Q"), y=alt.value(lane_height), text="label:N")
    band = alt.Chart(alt.NamedData("points")).mark_area(opacity=charts.BAND_OPACITY, orient="vertical", tooltip=None)
    band = band.encode(x, alt.Y("low:Q"), y2="high:Q", color=colour, detail="run:N")
    lines = alt.Chart(alt.NamedData("points")).mark_line(strokeWidth=1 if many else 1.5, opacity=0.55 if many else 0.85)
    lines = lines.encode(x, y, color=colour, detail="run:N", order=alt.Order("offset:Q"))
    nearest = alt.selection_point(
        name="nearest", fields=["offset", "run"], nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    # The row of a mark that reacts for its neighbourhood is one level deeper.
    row = "(datum.datum || datum)"
    tip = (
        f"{{'run': (({row}.side == 'a') ? 'A #' : 'B #') + {row}.run, 'iteration': {row}.iteration, "
        f"'since the window began': {row}.offset, 'value': {row}.text}}"
    )
    area = alt.Chart(alt.NamedData("points")).mark_point(size=70, filled=True)
    shown = alt.when(nearest).then(alt.value(1)).otherwise(alt.value(0))
    zoom = alt.selection_interval(name="zoom", encodings=["x"])
    area = area.encode(x, y, color=colour, opacity=shown, tooltip=alt.value(alt.expr(tip))).add_params(nearest, zoom)
    outside = alt.Chart(alt.NamedData("lane"))
    place = alt.Y("height:Q", scale=None, axis=None)
    marks = outside.mark_point(strokeWidth=1.5, opacity=1, size=46)
    marks = marks.encode(x, y=place, stroke=colour.copy(), tooltip=alt.value(alt.expr(tip)))
    texts = outside.mark_text(baseline="bottom", dy=-6, fontSize=11)
    lane = [marks, texts.encode(x, y=place, color=colour, text="lane:N")] if lane_height else []
    chart = alt.layer(*[frame, rule, label, *([band] if ranges else []), lines, *lane, area])
    return charts.finished(chart, HEIGHT)


def stretch_of(overlay: Overlay) -> int:
    """Return the most iterations that one point represents."""
    return max((drawn(line, len(overlay.lines)).stretch for line in overlay.lines), default=1)


def _rows(line: TraceLine, overlay: Overlay) -> list[dict[str, Any]]:
    shown = drawn(line, len(overlay.lines))
    ends = [np.clip(values, overlay.low, overlay.high).tolist() for values in (shown.low, shown.high)]
    return [
        {
            "offset": offset,
            "at": offset,
            "id": offset,
            "iteration": iteration,
            "value": value,
            "shown": value if overlay.low <= value <= overlay.high else None,
            "low": low,
            "high": high,
            "text": significant(value),
            "side": line.side,
            "run": line.run,
            "href": f"/runs/{line.run}",
            "stretch": shown.stretch,
        }
        for offset, iteration, value, low, high in zip(
            shown.offsets.tolist(), shown.iterations.tolist(), shown.values.tolist(), *ends, strict=True
        )
    ]


# --- The steady windows of all runs on one axis: a row per run, density above, quartiles and median below.
#
# A run of few iterations is drawn as single values, because a density of eight values would be invented.

_ROW, _ROW_OF_MANY = 96, 58
"""Pixels of a row, with two runs and with more."""
_TOP, _BASE, _BOX = 0.06, 0.68, 0.83
"""In a row of height 1: top and foot of a density, and the position of the quartiles."""
_MARGIN = 0.12


def distribution_chart(comparison: ComparedSides) -> dict[str, Any]:
    shown = [run for run in comparison.runs if comparison.distributions[run.id] is not None]
    per_ms = 1e-3 if max(np.median(comparison.windows[run.id]) for run in shown) >= 10_000 else 1.0
    low, high = axis(comparison)
    sides = {run.id: "a" for run in comparison.a} | {run.id: "b" for run in comparison.b}
    datasets: dict[str, list[Any]] = {"density": [], "dots": [], "boxes": []}
    labels: list[str] = []
    for index, run in enumerate(shown):
        distribution = comparison.distributions[run.id]
        assert distribution is not None  # noqa: S101  # chosen for that
        base = {"run": run.id, "href": f"/runs/{run.id}", "side": sides[run.id]}
        labels.append(f"{sides[run.id].upper()} #{run.id}   {step_time(distribution.median_ms)}")
        quantiles = dict(zip(("p05", "p25", "p50", "p75", "p95"), distribution.quantiles, strict=True))
        box = {name: min(max(value, low), high) * per_ms for name, value in quantiles.items()}
        texts = {f"{name}_text": step_time(value) for name, value in quantiles.items()}
        datasets["boxes"].append(base | box | texts | {"y": index + _BOX, "n": distribution.n})
        values = comparison.windows[run.id]
        if distribution.n < FEWEST_FOR_DENSITY:
            datasets["dots"] += [
                base | {"x": min(max(x, low), high) * per_ms, "y": index + 0.45} for x in values.tolist()
            ]
        else:
            datasets["density"] += _ridge(base, values, (low, high), per_ms, index)
    row = _ROW if len(shown) == 2 else _ROW_OF_MANY
    drawn = frozenset(name for name, rows in datasets.items() if rows)
    unit = "s" if per_ms < 1 else "ms"
    # Two corners set the axes, so that the cached specification fits any values.
    datasets["frame"] = [{"x": low * per_ms, "y": 0}, {"x": high * per_ms, "y": len(shown)}]
    spec = dict(_distribution_chart_specification(unit, len(shown), row, drawn))
    spec["layer"] = [_named(spec["layer"][0], labels, sum(sides[run.id] == "a" for run in shown)), *spec["layer"][1:]]
    spec["datasets"] = datasets
    spec["description"] = f"Step times in the steady windows of {len(shown)} runs. The table has their quantiles."
    return spec


def chart_height(comparison: ComparedSides) -> int:
    """Return the height of the rows, without the axis below them."""
    shown = sum(distribution is not None for distribution in comparison.distributions.values())
    return shown * (_ROW if shown == 2 else _ROW_OF_MANY)


def axis(comparison: ComparedSides) -> tuple[float, float]:
    """Return the ends of the common axis in ms. Text reports the spikes beyond it."""
    windows = [values for values in comparison.windows.values() if len(values)]
    ends = [(*readable_range(values), density_reach(values)) for values in windows]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    margin = (high - low) * _MARGIN or high * 0.01
    # No density is cut at an end.
    return min(low - margin, *(end[0] - end[2] for end in ends)), max(high + margin, *(end[1] + end[2] for end in ends))


def beyond_axis(comparison: ComparedSides) -> int:
    """Return the number of window iterations beyond the axis."""
    low, high = axis(comparison)
    return sum(int(((values < low) | (values > high)).sum()) for values in comparison.windows.values())


def _named(frame: dict[str, Any], labels: list[str], of_a: int) -> dict[str, Any]:
    """Return the layer that sets the axes, with each row's run and median as label in the colour of its side."""
    colour = {"condition": {"test": f"datum.value < {of_a}", "value": SIDE_COLOURS["a"]}, "value": SIDE_COLOURS["b"]}
    axis = {
        "values": [index + 0.5 for index in range(len(labels))],
        "labelExpr": f"{json.dumps(labels)}[floor(datum.value)]",
        "labelColor": colour,
        "labelFontWeight": 600,
        "labelLimit": 240,
        "grid": False,
        "title": None,
    }
    encoding = frame["encoding"]
    return frame | {"encoding": encoding | {"y": encoding["y"] | {"axis": axis}}}


def _ridge(
    base: dict[str, Any], values: FloatArray, ends: tuple[float, float], per_ms: float, index: int
) -> list[dict[str, Any]]:
    places, heights = density(values, *ends)
    return [
        base | {"x": round(x * per_ms, 6), "y": index + _BASE, "top": round(index + _BASE - (_BASE - _TOP) * height, 4)}
        for x, height in zip(places.tolist(), heights.tolist(), strict=True)
    ]


@lru_cache(maxsize=64)
def _distribution_chart_specification(unit: str, rows: int, row: int, drawn: frozenset[str]) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    def x(name: str) -> Any:
        scale = alt.Scale(nice=False, zero=False, padding=0)
        return alt.X(f"{name}:Q", title=f"step time ({unit})", scale=scale, axis=alt.Axis(tickCount=8))

    def data(name: str) -> Any:
        return alt.Chart(alt.NamedData(name))

    y = alt.Y("y:Q", scale=alt.Scale(domain=[rows, 0], nice=False), title=None)
    colour = alt.Color(
        "side:N", scale=alt.Scale(domain=list(SIDE_COLOURS), range=list(SIDE_COLOURS.values())), legend=None
    )
    tip = [alt.Tooltip("n:Q", title="iterations", format=","), *_tips(alt)]
    layers = [data("frame").mark_point(opacity=0, tooltip=None).encode(x("x"), y)]
    if "density" in drawn:
        area = data("density").mark_area(opacity=0.3, tooltip=None, orient="vertical")
        layers += [area.encode(x("x"), y, y2="top:Q", color=colour, detail="run:N")]
    if "dots" in drawn:
        layers += [data("dots").mark_point(filled=True, size=36, opacity=0.75).encode(x("x"), y, color=colour)]
    whiskers = data("boxes").mark_rule(strokeWidth=1.5).encode(x("p05"), y, x2="p95:Q", color=colour, tooltip=tip)
    boxes = data("boxes").mark_rule(strokeWidth=9, opacity=0.85)
    medians = data("boxes").mark_tick(orient="vertical", thickness=3, size=20, color=charts.TEXT)
    layers += [
        whiskers,
        boxes.encode(x("p25"), y, x2="p75:Q", color=colour, tooltip=tip),
        medians.encode(x("p50"), y, tooltip=tip),
    ]
    return charts.finished(alt.layer(*layers), rows * row)


def _tips(alt: Any) -> list[Any]:
    names = {"p05": "5 %", "p25": "25 %", "p50": "median", "p75": "75 %", "p95": "95 %"}
    return [alt.Tooltip(f"{name}_text:N", title=title) for name, title in names.items()]
