"""Waiting for a run to be read and judged, without a thread for each who waits."""

import time

import anyio
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool

from app.runs.queries import get_state
from app.storage.database import read_session
from app.storage.run_records import RunState

_POLL_SECONDS = (0.02, 0.5)


async def settled(engine: Engine, run_id: int, seconds: float) -> RunState:
    """The run's state when nothing of it waits to be read or judged any more, or after so many seconds."""
    pause, end = _POLL_SECONDS[0], time.monotonic() + seconds
    before: int | None = None
    while True:
        state = await run_in_threadpool(_state, engine, run_id)
        before = state.judged.verdict_id if before is None else before
        left = end - time.monotonic()
        if left <= 0 or _is_settled(state, before):
            return state
        await anyio.sleep(min(pause, left))
        pause = min(pause * 1.5, _POLL_SECONDS[1])


def _is_settled(state: RunState, verdict_before: int) -> bool:
    """Its stack may be judged for the sake of others, again and again: a new verdict is enough."""
    if state.updating or state.status in ("received", "processing"):
        return False
    return state.receiving or not state.judged.waiting or state.judged.verdict_id != verdict_before


def _state(engine: Engine, run_id: int) -> RunState:
    with read_session(engine) as session:
        return get_state(session, run_id)
