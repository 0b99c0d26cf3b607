"""Identify the caller of a request: by a token in a header, by a session cookie, or as anyone without log-ins."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from app.domain.access.principal import Everyone, Principal, ProjectIds, SharedPage, TokenHolder
from app.domain.access.secrets import digest, is_token
from app.settings import Settings
from app.storage import tokens, users
from app.storage.database import read_session, transaction
from app.storage.share_links import ShareLink, find_share_link
from app.storage.tables import ProjectRow, select_any, utc_now
from app.storage.visible import EVERY_PROJECT, generation, seeing
from app.web.identity import Access
from app.web.templating import is_https

# --- Owners of tokens and cookies, cached for a few seconds so that most requests do not query the database.
#
# A change of access in this process applies immediately (`storage/visible.py`), a change by another process
# after CACHE_SECONDS at the latest.

log = structlog.get_logger(__name__)

CACHE_SECONDS = 3.0
NOTED_SECONDS = 60
"""The last use of a token or session is written at most once in this time."""

_MOST = 5_000
"""Cached tokens and sessions; the cache is cleared when it is full."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Credential:
    """A valid token or session. `ends_at`: its expiry. `used_at`: its last use as written. `session`: of a cookie."""

    principal: Principal
    ends_at: datetime | None
    used_at: datetime | None
    session: users.ActiveSession | None = None

    @property
    def kind(self) -> str:
        return "session" if self.session else "token"


