"""The chart of a regression: a row per job with the runs before and after its change.

Each row shows the difference from the job's usual level in percent, so that jobs of different speed are comparable.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from statistics import fmean, median
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, and_, tuple_
from sqlmodel import Session, col

from app.domain.naming import SEPARATOR, distinct_names
from app.domain.numbers import absolute, change_text, gpu_hours, metric_text, short_commit
from app.domain.text import shortened
from app.domain.verdict.regression import RegressionMember, SlowJob
from app.domain.verdict.regression_text import how_often_here
from app.storage.regressions import SlowElsewhere
from app.storage.stacks import RunReader, StackRun, stack_runs
from app.storage.tables import RunRow, not_indexed, select_any
from app.storage.verdicts import LaterRun, current_verdict, regressions_of_runs
from app.web import charts

FIRST_JOBS, MOST_JOBS = 4, 12
"""Number of jobs that are drawn at first, and at most; the table below lists all."""
MOST_BEFORE, MOST_AFTER = 30, 170
"""Maximum runs of a job before its change, and from it on. The history page shows the rest."""
FEWEST_BEFORE = 3
"""If a job has fewer runs of its own before the change, its row shows the runs that it was compared with."""
ROW, HIGH_ROW, FEW_ROWS = 112, 196, 2
"""Heights (px) of a row, and of a row in a chart with few."""
GAP, AXIS = 36, 42
"""Heights (px) of the two lines of text above a row, and of the labels below the last row."""
_LANE, _LINE, _FREE = 10, 14, 4
"""Heights (px) of the top of a row, for off-scale values, of a line of text, and of the space between them."""
_ABOVE = 12
"""Distance (px) of the label of an earlier regression above its highest run."""
_LEAST_SPAN = 4.0
"""Minimum range of the axis in percent, so that noise does not look like a change."""
_ALIKE = 3.0
"""Rows share a scale if the widest range is at most this multiple of the narrowest; else small changes look flat."""
_TICKS = 6
_BAND_ROOM = "(scale('x', datum.to) - scale('x', datum.from) - 8) / 6"
"""Vega expression for the number of letters that fit in a band."""
_BAND_NAME = f"length(datum.name) < {_BAND_ROOM} ? datum.name : length(datum.short) < {_BAND_ROOM} ? datum.short : ''"
_LETTERS, _WIDE_LETTERS = 32, 64
"""Maximum letters of a name on a phone, and on a wide page next to the change."""
_NAME_ROOM = "width < 420 ? width : width - 7 * length(datum.figures) - 12"
_NEEDED = "(6 * length(datum.label) + 12)"
"""Vega expression for the width (px) of the text of an off-scale mark."""
_ROOM_AFTER = f"scale('x', datum.after) - scale('x', datum.at) > {_NEEDED}"
_ROOM_BEFORE = f"scale('x', datum.at) - scale('x', datum.before) > 2 * {_NEEDED}"
_WITH_YEAR = timedelta(days=300)
_ROLES = ("before", "another stack", "first slow run", "only slow run", "after", "not counted", "slow elsewhere")
_SLOWED = _ROLES[2:4]
BEFORE, AFTER = _ROLES[:2], _ROLES[2:5]
Moment = tuple[datetime, str | int]
"""History position of a run, and its commit, else its number."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run. `delta_pct`: difference from the usual level. `role`: one of _ROLES. `stack`: index in the job.

    `meaning`: the role for users, with the reason why a run does not count: `excluded: not steady`. `change`: that
    difference for users; an excluded run has none. `earlier`: the regression to which a run before the change belongs,
    if any.
    """

    run: StackRun
    stack: int
    value: float
    text: str
    delta_pct: float
    role: str
    meaning: str
    change: str
    earlier: int | None = None


@dataclass(frozen=True, slots=True)
class DrawnJob:
    """A job and its drawn runs in commit order. `change`: where it became slower. `begins`: in its own stack."""

    job: SlowJob
    points: tuple[Point, ...]
    change: Moment
    begins: Moment


_BEFORE_IT, _ELSEWHERE = -1, -2
"""Replace the index of a stack for runs of another stack or configuration that the change was compared with, and for
runs of the job in stacks that are no members."""


def job_rows(
    session: Session,
    project_id: int,
    jobs: Sequence[SlowJob],
    metric: str,
    elsewhere: Mapping[int, Sequence[SlowElsewhere | LaterRun]],
    *,
    is_upgrade: bool,
) -> tuple[DrawnJob, ...]:
    """Return the rows of the chart, without jobs whose level is unknown.

    `elsewhere`: by first slow run, the runs of the job in stacks that are no members: those that are as slow, and all
    those after the last run in a member.
    `is_upgrade`: the stack began with the change, so all its runs come after it.
    """
    rows = []
    for job in jobs[:MOST_JOBS]:
        if job.first.usual:
            runs = _runs(session, project_id, job, elsewhere[job.first.run_id], is_upgrade=is_upgrade)
            compared = compared_runs(is_upgrade=is_upgrade)
            if metric == "lm_loss":
                # Only for this metric. Typical losses cover the iterations that all runs share.
                facts = RunReader(session).with_losses([run.facts for run, _ in runs])
                runs = [(replace(run, facts=own), stack) for (run, stack), own in zip(runs, facts, strict=True)]
            own = [run for run, stack in runs if stack >= 0]
            begins = _moment(own[0]) if is_upgrade and own else _moment_of(job.first)
            slow_before = (_moment(run) for run, stack in runs if stack == _ELSEWHERE and run.counts_in_segments)
            change = min((begins, *slow_before), key=_order)
            rows.append(DrawnJob(job, tuple(_points(runs, job, metric, change, compared)), change, begins))
    return _with_earlier(session, [row for row in rows if row.points], metric)


def _with_earlier(session: Session, rows: Sequence[DrawnJob], metric: str) -> tuple[DrawnJob, ...]:
    """Add to runs before the change the regression to which they belong."""
    before = {point.run.id for row in rows for point in row.points if point.role in BEFORE}
    slow = regressions_of_runs(session, before, metric)
    return tuple(
        replace(row, points=tuple(replace(point, earlier=slow.get(point.run.id)) for point in row.points))
        for row in rows
    )


def _runs(
    session: Session, project_id: int, job: SlowJob, elsewhere: Sequence[SlowElsewhere | LaterRun], *, is_upgrade: bool
) -> list[tuple[StackRun, int]]:
    """Return the runs around the change in commit order, each with the index of its stack in the job."""
    first = job.first

    def read(stack_key: str, newest: int, *conditions: ColumnElement[bool]) -> list[StackRun]:
        return stack_runs(session, project_id, stack_key, *conditions, with_metrics=False, newest=newest)

    def of(config_key: str, job: str) -> ColumnElement[bool]:
        # The same configuration and job only, because others in the stack may have another speed.
        of_config = not_indexed(col(RunRow.config_key)) == config_key
        return and_(of_config, not_indexed(col(RunRow.job)).in_((job, ""))) if job else of_config

    position = tuple_(col(RunRow.ordered_at), col(RunRow.id))
    earlier = position < (first.ordered_at, first.run_id)
    before = read(first.stack_key, MOST_BEFORE, of(first.config_key, first.job), earlier)
    drawn = [(run, 0) for run in before]
    for index, member in enumerate(job.stacks):
        later = position >= (member.ordered_at, member.run_id)
        after = read(member.stack_key, MOST_AFTER, of(member.config_key, member.job), later)
        if all(run.id != member.run_id for run in after):
            after = [*read(member.stack_key, 1, col(RunRow.id) == member.run_id), *after]
        drawn += [(run, index) for run in after]
    if is_upgrade or sum(run.counts_in_segments for run in before) < FEWEST_BEFORE:
        for stack_key, config_key, of_job in _compared_with(session, first):
            if (stack_key, config_key) != (first.stack_key, first.config_key):
                drawn += [(run, _BEFORE_IT) for run in read(stack_key, MOST_BEFORE, of(config_key, of_job), earlier)]
    slow: dict[str, list[int]] = {}
    for run in elsewhere:
        slow.setdefault(run.stack_key, []).append(run.id)
    for stack_key, ids in slow.items():
        drawn += [(run, _ELSEWHERE) for run in read(stack_key, len(ids), col(RunRow.id).in_(ids))]
    once = {run.id: (run, stack) for run, stack in drawn}.values()
    return sorted(once, key=lambda pair: (pair[0].ordered_at, pair[0].id))


def _compared_with(session: Session, member: RegressionMember) -> list[tuple[str, str, str]]:
    """Return (stack key, config key, job) of the runs that the first slow run was compared with."""
    verdict = current_verdict(session, member.run_id)
    if verdict is None:
        return []
    document = verdict.document
    ids = [int(run) for run in (*document.baseline, *(document.upgrade.runs if document.upgrade else ()))]
    chosen = select_any(RunRow.stack_key, RunRow.config_key, RunRow.job).where(col(RunRow.id).in_(ids)).distinct()
    return [(row.stack_key, row.config_key, row.job) for row in session.execute(chosen)]


def compared_runs(*, is_upgrade: bool) -> str:
    """Return the role, for users, of runs of another stack that the change was compared with."""
    return "before the upgrade" if is_upgrade else "another stack"


def _points(
    runs: Sequence[tuple[StackRun, int]], job: SlowJob, metric: str, change: Moment, compared: str
) -> Iterator[Point]:
    member = job.first
    assert member.usual is not None  # noqa: S101  # the caller looked
    for run, stack in runs:
        value = _value(run, metric)
        if math.isfinite(value):
            is_slow = value > math.sqrt(member.usual * (member.slow or member.usual))
            is_elsewhere = stack == _ELSEWHERE and is_slow and run.counts_in_segments
            role = _ROLES[-1] if is_elsewhere else _role(run, job, change, stack == _BEFORE_IT)
            delta = 100 * (value / member.usual - 1)
            change_of_run = "–" if role == "not counted" else change_text(delta, metric=metric).figure
            meaning = compared if role == "another stack" else _meaning(run, role, metric)
            text = metric_text(metric, value)
            yield Point(run, stack, value, text, delta, role, meaning, change_of_run)


def _value(run: StackRun, metric: str) -> float:
    """Return the figure in the unit of the metric; NaN if the run has none."""
    if metric == "peak_memory_gib":
        return math.nan if run.peak_memory_gib is None else run.peak_memory_gib
    if metric == "lm_loss":
        loss = run.facts.estimate.loss
        return math.nan if loss is None else loss
    return math.exp(run.log_step_time)


def _role(run: StackRun, job: SlowJob, change: Moment, is_of_other: bool) -> str:
    member = job.first
    if run.id == member.run_id:
        return "only slow run" if job.is_once else "first slow run"
    if not run.counts_in_segments:
        return "not counted"
    if is_of_other:
        return "another stack"
    place = member.ordered_at, member.run_id
    is_before = (run.ordered_at, run.id) < place and run.ordered_at < change[0]
    return "before" if is_before else "after"


def _meaning(run: StackRun, role: str, metric: str) -> str:
    if role == "not counted":
        return f"excluded: {run.facts.never_a_baseline_because or 'not a ci run'}"
    return role if metric == "step_time_ms" else role.replace("slow", "affected")


def zoomed(
    rows: Sequence[DrawnJob], first: int, last: int
) -> tuple[tuple[DrawnJob, ...], tuple[Moment, Moment] | None]:
    """Return the rows between runs `first` and `last`, and the ends; all rows if the chart lacks one of these runs."""
    moments = {point.run.id: _moment(point.run) for row in rows for point in row.points}
    if not {first, last} <= moments.keys():
        return tuple(rows), None
    begin, end = sorted((moments[first], moments[last]), key=_order)
    inside = (
        replace(row, points=tuple(p for p in row.points if _order(begin) <= _order(_moment(p.run)) <= _order(end)))
        for row in rows
    )
    return tuple(row for row in inside if row.points), (begin, end)


# --- The specification. Rows are stacked on one value axis, each with its own range.


def _row_height(rows: int) -> int:
    return ROW if rows > FEW_ROWS else HIGH_ROW


def chart_height(rows: int) -> int:
    """Return the height (px) of the chart with its axis."""
    return rows * (_row_height(rows) + GAP) + AXIS


def history_chart(rows: Sequence[DrawnJob], metric: str, ends: tuple[Moment, Moment] | None = None) -> dict[str, Any]:
    """Return the Vega-Lite specification. Its value axis is in pixels, and a click on a point opens the run.

    `ends`: of the zoom. `rows` have no points beyond them (see `zoomed`).
    """
    places = _places(rows)
    begin, end = (places[ends[0]] - 0.5, places[ends[1]] + 0.5) if ends else (0.5, len(places) + 0.5)
    names, height = distinct_names([row.job.title for row in rows]), _row_height(len(rows))
    levels = [_clipped(_levels(row, places), begin, end) for row in rows]
    reached = [[*([] if ends else [0.0]), *(line["delta"] for line in of_row)] for of_row in levels]
    data: dict[str, list[dict[str, Any]]] = {
        "frame": [{"at": begin, "shown": 0.0}, {"at": end, "shown": -len(rows) * (height + GAP)}],
        "points": [], "lane": [], "changes": [], "bands": [], "levels": [], "names": [], "grid": [], "values": [],
        "earlier": [],
        "ticks": _ticks(rows, {moment: place for moment, place in places.items() if begin < place < end}),
    }  # fmt: skip
    for k, (row, (low, high), name) in enumerate(zip(rows, _ranges(rows, reached), names, strict=True)):
        bottom, pixels = -(k + 1) * (height + GAP), (height - _LANE) / (high - low)

        def at(delta: float, low: float = low, bottom: float = bottom, pixels: float = pixels) -> float:
            return bottom + pixels * (delta - low)

        lane = at(high) + _LANE / 2
        second_line = at(high) + _LANE + _FREE + _LINE / 2
        data["names"].append(_name(row, name, second_line, metric))
        for value in _grid(low, high):
            label = f"{value:+g} %".replace("-", "−") if value else "0"
            data["grid"].append({"shown": at(value)})
            data["values"].append({"shown": at(value), "label": label})
        for point in row.points:
            is_on_axis = low <= point.delta_pct <= high
            data["points" if is_on_axis else "lane"].append(
                _mark(point, places[_moment(point.run)]) | {"shown": at(point.delta_pct) if is_on_axis else lane}
            )
        _add_distances([mark for mark in data["lane"] if mark["shown"] == lane], begin, end)
        data["earlier"] += [
            label | {"shown": min(at(label["delta"]) + _ABOVE, at(high))}
            for label in _earlier(row, places, (low, high))
        ]
        data["levels"] += [line | {"shown": at(line["delta"])} for line in levels[k]]
        edges = {"line": second_line, "top": lane, "bottom": at(low)}
        data["bands"] += [band | edges for band in _clipped(_bands(row, places), begin, end)]
        data["changes"].append({"at": places[row.change] - 0.5, "top": at(high), "bottom": at(low)})
    data["changes"] = [line for line in data["changes"] if begin <= line["at"] < end]
    drawn = frozenset(name for name, of_name in data.items() if of_name)
    spec = dict(_specification(len(rows), drawn))
    spec["datasets"] = {name: of_name for name, of_name in data.items() if of_name}
    spec["description"] = (
        f"Difference from the usual level of {len(data['points']) + len(data['lane'])} runs in commit order, "
        f"one row for each of {len(rows)} jobs. The table has the same values."
    )
    return spec


def _add_distances(marks: Sequence[dict[str, Any]], begin: float, end: float) -> None:
    """Add to each off-scale mark of a row the positions of its neighbours, or of the ends of the axis."""
    places = [begin, *(mark["at"] for mark in marks), end]
    for mark, before, after in zip(marks, places, places[2:], strict=False):
        mark |= {"before": before, "after": after}


def _ranges(rows: Sequence[DrawnJob], reached: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the ends of each row's axis in percent. They include its levels, `reached` and most of its values.

    All rows have the same ends unless one of them would look flat.
    """
    ranges = [_range(row, levels) for row, levels in zip(rows, reached, strict=True)]
    spans = [high - low for low, high in ranges]
    if max(spans) <= _ALIKE * min(spans):
        ranges = [(min(low for low, _ in ranges), max(high for _, high in ranges))] * len(rows)
    return ranges


