"""Rate limits: requests per minute of a token, a user, or an anonymous address, and wrong passwords.

Identified callers are counted by their identity and not by their address, so that jobs behind one address do not
exhaust each other's limit, nor does an attacker there.
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

# --- Counters: in memory when embedded, in Redis when the service is scaled.
#
# While Redis is down, each process counts on its own, which is less strict but still a limit.

log = structlog.get_logger(__name__)

_REDIS = ("redis://", "rediss://", "redis+unix://")
_TIMEOUT_SECONDS = 0.25
_PAUSE_SECONDS = 10.0
"""After Redis did not answer, it is not used for this long, so that requests do not wait for it repeatedly."""


class Counting:
    """Counts in fixed windows, which begin with the first event. Each application has one."""

    def __init__(self, settings: Settings) -> None:
        self._here = FixedWindowRateLimiter(MemoryStorage())
        self._shared = _shared(settings.broker_url)
        self._paused_until = 0.0

    @property
    def waits(self) -> bool:
        """Return whether counting uses the network, so that it belongs in a thread."""
        return self._shared is not None

    def hit(self, limit: RateLimitItem, *whom: str) -> int:
        """Count an event. Return the seconds until the limit allows it; 0 if it does now."""
        if self._shared is not None and time.monotonic() >= self._paused_until:
            try:
                return _hit(self._shared, limit, whom)
            except StorageError as error:
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
                log.warning("limits_counted_alone", error=type(error.__cause__ or error).__name__)
        return _hit(self._here, limit, whom)

    def give_back(self, limit: RateLimitItem, *whom: str) -> None:
        """Subtract an event that was counted. If a new window began since then, it stays unchanged."""
        if self._shared is not None and time.monotonic() >= self._paused_until:
            try:
                _give_back(self._shared, limit, whom)
            except StorageError:
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
        else:
            _give_back(self._here, limit, whom)

    def forget(self, limit: RateLimitItem, *whom: str) -> None:
        if self._shared is not None and time.monotonic() >= self._paused_until:
            try:
                self._shared.clear(limit, *whom)
            except StorageError:
                self._paused_until = time.monotonic() + _PAUSE_SECONDS
        self._here.clear(limit, *whom)


def _hit(limiter: FixedWindowRateLimiter, limit: RateLimitItem, whom: tuple[str, ...]) -> int:
    if limiter.hit(limit, *whom):
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
    timeouts: dict[str, Any] = {"socket_timeout": _TIMEOUT_SECONDS, "socket_connect_timeout": _TIMEOUT_SECONDS}
    return FixedWindowRateLimiter(RedisStorage(broker_url, wrap_exceptions=True, key_prefix="threewalls", **timeouts))


# --- The address that a request is counted under.

_IPV6_PREFIX = 64
"""A client with one IPv6 address usually has the whole /64 network."""


def address_of(request: Request) -> str:
    """Return the client's address; behind a proxy that THREEWALLS_TRUSTED_PROXIES does not name, the proxy's."""
    return request.client.host if request.client else ""


def network_of(address: str) -> str:
    """Return the addresses that one client can use."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


class RequestLimits:
    """Limits requests and uploads. A service without log-ins has no limits: only its own machine can reach it."""

    def __init__(self, settings: Settings, counting: Counting) -> None:
        self._counting = counting
        self._requests = _a_minute(settings.requests_per_minute)
        self._uploads = _a_minute(settings.uploads_per_minute)

    async def refusal(self, request: Request, caller: Caller, match: RouteMatch | None) -> Response | None:
        """Return 429 if the caller exceeds a limit."""
        if caller.access.is_open:
            return None
        whom = _counted_as(request, caller)
        if self._requests and (seconds := await self._hit(self._requests, "request", whom)):
            return _too_many(request, "requests", self._requests, seconds)
        is_upload = match is not None and match.route.is_upload
        if is_upload and self._uploads and (seconds := await self._hit(self._uploads, "upload", whom)):
            return _too_many(request, "uploads", self._uploads, seconds)
        return None

    async def _hit(self, limit: RateLimitItemPerMinute, kind: str, whom: str) -> int:
        if self._counting.waits:
            return await run_in_threadpool(self._counting.hit, limit, kind, whom)
        return self._counting.hit(limit, kind, whom)


def _counted_as(request: Request, caller: Caller) -> str:
    """Return the name that a request is counted under. All browsers of a user count together."""
    if caller.access.user:
        return f"user {caller.access.user.user_id}"
    return f"token {caller.key[:32]}" if caller.key else f"address {network_of(address_of(request))}"


def too_often(request: Request, detail: str, seconds: int) -> Response:
    """Return 429. `seconds`: until the caller may try again."""
    response = answer(
        request, 429, "Too many requests", f"{detail} Nothing was saved. Try again in {in_words(seconds)}."
    )
    response.headers["Retry-After"] = str(seconds)
    response.headers["Cache-Control"] = "no-store"
    return response


def in_words(seconds: int) -> str:
    if seconds == 0:
        return ""
    if seconds < 120:
        return f"{seconds} seconds" if seconds != 1 else "1 second"
    return f"{-(-seconds // 60)} minutes"


def _too_many(request: Request, what: str, limit: RateLimitItemPerMinute, seconds: int) -> Response:
    return too_often(request, f"The limit of this service is {limit.amount:,} {what} per minute.", seconds)


def _a_minute(most: int) -> RateLimitItemPerMinute | None:
    return RateLimitItemPerMinute(most) if most else None


# --- Wrong passwords: a limit for each pair of user and address, and ten times that for a user or an address alone.
#
# An attempt counts before its password is checked, so that parallel attempts cannot bypass the limit. It is given back
# when the password is right, so that a team behind one address is not locked out. Refused attempts do not count, so
# one address cannot lock a user out. Unknown names count as well, so that the answer does not reveal which exist.

_MINUTES = 10
_WIDER = 10

_Counted = tuple[RateLimitItemPerMinute, tuple[str, ...]]


class Guesses:
    """Limits wrong passwords by user and address."""

    def __init__(self, settings: Settings, counting: Counting) -> None:
        self._counting = counting
        self._both = RateLimitItemPerMinute(settings.login_attempts, _MINUTES)
        self._either = RateLimitItemPerMinute(settings.login_attempts * _WIDER, _MINUTES)

    def begin(self, name: str, address: str) -> int:
        """Count an attempt. Return the seconds to wait if there were too many, else 0."""
        counted: list[_Counted] = []
        for limit, whom in self._counted(name, address):
            counted.append((limit, whom))
            if seconds := self._counting.hit(limit, *whom):
                self._give_back(counted)
                return seconds
        return 0

    def right(self, name: str, address: str) -> None:
        """Give the attempt back after a right password. Earlier mistakes from this address stop counting, too."""
        from_address, both, of_user = self._counted(name, address)
        self._give_back((from_address, of_user))
        self._counting.forget(both[0], *both[1])

    def _counted(self, name: str, address: str) -> tuple[_Counted, _Counted, _Counted]:
        # A hash, because users sometimes type a password into the field of the name, and it must not end up in Redis.
        user = hashlib.sha256(one_line(name).lower().encode()).hexdigest()[:32]
        network = network_of(address)
        return (
            (self._either, ("guess from", network)),
            (self._both, ("guess", user, network)),
            (self._either, ("guess of", user)),
        )

    def _give_back(self, counted: Iterable[_Counted]) -> None:
        for limit, whom in counted:
            self._counting.give_back(limit, *whom)
