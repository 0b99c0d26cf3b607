"""A history as a Vega-Lite specification: points by configuration, levels, change points, verdicts, events.

As with the chart of a run, Altair is imported when first needed and what it makes is kept: specifications differ in
titles and in which layers have data; the data travels beside them, under `datasets`.
"""

import json
from functools import lru_cache
from typing import Any

from app.domain.numbers import counted
from app.history.chart_rows import Drawing, Row
from app.history.view import DATE
from app.web import chart_theme as theme

_DAY_OR_MONTH = "utcFormat(datum.value, utcdate(datum.value) == 1 ? '%b %Y' : '%-d %b')"
_DENSE = 400
"""With more runs than these their marks are smaller."""
_DISPATCHERS = ("alltoall", "deepep", "hybridep", "ncclep", "allgather")
COLOURS = {name: f"--{name}" for name in _DISPATCHERS} | {"unknown": theme.ACCENT}
_ARROW_DOWN = "M-1,-0.7L0.8,0.8M0.8,-0.2L0.8,0.8L-0.2,0.8"
_ARROW_UP = "M-1,0.7L0.8,-0.8M0.8,0.2L0.8,-0.8L-0.2,-0.8"
VERDICT_MARKS = {
    "regression": ("--regression", _ARROW_DOWN),
    "improvement": ("--improvement", _ARROW_UP),
    "inconclusive": ("--inconclusive", "circle"),
    "no_baseline": ("--no-change", "circle"),
    "failed": ("--failed", "M-1,-1L1,1M1,-1L-1,1"),
}
EVENT_MARKS = {
    "golden": "M0,-1L0.29,-0.4L0.95,-0.31L0.48,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.48,0.15L-0.95,-0.31L-0.29,-0.4Z",
    "once golden": "M0,-1L0.29,-0.4L0.95,-0.31L0.48,0.15L0.59,0.81L0,0.5L-0.59,0.81L-0.48,0.15L-0.95,-0.31L-0.29,-0.4Z",
    "release": "M-0.6,-1L-0.6,1M-0.6,-0.9L0.8,-0.4L-0.6,0.1Z",
    "versions": "diamond",
    "configuration": "square",
}
_TIP = {
    "run": "run", "commit": "commit", "when": "when", "text": "", "interval": "95 % interval", "n": "iterations",
    "verdict": "verdict", "counts": "in levels", "config": "configuration",
}  # fmt: skip


def history_chart(drawing: Drawing, rows: dict[str, list[Row]]) -> dict[str, Any]:
    """A Vega-Lite specification that charts.js embeds. `rows`: of each layer (`chart_rows.datasets`)."""
    drawn = frozenset(name for name, of_name in rows.items() if of_name)
    spec = dict(_specification(drawing.title, drawing.axis, len(drawing.places) > _DENSE, drawn))
    # A layer without data would have no extent, which Vega warns of.
    spec["datasets"] = {name: of_name for name, of_name in rows.items() if of_name}
    spec["description"] = (
        f"{drawing.title} of {counted(len(drawing.places), 'run')}. The table below holds the same values."
    )
    return spec


@lru_cache(maxsize=64)
def _specification(title: str, axis: str, dense: bool, drawn: frozenset[str]) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    frame = alt.Chart(alt.NamedData("frame")).mark_point(opacity=0, tooltip=None)
    layers = [frame.encode(_x(alt, axis), _y(alt, title))]
    layers += [layer for name, parts in _parts(alt, axis, title, dense) if name in drawn for layer in parts]
    # Each layer has colours and shapes of its own; shared scales would mix their meanings.
    apart: Any = dict.fromkeys(("stroke", "fill", "color", "shape"), "independent")
    chart = alt.layer(*layers).resolve_scale(**apart)
    chart = chart.properties(width="container", height=theme.HEIGHT, config=theme.CONFIG)
    chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: dict[str, Any] = chart.to_dict()
    return spec


