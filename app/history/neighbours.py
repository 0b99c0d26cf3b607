"""Stacks that differ in the container alone: where a history goes on after an upgrade, and where it came from."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.domain.matching import compare_contracts
from app.domain.numbers import contract_value
from app.history.stacks import Stack
from app.storage.run_records import aware
from app.storage.stack_runs import full_records
from app.storage.tables import RunRow

MOST_NEIGHBOURS = 40
"""So many stacks of the same model and hardware are looked at, those with the newest runs."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The same stack in another container. `is_later`: its first run came after the first one here."""

    stack_key: str
    container: str
    runs: int
    first_at: datetime
    last_at: datetime
    is_later: bool


def read_neighbours(session: Session, stack: Stack, since: datetime) -> tuple[Neighbour, ...]:
    """Oldest first. `since`: the place of the first run of `stack`."""
    found = []
    rows = {str(row.newest): row for row in session.execute(_stacks_alike(stack))}
    records = full_records(session, [stack.run_id, *map(int, rows)])
    own = records.pop(str(stack.run_id))
    for name, record in records.items():
        compared = compare_contracts(own, record)
        if compared.kind != "contrast" or compared.stack[0].field != "container" or compared.stack[0].b is None:
            continue
        row = rows[name]
        begins = aware(row.first_at)
        container = contract_value(compared.stack[0].b.value)
        found.append(Neighbour(record.stack_key, container, row.runs, begins, aware(row.last_at), begins > since))
    return tuple(sorted(found, key=lambda one: (one.first_at, one.stack_key)))


def _stacks_alike(stack: Stack) -> Any:
    """Stacks of the same project, model and hardware, each with its newest run."""
    same = {name: stack.contract[name].value if name in stack.contract else None for name in ("model", "gpu", "gpus")}
    newest = func.max(col(RunRow.id))
    return (
        select(  # type: ignore[call-overload]
            RunRow.stack_key,
            newest.label("newest"),
            func.count().label("runs"),
            func.min(col(RunRow.ordered_at)).label("first_at"),
            func.max(col(RunRow.ordered_at)).label("last_at"),
        )
        .where(
            col(RunRow.project_id) == stack.project_id,
            col(RunRow.stack_key).not_in(("", stack.stack_key)),
            col(RunRow.status) == "ready",
            *(col(getattr(RunRow, name)) == value for name, value in same.items()),
        )
        .group_by(col(RunRow.stack_key))
        .order_by(newest.desc())
        .limit(MOST_NEIGHBOURS)
    )
