"""The session of a request: a page and the frame around it read by the same one, and so by one connection.

A request that took a second connection while it holds one would lock the service: as soon as requests hold them all,
each waits for another (`tests/web/test_one_session.py`).
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from anyio import CapacityLimiter
from fastapi import Request
from sqlmodel import Session

from app.storage.database import CONNECTIONS, read_session

THREADS = 40
"""Of the server, as AnyIO limits them; each needs a connection at times."""

READING = CapacityLimiter(CONNECTIONS - THREADS)
"""Requests that hold a session while they wait for a thread. More of them wait for their turn without a connection."""


@contextmanager
def reading(request: Request) -> Iterator[Session]:
    """A session for reading, in a thread, until the block ends."""
    with read_session(request.app.state.engine) as session:
        request.state.session = session
        try:
            yield session
        finally:
            request.state.session = None


def session_of(request: Request) -> Session | None:
    """The session that the request reads by now."""
    session: Session | None = getattr(request.state, "session", None)
    return session


async def turn_to_read() -> AsyncIterator[None]:
    async with READING:
        yield
