"""Who a request comes from: by a token in a header, by the cookie of a session, or because nobody must log in."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import col
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from app.domain.access.principal import Everyone, Principal, ProjectIds
from app.domain.access.secrets import digest, is_token
from app.settings import Settings
from app.storage import tokens, users
from app.storage.access_changes import generation
from app.storage.database import read_session, transaction
from app.storage.tables import ProjectRow, select_any, utc_now
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.identity import Access
from app.web.templating import is_https

# --- Who is behind a token or a cookie, remembered for a few seconds so that most requests ask the database nothing.
#
# A change of access in this process counts at once (`storage/access_changes.py`); one that another process made,
# after REMEMBERED_SECONDS at the latest.

log = structlog.get_logger(__name__)

REMEMBERED_SECONDS = 3.0
NOTED_SECONDS = 60
"""The last use of a token or session is written at most once in this time."""

_MOST = 5_000
"""Tokens and sessions that are remembered; with more of them all are asked for again."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    """`ends_at`: when the token or session does. `session_id`: of a session. `used_at`: its last use as written."""

    principal: Principal
    ends_at: datetime | None
    used_at: datetime | None
    session: users.KnownSession | None = None

    @property
    def kind(self) -> str:
        return "session" if self.session else "token"


class Directory:
    """What is known of principals. One an application."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._entries: dict[tuple[str, str], tuple[int, float, Any]] = {}
        self._noted: dict[tuple[str, str], datetime] = {}

    def remembered(self, kind: str, key: str) -> tuple[bool, Any]:
        """Whether it was asked for lately, and what came out."""
        entry = self._entries.get((kind, key))
        if entry is None or entry[0] != generation() or entry[1] < time.monotonic():
            return False, None
        return True, entry[2]

    def token(self, token_digest: str) -> Known | None:
        return self._ask("token", token_digest, lambda: self._find_token(token_digest))

    def session(self, session_id: str) -> Known | None:
        return self._ask("session", session_id, lambda: self._find_session(session_id))

    def public_projects(self) -> ProjectIds:
        return self._ask("public", "", self._find_public)

    def project_slugs(self) -> Mapping[str, tuple[int, str]]:
        """Of all projects, by the slug in lower case: the id and the slug."""
        return self._ask("slugs", "", self._find_slugs)

    def has_administrator(self) -> bool:
        return self._ask("administrator", "", self._find_administrator)

    def is_use_due(self, known: Known, key: str) -> bool:
        """Whether its last use is to be written: that was not done within the minute."""
        before = self._noted.get((known.kind, key)) or known.used_at
        return before is None or (utc_now() - before).total_seconds() >= NOTED_SECONDS

    def note_use(self, known: Known, key: str) -> None:
        """Write when it was used last, if that is due. What cannot be written is left."""
        if not self.is_use_due(known, key):
            return
        if len(self._noted) >= _MOST:
            self._noted.clear()
        self._noted[known.kind, key] = utc_now()
        try:
            with seeing(EVERY_PROJECT), transaction(self._engine) as session:
                if known.session:
                    users.note_seen(session, known.session, self._settings.session_idle, self._settings.session_longest)
                else:
                    tokens.note_used(session, known.principal.token_id)  # type: ignore[union-attr]
        except SQLAlchemyError as error:
            log.warning("last_use_not_noted", error=type(error).__name__)

    def _ask(self, kind: str, key: str, find: Callable[[], T]) -> T:
        remembered, value = self.remembered(kind, key)
        if remembered:
            found: T = value
            return found
        before = generation()  # of before the reading: what changes meanwhile is read again
        with seeing(EVERY_PROJECT):  # who somebody is, is not theirs to see
            found = find()
        if len(self._entries) >= _MOST:
            self._entries.clear()
        self._entries[kind, key] = (before, time.monotonic() + REMEMBERED_SECONDS, found)
        return found

    def _find_token(self, token_digest: str) -> Known | None:
        with read_session(self._engine) as session:
            found = tokens.find_token(session, token_digest)
        return Known(found.holder, found.ends_at, found.last_used_at) if found else None

    def _find_session(self, session_id: str) -> Known | None:
        with read_session(self._engine) as session:
            found = users.find_session(session, session_id)
            person = users.person(session, found.user_id) if found else None
        return Known(person, found.expires_at, found.seen_at, found) if found and person else None

    def _find_public(self) -> ProjectIds:
        with read_session(self._engine) as session:
            chosen = select_any(ProjectRow.id).where(col(ProjectRow.public))
            return frozenset(session.execute(chosen).scalars())

    def _find_slugs(self) -> Mapping[str, tuple[int, str]]:
        with read_session(self._engine) as session:
            rows = session.execute(select_any(ProjectRow.id, ProjectRow.slug))
            return {slug.lower(): (project_id, slug) for project_id, slug in rows}

    def _find_administrator(self) -> bool:
        with read_session(self._engine) as session:
            return users.has_administrator(session)


