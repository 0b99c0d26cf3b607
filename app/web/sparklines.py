"""Sparklines: the last steady step times of a stack in a tiny chart, and the runs that they show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Select, bindparam, or_, tuple_
from sqlmodel import Session, col
from sqlmodel.sql.sqltypes import UTCDateTime

from app.domain.numbers import metric_text, plural
from app.domain.verdict.regression import Regression
from app.storage.remembered import Remembered
from app.storage.tables import ProjectRow, RunRow, StackRow, VerdictRow, not_indexed, select_any
from app.storage.verdicts import current_verdict, later_runs

WIDTH, HEIGHT, EDGE = 120, 28, 5
_LEAST_RANGE = 0.02
"""Minimum range of the axis as a share of the value, so that noise does not look like a change."""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A sparkline. `points`: as in SVG. `last_x`, `last_y`: of the newest value, `last`. `label`: a description.

    `changed_x`, `changed_y`: of the first run after a change; None without one.
    """

    points: str
    last_x: float
    last_y: float
    label: str
    last: float
    changed_x: float | None = None
    changed_y: float | None = None


def sparkline(
    values: Sequence[float],
    changed: int | None = None,
    *,
    metric: str = "step_time_ms",
    least: float = _LEAST_RANGE,
) -> Sparkline | None:
    """Return the sparkline of values, oldest first; None for fewer than two.

    `changed`: index of the first slow run, which is marked. `least`: minimum range as a share of the value.
    """
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    middle = (low + high) / 2
    span = max(high - low, least * middle) or 1.0
    places = [
        (
            round(EDGE + k * (WIDTH - 2 * EDGE) / (len(values) - 1), 1),
            round(HEIGHT / 2 - (value - middle) / span * (HEIGHT - 2 * EDGE), 1),
        )
        for k, value in enumerate(values)
    ]
    first, last, least_text, most_text = (metric_text(metric, value) for value in (values[0], values[-1], low, high))
    name = "Step time" if metric == "step_time_ms" else "Peak memory"
    label = (
        f"{name} of the last {plural(len(values), 'run')}: {first} first, {last} last, "
        f"between {least_text} and {most_text}"
    )
    line = Sparkline(" ".join(f"{x},{y}" for x, y in places), *places[-1], label, values[-1])
    if changed is None:
        return line
    x, y = places[changed]
    label += f"; first slow run {changed + 1}, {metric_text(metric, values[changed])}"
    return replace(line, changed_x=x, changed_y=y, label=label)


SPARK_RUNS = 40
READ = col(RunRow.status).in_(("ready", "failed"))
_NEWEST_FIRST: Select[Any] = (
    select_any(
        RunRow.id, RunRow.config_key, RunRow.model, RunRow.gpu, RunRow.gpus, RunRow.ordered_at, RunRow.step_time_ms,
        RunRow.peak_memory_gib,
        RunRow.is_steady, RunRow.short, RunRow.quarantine, RunRow.purpose, RunRow.verdict, RunRow.verdict_delta_pct,
        RunRow.stack_key, RunRow.job, RunRow.dispatcher, ProjectRow.slug, ProjectRow.generated,
    )
    .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
)  # fmt: skip
OF_STACK = _NEWEST_FIRST.where(
    not_indexed(col(RunRow.project_id)) == bindparam("project_id"),
    col(RunRow.stack_key) == bindparam("stack_key"),
)
# Built once and run for each stack of a page, because an index has the newest runs of one stack, not of several.
RECENT = OF_STACK.where(READ).limit(SPARK_RUNS)


_FEWEST_BEFORE = 3
"""If fewer runs precede the change, the runs that it was compared with come first."""
_MOST_BEFORE, _MOST_AFTER = 12, 28
# By config key alone, which determines the stack. With both keys PostgreSQL would expect a single run, and would sort
# all matching runs.
_OF_LAUNCH = _NEWEST_FIRST.where(
    READ, col(RunRow.config_key) == bindparam("config_key"), not_indexed(col(RunRow.job)) == bindparam("job")
)
_POSITION = tuple_(col(RunRow.ordered_at), col(RunRow.id))
_SLOW_POSITION = tuple_(bindparam("at", type_=UTCDateTime()), bindparam("run_id"))
_BEFORE = _OF_LAUNCH.where(_POSITION < _SLOW_POSITION).limit(_MOST_BEFORE)
_AFTER = _OF_LAUNCH.where(_POSITION > _SLOW_POSITION).limit(_MOST_AFTER)
_SLOW = OF_STACK.where(col(RunRow.id) == bindparam("run_id"))


@dataclass(frozen=True, slots=True)
class SlowRun:
    """The first slow run of a regression in a stack. `usual`: value of `metric` before it; None if unknown.

    `then`: values of later runs with another configuration or in another stack.
    """

    project_id: int
    stack_key: str
    run_id: int
    usual: float | None
    metric: str = "step_time_ms"
    then: tuple[float, ...] = ()


DRAWN_METRICS = ("step_time_ms", "peak_memory_gib")
"""Metrics that a sparkline of a regression can show."""


_drawn = Remembered[tuple[Sparkline | None]](4000)


