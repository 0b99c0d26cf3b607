"""Sparklines: the last steady step times of a stack on a few pixels, and the newest runs that they are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, bindparam
from sqlmodel import Session, col

from app.domain.numbers import plural, step_time
from app.storage.tables import ProjectRow, RunRow, select_any
from app.storage.verdicts import current_verdict

WIDTH, HEIGHT, EDGE = 120, 28, 3
_LEAST_RANGE = 0.02
"""Least range of the axis as a share of the value: noise must not look like a change."""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """`points` as in SVG; `last_x`, `last_y`: the newest; `label`: the same in words."""

    points: str
    last_x: float
    last_y: float
    label: str


def sparkline(milliseconds: Sequence[float]) -> Sparkline | None:
    """Return the sparkline, oldest first; None for fewer than two values."""
    if len(milliseconds) < 2:
        return None
    low, high = min(milliseconds), max(milliseconds)
    middle = (low + high) / 2
    span = max(high - low, _LEAST_RANGE * middle) or 1.0
    places = [
        (
            round(EDGE + k * (WIDTH - 2 * EDGE) / (len(milliseconds) - 1), 1),
            round(HEIGHT / 2 - (value - middle) / span * (HEIGHT - 2 * EDGE), 1),
        )
        for k, value in enumerate(milliseconds)
    ]
    label = (
        f"Step time of the last {plural(len(milliseconds), 'run')}: {step_time(milliseconds[0])} first, "
        f"{step_time(milliseconds[-1])} last, between {step_time(low)} and {step_time(high)}"
    )
    return Sparkline(" ".join(f"{x},{y}" for x, y in places), *places[-1], label)


SPARK_RUNS = 40
READ = col(RunRow.status).in_(("ready", "failed"))
OF_STACK: Select[Any] = (
    select_any(
        RunRow.id, RunRow.config_key, RunRow.model, RunRow.gpu, RunRow.gpus, RunRow.ordered_at, RunRow.step_time_ms,
        RunRow.is_steady, RunRow.short, RunRow.quarantine, RunRow.purpose, RunRow.verdict, RunRow.verdict_delta_pct,
        RunRow.stack_key, RunRow.job, ProjectRow.slug, ProjectRow.generated,
    )
    .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
    .where(
        # As a sum, so that SQLite looks the runs of the stack up, and does not read all of the project in their order.
        col(RunRow.project_id) + 0 == bindparam("project_id"),
        col(RunRow.stack_key) == bindparam("stack_key"),
    )
    .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
)  # fmt: skip
# Built once, and run for each stack of the page: an index has the newest runs of one stack, not of many.
RECENT = OF_STACK.where(READ).limit(SPARK_RUNS)


def regression_sparkline(
    session: Session, project_id: int, stack_key: str, run_id: int, usual_ms: float | None
) -> Sparkline | None:
    """Return the newest step times of a regression's stack; None for fewer than two. `run_id`: its first slow run.

    After an upgrade the stack has no faster runs: those of the other container come first, else the level before.
    """
    rows = session.execute(RECENT, {"project_id": project_id, "stack_key": stack_key}).all()
    if not rows:
        return None
    verdict = current_verdict(session, run_id)
    upgrade = verdict.document.upgrade if verdict else None
    compared = (*(verdict.document.baseline if verdict else ()), *(upgrade.runs if upgrade else ()))
    earlier = (
        select_any(RunRow.step_time_ms)
        .where(
            col(RunRow.id).in_([int(run) for run in compared]),
            col(RunRow.stack_key) != stack_key,
            col(RunRow.step_time_ms).is_not(None),
        )
        .order_by(col(RunRow.ordered_at), col(RunRow.id))
    )
    own, before = leading_values(rows), list(session.execute(earlier).scalars())
    if not before and usual_ms and own and own[0] > usual_ms:
        before = [usual_ms]
    return sparkline([*before, *own])


def leading_values(rows: Sequence[Any]) -> list[float]:
    """Return the step times of the leading runs, oldest first."""
    return [row.step_time_ms for row in leading_runs(rows)]


def leading_runs(rows: Sequence[Any]) -> list[Any]:
    """Return the runs of one job and configuration, oldest first: a step between two would look like a change."""
    leading = next((row for row in rows if _counts(row)), rows[0])
    own = (leading.config_key, leading.job)
    return [row for row in reversed(rows) if _counts(row) and (row.config_key, row.job) == own]


def _counts(row: Any) -> bool:
    """Return whether a run roughly counts for levels; the page of the stack decides exactly."""
    return bool(row.step_time_ms and row.is_steady and not row.short and not row.quarantine and row.purpose == "ci")
