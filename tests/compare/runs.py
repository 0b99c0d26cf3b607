"""Runs to compare: the run of the builders with another contract, its keys worked out from that contract."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import count
from types import EllipsisType
from typing import Any

from sqlmodel import Session

from app.domain.contract.resolve import config_key, stack_key
from app.domain.run import Stated, Timer, Value, semantic_class
from app.storage.tables import RunRow
from tests.builders import CONTRACT, make_run

REAL: Mapping[str, Value] = {"force_balance": False, "routing_mode": "dropless", "data_mode": "real", "cluster": "west"}
"""What makes the run of the builders one of real training."""

_number = count()

Fields = Mapping[str, Value | EllipsisType]


def make_compared(session: Session, fields: Fields | None = None, *, project: str = "compared", **columns: Any) -> int:
    """A run whose contract has additional `fields`; `...` removes one. `health` is added to that of a completed run."""
    health = columns.pop("health", {})
    columns.setdefault("tags", [f"made as {next(_number)}"])  # two equal runs would be one upload
    run = make_run(session, project=project, **columns)
    row = session.get(RunRow, run)
    assert row is not None
    if row.status not in ("ready", "failed"):
        return run
    stated = {name: Stated(value, source, detail) for name, (value, source, detail) in CONTRACT.items()}
    changed = {**REAL, **(fields or {})}
    stated |= {
        name: Stated(value, "metadata") for name, value in changed.items() if not isinstance(value, EllipsisType)
    }
    stated = {name: item for name, item in stated.items() if changed.get(name) is not ...}
    row.result.contract = {name: asdict(item) for name, item in stated.items()}
    row.stack_key, row.config_key = stack_key(project, stated), config_key(project, stated)
    row.semantic_class = semantic_class(stated)
    row.result.health = dict(row.result.health) | health
    row.outcome = row.result.health.get("outcome", "")
    session.flush()
    return run


def timers(scale: float = 1.0) -> list[dict[str, Any]]:
    """Return the series of a run; `scale` is that of the longest."""
    phases = (Timer("timer_forward_backward_ms", 0.8, 25_000 * scale), Timer("timer_optimizer_ms", 0.1, 3_000.0, 1.2))
    return [asdict(item) for item in phases]
