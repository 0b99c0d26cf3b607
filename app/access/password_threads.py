"""Passwords are checked in threads of their own: however many log-ins wait, no other request waits for a thread."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread

from app.domain.access.passwords import AT_ONCE

T = TypeVar("T")
Args = TypeVarTuple("Args")

_THREADS = CapacityLimiter(AT_ONCE)


async def with_password(function: Callable[[*Args], T], *args: *Args) -> T:
    """What the function makes of these; it looks at a password, which takes a tenth of a second of a processor."""
    return await to_thread.run_sync(function, *args, limiter=_THREADS)
