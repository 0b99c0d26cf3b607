"""When a message that did not arrive is tried again, and when it is given up."""

from datetime import timedelta

_WAITS = (10, 60, 300, 1_800, 7_200, 21_600, 43_200)
"""Seconds after the first attempt, the second and so on: a restart is short, an outage may last a night."""
MOST_ATTEMPTS = len(_WAITS) + 1
LONGEST_ASKED = 3_600
"""A receiver may ask for a longer pause (Retry-After), in seconds, up to this."""


def wait_after(attempts: int, asked_seconds: int | None = None) -> timedelta | None:
    """The pause after so many attempts; None when it is given up."""
    if attempts >= MOST_ATTEMPTS:
        return None
    wait = _WAITS[max(attempts, 1) - 1]
    return timedelta(seconds=max(wait, min(asked_seconds or 0, LONGEST_ASKED)))
