"""Connections that ask for nothing are closed: uvicorn itself waits for a request for ever.

Its `limit_concurrency` is not used, because it would refuse health checks as well.
"""

import asyncio
import resource

from h11 import IDLE, SEND_BODY
from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST_FILES = 16_384
"""Open files, and with them connections, for which memory is there on small machines, too."""


def protocol(seconds: float) -> type[H11Protocol]:
    """`seconds`: how long the head of a request may take, and the rest of a body after its answer."""

    class Impatient(H11Protocol):
        _end: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._let_go()

        def _watch(self) -> None:
            """One timer from the first to the last byte that is waited for: bytes that trickle in win no time."""
            state = self.conn.their_state
            answered = self.cycle is not None and self.cycle.response_complete
            if state is not IDLE and not (state is SEND_BODY and answered):
                self._let_go()
            elif self._end is None:
                self._end = self.loop.call_later(seconds, self.transport.close)

        def _let_go(self) -> None:
            if self._end is not None:
                self._end.cancel()
                self._end = None

    return Impatient


def make_room() -> None:
    """For as many connections as this machine allows: processes begin with 1024 files, which one client can hold."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
