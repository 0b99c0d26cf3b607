"""Who a request comes from: by a token in a header, by the cookie of a session, or because nobody must log in."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request

from app.domain.access.principal import Everyone
from app.domain.access.secrets import digest, is_token
from app.storage.tables import utc_now
from app.web.access.cookie import session_secret
from app.web.access.known import Directory, Known
from app.web.access.state import Access

TOKEN_HEADER = "x-threewalls-token"  # noqa: S105  for a place where a proxy keeps Authorization to itself

CONFIRMED_FOR = timedelta(minutes=10)
"""So long after a log-in, or the password given again, a person may make what gives access."""

T = TypeVar("T")


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
