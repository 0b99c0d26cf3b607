"""So many requests a minute of each token, person, or address that said neither.

Who is known is counted by who they are and not by where they come from: jobs behind one address do not stand in each
other's way, and whoever only guesses does not stand in theirs.
"""

import hashlib
import ipaddress
import math
import time
from collections.abc import Iterable
from typing import Any

import structlog
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import FixedWindowRateLimiter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from app.access.credentials import Caller
from app.access.routes import RouteMatch
from app.domain.text import one_line
from app.settings import Settings
from app.web.errors import answer

# --- Counts how often something happened lately: in memory when embedded, in Redis when the service is scaled.
#
# Redis may be away: then each process counts for itself until it is back, which is less strict but still a limit.

log = structlog.get_logger(__name__)

_REDIS = ("redis://", "rediss://", "redis+unix://")
_PATIENCE_SECONDS = 0.25
_AWAY_SECONDS = 10.0
"""A Redis that did not answer is left alone for so long: nobody waits for it with every request."""


class Counting:
    """Windows begin with the first time something is counted. One an application."""

    def __init__(self, settings: Settings) -> None:
        self._here = FixedWindowRateLimiter(MemoryStorage())
        self._shared = _shared(settings.broker_url)
        self._away_until = 0.0

    @property
    def waits(self) -> bool:
        """Whether counting asks another machine, so that it belongs in a thread."""
        return self._shared is not None

    def over(self, limit: RateLimitItem, *whom: str, count: bool = True) -> int:
        """Seconds until the limit allows it again; 0 when it does. `count` it, or only look."""
        if self._shared is not None and time.monotonic() >= self._away_until:
            try:
                return _over(self._shared, limit, whom, count)
            except StorageError as error:
                self._away_until = time.monotonic() + _AWAY_SECONDS
                log.warning("limits_counted_alone", error=type(error.__cause__ or error).__name__)
        return _over(self._here, limit, whom, count)

    def give_back(self, limit: RateLimitItem, *whom: str) -> None:
        """What was counted did not happen. A window that began since is left alone: it has not counted it."""
        if self._shared is not None and time.monotonic() >= self._away_until:
            try:
                _give_back(self._shared, limit, whom)
            except StorageError:
                self._away_until = time.monotonic() + _AWAY_SECONDS
        else:
            _give_back(self._here, limit, whom)

    def forget(self, limit: RateLimitItem, *whom: str) -> None:
        if self._shared is not None and time.monotonic() >= self._away_until:
            try:
                self._shared.clear(limit, *whom)
            except StorageError:
                self._away_until = time.monotonic() + _AWAY_SECONDS
        self._here.clear(limit, *whom)


def _over(limiter: FixedWindowRateLimiter, limit: RateLimitItem, whom: tuple[str, ...], count: bool) -> int:
    allowed = limiter.hit(limit, *whom) if count else limiter.test(limit, *whom)
    if allowed:
        return 0
    reset = limiter.get_window_stats(limit, *whom).reset_time
    return max(1, math.ceil(reset - time.time()))


def _give_back(limiter: FixedWindowRateLimiter, limit: RateLimitItem, whom: tuple[str, ...]) -> None:
    key = limit.key_for(*whom)
    if limiter.storage.get(key) > 0:
        limiter.storage.incr(key, limit.get_expiry(), amount=-1)


def _shared(broker_url: str) -> FixedWindowRateLimiter | None:
    if not broker_url.startswith(_REDIS):
        return None
    patience: dict[str, Any] = {"socket_timeout": _PATIENCE_SECONDS, "socket_connect_timeout": _PATIENCE_SECONDS}
    return FixedWindowRateLimiter(RedisStorage(broker_url, wrap_exceptions=True, key_prefix="threewalls", **patience))


# --- Where a request comes from, as far as it is counted.

_OWN_V6 = 64
"""Whoever has one IPv6 address has all those that share its first 64 bits."""


def address_of(request: Request) -> str:
    """Of the client; behind a proxy its own only when THREEWALLS_TRUSTED_PROXIES names that proxy."""
    return request.client.host if request.client else ""


