"""Routers and answers of API calls, and dependencies of routes: settings, database, read session, log files, rules."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Generic, Self, TypeVar

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from sqlalchemy import Engine
from sqlmodel import Session

from app.settings import Settings
from app.storage.database import CONNECTIONS, read_session
from app.storage.log_files import LogFiles, require_room
from app.storage.rules import RulesInForce, rules_in_force


def api_router(tag: str, prefix: str = "/api/v1") -> APIRouter:
    """Return a router whose calls the OpenAPI document groups under `tag` and identifies by their function's name.

    Links to the reference use that name. It is set here and not where the application includes the routers, because
    FastAPI would then read the types of all calls a second time.
    """
    return APIRouter(prefix=prefix, tags=[tag], generate_unique_id_function=_name)


def _name(route: APIRoute) -> str:
    return route.name


class ApiValue(BaseModel, from_attributes=True):
    """A type of the API whose fields are attributes of values of the service, by the same names."""

    @classmethod
    def from_values(cls, *values: object, **others: object) -> Self:
        """Return the answer with `others`, and each further field from the first of the values that has it."""
        for name in cls.model_fields.keys() - others.keys():
            for value in values:
                if hasattr(value, name):
                    others[name] = getattr(value, name)
                    break
        return cls.model_validate(others)


Item = TypeVar("Item")


class ListOut(ApiValue, Generic[Item]):
    """One page of a list."""

    items: list[Item]
    total: int
    page: int
    page_size: int


# --- Each request reads in one session, and so through one connection, for the page and its frame.
#
# If requests took a second connection while holding one, the service would deadlock as soon as all connections are in
# use (`tests/hardening/test_overload.py`).

THREADS = 40
"""Threads of the server, AnyIO's default limit. Each needs a connection at times."""

READING = CapacityLimiter(CONNECTIONS - THREADS)
"""Limits requests that hold a session while they wait for a thread. Others wait without a connection."""


@contextmanager
def reading(request: Request) -> Iterator[Session]:
    """Open the request's read session until the block ends. Use it in a thread."""
    with read_session(request.app.state.engine) as session:
        request.state.session = session
        try:
            yield session
        finally:
            request.state.session = None


def session_of(request: Request) -> Session | None:
    """Return the open read session of the request; None without one."""
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
    """Check before a body is read that the disk has room for it. Raises DiskFull."""
    declared = request.headers.get("content-length", "0")
    require_room(settings, int(declared) if declared.isdigit() else 0)


RoomOnDisk = Depends(room_on_disk)


def get_read_session(
    request: Request, _: Annotated[None, Depends(turn_to_read, scope="function")]
) -> Iterator[Session]:
    with reading(request) as session:
        yield session


ReadSession = Annotated[Session, Depends(get_read_session, scope="function")]
"""Ends with the handler, before the answer is sent, so that slow clients hold no connection."""
