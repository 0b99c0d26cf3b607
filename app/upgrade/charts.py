"""The change of each stack with its interval: a dot and a line a row, the slowest first, inconclusive ones last."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from app.domain.naming import SEPARATOR, without_common
from app.domain.numbers import THIN, change_text
from app.upgrade.views import ComparedStackRow
from app.web import charts

ROW, TALL_ROW = 46, 56
"""Pixels per stack: name above, dot and line below. Names next to the dots would leave a phone no room. Rows are taller
if a name takes two lines."""
_LINE = 34
"""Most letters of a name in one line, which a phone has room for next to the change."""
_WORDS = ("worse", "better", "no change", "inconclusive", "unconfirmed", "in one run", "already slow")
_COLOURS = (
    "--regression",
    "--improvement",
    "--no-change",
    charts.MUTED,
    "--inconclusive",
    "--inconclusive",
    charts.MUTED,
)
_SHAPES = ("triangle-up", "triangle-down", "square", "circle", "triangle-up", "triangle-up", "triangle-up")
_OFF = ("triangle-left", "triangle-right")
"""Marks of a change that the axis does not reach, at its edge."""


def chart_height(rows: Sequence[ComparedStackRow]) -> int:
    """Return the height of the rows, without the axis above them."""
    has_long = any(_lines(name)[0] for name in without_common([row.title for row in rows]))
    return len(rows) * (TALL_ROW if has_long else ROW)


def _lines(name: str) -> tuple[str, str]:
    """Return the two lines of a name; the first is empty if one is enough."""
    parts, last = name.split(SEPARATOR), ""
    while parts and (not last or len(SEPARATOR.join([parts[-1], last])) <= _LINE):
        last = SEPARATOR.join(filter(None, [parts.pop(), last]))
    return SEPARATOR.join(parts), last


def zoomed(rows: Sequence[ComparedStackRow], first: int, last: int) -> tuple[Sequence[ComparedStackRow], bool]:
    """Return the rows with a change from that of one rank to that of another, and whether some are left out.

    These are all measured rows if neither rank exists, or if fewer than two rows are left.
    """
    shown = [(row, row.time.delta_pct) for row in rows if row.time is not None]
    ends = [change for rank, (_, change) in enumerate(shown, 1) if rank in (first, last)] or [math.nan]
    inside = [row for row, change in shown if min(ends) <= change <= max(ends)]
    return (inside, True) if 1 < len(inside) < len(shown) else ([row for row, _ in shown], False)


_MOST_OFF = 1.5
"""The axis ends at this multiple of the decided changes and their intervals, so that these rows stay readable."""
_DECIDED = ("worse", "better", "no change")


def axis_reach(rows: Sequence[ComparedStackRow]) -> float:
    """Return where changes and intervals are cut, in percent; infinite without a decided change."""
    ends = [abs(end) for row in rows if row.word in _DECIDED for end in row.line]
    return _MOST_OFF * max(ends) if ends else math.inf


def upgrade_chart(rows: Sequence[ComparedStackRow], first: int = 0, last: int = 0) -> dict[str, Any]:
    """Return the Vega-Lite specification that charts.js embeds. `first` and `last`: ranks at the ends of the zoom."""
    shown, is_zoomed = zoomed(rows, first, last)
    measured = [row for row in rows if row.time is not None]
    names = without_common([row.title for row in measured])
    reach = axis_reach(shown)
    ranked = enumerate(zip(measured, names, strict=True), 1)
    drawn = [_row(row, name, rank, reach) for rank, (row, name) in ranked if row in shown]
    room = min(_MOST_NAMES, _LETTER * max((len(line) for name in names for line in _lines(name)), default=0) + 24)
    spec = dict(_specification(chart_height(shown), room))
    spec["datasets"] = {"points": drawn, "zero": [] if is_zoomed else [{"shown": 0}]}
    spec["description"] = f"Change of step time of {len(drawn)} jobs. The table has the same values."
    return spec


def _row(row: ComparedStackRow, name: str, rank: int, reach: float) -> dict[str, Any]:
    assert row.time is not None  # noqa: S101  # the caller looked
    low, high = row.line
    change = change_text(row.time.delta_pct, *row.interval)
    shown = max(-reach, min(row.time.delta_pct, reach))
    first_line, last_line = _lines(name)
    return {
        "id": rank,
        "at": shown,
        "stack": row.title,
        "href": f"/history/{row.stack_key}",
        "first_line": first_line,
        "last_line": last_line,
        "delta": row.time.delta_pct,
        "shown": shown,
        "mark": row.word if shown == row.time.delta_pct else _OFF[shown > 0],
        "low": max(low, -reach),
        "high": min(high, reach),
        "below": f"◂ {low:.0f}{THIN}%".replace("-", "−") if low < -reach else "",
        "beyond": f"{high:.0f}{THIN}% ▸" if high > reach else "",
        "word": row.word,
        "is_quiet": row.word == "inconclusive",
        "change": change.text,
        "label": change.figure,
    }


_CHANGES, _NARROW = 110, 640
"""Pixels of changes right of the axis, and of the width below which they and names stand above the marks."""
_MOST_NAMES, _LETTER = 460, 7
"""Most pixels of names left of the axis, and pixels of a letter."""


def _by_weight(quiet: int, decided: int) -> str:
    """Return a Vega expression: an inconclusive row is drawn with less weight."""
    return f"datum.is_quiet ? {quiet} : {decided}"


@lru_cache(maxsize=64)
def _specification(height: int, room: int) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    of_names = f"min({room}, 0.35 * width)"
    data = alt.NamedData("points")
    y = alt.Y("stack:N", sort=None, title=None, axis=None, scale=alt.Scale(padding=0))
    # Names stand left of the axis, on a phone above their marks.
    x = alt.X(
        "shown:Q",
        title="change of step time, %; right is slower",
        axis=alt.Axis(orient="top", labelPadding=6, grid=True, domain=False, tickCount=8),
        scale=alt.Scale(
            zero=False,
            range=[
                alt.expr(f"width < {_NARROW} ? 8 : {of_names}"),
                alt.expr(f"width < {_NARROW} ? width : width - {_CHANGES}"),
            ],
        ),
    )
    colour = alt.Color("word:N", scale=alt.Scale(domain=list(_WORDS), range=list(_COLOURS)), legend=None)
    shapes = alt.Scale(domain=[*_WORDS, *_OFF], range=[*_SHAPES, *_OFF])
    shape = alt.Shape("mark:N", scale=shapes, legend=None)
    zero = alt.Chart(alt.NamedData("zero")).mark_rule(color=charts.MUTED, strokeDash=[4, 3]).encode(x=x)
    interval = alt.Chart(data).mark_rule(strokeWidth=alt.expr(_by_weight(1, 3)), opacity=0.55, yOffset=8)
    dots = alt.Chart(data).mark_point(filled=True, opacity=1, size=alt.expr(_by_weight(50, 110)), yOffset=8)
    above = alt.expr(f"width < {_NARROW} ? -12 : 8")
    limit = alt.expr(f"width < {_NARROW} ? width - {_CHANGES} : {of_names} - 12")
    full = alt.expr(f"width < {_NARROW} ? width : {of_names} - 12")
    # The first of two lines stands above the other; next to the marks, both are around their middle.
    upper = alt.expr(f"width < {_NARROW} ? -25 : 1")
    lower = alt.expr(f"width < {_NARROW} ? -12 : datum.first_line ? 15 : 8")
    first_lines = alt.Chart(data).mark_text(align="left", dy=upper, limit=full, color=charts.TEXT)
    last_lines = alt.Chart(data).mark_text(align="left", dy=lower, limit=limit, color=charts.TEXT)
    # The space of a name and of a change is clear of lines; where a name has one line, the axis is above it.
    clear = [
        alt.Chart(data).mark_bar(color=charts.BACKGROUND, size=18, yOffset=offset, opacity=shown)
        for offset, shown in ((upper, alt.expr("datum.first_line ? 1 : 0")), (above, 1))
    ]
    changes = alt.Chart(data).mark_text(align="right", dy=above, fontWeight=alt.expr(_by_weight(400, 600)))
    # The end of an interval that the axis does not reach, below its line.
    below, beyond = (
        alt.Chart(data).mark_text(align=align, dy=19, fontSize=10, color=charts.MUTED) for align in ("left", "right")
    )
    chart = alt.layer(
        zero,
        *(bar.encode(x=alt.value(0), x2=alt.value(full), y=y) for bar in clear),
        interval.encode(x=alt.X("low:Q"), x2="high:Q", y=y, color=colour),
        dots.encode(
            x,
            y,
            colour,
            shape,
            tooltip=[
                alt.Tooltip("stack:N"),
                alt.Tooltip("change:N", title="step time"),
                alt.Tooltip("word:N", title="decision"),
            ],
        ).add_params(alt.selection_interval(name="zoom", encodings=["x"])),
        first_lines.encode(x=alt.value(0), y=y, text="first_line:N"),
        last_lines.encode(x=alt.value(0), y=y, text="last_line:N"),
        below.encode(x="low:Q", y=y, text="below:N"),
        beyond.encode(x="high:Q", y=y, text="beyond:N"),
        changes.encode(x=alt.value(alt.expr("width")), y=y, text="label:N", color=colour),
    )
    return charts.finished(chart, height)