def _x(alt: Any, axis: str, field: str = "at") -> Any:
    if axis == DATE:
        scale, days = (
            alt.Scale(type="utc", nice=False),
            alt.Axis(labelOverlap=True, labelSeparation=12, format="%-d %b"),
        )
        return alt.X(f"{field}:T", title="commit date (UTC)", scale=scale, axis=days)
    # The labels are days, drawn as a layer: a place in the order is no number that anyone knows.
    hidden = alt.Axis(labels=False, titlePadding=26)
    return alt.X(f"{field}:Q", title="runs in commit order", scale=alt.Scale(zero=False, nice=False), axis=hidden)


def _y(alt: Any, title: str) -> Any:
    return alt.Y("shown:Q", title=title, scale=alt.Scale(zero=False, nice=False))


def _parts(alt: Any, axis: str, title: str, dense: bool) -> list[tuple[str, list[Any]]]:
    """The layers from back to front, with the dataset that each needs. What answers the pointer lies above the rest."""
    x, y = _x(alt, axis), _y(alt, title)
    return [
        ("intervals", [_intervals(alt, x)]),
        ("changes", _changes(alt, x)),
        ("ticks", [_ticks(alt, x)]),
        ("points", [_marks(alt, x, y, dense)]),
        ("rings", [_verdicts(alt, x, y, "rings", size=36 if dense else 80)]),
        ("arrows", [_verdicts(alt, x, y, "arrows", size=90, up=11)]),
        ("levels", [_levels(alt, axis)]),
        ("levels", _level_labels(alt, axis)),
        ("points", [_hit_area(alt, x, y, title)]),
        ("events", [_events(alt, x)]),
    ]


def _colour(alt: Any, channel: Any) -> Any:
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    return channel("colour:N", scale=scale, legend=None)


def _intervals(alt: Any, x: Any) -> Any:
    rule = alt.Chart(alt.NamedData("intervals")).mark_rule(opacity=0.35, strokeWidth=1.5, clip=True)
    return rule.encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), stroke=_colour(alt, alt.Stroke))


def _changes(alt: Any, x: Any) -> list[Any]:
    data = alt.NamedData("changes")
    scale = alt.Scale(domain=["slower", "faster"], range=["--regression", "--improvement"])
    colour = alt.Color("direction:N", scale=scale, legend=None)
    rule = alt.Chart(data).mark_rule(strokeDash=[4, 3])
    # Near the right edge a label stands before its line.
    side = {"align": alt.expr("datum.late ? 'right' : 'left'"), "dx": alt.expr("datum.late ? -5 : 5")}
    label = alt.Chart(data).mark_text(baseline="top", fontWeight=600, **side)
    above = alt.Y("top:Q", scale=None, axis=None)
    return [
        rule.encode(x, stroke=alt.Stroke("direction:N", scale=scale, legend=None)),
        label.encode(x, above, text="label:N", color=colour),
    ]


def _levels(alt: Any, axis: str) -> Any:
    """Over the points, in the colour of the text: in their own it would be lost where runs stand close."""
    rule = alt.Chart(alt.NamedData("levels")).mark_rule(strokeWidth=1.5, clip=True, color=theme.TEXT)
    return rule.encode(_x(alt, axis, "from"), alt.X2("to"), alt.Y("value:Q"))


def _level_labels(alt: Any, axis: str) -> list[Any]:
    """A rim of the page's colour keeps the figure readable over points."""
    data = alt.Chart(alt.NamedData("levels"))
    text: dict[str, Any] = {"align": "right", "baseline": "bottom", "dy": -5, "fontWeight": 600}
    rim = data.mark_text(**text, stroke=theme.BACKGROUND, strokeWidth=4, color=theme.BACKGROUND)
    label = data.mark_text(**text, color=theme.TEXT)
    return [one.encode(_x(alt, axis, "to"), alt.Y("value:Q"), text="label:N") for one in (rim, label)]


