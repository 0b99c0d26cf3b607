"""Efficiency against the smallest size: a line per series, labelled at its end. Sizes double along the axis."""

from functools import lru_cache
from typing import Any

from app.domain.numbers import grouped, percent
from app.domain.ranking.standings import Interval
from app.leaderboards.scaling_views import ScalingPointRow, Section, SeriesView, interval
from app.web import charts

MOST_DRAWN = 8
"""Most lines that stay readable; the table has all."""
MOST_LABELLED = 3
"""Most lines with a label at their end; more labels would cover each other."""
_DISPATCHERS = ("alltoall", "deepep", "hybridep", "ncclep", "allgather")
LOOKS = (
    ("circle", (1, 0)),
    ("square", (6, 4)),
    ("triangle-up", (2, 3)),
    ("diamond", (10, 3, 2, 3)),
    ("cross", (12, 4)),
    ("triangle-down", (4, 2)),
    ("triangle-right", (8, 2, 2, 2, 2, 2)),
    ("triangle-left", (1, 2)),
)
"""Mark and dashes of the series of one dispatcher, which share its colour, in order."""
MARKS = {
    "circle": "M20 3a4 4 0 1 0 .01 0z",
    "square": "M16.5 3.5h7v7h-7z",
    "triangle-up": "M20 2.5l4.5 8h-9z",
    "diamond": "M20 2l4 5-4 5-4-5z",
    "cross": "M18.5 3h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5z",
    "triangle-down": "M20 11.5l4.5-8h-9z",
    "triangle-right": "M24.5 7l-8 4.5v-9z",
    "triangle-left": "M15.5 7l8 4.5v-9z",
}
"""The marks as paths around (20, 7), for text about a series."""
_OFFSET = 0.016
"""Offset of series along the axis as a share of it, so that their intervals do not overlap."""


def shown_sizes(section: Section, first: int, last: int) -> tuple[list[int], bool]:
    """Return the drawn sizes from `first` to `last`, and whether some are left out; all if fewer than two are left."""
    shown = [view for view in section.series if view.series.compared][:MOST_DRAWN]
    sizes = sorted({row.point.size for view in shown for row in view.points if row.efficiency})
    inside = [size for size in sizes if first <= size <= last]
    return (inside, True) if 1 < len(inside) < len(sizes) else (sizes, False)


def scaling_chart(section: Section, scale: tuple[float, float], first: int, last: int) -> dict[str, Any]:
    """Return the Vega-Lite specification that charts.js embeds.

    `scale`: the ends of the efficiency axis. `first` and `last`: sizes at the ends of the zoom, whose axis fits them.
    """
    shown = [view for view in section.series if view.series.compared][:MOST_DRAWN]
    sizes, is_zoomed = shown_sizes(section, first, last)
    spec = dict(_specification(section.words.axis, section.figure, tuple(sizes), None if is_zoomed else scale))
    points = [
        _point(view, row, row.efficiency, section.words.unit) | {"x": row.point.size * beside}
        for view, beside in zip(shown, _offsets(len(shown), sizes[-1] / sizes[0]), strict=True)
        for row in view.points
        if row.efficiency and row.point.size in sizes
    ]
    ends: dict[str, dict[str, Any]] = {}
    for point in points:
        rises = point["series"] in ends and point["efficiency"] > ends[point["series"]]["efficiency"]
        ends[point["series"]] = point | {"above": rises}
    spec["datasets"] = {
        "points": points,
        "intervals": [point for point in points if point["high"] > point["low"]],
        "ends": [
            point | {"label": f"{name} {point['percent']}" if len(ends) > 1 else point["percent"]}
            for name, point in ends.items()
            if len(ends) <= MOST_LABELLED
        ],
        "ideal": [] if is_zoomed else [{"efficiency": 100, "x": sizes[-1], "label": "ideal"}],
    }
    drawn = "line" if len(shown) == 1 else "lines"
    spec["description"] = f"{section.words.title}, {len(shown)} {drawn}. The table has the same values."
    return spec