def _range(row: DrawnJob, levels: Sequence[float]) -> tuple[float, float]:
    values = [point.delta_pct for point in row.points if point.role != "not counted"]
    values = values or [point.delta_pct for point in row.points]
    ends = [*levels, *(float(end) for end in np.quantile(values, (0.05, 0.95)))]
    ends += [point.delta_pct for point in row.points if point.role in _SLOWED]
    low, high = min(ends), max(ends)
    margin = max(0.15 * (high - low), (_LEAST_SPAN - (high - low)) / 2)
    return low - margin, high + margin


def _clipped(lines: Iterable[dict[str, Any]], begin: float, end: float) -> list[dict[str, Any]]:
    cut = (line | {"from": max(begin, line["from"]), "to": min(end, line["to"])} for line in lines)
    return [line for line in cut if line["from"] < line["to"]]


def _grid(low: float, high: float) -> Iterator[float]:
    """Yield three to five round values between the ends, including zero."""
    step = next(s for e in range(-2, 9) for s in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if (high - low) / s <= 4)
    for k in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield round(k * step, 9)


def _moment(run: StackRun) -> Moment:
    return run.ordered_at, run.commit or run.id


def _order(moment: Moment) -> tuple[datetime, str]:
    return moment[0], str(moment[1])


def _moment_of(member: RegressionMember) -> Moment:
    return member.ordered_at, member.commit or member.run_id


