"""Where the step goes: the timers of a run as horizontal bars, the longest first."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from app.domain.run import Timer
from app.web import chart_theme as theme
from app.web.numbers import percent, step_time

ROW = 26
"""Pixels a bar."""
SHOWN = 16
"""More bars than this nobody compares; the table has them all."""


def sorted_timers(timers: Sequence[Timer]) -> list[Timer]:
    return sorted(timers, key=lambda timer: -timer.median_ms)


def timer_name(name: str) -> str:
    return name.removeprefix("timer_").removesuffix("_ms").replace("_", " ").replace("-", " ")


def chart_height(timers: Sequence[Timer]) -> int:
    """Of the bars, without the axis below them."""
    return min(len(timers), SHOWN) * ROW


def timer_chart(timers: Sequence[Timer]) -> dict[str, Any]:
    """A Vega-Lite specification that charts.js embeds."""
    shown = sorted_timers(timers)[:SHOWN]
    # Labels stand behind the bars, so the axis is a quarter longer than the longest of them.
    longest = max((timer.share_of_step for timer in shown), default=1.0)
    spec = dict(_specification(chart_height(timers), math.ceil(longest * 1.25 * 10) / 10))
    spec["datasets"] = {"timers": [_row(timer) for timer in shown]}
    spec["description"] = f"Share of the step by timer, {len(shown)} timers. The table below holds the same values."
    return spec


def _row(timer: Timer) -> dict[str, Any]:
    return {
        "timer": timer_name(timer.name),
        "share": timer.share_of_step,
        "label": percent(timer.share_of_step * 100),
        "median": step_time(timer.median_ms),
        "spread": f"{timer.max_over_min:.2f}" if timer.max_over_min else "not printed",
    }


@lru_cache(maxsize=64)
def _specification(height: int, end: float) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    y = alt.Y("timer:N", sort=None, title=None, axis=alt.Axis(labelLimit=220, labelFontSize=12))
    ticks = [tick / 5 for tick in range(6) if tick / 5 <= end]
    x = alt.X("share:Q", title="share of the step", axis=alt.Axis(format="%", grid=True, domain=False, values=ticks))
    x = x.scale(alt.Scale(domain=[0, end], nice=False))
    bars = alt.Chart(alt.NamedData("timers")).mark_bar(color=theme.ACCENT, opacity=0.8, height={"band": 0.62})
    bars = bars.encode(
        x,
        y,
        tooltip=[
            alt.Tooltip("timer:N", title="timer"),
            alt.Tooltip("median:N", title="median"),
            alt.Tooltip("spread:N", title="slowest over fastest rank"),
        ],
    )
    labels = alt.Chart(alt.NamedData("timers")).mark_text(align="left", dx=6, color=theme.TEXT)
    chart = alt.layer(bars, labels.encode(x, y, text="label:N"))
    chart = chart.properties(width="container", height=height, config=theme.CONFIG)
    chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    spec: dict[str, Any] = chart.to_dict()
    return spec
