"""Wrong passwords: so many for one account from one address, ten times that for an account or an address alone.

An attempt counts before its password is looked at, so that many at once are no way around, and is given back when the
password was right: a team behind one address stands in nobody's way. What is refused is no guess, so it counts nowhere,
and nobody keeps others out of their account from a single place. A name that no account has counts like any other, so
the answer tells nothing.
"""

import hashlib
from collections.abc import Iterable

from limits import RateLimitItemPerMinute

from app.domain.text import one_line
from app.settings import Settings
from app.web.limits.counting import Counting
from app.web.limits.places import network_of

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