def _places(rows: Sequence[DrawnJob]) -> dict[Moment, int]:
    """Return 1-based positions on the axis. Jobs that ran the same commit at the same time share a position."""
    moments = {_moment(point.run) for row in rows for point in row.points}
    moments |= {_moment_of(member) for row in rows for member in row.job.stacks}
    moments |= {moment for row in rows for moment in (row.change, row.begins)}
    return {moment: k + 1 for k, moment in enumerate(sorted(moments, key=_order))}


def _ticks(rows: Sequence[DrawnJob], places: dict[Moment, int]) -> list[dict[str, Any]]:
    """Return date and commit at some positions, including that of the first change."""
    moments = list(places)
    change = moments.index(rows[0].change) if rows[0].change in places else 0
    n = len(moments)
    apart = math.ceil(n / _TICKS)
    chosen = set(range(change % apart, n, apart)) | {change}
    long = moments[-1][0] - moments[0][0] > _WITH_YEAR
    return [
        {
            "at": places[at, commit],
            "day": f"{at:%b} {at.year}" if long else f"{at.day} {at:%b}",
            "commit": short_commit(commit) if isinstance(commit, str) else f"#{commit}",
            "weight": "bold" if (at, commit) == rows[0].change else "normal",
            "on_phone": (k - change) % (2 * apart) == 0,
        }
        for k, (at, commit) in enumerate(moments)
        if k in chosen
    ]


