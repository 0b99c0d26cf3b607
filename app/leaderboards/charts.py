"""Two charts: the gain over alltoall in each stack, and who led a stack when. Their tables stand beside them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from app.leaderboards.gains import GainRow
from app.leaderboards.leaders import Reign
from app.web import chart_theme as theme

ROW = 40
"""Pixels a row: its name above, its mark below. Names beside the marks would leave a phone no room."""
AXIS = 84
"""Pixels of the axis and its title below the rows."""
_DISPATCHERS = ("allgather", "alltoall", "deepep", "hybridep", "ncclep")
_COLOURS = [f"--{name}" for name in _DISPATCHERS]


def chart_height(rows: int) -> int:
    """Of the rows, without the axis below them."""
    return rows * ROW


def gain_chart(rows: Sequence[GainRow]) -> dict[str, Any]:
    """A Vega-Lite specification that charts.js embeds: a dot and its 99 % interval a row, right is faster."""
    spec = dict(_gain_specification(chart_height(len(rows))))
    drawn = [
        {
            "row": place,
            "name": f"{row.dispatcher}, {row.short_title}",
            "stack": row.title,
            "dispatcher": row.dispatcher,
            "gain": row.gain_pct,
            "low": row.low_pct,
            "high": row.high_pct,
            "directional": row.directional,
            "text": row.text,
            "memory": row.memory or "unknown",
            "href": row.href,
        }
        for place, row in enumerate(rows)
    ]
    spec["datasets"] = {"gains": drawn, "zero": [{"gain": 0}]}
    spec["description"] = f"Gain in throughput over alltoall, {len(drawn)} results. The table holds the same values."
    return spec


def leader_chart(reigns: Sequence[Reign], stacks: int) -> dict[str, Any]:
    """A bar for each time between two changes at the head of a stack, in the colour of who led."""
    spec = dict(_leader_specification(chart_height(stacks)))
    drawn = [
        {
            "row": one.row,
            "name": one.name if one.is_first else "",
            "from": one.begins.isoformat(),
            "to": one.ends.isoformat(),
            "leader": one.leader,
            "text": one.text,
            "until": "now" if one.lasts else one.ends.strftime("%Y-%m-%d %H:%M"),
            "since": one.begins.strftime("%Y-%m-%d %H:%M"),
            "href": one.href,
        }
        for one in reigns
    ]
    spec["datasets"] = {"reigns": drawn}
    spec["description"] = f"Who led {stacks} rankings when. The table holds the same changes."
    return spec


def _colour(alt: Any, channel: Any, field: str) -> Any:
    scale = alt.Scale(domain=[*_DISPATCHERS, ""], range=[*_COLOURS, theme.BORDER])
    return channel(f"{field}:N", scale=scale, legend=None)


@lru_cache(maxsize=64)
def _gain_specification(height: int) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    data = alt.Chart(alt.NamedData("gains"))
    y = alt.Y("row:O", sort=None, title=None, axis=None)
    axis = alt.Axis(grid=True, domain=False, tickCount=8)
    x = alt.X("gain:Q", title="throughput against alltoall, %; right is faster", axis=axis)
    colour = _colour(alt, alt.Color, "dispatcher")
    filled = alt.when("datum.directional").then(alt.value(0)).otherwise(alt.value(1))
    tip = [
        alt.Tooltip("stack:N"),
        alt.Tooltip("dispatcher:N"),
        alt.Tooltip("text:N", title="throughput"),
        alt.Tooltip("memory:N", title="memory"),
    ]
    zero = alt.Chart(alt.NamedData("zero")).mark_rule(color=theme.MUTED, strokeDash=[4, 3]).encode(x=x)
    interval = data.mark_rule(strokeWidth=3, opacity=0.55, yOffset=8).encode(
        x=alt.X("low:Q"), x2="high:Q", y=y, color=colour
    )
    dots = data.mark_point(opacity=1, size=110, strokeWidth=2, yOffset=8, cursor="pointer").encode(
        x, y, colour, fill=_colour(alt, alt.Fill, "dispatcher"), fillOpacity=filled, tooltip=tip
    )
    names = data.mark_text(align="left", dy=-12, limit=340, color=theme.TEXT).encode(x=alt.value(6), y=y, text="name:N")
    return _finished(alt, alt.layer(zero, interval, dots, names), height)


@lru_cache(maxsize=64)
def _leader_specification(height: int) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # as above

    data = alt.Chart(alt.NamedData("reigns"))
    y = alt.Y("row:O", sort=None, title=None, axis=None)
    axis = alt.Axis(grid=True, domain=False, tickCount=6, labelOverlap=True)
    x = alt.X("from:T", title="time of the change (UTC)", axis=axis, scale=alt.Scale(type="utc"))
    tip = [
        alt.Tooltip("text:N", title="leader"),
        alt.Tooltip("since:N"),
        alt.Tooltip("until:N"),
    ]
    bars = data.mark_bar(height=12, yOffset=8, stroke=theme.BACKGROUND, strokeWidth=1, cursor="pointer").encode(
        x, alt.X2("to:T"), y, _colour(alt, alt.Color, "leader"), tooltip=tip
    )
    names = data.mark_text(align="left", dy=-12, limit=340, color=theme.TEXT).encode(x=alt.value(6), y=y, text="name:N")
    return _finished(alt, alt.layer(bars, names), height)


def _finished(alt: Any, chart: Any, height: int) -> dict[str, Any]:
    chart = chart.properties(width="container", height=height, config=theme.CONFIG)
    chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: dict[str, Any] = chart.to_dict()
    return spec