def _offsets(series: int, span: float) -> list[float]:
    """Return a factor near 1 for the sizes of each series, so that points do not overlap.

    `span`: the largest size over the smallest.
    """
    return [span ** (_OFFSET * (number - (series - 1) / 2)) for number in range(series)]


def _point(view: SeriesView, row: ScalingPointRow, value: Interval, unit: str) -> dict[str, Any]:
    low, high = (value.value if end is None else end for end in (value.low, value.high))
    return {
        "series": view.name,
        "colour": view.series.dispatcher if view.series.dispatcher in _DISPATCHERS else "unknown",
        "shape": LOOKS[view.look % len(LOOKS)][0],
        "efficiency": value.value,
        "low": low,
        "high": high,
        "percent": percent(value.value),
        "told": f"{percent(value.value)}{interval(value)}",
        "at": f"{grouped(row.point.size)} {unit}",
        "runs": len(row.runs),
        "when": row.when,
        "directional": "yes" if row.point.directional else "no",
        "href": f"/history/{row.stack_key}",
    }


@lru_cache(maxsize=64)
def _specification(axis: str, figure: str, sizes: tuple[int, ...], ends: tuple[float, float] | None) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    room = (sizes[-1] / sizes[0]) ** 0.07
    scale = alt.Scale(type="log", base=2, domain=[sizes[0] / room, sizes[-1] * room], nice=False)
    ticks = alt.Axis(values=list(sizes), format=",d", labelOverlap=True, labelSeparation=8)
    x = alt.X("x:Q", title=axis, scale=scale, axis=ticks)
    range_of_y = alt.Scale(domain=list(ends), nice=False) if ends else alt.Scale(zero=False, padding=16)
    y = alt.Y("efficiency:Q", title=f"efficiency, % ({figure})", scale=range_of_y)
    colours = alt.Scale(
        domain=[*_DISPATCHERS, "unknown"], range=[*(f"--{name}" for name in _DISPATCHERS), charts.ACCENT]
    )
    colour = alt.Color("colour:N", scale=colours, legend=None)
    points = alt.Chart(alt.NamedData("points"))
    shapes, dashes = [mark for mark, _ in LOOKS], [list(lengths) for _, lengths in LOOKS]
    shape = alt.Shape("shape:N", scale=alt.Scale(domain=shapes, range=shapes), legend=None)
    dash = alt.StrokeDash("shape:N", scale=alt.Scale(domain=shapes, range=dashes), legend=None)
    tooltip = [
        alt.Tooltip("series:N"),
        alt.Tooltip("at:N", title="size"),
        alt.Tooltip("told:N", title="efficiency"),
        alt.Tooltip("runs:Q", title="runs"),
        alt.Tooltip("when:N", title="measured"),
        alt.Tooltip("directional:N"),
    ]
    of_ideal, of_ends = (alt.Chart(alt.NamedData(name)) for name in ("ideal", "ends"))
    ideal = of_ideal.mark_rule(color=charts.MUTED, strokeDash=[4, 3]).encode(y=y)
    named = of_ideal.mark_text(color=charts.MUTED, align="right", dy=-8, dx=16).encode(x, y, text="label:N")
    beside = [
        of_ends.transform_filter(alt.datum.above == above)
        .mark_text(align="right", dx=-9, dy=dy, fontWeight="bold")
        .encode(x, y, colour, text="label:N")
        for above, dy in ((False, 12), (True, -10))  # on the side that the line does not come from
    ]
    lines = points.mark_line(strokeWidth=2).encode(x, y, colour, dash, detail="series:N")
    intervals = alt.Chart(alt.NamedData("intervals")).mark_rule(strokeWidth=2, opacity=0.55)
    intervals = intervals.encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour)
    dots = points.mark_point(filled=True, opacity=1, size=90).encode(x, y, colour, shape, tooltip=tooltip)
    dots = dots.add_params(alt.selection_interval(name="zoom", encodings=["x"]))
    chart = alt.layer(ideal, named, lines, intervals, dots, *beside)
    return charts.finished(chart, charts.HEIGHT)