def _name(row: DrawnJob, name: str, shown: float, metric: str) -> dict[str, Any]:
    """Return name and change of a row; the cost only while there is one."""
    parts: list[str] = []
    job = row.job
    if (delta := job.worst.delta_pct) is not None:
        change = change_text(delta, metric=metric).figure
        was = "was " if job.is_back or (job.newest_change is not None and not job.is_once) else ""
        elsewhere = [point for point in row.points if point.stack == _ELSEWHERE]
        slow = sum(point.role == _ROLES[-1] for point in elsewhere)
        often = (
            f" once, {slow} more elsewhere" if job.is_once and slow else how_often_here(job, is_slow_elsewhere=False)
        )
        parts.append(f"{was}{change}{often}")
        if job.newest_change is not None and not elsewhere:
            parts.append(f"newest {change_text(job.newest_change, metric=metric).delta}")
    if job.last.gpu_hours_per_day:
        parts.append(f"{gpu_hours(job.last.gpu_hours_per_day)} GPU-h/day")
    texts = {
        "name": shortened(name, _WIDE_LETTERS),
        "short": shortened(name, _LETTERS),
        "figures": " · ".join(parts),
        "change": parts[0] if parts else "",
        "is_quiet": job.is_back or job.is_once or job.newest_change is not None,
        "is_moved": bool(job.moves),
    }
    return {"shown": shown, **texts, "href": f"/history/{job.last.stack_key}"}