def network_of(address: str) -> str:
    """What one client can have of addresses."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, _OWN_V6), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)


class RequestLimits:
    """A service without log-ins limits nobody: only its own machine reaches it."""

    def __init__(self, settings: Settings, counting: Counting) -> None:
        self._counting = counting
        self._requests = _a_minute(settings.requests_per_minute)
        self._uploads = _a_minute(settings.uploads_per_minute)

    async def refusal(self, request: Request, caller: Caller, match: RouteMatch | None) -> Response | None:
        """429 to whoever asks too often."""
        if caller.access.is_open:
            return None
        whom = who(request, caller)
        if seconds := await self._over(self._requests, "request", whom):
            return _too_many(request, "requests", self._requests, seconds)
        is_upload = match is not None and match.route.is_upload
        if is_upload and (seconds := await self._over(self._uploads, "upload", whom)):
            return _too_many(request, "uploads", self._uploads, seconds)
        return None

    async def _over(self, limit: RateLimitItemPerMinute | None, kind: str, whom: str) -> int:
        if limit is None:
            return 0
        if self._counting.waits:
            return await run_in_threadpool(self._counting.over, limit, kind, whom)
        return self._counting.over(limit, kind, whom)


def who(request: Request, caller: Caller) -> str:
    """Whom a request is counted for. A person counts once, in however many browsers."""
    if caller.access.person:
        return f"person {caller.access.person.user_id}"
    return f"token {caller.key[:32]}" if caller.key else f"address {network_of(address_of(request))}"


def too_often(request: Request, detail: str, seconds: int) -> Response:
    response = answer(request, 429, "Too often", f"{detail} Nothing was kept. Try again in {in_words(seconds)}.")
    response.headers["Retry-After"] = str(seconds)
    response.headers["Cache-Control"] = "no-store"
    return response


def in_words(seconds: int) -> str:
    if seconds == 0:
        return ""
    if seconds < 120:
        return f"{seconds} seconds" if seconds != 1 else "a second"
    return f"{-(-seconds // 60)} minutes"


def _too_many(request: Request, what: str, limit: RateLimitItemPerMinute | None, seconds: int) -> Response:
    most = limit.amount if limit else 0
    return too_often(request, f"These are more than {most:,} {what} a minute, the limit of this service.", seconds)


def _a_minute(most: int) -> RateLimitItemPerMinute | None:
    return RateLimitItemPerMinute(most) if most else None


# --- Wrong passwords: so many for one account from one address, ten times that for an account or an address alone.
#
# An attempt counts before its password is looked at, so that many at once are no way around, and is given back when
# the password was right: a team behind one address stands in nobody's way. What is refused is no guess, so it counts
# nowhere, and nobody keeps others out of their account from a single place. A name that no account has counts like
# any other, so the answer tells nothing.

_MINUTES = 10
_WIDER = 10

_Counted = tuple[RateLimitItemPerMinute, tuple[str, ...]]


class Guesses:
    def __init__(self, settings: Settings, counting: Counting) -> None:
        self._counting = counting
        self._both = RateLimitItemPerMinute(settings.login_attempts, _MINUTES)
        self._either = RateLimitItemPerMinute(settings.login_attempts * _WIDER, _MINUTES)

    def begin(self, name: str, address: str) -> int:
        """Counts an attempt. Seconds to wait when there were too many, else 0."""
        counted: list[_Counted] = []
        for limit, whom in self._counted(name, address):
            counted.append((limit, whom))
            if seconds := self._counting.over(limit, *whom):
                self._give_back(counted)
                return seconds
        return 0

    def right(self, name: str, address: str) -> None:
        """It was the person: earlier mistakes from here do not count any more. Those from elsewhere do."""
        place, both, account = self._counted(name, address)
        self._give_back((place, account))
        self._counting.forget(both[0], *both[1])

    def _counted(self, name: str, address: str) -> tuple[_Counted, _Counted, _Counted]:
        account, place = _account(name), network_of(address)
        return (
            (self._either, ("guess from", place)),
            (self._both, ("guess", account, place)),
            (self._either, ("guess of", account)),
        )

    def _give_back(self, counted: Iterable[_Counted]) -> None:
        for limit, whom in counted:
            self._counting.give_back(limit, *whom)


def _account(name: str) -> str:
    """As a hash: what was typed into the wrong field is not to lie in Redis."""
    return hashlib.sha256(one_line(name).lower().encode()).hexdigest()[:32]
