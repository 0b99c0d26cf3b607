"""How long to wait before the next attempt: exponential with full jitter, or what the service asks for."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
LONGEST_ASKED_SECONDS = 300.0
"""A service that asks for more than this is taken for one that cannot be reached."""


def pauses(retries: int, random: Callable[[], float]) -> Iterator[float]:
    """Seconds before each further attempt. `random` gives numbers from 0 to 1: many jobs must not come back at once."""
    for attempt in range(retries):
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2**attempt)
        yield longest / 2 + longest / 2 * random()


def asked_seconds(retry_after: str | None, now: datetime) -> float | None:
    """Seconds that `Retry-After` asks for, as a number or as a date; None when it says nothing that can be read."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds())