def _starts(row: DrawnJob, places: dict[Moment, int]) -> list[int]:
    """Return the position at which each stack of the job begins; for the first stack, where it became slower."""
    return [places[row.begins], *(places[_moment_of(member)] for member in row.job.stacks[1:])]


def _bands(row: DrawnJob, places: dict[Moment, int]) -> Iterator[dict[str, Any]]:
    """Yield the stacks of a job that moved: each from its first run to the first run of the next stack."""
    starts = [start - 0.5 for start in _starts(row, places)]
    for k, name in enumerate(row.job.moves):
        end = starts[k + 1] if k + 1 < len(starts) else len(places) + 0.5
        yield {"from": starts[k], "to": end, "name": name, "short": name.split(SEPARATOR)[0], "odd": k % 2}


def _mark(point: Point, place: int) -> dict[str, Any]:
    run = point.run
    return {
        "at": place,
        "id": run.id,
        "delta": point.delta_pct,
        "change": point.change,
        "label": point.text if point.role == "not counted" else point.change,
        "text": point.text,
        "role": point.role,
        "meaning": point.meaning,
        "run": f"#{run.id} {run.name}",
        "commit": short_commit(run.commit) or "unknown",
        "when": absolute(run.ordered_at),
        "href": f"/runs/{run.id}",
    }


