"""Wrong passwords: so many for one account from one address, ten times that for an account or an address alone.

An attempt counts before its password is looked at, so that many at once are no way around. What is refused for one
address does not count for the account: nobody keeps others out of theirs from a single place. A name that no account
has counts like any other, so the answer tells nothing.
"""

import hashlib

from limits import RateLimitItemPerMinute

from app.domain.text import one_line
from app.settings import Settings
from app.web.limits.counting import Counting
from app.web.limits.places import network_of

_MINUTES = 10
_WIDER = 10


class Guesses:
    def __init__(self, settings: Settings, counting: Counting) -> None:
        self._counting = counting
        self._both = RateLimitItemPerMinute(settings.login_attempts, _MINUTES)
        self._either = RateLimitItemPerMinute(settings.login_attempts * _WIDER, _MINUTES)

    def begin(self, name: str, address: str) -> int:
        """Counts an attempt. Seconds to wait when there were too many, else 0."""
        account, place = _account(name), network_of(address)
        return (
            self._counting.over(self._either, "guess from", place)
            or self._counting.over(self._both, "guess", account, place)
            or self._counting.over(self._either, "guess of", account)
        )

    def right(self, name: str, address: str) -> None:
        """It was the person: earlier mistakes from here do not count any more. Those from elsewhere do."""
        self._counting.forget(self._both, "guess", _account(name), network_of(address))


def _account(name: str) -> str:
    """As a hash: what was typed into the wrong field is not to lie in Redis."""
    return hashlib.sha256(one_line(name).lower().encode()).hexdigest()[:32]
