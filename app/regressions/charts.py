"""A small chart of one member: its metric over the runs of its configuration, with the change and both levels."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlmodel import Session

from app.domain.numbers import absolute, short_commit
from app.domain.performance.health import BYTES_PER_GIB
from app.regressions.regression import Member
from app.regressions.words import figure_text
from app.storage.stacks import StackRun, stack_runs
from app.web import charts

NEWEST = 200
"""Maximum number of drawn runs: the change must be visible, and the history page shows the rest."""
HEIGHT = 180
_SECONDS_FROM_MS = 10_000.0
_ROLES = ("before", "first slow run", "after", "not counted")


@dataclass(frozen=True, slots=True)
class Point:
    """One run. `place` counts the runs of its configuration from 1, `role` is one of _ROLES."""

    place: int
    run: StackRun
    value: float
    text: str
    role: str


def points_of(session: Session, project_id: int, member: Member, metric: str) -> tuple[Point, ...]:
    """Return the runs of the member's configuration around its change that have this figure, in commit order."""
    runs = stack_runs(session, project_id, member.stack_key, with_metrics=False)
    shown = [run for run in runs if run.config_key == member.config_key and math.isfinite(_value(run, metric))]
    slow = next((k for k, run in enumerate(shown) if run.id == member.run_id), len(shown))
    first = max(0, min(len(shown) - NEWEST, slow - NEWEST // 4))
    newest = list(enumerate(shown))[first : first + NEWEST]
    values = ((k, run, _value(run, metric)) for k, run in newest)
    return tuple(Point(k + 1, run, value, figure_text(metric, value), _role(run, k, slow)) for k, run, value in values)


def _value(run: StackRun, metric: str) -> float:
    """Return the figure in the unit of the metric; NaN if the run does not have it."""
    if metric == "peak_memory_gib":
        memory = run.facts.estimate.peak_memory_bytes
        return math.nan if memory is None else memory / BYTES_PER_GIB
    return math.exp(run.log_step_time)


def _role(run: StackRun, place: int, slow: int) -> str:
    if place == slow:
        return "first slow run"
    if not run.makes_levels:
        return "not counted"
    return "before" if place < slow else "after"


def history_chart(points: Sequence[Point], member: Member, metric: str) -> dict[str, Any]:
    """Return the Vega-Lite specification; a click on a point opens its run."""
    scale, title = _scale(points, metric)
    spec = dict(_specification(title))
    spec["datasets"] = {
        "points": [_row(point, scale) for point in points],
        "change": [{"place": p.place, "label": f"#{p.run.id}"} for p in points if p.role == "first slow run"],
        "levels": _levels(points, member, metric, scale),
    }
    spec["description"] = f"{title} of {len(points)} runs in commit order. The table has the same values."
    return spec


def _scale(points: Sequence[Point], metric: str) -> tuple[float, str]:
    """Return the factor for values, and the title of the axis with its unit."""
    if metric == "peak_memory_gib":
        return 1.0, "peak memory (GiB)"
    return (1e-3, "step time (s)") if points[0].value >= _SECONDS_FROM_MS else (1.0, "step time (ms)")


def _row(point: Point, scale: float) -> dict[str, Any]:
    run = point.run
    return {
        "place": point.place,
        "value": point.value * scale,
        "text": point.text,
        "role": point.role,
        "run": f"#{run.id} {run.name}",
        "commit": short_commit(run.commit) or "unknown",
        "at": absolute(run.ordered_at),
        "href": f"/runs/{run.id}",
    }


def _levels(points: Sequence[Point], member: Member, metric: str, scale: float) -> list[dict[str, Any]]:
    """Return the lines of both levels: the usual one up to the change, the slow one to the last run nearer to it."""
    slow = next((point.place for point in points if point.role == "first slow run"), None)
    if slow is None or member.usual is None or member.slow is None:
        return []
    first, between = points[0].place, math.sqrt(member.usual * member.slow)
    slow_ones = (p.place for p in points if p.place > slow and p.role == "after" and p.value > between)
    # After an upgrade the first run is the slow one; the usual level comes from another stack.
    until = slow if slow > first else max(points[-1].place, first + 1)
    return [
        _level(first, until, member.usual * scale, f"usual {figure_text(metric, member.usual)}"),
        _level(slow, max(slow_ones, default=slow + 1), member.slow * scale, f"slow {figure_text(metric, member.slow)}"),
    ]


def _level(first: int, last: int, value: float, label: str) -> dict[str, Any]:
    return {"from": first, "to": last, "value": value, "label": label}


@lru_cache(maxsize=4)
def _specification(title: str) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    x = alt.X("place:Q", title="run, in commit order", scale=alt.Scale(zero=False, nice=False, padding=12))
    x = x.axis(tickMinStep=1, format=",d")
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, nice=True))
    chart = alt.layer(_change(alt), *_level_marks(alt), *_marks(alt, x, y))
    chart = chart.properties(width="container", height=HEIGHT, config=charts.CONFIG)
    spec: dict[str, Any] = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding")).to_dict()
    return spec


def _change(alt: Any) -> Any:
    drawn = alt.Chart(alt.NamedData("change")).mark_rule(color=charts.SPIKE, strokeDash=[4, 3])
    return drawn.encode(x=alt.X("place:Q"))


def _level_marks(alt: Any) -> list[Any]:
    data = alt.NamedData("levels")
    rule = alt.Chart(data).mark_rule(color=charts.MUTED, strokeWidth=1.5)
    label = alt.Chart(data).mark_text(align="left", baseline="bottom", dx=4, dy=-3, color=charts.MUTED)
    place = alt.X("from:Q")
    return [
        rule.encode(x=place, x2="to:Q", y=alt.Y("value:Q")),
        label.encode(x=place, y=alt.Y("value:Q"), text="label:N"),
    ]


def _marks(alt: Any, x: Any, y: Any) -> list[Any]:
    data = alt.NamedData("points")
    shapes = alt.Scale(domain=list(_ROLES), range=["circle", "diamond", "circle", "cross"])
    colours = alt.Scale(domain=list(_ROLES), range=[charts.ACCENT, charts.SPIKE, charts.ACCENT, charts.MUTED])
    size = alt.when("datum.role == 'first slow run'").then(alt.value(110)).otherwise(alt.value(30))
    marks = alt.Chart(data).mark_point(filled=True, opacity=1, cursor="pointer")
    marks = marks.encode(
        x,
        y,
        shape=alt.Shape("role:N", scale=shapes, legend=None),
        color=alt.Color("role:N", scale=colours, legend=None),
        size=size,
        href=alt.Href("href:N"),
        tooltip=alt.value(alt.expr(_tip())),
    )
    return [marks]


def _tip() -> str:
    """Return the expression for the row of the point: Vega-Lite's own tooltip fields quote text."""
    parts = {
        "run": "datum.run",
        "value": "datum.text",
        "commit": "datum.commit",
        "place": "datum.at",
        "counts as": "datum.role",
    }
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in parts.items()) + "}"
