"""Efficiency against the smallest size: a line a series, an interval a point. Sizes double along the axis."""

from functools import lru_cache
from typing import Any

from app.domain.numbers import grouped, percent
from app.scaling.view import PointRow, Section, SeriesView
from app.scaling.words import interval
from app.web import chart_theme as theme

MOST_DRAWN = 8
"""More lines than these are no picture; the table has all of them."""
_DISPATCHERS = ("alltoall", "deepep", "hybridep", "ncclep", "allgather")
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")


def scaling_chart(section: Section) -> dict[str, Any]:
    """A Vega-Lite specification that charts.js embeds."""
    shown = section.series[:MOST_DRAWN]
    sizes = sorted({row.point.size for view in shown for row in view.points})
    spec = dict(_specification(section.words.axis, tuple(sizes)))
    points = [_point(view, row, section.words.unit) for view in shown for row in view.points]
    spec["datasets"] = {
        "points": points,
        "intervals": [point for point in points if point["high"] > point["low"]],
        "names": [_point(view, view.points[-1], section.words.unit) for view in shown],
        "ideal": [{"efficiency": 100}],
    }
    drawn = "line" if len(shown) == 1 else "lines"
    spec["description"] = f"{section.words.title}, {len(shown)} {drawn}. The table holds the same values."
    return spec


def _point(view: SeriesView, row: PointRow, unit: str) -> dict[str, Any]:
    value = row.efficiency
    low, high = (value.value if end is None else end for end in (value.low, value.high))
    return {
        "series": view.name,
        "colour": view.series.dispatcher if view.series.dispatcher in _DISPATCHERS else "unknown",
        "shape": _SHAPES[(view.number - 1) % len(_SHAPES)],
        "size": row.point.size,
        "efficiency": value.value,
        "low": low,
        "high": high,
        "told": f"{percent(value.value)}{interval(value)}",
        "at": f"{grouped(row.point.size)} {unit}",
        "runs": len(row.runs),
        "directional": "yes" if row.point.directional else "no",
        "href": f"/history/{row.stack_key}",
    }


@lru_cache(maxsize=64)
def _specification(axis: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    scale = alt.Scale(type="log", base=2, domain=[sizes[0] / 1.1, sizes[-1] * 1.1], nice=False)
    ticks = alt.Axis(values=list(sizes), format=",d", labelOverlap=True, labelSeparation=8)
    x = alt.X("size:Q", title=axis, scale=scale, axis=ticks)
    y = alt.Y("efficiency:Q", title="efficiency, % of the smallest size", scale=alt.Scale(zero=False, padding=16))
    colours = alt.Scale(
        domain=[*_DISPATCHERS, "unknown"], range=[*(f"--{name}" for name in _DISPATCHERS), theme.ACCENT]
    )
    colour = alt.Color("colour:N", scale=colours, legend=None)
    points = alt.Chart(alt.NamedData("points"))
    shape = alt.Shape("shape:N", scale=alt.Scale(domain=list(_SHAPES), range=list(_SHAPES)), legend=None)
    tooltip = [
        alt.Tooltip("series:N"),
        alt.Tooltip("at:N", title="size"),
        alt.Tooltip("told:N", title="efficiency"),
        alt.Tooltip("runs:Q", title="runs"),
        alt.Tooltip("directional:N"),
    ]
    ideal = alt.Chart(alt.NamedData("ideal")).mark_rule(color=theme.MUTED, strokeDash=[4, 3]).encode(y=y)
    lines = points.mark_line(strokeWidth=2).encode(x, y, colour, detail="series:N")
    intervals = alt.Chart(alt.NamedData("intervals")).mark_rule(strokeWidth=2, opacity=0.55)
    intervals = intervals.encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour)
    dots = points.mark_point(filled=True, opacity=1, size=90).encode(x, y, colour, shape, tooltip=tooltip)
    text: dict[str, Any] = {"align": "right", "baseline": "bottom", "dx": 4, "dy": -10, "fontWeight": 600}
    named = alt.Chart(alt.NamedData("names"))
    rim = named.mark_text(**text, stroke=theme.BACKGROUND, strokeWidth=4, color=theme.BACKGROUND)
    names = [one.encode(x, y, text="series:N") for one in (rim, named.mark_text(**text, color=theme.TEXT))]
    chart = alt.layer(ideal, lines, intervals, dots, *names)
    chart = chart.properties(width="container", height=theme.HEIGHT, config=theme.CONFIG)
    chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: dict[str, Any] = chart.to_dict()
    return spec
