"""Counts how often something happened lately: in memory when embedded, in Redis when the service is scaled.

Redis may be away: then each process counts for itself until it is back, which is less strict but still a limit.
"""

import math
import time
from typing import Any

import structlog
from limits import RateLimitItem
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import FixedWindowRateLimiter

from app.settings import Settings

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
