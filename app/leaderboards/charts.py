"""Two charts: the gain over alltoall in each stack, and the leadership periods. Tables show the same data."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from app.domain.naming import SEPARATOR, common_parts, without_common
from app.domain.numbers import DASH, gain_change, percent, time_saved
from app.domain.ranking.rank import Head, head_text
from app.domain.ranking.standings import Board, Entry, Gain
from app.leaderboards.words import routing_words, tie_sentence
from app.storage.standings import LeaderChange, StoredStandings
from app.web import charts

# --- The gain over alltoall of each result on a page, for the chart and its export.


@dataclass(frozen=True, slots=True)
class GainRow:
    """Change of step time against alltoall in percent, with the interval that decided.

    `memory`: empty if unknown. `name`: of the stack; `short_name`: without the part that all stacks on the page share.
    `tie`: why it is a tie, else empty.
    """

    name: str
    short_name: str
    dispatcher: str
    change_pct: float
    low_pct: float | None
    high_pct: float | None
    directional: bool
    tie: str
    text: str
    memory: str
    href: str


def gain_rows(items: Sequence[StoredStandings], page: str) -> tuple[GainRow, ...]:
    """Return rows in the order of the stacks and, in each, of its ranking. `page`: the address with their cards."""
    shorter = without_common([stack.name for stack in items])
    return tuple(
        _row(stack, short + _class(stack, board), entry, gain, page)
        for stack, short in zip(items, shorter, strict=True)
        for board in stack.standings.boards
        for entry, gain in _gains(board.entries)
    )


def gain_text(gain: Gain) -> str:
    """Format a gain: `15.4 % faster (13.8 to 16.9)`."""
    comparison = gain.comparison
    return gain_change(comparison.gain_pct, comparison.low_pct, comparison.high_pct).text


def memory_text(gain: Gain) -> str:
    """Format the memory: `12.0 % more memory`, `the same memory`; empty where unknown."""
    more = gain.memory_more_pct
    if more is None:
        return ""
    if abs(more) < 0.05:
        return "the same memory"
    return f"{percent(abs(more))} {'more' if more > 0 else 'less'} memory"


def _gains(entries: Iterable[Entry]) -> Iterable[tuple[Entry, Gain]]:
    return ((entry, entry.gain) for entry in entries if entry.gain is not None)


def _row(standings: StoredStandings, short: str, entry: Entry, gain: Gain, page: str) -> GainRow:
    comparison = gain.comparison
    return GainRow(
        name=standings.name,
        short_name=short,
        dispatcher=entry.dispatcher,
        change_pct=-time_saved(comparison.gain_pct),
        low_pct=None if comparison.high_pct is None else -time_saved(comparison.high_pct),
        high_pct=None if comparison.low_pct is None else -time_saved(comparison.low_pct),
        directional=comparison.directional,
        tie=tie_sentence(comparison) if comparison.tie else "",
        text=gain_text(gain),
        memory=memory_text(gain),
        href=f"{page}#stack-{standings.stack_key[:12]}",
    )


def _class(standings: StoredStandings, board: Board) -> str:
    """Return the class of a board for stacks that have several boards."""
    if len(standings.standings.boards) < 2:
        return ""
    return f"{SEPARATOR}{routing_words(board.routing_mode)}, {board.semantic_class.replace('_', ' ')}"


# --- Leadership periods as rows of a table and bars of a chart.


@dataclass(frozen=True, slots=True)
class LeadershipPeriod:
    """The time from one change of leaders to the next. `row`: of the chart, one for each board.

    `leader` is empty for a tie and without a leader; `text` says which. `lasts`: it has not ended; `ends` is then the
    last measurement of the stack, not now.
    """

    row: int
    name: str
    is_first: bool
    begins: datetime
    ends: datetime
    lasts: bool
    leader: str
    text: str
    href: str


def leadership_periods(changes: Sequence[LeaderChange], shown: Sequence[str] = ()) -> tuple[LeadershipPeriod, ...]:
    """Return leadership periods from changes, newest first. Times are history positions in the stack.

    `shown`: names of all stacks on the page; the part that they share with those of the changes is not repeated.
    """
    shared = set(common_parts([*shown, *(change.name for change in changes)]))
    boards: dict[tuple[str, str, str], list[LeaderChange]] = {}
    for change in reversed(changes):
        head = change.change.after
        boards.setdefault((change.stack_key, head.routing_mode, head.semantic_class), []).append(change)
    alike = len({(mode, semantic_class) for _, mode, semantic_class in boards}) == 1
    return tuple(
        period
        for row, own in enumerate(boards.values())
        for period in _periods(row, own, _name(own[-1], shared, with_class=not alike))
    )


def class_text(head: Head) -> str:
    """Format a class: `forced balance, benchmark only`."""
    return f"{routing_words(head.routing_mode)}, {head.semantic_class.replace('_', ' ')}"


def _periods(row: int, own: Sequence[LeaderChange], name: str) -> list[LeadershipPeriod]:
    """Return the periods of one board, oldest change first. A late run may lie before the change that it follows."""
    begins: list[datetime] = []
    for period in own:
        begins.append(max([period.happened_at, *begins[-1:]]))
    ends = [*begins[1:], max(own[-1].measured_until, begins[-1])]
    return [
        LeadershipPeriod(
            row=row,
            name=name,
            is_first=place == 0,
            begins=begin,
            ends=end,
            lasts=place == len(own) - 1,
            leader=_leader(period.change.after),
            text=head_text(period.change.after),
            href=f"/history/{period.stack_key}",
        )
        for place, (period, begin, end) in enumerate(zip(own, begins, ends, strict=True))
    ]


def _leader(head: Head) -> str:
    return head.dispatchers[0] if len(head.dispatchers) == 1 and head.reading == "leader" else ""


def _name(change: LeaderChange, shared: Set[str], *, with_class: bool) -> str:
    parts = change.name.split(SEPARATOR)
    name = SEPARATOR.join(part for part in parts if part not in shared) or change.name
    return f"{name}{SEPARATOR}{class_text(change.change.after)}" if with_class else name


ROW = 40
"""Pixels per row: name above, mark below. Names next to the marks would leave a phone no room."""
AXIS = 49
"""Pixels of the axis and its title below the rows."""
_GAIN, _TIME = "change of step time against alltoall, %; right is slower", "time of the runs (UTC)"
_DAYS = {"year": "%Y", "month": "%b %Y", "week": "%b %d", "date": "%b %d", "day": "%b %d", "hours": "%b %d %H:%M"}
_DISPATCHERS = ("allgather", "alltoall", "deepep", "hybridep", "ncclep")
_COLOURS = [f"--{name}" for name in _DISPATCHERS]


def chart_height(rows: int) -> int:
    """Return the height of the rows, without the axis below them."""
    return rows * ROW


def gain_chart(rows: Sequence[GainRow]) -> dict[str, Any]:
    """Return the Vega-Lite specification that charts.js embeds.

    Each row has a dot with its deciding interval; slower is to the right.
    """
    spec = dict(_gain_specification(chart_height(len(rows))))
    drawn = [
        {
            "row": place,
            "name": f"{row.dispatcher}{' (tie)' if row.tie else ''}, {row.short_name}",
            "stack": row.name,
            "dispatcher": row.dispatcher,
            "change": row.change_pct,
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
    spec["description"] = f"Change of step time against alltoall, {len(drawn)} results. The table has the same values."
    return spec


def leader_chart(periods: Sequence[LeadershipPeriod], stacks: int) -> dict[str, Any]:
    """Return a bar for each leadership period of a stack, in the colour of the leader."""
    spec = dict(_leader_specification(chart_height(stacks)))
    heads = {period.row: period.text for period in periods if period.lasts}
    drawn = [
        {
            "row": period.row,
            "name": f"{heads[period.row]}: {period.name}" if period.is_first else "",
            "from": period.begins.isoformat(),
            "to": period.ends.isoformat(),
            "leader": period.leader,
            "text": period.text,
            "until": _minute(period.ends) + (", the last measurement" if period.lasts else ""),
            "since": _minute(period.begins),
            "href": period.href,
        }
        for period in periods
    ]
    ends = [
        {
            "row": period.row,
            "to": period.ends.isoformat(),
            "leader": period.leader,
            "text": period.text,
            "since": _minute(period.begins),
            "until": f"{_minute(period.ends)}, the last measurement",
            "href": period.href,
        }
        for period in periods
        if period.lasts
    ]
    spec["datasets"] = {"periods": drawn, "ends": ends}
    spec["description"] = f"Leaders of {stacks} rankings over time. The table has the same changes."
    return spec


def _minute(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _colour(alt: Any, channel: Any, field: str) -> Any:
    scale = alt.Scale(domain=[*_DISPATCHERS, ""], range=[*_COLOURS, charts.BORDER_STRONG])
    return channel(f"{field}:N", scale=scale, legend=None)


@lru_cache(maxsize=64)
def _gain_specification(height: int) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    data = alt.Chart(alt.NamedData("gains"))
    y = alt.Y("row:O", sort=None, title=None, axis=None)
    axis = alt.Axis(grid=True, domain=False, tickCount=8)
    x = alt.X("change:Q", title=_GAIN, axis=axis)
    colour = _colour(alt, alt.Color, "dispatcher")
    filled = alt.when("datum.directional").then(alt.value(0)).otherwise(alt.value(1))
    tip = [
        alt.Tooltip("stack:N"),
        alt.Tooltip("dispatcher:N"),
        alt.Tooltip("text:N", title="step time"),
        alt.Tooltip("tie:N"),
        alt.Tooltip("memory:N", title="memory"),
    ]
    # One piece per row: a line through all rows would cross their names.
    zero = data.mark_tick(color=charts.MUTED, thickness=2, size=22, yOffset=8).encode(alt.X("zero:Q", title=_GAIN), y)
    interval = data.mark_rule(strokeWidth=3, opacity=0.55, yOffset=8).encode(
        x=alt.X("low:Q"), x2="high:Q", y=y, color=colour
    )
    dots = data.mark_point(opacity=1, size=110, strokeWidth=2, yOffset=8, cursor="pointer").encode(
        x, y, colour, fill=_colour(alt, alt.Fill, "dispatcher"), fillOpacity=filled, tooltip=tip
    )
    names = _names(alt, data, y)
    return charts.finished(alt.layer(zero, interval, dots, names), height)


@lru_cache(maxsize=64)
def _leader_specification(height: int) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # as above

    data = alt.Chart(alt.NamedData("periods"))
    y = alt.Y("row:O", sort=None, title=None, axis=None)
    axis = alt.Axis(grid=True, domain=False, tickCount=6, labelOverlap=True, format=_DAYS)
    x = alt.X("from:T", title=_TIME, axis=axis, scale=alt.Scale(type="utc"))
    tip = [
        alt.Tooltip("text:N", title="leader"),
        alt.Tooltip("since:N"),
        alt.Tooltip("until:N"),
    ]
    bars = data.mark_bar(height=12, yOffset=8, stroke=charts.BACKGROUND, strokeWidth=1, cursor="pointer").encode(
        x, alt.X2("to:T"), y, _colour(alt, alt.Color, "leader"), tooltip=tip
    )
    # In the leader's colour, with a fixed size: a period that begins with the last measurement has no width.
    ended = alt.Chart(alt.NamedData("ends")).mark_point(
        filled=True, opacity=1, size=170, stroke=charts.TEXT, strokeWidth=2, yOffset=8, cursor="pointer"
    )
    ends = ended.encode(alt.X("to:T", title=_TIME), y, _colour(alt, alt.Color, "leader"), tooltip=tip)
    return charts.finished(alt.layer(bars, ends, _names(alt, data, y)), height)


def _names(alt: Any, data: Any, y: Any) -> Any:
    """Draw the name of each row above its mark, from the left edge, over the full width."""
    limit = alt.expr("width - 12")
    return data.mark_text(align="left", dy=-12, limit=limit, color=charts.TEXT).encode(
        x=alt.value(6), y=y, text="name:N"
    )
