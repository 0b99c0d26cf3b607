"""What routes ask for: the settings, the database, a session for reading, the artifact store, the rules in force."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request
from sqlalchemy import Engine
from sqlmodel import Session

from app.settings import Settings
from app.storage.database import CONNECTIONS, read_session
from app.storage.log_files import LogFiles, require_room
from app.storage.rules import RulesInForce, rules_in_force

# --- The session of a request: a page and the frame around it read by the same one, and so by one connection.
#
# A request that took a second connection while it holds one would lock the service: as soon as requests hold them
# all, each waits for another (`tests/web/test_one_session.py`).

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


def get_app_settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def get_engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def get_log_files(request: Request) -> LogFiles:
    log_files: LogFiles = request.app.state.log_files
    return log_files


def get_rules(request: Request) -> RulesInForce:
    return rules_in_force(get_app_settings(request))


AppSettings = Annotated[Settings, Depends(get_app_settings)]
AppEngine = Annotated[Engine, Depends(get_engine)]
AppLogFiles = Annotated[LogFiles, Depends(get_log_files)]
Rules = Annotated[RulesInForce, Depends(get_rules)]


def room_on_disk(request: Request, settings: AppSettings) -> None:
    """For routes that store what is sent, before they read it. Raises DiskFull."""
    declared = request.headers.get("content-length", "0")
    require_room(settings, int(declared) if declared.isdigit() else 0)


RoomOnDisk = Depends(room_on_disk)


def get_read_session(
    request: Request, _: Annotated[None, Depends(turn_to_read, scope="function")]
) -> Iterator[Session]:
    with reading(request) as session:
        yield session


ReadSession = Annotated[Session, Depends(get_read_session, scope="function")]
"""Ends with the handler, before the answer is sent: who reads slowly holds no connection."""
