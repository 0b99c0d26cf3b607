"""The series of both sides over each other -> a Vega-Lite specification. One colour a side, one axis."""

from functools import lru_cache
from typing import Any

import numpy as np

from app.compare.aligned import Line, Overlay, drawn
from app.domain.numbers import significant
from app.web import chart_theme as theme

SIDE_COLOURS = {"a": "--side-a", "b": "--side-b"}
HEIGHT = 280


def series_chart(overlay: Overlay) -> dict[str, Any]:
    """Values beyond the axis are drawn at its edge."""
    points = [row for line in overlay.lines for row in _rows(line, overlay)]
    ranges = any(row["stretch"] > 1 for row in points)
    spec = dict(_specification(overlay.title, len(overlay.lines) > 2, ranges))
    offsets = [row["offset"] for row in points]
    first, last = min(offsets), max(offsets)
    spec["datasets"] = {
        "points": points,
        "start": [{"offset": 0, "label": "steady windows begin"}],
        "frame": [{"offset": first, "shown": overlay.low}, {"offset": max(last, first + 1), "shown": overlay.high}],
    }
    spec["description"] = (
        f"{overlay.title} of {len(overlay.lines)} runs, by iteration since the start of the steady window. "
        "The table holds the same values."
    )
    return spec


@lru_cache(maxsize=256)
def _specification(title: str, many: bool, ranges: bool) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    x = alt.X("offset:Q", title="iterations since the steady window began", scale=alt.Scale(nice=False, padding=6))
    x = x.axis(tickMinStep=1, format=",d")
    y = alt.Y("shown:Q", title=title, scale=alt.Scale(zero=False, nice=False))
    sides = alt.Scale(domain=list(SIDE_COLOURS), range=list(SIDE_COLOURS.values()))
    colour = alt.Color("side:N", scale=sides, legend=None)
    frame = alt.Chart(alt.NamedData("frame")).mark_point(opacity=0, tooltip=None).encode(x, y)
    rule = alt.Chart(alt.NamedData("start")).mark_rule(color=theme.MUTED, strokeDash=[4, 3]).encode(x=alt.X("offset:Q"))
    label = alt.Chart(alt.NamedData("start")).mark_text(align="left", baseline="top", dx=5, color=theme.MUTED)
    label = label.encode(x=alt.X("offset:Q"), y=alt.value(0), text="label:N")
    band = alt.Chart(alt.NamedData("points")).mark_area(opacity=theme.BAND_OPACITY, orient="vertical", tooltip=None)
    band = band.encode(x, alt.Y("low:Q"), y2="high:Q", color=colour, detail="run:N")
    lines = alt.Chart(alt.NamedData("points")).mark_line(strokeWidth=1 if many else 1.5, opacity=0.55 if many else 0.85)
    lines = lines.encode(x, y, color=colour, detail="run:N", order=alt.Order("offset:Q"))
    nearest = alt.selection_point(
        name="nearest", fields=["offset", "run"], nearest=True, on="pointerover", clear="pointerout", empty=False
    )
    # The row of a mark that answers for its neighbourhood stands one level deeper.
    row = "(datum.datum || datum)"
    tip = (
        f"{{'run': (({row}.side == 'a') ? 'A #' : 'B #') + {row}.run, 'iteration': {row}.iteration, "
        f"'since the window began': {row}.offset, 'value': {row}.text}}"
    )
    area = alt.Chart(alt.NamedData("points")).mark_point(size=70, filled=True)
    shown = alt.when(nearest).then(alt.value(1)).otherwise(alt.value(0))
    area = area.encode(x, y, color=colour, opacity=shown, tooltip=alt.value(alt.expr(tip))).add_params(nearest)
    chart = alt.layer(*[frame, rule, label, *([band] if ranges else []), lines, area])
    chart = chart.properties(width="container", height=HEIGHT, config=theme.CONFIG)
    chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: dict[str, Any] = chart.to_dict()
    return spec


def stretch_of(overlay: Overlay) -> int:
    """How many iterations a point stands for at most."""
    return max((drawn(line, len(overlay.lines)).stretch for line in overlay.lines), default=1)


def _rows(line: Line, overlay: Overlay) -> list[dict[str, Any]]:
    shown = drawn(line, len(overlay.lines))
    places = [np.clip(values, overlay.low, overlay.high).tolist() for values in (shown.values, shown.low, shown.high)]
    return [
        {
            "offset": offset,
            "iteration": iteration,
            "shown": at,
            "low": low,
            "high": high,
            "text": significant(value),
            "side": line.side,
            "run": line.run,
            "stretch": shown.stretch,
        }
        for offset, iteration, value, at, low, high in zip(
            shown.offsets.tolist(), shown.iterations.tolist(), shown.values.tolist(), *places, strict=True
        )
    ]
