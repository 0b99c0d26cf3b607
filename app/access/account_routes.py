"""`/settings/account`: one's own log-in, and the browsers that are logged in by it. The same as an API."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.access.routes import PASSWORD_PAGE, SECOND_FACTOR_PAGE
from app.domain.access.principal import Person
from app.errors import NotFound
from app.storage import audit, sessions, users
from app.storage.access_projects import project_slugs
from app.storage.database import read_session, transaction
from app.storage.run_records import aware
from app.web.access.cookie import forget_session
from app.web.access.state import access_of
from app.web.dependencies import AppEngine
from app.web.problems import documented
from app.web.templating import render

SESSION_KEY = r"[0-9a-f]{16}"

pages = APIRouter(include_in_schema=False, prefix="/settings/account")
api = APIRouter(prefix="/api/v1/account/sessions", tags=["access"])

Key = Annotated[str, Path(pattern=SESSION_KEY, max_length=16, description="Of the session, as listed.")]


class SessionOut(BaseModel):
    key: str
    current: bool = Field(description="It is the one that asks.")
    agent: str = Field(description="What the browser calls itself.")
    address: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime = Field(description="When it ends unless it is used.")


class SessionList(BaseModel):
    items: list[SessionOut] = Field(description="Newest use first.")


@pages.get("")
def show_account(request: Request, engine: AppEngine) -> HTMLResponse:
    person = _person(request)
    with read_session(engine) as session:
        row = users.to_user(users.get_user(session, person.user_id))
        slugs = {slug: person.roles[project] for project in person.roles for slug in project_slugs(session, (project,))}
    return render(
        request, "access/account.html", user=row, roles=sorted(slugs.items()), sessions=_sessions(request, engine),
        password_page=PASSWORD_PAGE, second_factor_page=SECOND_FACTOR_PAGE,
    )  # fmt: skip


@pages.post("/sessions/others/end")
def end_others(request: Request, engine: AppEngine) -> Response:
    """All but the one that asks."""
    access, person = access_of(request), _person(request)
    with transaction(engine) as session:
        sessions.end_sessions_of(session, person.user_id, but=access.session_id)
        _record(session, person, "all others")
    return RedirectResponse("/settings/account", 303)


@pages.post("/sessions/{key}/end")
def end_one(request: Request, engine: AppEngine, key: Key) -> Response:
    own = _end(request, engine, key)
    response = RedirectResponse("/login" if own else "/settings/account", 303)
    if own:
        forget_session(request, response)
    return response


@api.get("", responses=documented(401))
def list_sessions(request: Request, engine: AppEngine) -> SessionList:
    """The browsers in which the caller is logged in."""
    return SessionList(items=_sessions(request, engine))


@api.delete("/{key}", status_code=204, responses=documented(401, 404, 422))
def end_session(request: Request, engine: AppEngine, key: Key) -> None:
    """Log a browser out."""
    _end(request, engine, key)


def _sessions(request: Request, engine: Engine) -> Sequence[SessionOut]:
    access, person = access_of(request), _person(request)
    with read_session(engine) as session:
        return [
            SessionOut(
                key=_key(row.id), current=row.id == access.session_id, agent=row.agent, address=row.address,
                created_at=aware(row.created_at), seen_at=aware(row.seen_at), expires_at=aware(row.expires_at),
            )
            for row in sessions.sessions_of(session, person.user_id)
        ]  # fmt: skip


def _end(request: Request, engine: Engine, key: str) -> bool:
    """Whether it was the one that asks. Raises NotFound."""
    access, person = access_of(request), _person(request)
    with transaction(engine) as session:
        found = next((row.id for row in sessions.sessions_of(session, person.user_id) if _key(row.id) == key), None)
        if found is None:
            raise NotFound("You have no such session. It may have ended by itself.")
        sessions.end_session(session, found)
        _record(session, person, key)
    return found == access.session_id


def _record(session: Session, person: Person, which: str) -> None:
    audit.record(
        session, who=person.name, subject="account", subject_id=person.user_id, action="session ended",
        after={"session": which},
    )  # fmt: skip


def _key(session_id: str) -> str:
    """A name for a session that opens nothing and finds no row."""
    return hashlib.sha256(session_id.encode()).hexdigest()[:16]


def _person(request: Request) -> Person:
    person = access_of(request).person
    assert person is not None  # noqa: S101  the rule of the route
    return person