def _levels(row: DrawnJob, places: dict[Moment, int]) -> Iterator[dict[str, Any]]:
    """Yield the usual level over its runs up to the change, and each stack's slow level up to its last run near it.

    The level of a later stack comes from its runs. A single slow run is a point without a level.
    """
    change = places[row.change]
    for begin, end in _usual_stretches(row, places):
        yield {"from": begin - 0.4, "to": min(end + 0.4, change - 0.5), "delta": 0.0}
    for index, (member, start) in enumerate(zip(row.job.stacks, _starts(row, places), strict=True)):
        delta = member.delta_pct or 0.0
        runs = [point for point in row.points if point.stack == index and point.role in AFTER]
        slow = [places[_moment(point.run)] for point in runs if abs(point.delta_pct - delta) < abs(point.delta_pct)]
        # A stack without a slow run has recovered, so no run would lie on such a level.
        if member.delta_pct is None or row.job.is_once or not (slow or not index):
            continue
        end = max([start, *slow])
        if index:
            delta = median(point.delta_pct for point in runs if places[_moment(point.run)] <= end)
        yield {"from": start - 0.5, "to": end + 0.4, "delta": delta}


def _earlier(row: DrawnJob, places: dict[Moment, int], ends: tuple[float, float]) -> Iterator[dict[str, Any]]:
    """Yield the label of each earlier regression, above its runs on the axis."""
    groups: dict[int, list[Point]] = {}
    for point in row.points:
        if point.earlier is not None and ends[0] <= point.delta_pct <= ends[1]:
            groups.setdefault(point.earlier, []).append(point)
    slow = row.job.worst.delta_pct or math.inf
    for number, points in groups.items():
        is_baseline = 2 * abs(median(point.delta_pct for point in points)) < abs(slow)
        yield {
            "at": fmean(places[_moment(point.run)] for point in points),
            "delta": max(point.delta_pct for point in points),
            "label": f"baseline since R{number}" if is_baseline else f"slow in R{number}",
            "href": f"/regressions/{number}",
        }


