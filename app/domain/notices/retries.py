"""When a message that did not arrive is tried again, and when it is given up."""

from datetime import timedelta

_WAITS = (10, 60, 300, 1_800, 7_200, 21_600, 43_200)
"""Seconds after the first attempt, the second and so on: a restart is short, an outage may last a night."""
ATTEMPTS = len(_WAITS) + 1
"""A message that nobody hurries is tried so many times before it is given up."""
LONGEST_WAIT = timedelta(seconds=max(_WAITS))
PATIENCE = timedelta(seconds=sum(_WAITS))
"""What is tried earlier than it waits for, because the receiver answered or a person asked, is not given up earlier."""
LONGEST_ASKED = 3_600
"""A receiver may ask for a longer pause (Retry-After), in seconds, up to this."""


def wait_after(attempts: int, age: timedelta, asked_seconds: int | None = None) -> timedelta | None:
    """The pause after so many attempts with a message of this age; None when it is given up."""
    if attempts >= ATTEMPTS and age >= PATIENCE:
        return None
    wait = _WAITS[min(max(attempts, 1), len(_WAITS)) - 1]
    return timedelta(seconds=max(wait, min(asked_seconds or 0, LONGEST_ASKED)))