def sparklines_of_regressions(session: Session, regressions: Sequence[Regression]) -> dict[int, Sparkline | None]:
    """Return sparklines by number, each of the job that became slow first, whose run lists name.

    They end with its newest run, which may be in a later container or cluster.
    """
    slow_runs = {}
    later = later_runs(session, [item.id for item in regressions if item.newest])
    for item in regressions:
        job = item.first_job
        # The runs that show a recovery may be in a later stack, which is not drawn.
        if item.metric in DRAWN_METRICS and job and not (item.is_back and job.moves):
            first = job.first
            moved = later.get((item.id, job.last.run_id), ()) if first.usual else ()
            then = tuple((first.usual or 0.0) * (1 + run.change_pct / 100) for run in moved)
            slow_runs[item.id] = SlowRun(item.project_id, first.stack_key, first.run_id, first.usual, item.metric, then)
    drawn = regression_sparklines(session, list(slow_runs.values()))
    return {number: drawn[slow] for number, slow in slow_runs.items()}


def regression_sparklines(
    session: Session, slow_runs: Sequence[SlowRun], *, least: float = _LEAST_RANGE
) -> dict[SlowRun, Sparkline | None]:
    """Return a sparkline per regression: its runs around the marked change; None for fewer than two runs.

    `least`: minimum range as a share of the value. A sparkline is drawn again only after a run of its stack changed or
    the first slow run got another verdict.
    """
    runs = {slow.run_id for slow in slow_runs}
    judged = select_any(VerdictRow.run_id, VerdictRow.id).where(
        col(VerdictRow.run_id).in_(runs), col(VerdictRow.current)
    )
    verdicts = {row.run_id: row.id for row in session.execute(judged)}
    stacks = {
        (row.project_id, row.stack_key): (row.revision, row.runs, row.last_at)
        for row in session.execute(
            select_any(StackRow.project_id, StackRow.stack_key, StackRow.revision, StackRow.runs, StackRow.last_at)
            .where(col(StackRow.stack_key).in_({slow.stack_key for slow in slow_runs}))
        )
    }  # fmt: skip
    database = str(session.get_bind().engine.url)
    sparklines: dict[SlowRun, Sparkline | None] = {}
    for slow in slow_runs:
        state = (stacks.get((slow.project_id, slow.stack_key)), verdicts.get(slow.run_id))
        drawn = _drawn.find((database, slow, least), state)
        if drawn is None:
            drawn = (_around_change(session, slow, least),)
            _drawn.keep((database, slow, least), state, drawn)
        sparklines[slow] = drawn[0]
    return sparklines


def _around_change(session: Session, first_slow: SlowRun, least: float) -> Sparkline | None:
    """Draw the runs with the job and configuration of the first slow run, even if that run does not count in segments.

    After an upgrade few runs precede it. Then the runs of the other container come first, else the usual level.
    """
    of_stack = {"project_id": first_slow.project_id, "stack_key": first_slow.stack_key}
    slow = session.execute(_SLOW, of_stack | {"run_id": first_slow.run_id}).one_or_none()
    metric = first_slow.metric
    if slow is None or not getattr(slow, metric):
        return None
    like = {"config_key": slow.config_key, "job": slow.job, "at": slow.ordered_at, "run_id": slow.id}
    drawn = _counts if metric == "step_time_ms" and _counts(slow) else is_timed
    rows, later = session.execute(_BEFORE, like).all(), session.execute(_AFTER, like).all()
    before, after = (
        [
            getattr(row, metric)
            for row in reversed(newest_first)
            if drawn(row) and getattr(row, metric) and row.stack_key == slow.stack_key
        ]
        for newest_first in (rows, later)
    )
    if len(before) < _FEWEST_BEFORE:
        usual = [first_slow.usual] if first_slow.usual is not None else []
        before = [*_compared_with(session, slow, metric), *before] or usual
    least = least if metric == "step_time_ms" else 0.0
    values = [*before, getattr(slow, metric), *after, *first_slow.then]
    return sparkline(values, len(before), metric=metric, least=least)


def _compared_with(session: Session, slow: Any, metric: str) -> list[float]:
    """Return the values of the launches that the first slow run was compared with, oldest first."""
    verdict = current_verdict(session, slow.id)
    upgrade = verdict.document.upgrade if verdict else None
    compared = (*(verdict.document.baseline if verdict else ()), *(upgrade.runs if upgrade else ()))
    value = getattr(RunRow, metric)
    earlier = (
        select_any(value)
        .where(
            col(RunRow.id).in_([int(run) for run in compared]),
            or_(col(RunRow.stack_key) != slow.stack_key, col(RunRow.config_key) != slow.config_key),
            col(value).is_not(None),
        )
        .order_by(col(RunRow.ordered_at), col(RunRow.id))
    )
    return list(session.execute(earlier).scalars())


def leading_runs(rows: Sequence[Any]) -> list[Any]:
    """Return the runs of one job and configuration, oldest first, because a mix of several would look like a change."""
    leading = next((row for row in rows if _counts(row)), rows[0])
    own = (leading.config_key, leading.job)
    return [row for row in reversed(rows) if _counts(row) and (row.config_key, row.job) == own]


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A counted run of a job."""

    id: int
    config_key: str
    step_time_ms: float


def timed_runs(rows: Sequence[Any], job: str) -> tuple[TimedRun, ...]:
    """Return the counted runs of a job in any configuration, oldest first. `rows`: newest first."""
    return tuple(
        TimedRun(row.id, row.config_key, row.step_time_ms) for row in reversed(rows) if row.job == job and _counts(row)
    )


def _counts(row: Any) -> bool:
    """Return whether a run counts in segments, approximately; only the history page decides exactly."""
    return bool(is_timed(row) and row.is_steady and not row.short)


def is_timed(row: Any) -> bool:
    return bool(row.step_time_ms and not row.quarantine and row.purpose == "ci")
