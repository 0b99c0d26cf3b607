"""What a new reading of a run means for verdicts: slim columns, its place in the history, which stacks to judge."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.definitions import DEFINITIONS, changes
from app.domain.matching import not_finite_iterations, shape_of
from app.domain.run import RunSummary
from app.storage.places import settle_places
from app.storage.run_records import aware
from app.storage.stack_work import ask_to_judge
from app.storage.tables import RunRow

_MOST_SHAPE = 300


@dataclass(frozen=True, slots=True)
class Before:
    """The run before it was read: where it stood. Empty keys: it was never read."""

    run_id: int
    project_id: int
    stack_key: str
    config_key: str
    commit: str
    ordered_at: datetime
    concerns_nobody: bool
    definitions: Mapping[str, int]


def slim_columns(summary: RunSummary) -> dict[str, Any]:
    """What levels and baselines are made of, so that they need no JSON."""
    steady = summary.steady_state
    has_estimate = steady is not None and math.isfinite(steady.log_step_time)
    return {
        "outcome": str(summary.health.get("outcome") or "")[:20],
        "log_step_time": steady.log_step_time if steady and has_estimate else None,
        "step_time_se": steady.se if steady and has_estimate else None,
        "window_length": steady.n if steady else 0,
        "is_steady": steady.is_steady if steady else False,
        "short": steady.short if steady else True,
        "not_finite": not_finite_iterations(summary.health),
        "shape": ",".join(text.replace(",", " ") for text in shape_of(summary.contract))[:_MOST_SHAPE],
    }


def ask_before(session: Session, run_id: int, stack_key: str = "") -> tuple[Before, list[int]]:
    """Lock and ask for the stacks that a run leaves and joins, before its row is written. With the ids to ring for.

    A run whose log still grows concerns nobody until it is complete. `stack_key`: the one it has now, if it has one.
    """
    row = session.execute(
        select(  # type: ignore[call-overload]
            RunRow.project_id, RunRow.stack_key, RunRow.config_key, RunRow.commit, RunRow.ordered_at,
            RunRow.reception, RunRow.verdict, RunRow.definitions,
        ).where(col(RunRow.id) == run_id)
    ).one()  # fmt: skip
    growing = row.reception == "receiving" and not row.verdict
    before = Before(
        run_id,
        row.project_id,
        row.stack_key,
        row.config_key,
        row.commit,
        aware(row.ordered_at),
        concerns_nobody=growing,
        definitions=row.definitions,
    )
    if growing:
        return before, []
    keys = sorted({row.stack_key, stack_key} - {""})
    because = _because(before, stack_key)
    place = before.ordered_at
    return before, [ask_to_judge(session, row.project_id, key, judge_from=place, because=because) for key in keys]


def take_place(session: Session, before: Before, stack_key: str, config_key: str) -> None:
    """Once the row is written: reruns stand together, and what they moved past is judged again."""
    if not before.commit or before.concerns_nobody:
        return
    groups = [(stack_key, config_key)]
    if before.config_key not in ("", config_key):
        groups.append((before.stack_key, before.config_key))
    for stack, config in sorted(groups):
        moved = settle_places(session, before.project_id, config, before.commit)
        if moved is not None:
            because = f"Run {before.run_id} took its place beside the runs of its commit."
            ask_to_judge(session, before.project_id, stack, judge_from=moved, because=because)


def _because(before: Before, stack_key: str) -> str:
    if not before.stack_key:
        return f"Run {before.run_id} came in at an earlier place of the history."
    if changed := changes(before.definitions, DEFINITIONS):
        return f"The definitions changed ({changed})."
    if before.stack_key != stack_key:
        return f"Run {before.run_id} was read again and is of another stack now."
    return f"Run {before.run_id} was read again."
