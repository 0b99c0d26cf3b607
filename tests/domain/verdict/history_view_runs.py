"""Histories for tests: runs a day apart. Tests state only the values that they are about."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.domain.verdict.history_view import Pin

BEGIN = datetime(2026, 9, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Run:
    id: int
    log_step_time: float = math.log(400)
    ordered_at: datetime = BEGIN
    commit: str = "c"
    branch: str = "main"
    purpose: str = "ci"
    config_key: str = "config"
    job: str = ""
    outcome: str = "completed"
    quarantine: str = ""
    is_steady: bool = True
    short: bool = False
    definition_version: int = 1


def pinned(run_id: int, pinned_at: datetime, pin_id: int = 1, unpinned_at: datetime | None = None) -> Pin:
    return Pin(pin_id, run_id, f"run {run_id}", "Ada", pinned_at, "", "Ada" if unpinned_at else "", unpinned_at)


def history(*levels: tuple[int, float], config_key: str = "config", first: int = 1) -> list[Run]:
    """`(runs, milliseconds)` after another, numbered from `first`, alternating by 0.2 % about their level."""
    times = [ms * (1 + 0.002 * (-1) ** k) for n, ms in levels for k in range(n)]
    return [
        Run(first + k, math.log(ms), BEGIN + timedelta(days=first - 1 + k), f"c{first + k}", config_key=config_key)
        for k, ms in enumerate(times)
    ]


def in_order(*parts: Sequence[Run]) -> list[Run]:
    return sorted((run for part in parts for run in part), key=lambda run: (run.ordered_at, run.id))
