"""Two charts: the gain over alltoall in each stack, and who led a stack when. Their tables stand beside them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from app.domain.numbers import DASH
from app.leaderboards.gains import GainRow
from app.leaderboards.leaders import Reign
from app.web import chart_theme as theme

ROW = 40
"""Pixels a row: its name above, its mark below. Names beside the marks would leave a phone no room."""
AXIS = 84
"""Pixels of the axis and its title below the rows."""
_GAIN, _TIME = "throughput against alltoall, %; right is faster", "time of the runs (UTC)"
_DAYS = {"year": "%Y", "month": "%b %Y", "week": "%b %d", "date": "%b %d", "day": "%b %d", "hours": "%b %d %H:%M"}
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
            "name": f"{row.dispatcher}{' (tie)' if row.tie else ''}, {row.short_name}",
            "stack": row.name,
            "dispatcher": row.dispatcher,
            "gain": row.gain_pct,
            "low": row.low_pct,
            "high": row.high_pct,
            "directional": row.directional,
            "text": row.text,
            "tie": row.tie or DASH,
            "memory": row.memory or "unknown",
            "zero": 0,
            "href": row.href,
        }
        for place, row in enumerate(rows)
    ]
    spec["datasets"] = {"gains": drawn}
    spec["description"] = f"Gain in throughput over alltoall, {len(drawn)} results. The table holds the same values."
    return spec


def leader_chart(reigns: Sequence[Reign], stacks: int) -> dict[str, Any]:
    """A bar for each time between two changes at the head of a stack, in the colour of who led."""
    spec = dict(_leader_specification(chart_height(stacks)))
    heads = {one.row: one.text for one in reigns if one.lasts}
    drawn = [
        {
            "row": one.row,
            "name": f"{heads[one.row]}: {one.name}" if one.is_first else "",
            "from": one.begins.isoformat(),
            "to": one.ends.isoformat(),
            "leader": one.leader,
            "text": one.text,
            "until": _minute(one.ends) + (", the last measurement" if one.lasts else ""),
            "since": _minute(one.begins),
            "href": one.href,
        }
        for one in reigns
    ]
    ends = [
        {
            "row": one.row,
            "to": one.ends.isoformat(),
            "leader": one.leader,
            "text": one.text,
            "since": _minute(one.begins),
            "until": f"{_minute(one.ends)}, the last measurement",
            "href": one.href,
        }
        for one in reigns
        if one.lasts
    ]
    spec["datasets"] = {"reigns": drawn, "ends": ends}
    spec["description"] = f"Who led {stacks} rankings when. The table holds the same changes."
    return spec


def _minute(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _colour(alt: Any, channel: Any, field: str) -> Any:
    scale = alt.Scale(domain=[*_DISPATCHERS, ""], range=[*_COLOURS, theme.BORDER_STRONG])
    return channel(f"{field}:N", scale=scale, legend=None)


@lru_cache(maxsize=64)
def _gain_specification(height: int) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    data = alt.Chart(alt.NamedData("gains"))
    y = alt.Y("row:O", sort=None, title=None, axis=None)
    axis = alt.Axis(grid=True, domain=False, tickCount=8)
    x = alt.X("gain:Q", title=_GAIN, axis=axis)
    colour = _colour(alt, alt.Color, "dispatcher")
    filled = alt.when("datum.directional").then(alt.value(0)).otherwise(alt.value(1))
    tip = [
        alt.Tooltip("stack:N"),
        alt.Tooltip("dispatcher:N"),
        alt.Tooltip("text:N", title="throughput"),
        alt.Tooltip("tie:N"),
        alt.Tooltip("memory:N", title="memory"),
    ]
    # A piece for each row, beside its mark: one line through all rows would run through their names.
    zero = data.mark_tick(color=theme.MUTED, thickness=2, size=22, yOffset=8).encode(alt.X("zero:Q", title=_GAIN), y)
    interval = data.mark_rule(strokeWidth=3, opacity=0.55, yOffset=8).encode(
        x=alt.X("low:Q"), x2="high:Q", y=y, color=colour
    )
    dots = data.mark_point(opacity=1, size=110, strokeWidth=2, yOffset=8, cursor="pointer").encode(
        x, y, colour, fill=_colour(alt, alt.Fill, "dispatcher"), fillOpacity=filled, tooltip=tip
    )
    names = _names(alt, data, y)
    return _finished(alt, alt.layer(zero, interval, dots, names), height)


@lru_cache(maxsize=64)
def _leader_specification(height: int) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # as above

    data = alt.Chart(alt.NamedData("reigns"))
    y = alt.Y("row:O", sort=None, title=None, axis=None)
    axis = alt.Axis(grid=True, domain=False, tickCount=6, labelOverlap=True, format=_DAYS)
    x = alt.X("from:T", title=_TIME, axis=axis, scale=alt.Scale(type="utc"))
    tip = [
        alt.Tooltip("text:N", title="leader"),
        alt.Tooltip("since:N"),
        alt.Tooltip("until:N"),
    ]
    bars = data.mark_bar(height=12, yOffset=8, stroke=theme.BACKGROUND, strokeWidth=1, cursor="pointer").encode(
        x, alt.X2("to:T"), y, _colour(alt, alt.Color, "leader"), tooltip=tip
    )
    # In the leader's colour, with a size of its own: a lead may begin with the last measurement, and has no width then.
    ended = alt.Chart(alt.NamedData("ends")).mark_point(
        filled=True, opacity=1, size=170, stroke=theme.TEXT, strokeWidth=2, yOffset=8, cursor="pointer"
    )
    ends = ended.encode(alt.X("to:T", title=_TIME), y, _colour(alt, alt.Color, "leader"), tooltip=tip)
    return _finished(alt, alt.layer(bars, ends, _names(alt, data, y)), height)


def _names(alt: Any, data: Any, y: Any) -> Any:
    """Of each row above its mark, from the left edge of the drawing, as wide as that is."""
    limit = alt.expr("width - 12")
    return data.mark_text(align="left", dy=-12, limit=limit, color=theme.TEXT).encode(
        x=alt.value(6), y=y, text="name:N"
    )


def _finished(alt: Any, chart: Any, height: int) -> dict[str, Any]:
    chart = chart.properties(width="container", height=height, config=theme.CONFIG)
    chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: dict[str, Any] = chart.to_dict()
    return spec
