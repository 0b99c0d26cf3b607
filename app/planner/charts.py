"""Memory against step time: one predicted mark per layout, the chosen one ringed, and what a record measured.

All layouts are drawn as predicted, so that they can be compared; a record is another mark of its layout.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from app.domain.planning.hardware import in_gib
from app.planner import queries
from app.planner.views import LayoutRow
from app.web import charts

HEIGHT = 230


def is_drawable(rows: Sequence[LayoutRow]) -> bool:
    """Return whether a layout has both coordinates: they need a batch, and the widths of the model."""
    return any(row.predicted_s is not None for row in rows)


def layout_chart(rows: Sequence[LayoutRow], address: Callable[[LayoutRow], str]) -> dict[str, Any]:
    """Return the Vega-Lite specification that charts.js embeds. `address`: of the page of a layout."""
    points = [_point(row, address(row), "predicted", row.predicted_gib, row.predicted_s) for row in rows]
    points += [
        _point(row, address(row), row.timed.kind, row.gib, row.seconds) for row in rows if row.is_measured and row.timed
    ]
    drawn = [point for point in points if point["seconds"] is not None and point["gib"] is not None]
    prediction = next(row.offer.prediction for row in rows if row.offer.prediction)
    usable = in_gib(prediction.usable_gb)
    spec = dict(_specification(_ticks([point["seconds"] for point in drawn])))
    spec["datasets"] = {
        "points": drawn,
        "chosen": [point for point in drawn if point["is_chosen"]],
        "limit": [{"gib": usable}],
    }
    layouts = len({point["layout"] for point in drawn})
    spec["description"] = f"Memory and step time of {layouts} layouts. The table has the same values."
    return spec


def _point(row: LayoutRow, href: str, word: str, gib: float | None, seconds: float | None) -> dict[str, Any]:
    return {
        "layout": row.name,
        "seconds": seconds,
        "gib": gib,
        "kind": "fits" if row.fits else "too large",
        "word": word,
        "is_chosen": row.is_chosen and word == "predicted",
        "time": f"{queries.seconds_text(seconds or 0.0)} {word}",
        "memory": f"{gib or 0.0:.0f}\u202fGiB",
        "limit": row.limit,
        "rank": row.reason or ("first" if row.rank == 1 else "does not fit" if not row.fits else "as fast"),
        "href": href,
    }


_FEWEST_TICKS = 3
"""Fewer round values than this mean a narrow range, whose axis is linear."""
_STEPS = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)


def _ticks(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return round values between the shortest and the longest step, for a logarithmic axis."""
    low, high = min(seconds), max(seconds)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return tuple(tick for decade in decades for step in _STEPS if low <= (tick := step * 10.0**decade) <= high)


@lru_cache(maxsize=64)
def _specification(ticks: tuple[float, ...]) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    if len(ticks) >= _FEWEST_TICKS:
        scale = alt.Scale(type="log", nice=False, padding=24)
        axis = alt.Axis(values=list(ticks), format="~g", labelOverlap=True)
    else:
        scale, axis = alt.Scale(zero=False, padding=24), alt.Axis(tickCount=6)
    x = alt.X("seconds:Q", title="step time, s", scale=scale, axis=axis)
    y = alt.Y("gib:Q", title="peak memory, GiB", scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(tickCount=6))
    colour = alt.Color(
        "kind:N", scale=alt.Scale(domain=["fits", "too large"], range=[charts.ACCENT, charts.MUTED]), legend=None
    )
    shape = alt.Shape(
        "word:N",
        scale=alt.Scale(domain=["predicted", "measured", "generated", "published"], range=["circle", *["diamond"] * 3]),
        legend=None,
    )
    limit = alt.Chart(alt.NamedData("limit"))
    rule = limit.mark_rule(color=charts.TEXT, strokeDash=[4, 3]).encode(y=y)
    dots = alt.Chart(alt.NamedData("points")).mark_point(filled=True)
    size = alt.condition("datum.word === 'predicted'", alt.value(70), alt.value(150))  # a record lies on its prediction
    opacity = alt.condition("datum.kind === 'fits'", alt.value(0.8), alt.value(0.45))
    tooltip = [
        alt.Tooltip("layout:N"),
        alt.Tooltip("memory:N"),
        alt.Tooltip("time:N", title="step time"),
        alt.Tooltip("limit:N", title="limited by"),
        alt.Tooltip("rank:N"),
    ]
    chosen = alt.Chart(alt.NamedData("chosen"))
    ring = chosen.mark_point(size=240, strokeWidth=2, filled=False, color=charts.TEXT).encode(x, y)
    chart = alt.layer(rule, dots.encode(x, y, colour, shape, size=size, opacity=opacity, tooltip=tooltip), ring)
    return charts.finished(chart, HEIGHT)
