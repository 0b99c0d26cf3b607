"""Waiting for a run to be read, without a thread for each who waits."""

import time

import anyio
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool

from app.runs.queries import get_state
from app.storage.database import read_session
from app.storage.run_records import RunState

_POLL_SECONDS = (0.02, 0.5)


async def settled(engine: Engine, run_id: int, seconds: float) -> RunState:
    """The run's state when nothing waits to be read any more, or after so many seconds."""
    pause, end = _POLL_SECONDS[0], time.monotonic() + seconds
    while True:
        state = await run_in_threadpool(_state, engine, run_id)
        left = end - time.monotonic()
        if left <= 0 or not (state.updating or state.status in ("received", "processing")):
            return state
        await anyio.sleep(min(pause, left))
        pause = min(pause * 1.5, _POLL_SECONDS[1])


def _state(engine: Engine, run_id: int) -> RunState:
    with read_session(engine) as session:
        return get_state(session, run_id)
