"""Routers and base types of the API, and dependencies of routes: settings, database, read session, files, rules."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Generic, Self, TypeVar

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel
from sqlalchemy import Engine
from sqlmodel import Session

from app.settings import Settings
from app.storage.database import CONNECTIONS, read_session
from app.storage.log_files import LogFiles, require_room
from app.storage.rules import RulesInForce, rules_in_force


def api_router(tag: str, prefix: str = "/api/v1") -> APIRouter:
    """Return a router. The OpenAPI document groups its calls under `tag` and identifies each by its function's name.

    Links to the reference use that name. It is set here, because FastAPI would read the types of all calls a second
    time if it were set where the application includes the routers.
    """
    return APIRouter(prefix=prefix, tags=[tag], generate_unique_id_function=lambda route: route.name)


class ApiValue(BaseModel, from_attributes=True):
    """Base of API types whose fields are copied from attributes with the same name."""

    @classmethod
    def from_values(cls, *values: object, **others: object) -> Self:
        """Return an instance from `others`; each other field comes from the first value that has such an attribute."""
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
# If requests took a second connection while they hold one, the service would deadlock once all connections are in use
# (`tests/hardening/test_overload.py`).

THREADS = 40
"""Threads of the server (AnyIO's default limit). Each may need a connection."""

READING = CapacityLimiter(CONNECTIONS - THREADS)
"""Limits the requests that hold a session while they wait for a thread. Others wait without a connection."""


@contextmanager
def reading(request: Request) -> Iterator[Session]:
    """Open the request's read session for the block. Use it only in a thread."""
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


async def wait_for_session() -> AsyncIterator[None]:
    async with READING:
        yield


# Asynchronous, because FastAPI calls other functions in a thread, which takes 0.2 ms for each.


async def get_app_settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def get_engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def get_log_files(request: Request) -> LogFiles:
    log_files: LogFiles = request.app.state.log_files
    return log_files


def get_rules(request: Request) -> RulesInForce:
    return rules_in_force(request.app.state.settings)


AppSettings = Annotated[Settings, Depends(get_app_settings)]
AppEngine = Annotated[Engine, Depends(get_engine)]
AppLogFiles = Annotated[LogFiles, Depends(get_log_files)]
Rules = Annotated[RulesInForce, Depends(get_rules)]


def get_wait(
    settings: AppSettings,
    wait: Annotated[float, Query(ge=0, description="Seconds to wait until the run is read and judged.")] = 0,
) -> float:
    """Return how long an answer may wait, in seconds: as requested, up to the limit of the service."""
    return min(wait, settings.max_wait_seconds)


WaitSeconds = Annotated[float, Depends(get_wait)]


def check_disk_space(request: Request, settings: AppSettings) -> None:
    """Check that the disk has room before a body is read. Raises DiskFull."""
    declared = request.headers.get("content-length", "0")
    require_room(settings, int(declared) if declared.isdigit() else 0)


RoomOnDisk = Depends(check_disk_space)


def get_read_session(
    request: Request, _: Annotated[None, Depends(wait_for_session, scope="function")]
) -> Iterator[Session]:
    with reading(request) as session:
        yield session


ReadSession = Annotated[Session, Depends(get_read_session, scope="function")]
"""A read session that ends with the handler, before the answer is sent, so that slow clients hold no connection."""


# --- Path parameters that the routes of several features share.

LARGEST_NUMBER = 2**31 - 1
"""The largest id: a column of ids is a 32-bit integer in PostgreSQL."""
Slug = Annotated[str, Path(min_length=1, max_length=100, description="Name of the project, as in `meta.project`.")]
RunId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="Number of the run.")]
RegressionId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="Number of the regression.")]
StackKey = Annotated[str, Path(max_length=100, description="A stack key, or at least 8 of its first digits.")]
BoardSlug = Annotated[str, Path(max_length=230, description="Hardware or model family, as in the address of a board.")]