_MOST_UNUSUAL = 2
"""Consecutive runs off the usual level that do not interrupt its line: they are outliers."""


def _usual_stretches(row: DrawnJob, places: dict[Moment, int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last position of each stretch of runs at the usual level; the last may reach the change.

    A run is at the level if it is nearer to it than to the slow one. Before an earlier change of speed, none may be.
    """
    change, slow = places[row.change], row.job.worst.delta_pct
    before = [point for point in row.points if point.role in BEFORE]
    stretches: list[list[int]] = []
    for index, point in enumerate(before):
        if slow is not None and 2 * abs(point.delta_pct) >= abs(slow):
            continue
        if not stretches or index - stretches[-1][-1] > _MOST_UNUSUAL + 1:
            stretches.append([])
        stretches[-1].append(index)
    for stretch in stretches:
        begin, end = (places[_moment(before[index].run)] for index in (stretch[0], stretch[-1]))
        yield begin, change if stretch[-1] >= len(before) - 1 - _MOST_UNUSUAL else end
    if not stretches:
        yield change - 1, change


@lru_cache(maxsize=32)
def _specification(rows: int, drawn: frozenset[str]) -> dict[str, Any]:
    import altair as alt  # noqa: PLC0415  # half a second, which only a process that draws should pay

    height = chart_height(rows) - AXIS
    x = alt.X("at:Q", title=None, axis=None, scale=alt.Scale(zero=False, nice=False))
    y = alt.Y("shown:Q", title=None, axis=None, scale=alt.Scale(zero=False, nice=False))
    above = alt.expr(f"width < 420 || datum.is_moved ? -{_LINE} : 0")
    of_name = {"align": "left", "color": charts.TEXT, "fontWeight": 600, "dy": above, "limit": alt.expr(_NAME_ROOM)}
    layers = {
        "frame": [alt.Chart(alt.NamedData("frame")).mark_point(opacity=0, tooltip=None).encode(x, y)],
        "bands": [
            alt.Chart(alt.NamedData("bands"))
            .mark_rect(color=charts.TEXT, tooltip=None)
            .encode(
                x=alt.X("from:Q", axis=None),
                x2="to:Q",
                y=alt.Y("top:Q", axis=None),
                y2="bottom:Q",
                opacity=alt.when("datum.odd").then(alt.value(0.05)).otherwise(alt.value(0)),
            ),
            # On a phone, this line shows the change; the table below has the names.
            _text(alt, "bands", "name", align="left", dx=4, fontSize=11).encode(
                x=alt.X("from:Q", axis=None),
                y=alt.Y("line:Q", axis=None),
                opacity=_shown(alt, "width >= 420"),
                text=alt.value(alt.expr(_BAND_NAME)),
            ),
        ],
        "grid": [alt.Chart(alt.NamedData("grid")).mark_rule(color=charts.BORDER).encode(y=y)],
        "values": [_text(alt, "values", "label", align="right", dx=-6).encode(x=alt.value(0), y=y)],
        "names": [
            _text(alt, "names", "name", **of_name).encode(
                x=alt.value(0), y=y, text=alt.value(alt.expr("width < 420 ? datum.short : datum.name"))
            ),
            # On a phone, there is no room for the change next to the name, nor for the cost, which the table below has.
            *(
                _text(alt, "names", field, fontWeight=600, **style).encode(
                    x=alt.value(at),
                    y=y,
                    color=alt.when("datum.is_quiet").then(alt.value(charts.MUTED)).otherwise(alt.value(charts.SPIKE)),
                    opacity=_shown(alt, shown),
                )
                for field, shown, at, style in (
                    ("figures", "width >= 420", "width", {"align": "right", "dy": above}),
                    ("change", "width < 420", 0, {"align": "left"}),
                )
            ),
        ],
        "changes": [
            alt.Chart(alt.NamedData("changes"))
            .mark_rule(color=charts.SPIKE, strokeDash=[4, 3])
            .encode(x=x, y=alt.Y("top:Q", axis=None), y2="bottom:Q")
        ],
        "levels": [
            alt.Chart(alt.NamedData("levels"))
            .mark_rule(color=charts.MUTED, strokeWidth=1.5)
            .encode(x=alt.X("from:Q", axis=None), x2="to:Q", y=y)
        ],
        "ticks": [
            _text(alt, "ticks", field, **style).encode(
                # On a phone, there is room only for every second label.
                x=x,
                y=alt.value(height),
                opacity=_shown(alt, "width >= 420 || datum.on_phone"),
            )
            for field, style in (("day", {"dy": 12}), ("commit", {"dy": 27, "fontSize": 11}))
        ],
        "earlier": [
            _text(alt, "earlier", "label", fontSize=10, tooltip=None).encode(x=x, y=y, href=alt.Href("href:N"))
        ],
        "points": [_marks(alt, "points").encode(x, y).add_params(alt.selection_interval(name="zoom", encodings=["x"]))],
        "lane": [
            _marks(alt, "lane").encode(x, y),
            # Right of the mark if there is room, else left of it, else only in the tooltip and the table.
            *(
                _text(alt, "lane", "label", align=align, dx=dx, fontSize=10).encode(x=x, y=y, opacity=_shown(alt, room))
                for align, dx, room in (("left", 6, _ROOM_AFTER), ("right", -6, f"!({_ROOM_AFTER}) && {_ROOM_BEFORE}"))
            ),
        ],
    }
    chart = alt.layer(*(layer for name, of_layer in layers.items() if name in drawn for layer in of_layer))
    chart = chart.properties(width="container", height=height, config=charts.CONFIG, padding={"left": 8, "right": 8})
    # Separate scales, because each layer has its own colours and shapes.
    apart: Any = dict.fromkeys(("color", "shape"), "independent")
    spec: dict[str, Any] = (
        chart.resolve_scale(**apart).properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding")).to_dict()
    )
    return spec


def _shown(alt: Any, condition: str) -> Any:
    return alt.when(condition).then(alt.value(1)).otherwise(alt.value(0))


def _text(alt: Any, data: str, field: str, **style: Any) -> Any:
    style = {"color": charts.MUTED, **style}
    return alt.Chart(alt.NamedData(data)).mark_text(baseline="middle", **style).encode(text=f"{field}:N")


_SHAPES = ("circle", "circle", "triangle-up", "triangle-up", "circle")
_X = "M-1,-1L1,1M1,-1L-1,1"


def _marks(alt: Any, data: str) -> Any:
    shapes = alt.Scale(domain=list(_ROLES), range=[*_SHAPES, _X, "circle"])
    colours = (charts.ACCENT, charts.MUTED, charts.SPIKE, charts.SPIKE, charts.ACCENT, charts.MUTED, charts.SPIKE)
    size = alt.when(alt.FieldOneOfPredicate("role", list(_SLOWED))).then(alt.value(110)).otherwise(alt.value(32))
    hollow = alt.FieldOneOfPredicate("role", ["another stack", "only slow run", _ROLES[-1]])
    filled = alt.when(hollow).then(alt.value(0)).otherwise(alt.value(1))
    colour = {"scale": alt.Scale(domain=list(_ROLES), range=list(colours)), "legend": None}
    return (
        alt.Chart(alt.NamedData(data))
        .mark_point(opacity=1, strokeWidth=1.5, cursor="pointer")
        .encode(
            shape=alt.Shape("role:N", scale=shapes, legend=None),
            stroke=alt.Stroke("role:N", **colour),
            fill=alt.Fill("role:N", **colour),
            fillOpacity=filled,
            size=size,
            href=alt.Href("href:N"),
            tooltip=alt.value(alt.expr(_tip())),
        )
    )


def _tip() -> str:
    """Return the tooltip expression for a point, because Vega-Lite's own tooltip fields put text in quotes."""
    fields = {"run": "run", "value": "text", "change": "change", "commit": "commit", "when": "when", "role": "meaning"}
    return "{" + ", ".join(f"{json.dumps(name)}: datum.{field}" for name, field in fields.items()) + "}"