# --- The cookie of a browser that is logged in.

NAME = "threewalls_session"
HOST_NAME = f"__Host-{NAME}"
"""Over https. A browser takes a cookie of such a name from this very host only, by https and for all of its paths:
neither a page without https nor a host beside this one can plant a session under it."""

_MOST_CHARACTERS = 100


def session_secret(request: Request) -> str:
    """What the browser holds; empty when it holds none."""
    secret = request.cookies.get(_name(request), "")
    return secret if secret.isascii() and len(secret) <= _MOST_CHARACTERS else ""


def set_session(request: Request, response: Response, secret: str) -> None:
    """No script reads it, no other website sends it. How long it counts is the service's matter, not the cookie's."""
    settings: Settings = request.app.state.settings
    response.set_cookie(
        _name(request),
        secret,
        max_age=int(settings.session_longest.total_seconds()),
        path="/",
        httponly=True,
        samesite="lax",
        secure=is_https(request),
    )


def forget_session(request: Request, response: Response) -> None:
    response.delete_cookie(_name(request), path="/", httponly=True, samesite="lax", secure=is_https(request))


def _name(request: Request) -> str:
    return HOST_NAME if is_https(request) else NAME


TOKEN_HEADER = "x-threewalls-token"  # noqa: S105  for a place where a proxy keeps Authorization to itself

CONFIRMED_FOR = timedelta(minutes=10)
"""So long after a log-in, or the password given again, a person may make what gives access."""


class WrongTokenError(Exception):
    """A token was shown that is none, or is over: its owner is to hear that, and not to be taken for nobody."""


@dataclass(frozen=True, slots=True)
class Caller:
    """`known` and `key`: the token or session that said so, and by what it is kept."""

    access: Access
    known: Known | None = None
    key: str = ""

    @property
    def by_cookie(self) -> bool:
        return self.known is not None and self.known.session is not None


class Credentials:
    def __init__(self, directory: Directory, open_to: Collection[str] | None) -> None:
        self._directory = directory
        self.open_to = open_to

    async def caller(self, request: Request) -> Caller:
        """Raises WrongTokenError."""
        directory = self._directory
        if self.open_to is not None:
            if not await self._ask("administrator", "", directory.has_administrator):
                return Caller(Access(Everyone()))
            self.open_to = None  # whoever made an administrator wants log-ins, from now on
        public = await self._ask("public", "", directory.public_projects)
        if (token := shown_token(request.headers)) is not None:
            key = digest(token)
            known = await self._ask("token", key, lambda: directory.token(key)) if is_token(token) else None
            if known is None or _is_over(known):
                raise WrongTokenError
            return Caller(Access(known.principal, public), known, key)
        if secret := session_secret(request):
            key = digest(secret)
            known = await self._ask("session", key, lambda: directory.session(key))
            if known is not None and not _is_over(known):
                return Caller(Access(known.principal, public, key, _is_confirmed(known)), known, key)
        return Caller(Access(public=public))

    async def _ask(self, kind: str, key: str, find: Callable[[], T]) -> T:
        """In a thread, unless it is remembered."""
        remembered, value = self._directory.remembered(kind, key)
        if remembered:
            found: T = value
            return found
        return await run_in_threadpool(find)


def shown_token(headers: Headers) -> str | None:
    """None when none was shown; another scheme of Authorization is that of a proxy in front."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    return headers.get(TOKEN_HEADER)


def _is_confirmed(known: Known) -> bool:
    return known.session is not None and utc_now() - known.session.confirmed_at < CONFIRMED_FOR


def _is_over(known: Known) -> bool:
    return known.ends_at is not None and known.ends_at <= utc_now()
