"""The last activity of workers, and their processor seconds by stage and day.

A process counts in memory, and its heartbeat adds the counts to the database. The time of a nested stage counts for
the inner stage only. Threads of numerical libraries are not counted.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from sqlalchemy import Engine, func, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col

from app.settings import Settings
from app.storage.database import transaction
from app.storage.tables import HeartbeatRow, StageTimeRow, select_any, utc_now

# --- The time of the last activity of a worker. Tasks write it, so it also shows workers that receive no messages.

BEAT_SECONDS = 5
_MISSED_SWEEPS = 3
_SLACK_SECONDS = 15
"""Tolerance for a heartbeat that waits for SQLite's write lock."""
_SEEN_AT = select_any(HeartbeatRow.seen_at).where(col(HeartbeatRow.name) == "worker")


def beat(engine: Engine) -> None:
    """Store the current time as a worker's last activity."""
    with transaction(engine) as session:
        session.execute(update(HeartbeatRow).where(col(HeartbeatRow.name) == "worker").values(seen_at=utc_now()))


def last_seen(session: Session) -> datetime:
    """Return when a worker was last active."""
    seen_at: datetime = session.execute(_SEEN_AT).scalar_one()
    return seen_at


def silent_since(session: Session, settings: Settings) -> datetime | None:
    """Return the time of the last activity if it is too old for a running worker; else None.

    An idle worker sweeps every `sweep_seconds`. A time in the future means that the clock was set back.
    """
    now = utc_now()
    patience = timedelta(seconds=_MISSED_SWEEPS * settings.sweep_seconds + _SLACK_SECONDS)
    seen_at = last_seen(session)
    return min(seen_at, now) if abs(now - seen_at) > patience else None


# --- Processor seconds by stage and day, for `/metrics` and the usage page.

Stage = Literal["read", "judge", "rank", "rules", "profile", "deliver", "delete"]
STAGES: tuple[Stage, ...] = get_args(Stage)

_ADD = text(
    "INSERT INTO stage_time (day, stage, calls, seconds) VALUES (:day, :stage, :calls, :seconds) "
    "ON CONFLICT (day, stage) DO UPDATE SET calls = stage_time.calls + excluded.calls, "
    "seconds = stage_time.seconds + excluded.seconds"
)

_lock = threading.Lock()
_counts: dict[Stage, tuple[int, float]] = {}
_running = threading.local()


@dataclass(frozen=True, slots=True)
class StageTime:
    stage: Stage
    calls: int
    seconds: float

    @property
    def ms_each(self) -> float:
        return 1000 * self.seconds / self.calls if self.calls else 0.0


@contextmanager
def timed(stage: Stage) -> Iterator[None]:
    """Count the processor time of the block, without nested stages. Also works as a decorator."""
    outer: list[float] = getattr(_running, "inner", [])
    inner: list[float] = [0.0]
    _running.inner, began = inner, time.thread_time()
    try:
        yield
    finally:
        took = time.thread_time() - began
        _running.inner = outer
        if outer:
            outer[0] += took
        with _lock:
            calls, seconds = _counts.get(stage, (0, 0.0))
            _counts[stage] = (calls + 1, seconds + max(took - inner[0], 0.0))


def add_counts(engine: Engine) -> None:
    """Add the counts of this process to today's row. If that fails, the next call adds them."""
    with _lock:
        counts = dict(_counts)
        _counts.clear()
    if not counts:
        return
    day = utc_now().date().isoformat()
    rows = [
        {"day": day, "stage": stage, "calls": calls, "seconds": seconds} for stage, (calls, seconds) in counts.items()
    ]
    try:
        with transaction(engine) as session:
            session.connection().execute(_ADD, sorted(rows, key=lambda row: str(row["stage"])))
    except SQLAlchemyError:
        with _lock:
            for stage, (calls, seconds) in counts.items():
                before = _counts.get(stage, (0, 0.0))
                _counts[stage] = (before[0] + calls, before[1] + seconds)
        raise


def stage_times(session: Session, *, days: int | None = None) -> Sequence[StageTime]:
    """Return the sums by stage, over the last `days` or over all days."""
    chosen = select_any(StageTimeRow.stage, func.sum(StageTimeRow.calls), func.sum(StageTimeRow.seconds))
    if days is not None:
        first = (utc_now() - timedelta(days=days)).date().isoformat()
        chosen = chosen.where(col(StageTimeRow.day) > first)
    sums = {stage: (int(calls), float(took)) for stage, calls, took in session.execute(chosen.group_by("stage"))}
    return tuple(StageTime(stage, *sums.get(stage, (0, 0.0))) for stage in STAGES)