def _ticks(alt: Any, x: Any) -> Any:
    label = alt.Chart(alt.NamedData("ticks")).mark_text(baseline="top", color=theme.MUTED, dy=8)
    return label.encode(x, y=alt.value(theme.HEIGHT), text="label:N")


def _marks(alt: Any, x: Any, y: Any, dense: bool) -> Any:
    shapes = alt.Scale(
        domain=["counts", "aside", "above", "below", "none"],
        range=["circle", "circle", "triangle-up", "triangle-down", "M-1,-1L1,1M1,-1L-1,1"],
    )
    counts = "datum.mark == 'counts'"
    return (
        alt.Chart(alt.NamedData("points"))
        .mark_point(strokeWidth=1.5, opacity=1)
        .encode(
            x,
            y,
            shape=alt.Shape("mark:N", scale=shapes, legend=None),
            stroke=_colour(alt, alt.Stroke),
            fill=_colour(alt, alt.Fill),
            fillOpacity=alt.when(counts).then(alt.value(1)).otherwise(alt.value(0)),
            size=alt.when(counts).then(alt.value(10 if dense else 22)).otherwise(alt.value(20 if dense else 38)),
        )
    )


def _verdicts(alt: Any, x: Any, y: Any, name: str, *, size: int, up: int = 0) -> Any:
    """Rings around the point, arrows above it, so that the point keeps the colour of its dispatcher."""
    colours = alt.Scale(domain=list(VERDICT_MARKS), range=[colour for colour, _ in VERDICT_MARKS.values()])
    shapes = alt.Scale(domain=list(VERDICT_MARKS), range=[shape for _, shape in VERDICT_MARKS.values()])
    dashed = alt.when("datum.verdict == 'no_baseline'").then(alt.value([2, 2])).otherwise(alt.value([1, 0]))
    mark = alt.Chart(alt.NamedData(name)).mark_point(
        filled=False, strokeWidth=2 if up else 1.25, tooltip=None, size=size, yOffset=-up
    )
    return mark.encode(
        x,
        y,
        shape=alt.Shape("verdict:N", scale=shapes, legend=None),
        stroke=alt.Stroke("verdict:N", scale=colours, legend=None),
        strokeDash=dashed,
    )


def _events(alt: Any, x: Any) -> Any:
    shapes = alt.Scale(domain=list(EVENT_MARKS), range=list(EVENT_MARKS.values()))
    solid = alt.when("datum.kind == 'golden' || datum.kind == 'release'").then(alt.value(1)).otherwise(alt.value(0))
    mark = alt.Chart(alt.NamedData("events")).mark_point(size=90, strokeWidth=1.5, opacity=1, stroke=theme.TEXT)
    return mark.encode(
        x,
        y=alt.Y("slot:Q", scale=None, axis=None),
        fill=alt.value(theme.TEXT),
        fillOpacity=solid,
        shape=alt.Shape("kind:N", scale=shapes, legend=None),
        tooltip=[alt.Tooltip("kind:N", title="what"), alt.Tooltip("text:N", title="which")],
    )


def _hit_area(alt: Any, x: Any, y: Any, title: str) -> Any:
    """Invisible marks that answer for the nearest run, so that nobody has to hit three pixels."""
    nearest = alt.selection_point(
        name="nearest", fields=["id"], nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    zoom = alt.selection_interval(name="zoom", encodings=["x"])
    area = alt.Chart(alt.NamedData("points")).mark_point(size=160, strokeWidth=2, filled=False, color=theme.TEXT)
    shown = alt.when(nearest).then(alt.value(1)).otherwise(alt.value(0))
    return area.encode(x, y, opacity=shown, tooltip=alt.value(alt.expr(_tip(title)))).add_params(nearest, zoom)


def _tip(title: str) -> str:
    """The row of the nearest run, as an expression: tooltip fields of such marks are read one level too high."""
    row = "(datum.datum || datum)"
    parts = (f"{json.dumps(label or title)}: {row}.{name}" for name, label in _TIP.items())
    return "{" + ", ".join(parts) + "}"