class Directory:
    """Looks up credentials, cached. Each application has one."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._entries: dict[tuple[str, str], tuple[int, float, Any]] = {}
        self._noted: dict[tuple[str, str], datetime] = {}

    def cached(self, kind: str, key: str) -> tuple[bool, Any]:
        """Return whether the answer is cached, and the answer."""
        entry = self._entries.get((kind, key))
        if entry is None or entry[0] != generation() or entry[1] < time.monotonic():
            return False, None
        return True, entry[2]

    def token(self, token_digest: str) -> Credential | None:
        return self._ask("token", token_digest, lambda session: _find_token(session, token_digest))

    def session(self, session_id: str) -> Credential | None:
        return self._ask("session", session_id, lambda session: _find_session(session, session_id))

    def share_link(self, secret_digest: str) -> ShareLink | None:
        return self._ask("share link", secret_digest, lambda session: find_share_link(session, secret_digest))

    def public_projects(self) -> ProjectIds:
        query = select_any(ProjectRow.id).where(col(ProjectRow.public))
        return self._ask("public", "", lambda session: frozenset(session.execute(query).scalars()))

    def project_slugs(self) -> Mapping[str, tuple[int, str]]:
        """Return id and slug of every project, by the slug in lower case."""

        def find(session: Session) -> Mapping[str, tuple[int, str]]:
            rows = session.execute(select_any(ProjectRow.id, ProjectRow.slug))
            return {slug.lower(): (project_id, slug) for project_id, slug in rows}

        return self._ask("slugs", "", find)

    def has_administrator(self) -> bool:
        return self._ask("administrator", "", users.has_administrator)

    def is_use_due(self, credential: Credential, key: str) -> bool:
        """Return whether to write the last use: it was not written within the last minute."""
        before = self._noted.get((credential.kind, key)) or credential.used_at
        return before is None or (utc_now() - before).total_seconds() >= NOTED_SECONDS

    def note_use(self, credential: Credential, key: str) -> None:
        """Write the time of the last use if that is due. Failures are logged only."""
        if not self.is_use_due(credential, key):
            return
        if len(self._noted) >= _MOST:
            self._noted.clear()
        self._noted[credential.kind, key] = utc_now()
        idle, longest = self._settings.session_idle, self._settings.session_longest
        try:
            with seeing(EVERY_PROJECT), transaction(self._engine) as session:
                if credential.session:
                    users.extend_session(session, credential.session, idle, longest)
                elif isinstance(credential.principal, TokenHolder):
                    tokens.note_used(session, credential.principal.token_id)
        except SQLAlchemyError as error:
            log.warning("last_use_not_noted", error=type(error).__name__)

    def _ask(self, kind: str, key: str, find: Callable[[Session], T]) -> T:
        is_cached, value = self.cached(kind, key)
        if not is_cached:
            before = generation()  # read first, so that a change during the query ends the cache entry
            with seeing(EVERY_PROJECT), read_session(self._engine) as session:  # the caller is not identified yet
                value = find(session)
            if len(self._entries) >= _MOST:
                self._entries.clear()
            self._entries[kind, key] = (before, time.monotonic() + CACHE_SECONDS, value)
        answer: T = value
        return answer


def _find_token(session: Session, token_digest: str) -> Credential | None:
    token = tokens.find_token(session, token_digest)
    return Credential(token.holder, token.ends_at, token.last_used_at) if token else None


def _find_session(session: Session, session_id: str) -> Credential | None:
    row = users.find_session(session, session_id)
    user = users.logged_in_user(session, row.user_id) if row else None
    return Credential(user, row.expires_at, row.seen_at, row) if row and user else None


# --- The session cookie.

NAME = "threewalls_session"
HOST_NAME = f"__Host-{NAME}"
"""Name of the cookie over https. Browsers accept it only from this host by https and for all paths, so neither a page
without https nor a neighbouring host can plant a session."""

_MOST_CHARACTERS = 100


def session_secret(request: Request) -> str:
    """Return the secret in the session cookie; empty without one."""
    secret = request.cookies.get(_name(request), "")
    return secret if secret.isascii() and len(secret) <= _MOST_CHARACTERS else ""


def set_session(request: Request, response: Response, secret: str) -> None:
    """Set a cookie that scripts cannot read and other websites cannot send. The service decides when a session ends."""
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


# --- The cookie of a share link, which browsers send with the shared page only.

SHARE_NAME = "threewalls_share"


def set_share(request: Request, response: Response, link: ShareLink, secret: str) -> None:
    response.set_cookie(
        SHARE_NAME,
        secret,
        max_age=max(int((link.expires_at - utc_now()).total_seconds()), 0),
        path=link.path,
        httponly=True,
        samesite="lax",
        secure=is_https(request),
    )


# --- The caller of a request.

TOKEN_HEADER = "x-threewalls-token"  # noqa: S105  for services behind a proxy that uses Authorization itself

CONFIRMED_FOR = timedelta(minutes=10)
"""Routes that grant access stay open for this long after a log-in or a confirmed password."""


class WrongTokenError(Exception):
    """The token is unknown, revoked or expired. The caller gets an error instead of being treated as anonymous."""


@dataclass(frozen=True, slots=True)
class Caller:
    """`credential` and `key`: the token or session, if any, and its digest."""

    access: Access
    credential: Credential | None = None
    key: str = ""

    @property
    def by_cookie(self) -> bool:
        return self.credential is not None and self.credential.session is not None


class Credentials:
    """Finds the caller of a request. `open_to`: as for `AccessMiddleware`; None once there is an administrator."""

    def __init__(self, directory: Directory, open_to: Collection[str] | None) -> None:
        self._directory = directory
        self.open_to = open_to

    async def caller(self, request: Request) -> Caller:
        """Return the caller. Raises WrongTokenError."""
        directory = self._directory
        if self.open_to is not None:
            if not await self._ask("administrator", "", directory.has_administrator):
                return Caller(Access(Everyone()))
            self.open_to = None  # for good: the first administrator enables log-ins
        public = await self._ask("public", "", directory.public_projects)
        if (token := shown_token(request.headers)) is not None:
            key = digest(token)
            credential = await self._ask("token", key, lambda: directory.token(key)) if is_token(token) else None
            if credential is None or _is_expired(credential):
                raise WrongTokenError
            return Caller(Access(credential.principal, public), credential, key)
        if secret := session_secret(request):
            key = digest(secret)
            credential = await self._ask("session", key, lambda: directory.session(key))
            if credential is not None and not _is_expired(credential):
                access = Access(credential.principal, public, key, _is_confirmed(credential))
                return Caller(access, credential, key)
        if request.method in ("GET", "HEAD") and (secret := request.cookies.get(SHARE_NAME, "")):
            key = digest(secret[:_MOST_CHARACTERS])
            link = await self._ask("share link", key, lambda: directory.share_link(key))
            if link is not None and link.state == "active" and link.covers(request.url.path, request.url.query):
                return Caller(Access(SharedPage(link.project_id), public))
        return Caller(Access(public=public))

    async def _ask(self, kind: str, key: str, find: Callable[[], T]) -> T:
        """Return the cached answer, or call `find` in a thread."""
        is_cached, value = self._directory.cached(kind, key)
        answer: T = value if is_cached else await run_in_threadpool(find)
        return answer


def shown_token(headers: Headers) -> str | None:
    """Return the token of a request; None without one. Other schemes of Authorization belong to a proxy in front."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    return headers.get(TOKEN_HEADER)


def _is_confirmed(credential: Credential) -> bool:
    return credential.session is not None and utc_now() - credential.session.confirmed_at < CONFIRMED_FOR


def _is_expired(credential: Credential) -> bool:
    return credential.ends_at is not None and credential.ends_at <= utc_now()
