"""Passwords: argon2id in three passes; with 64 MiB, RFC 9106's second choice, a check takes about 0.1 s."""

import threading
from functools import lru_cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

LEAST_LENGTH = 12
MOST_LENGTH = 200
AT_ONCE = 2
"""Checks at a time: each takes so much memory, and who guesses must not be able to take all of the memory."""

_KIB = 1024

_turn = threading.BoundedSemaphore(AT_ONCE)
_NOBODYS = (
    "$argon2id$v=19$m={kib},t={passes},p={lanes}$sRcPeg/t7FJAVmfP7fVSaQ$mAHKNrxDZC8PUiJaHVms2p5bySWWJNhOEA/WLz8bcSs"
)
"""What the password of an unknown name is checked against, so that the answer takes the same time. Opens nothing."""


def problem_with(password: str) -> str:
    """Why it is not accepted as a new one; empty when it is."""
    if len(password) < LEAST_LENGTH:
        return f"must have at least {LEAST_LENGTH} characters"
    if len(password) > MOST_LENGTH:
        return f"must have at most {MOST_LENGTH} characters"
    if len(set(password)) < 4:
        return "must not be the same few characters over and over"
    return ""


def hashed(password: str, memory_mib: int) -> str:
    with _turn:
        return _hasher(memory_mib).hash(password)


def is_right(password: str, kept: str, memory_mib: int) -> bool:
    """Return whether it is the password of this hash. An empty hash (no account, or one without a password) takes as
    long as one made with `memory_mib`."""
    hasher = _hasher(memory_mib)
    against = kept or _NOBODYS.format(kib=hasher.memory_cost, passes=hasher.time_cost, lanes=hasher.parallelism)
    with _turn:
        try:
            return hasher.verify(against, password[: MOST_LENGTH + 1]) and bool(kept)
        except (VerificationError, InvalidHashError):
            return False


def is_outdated(kept: str, memory_mib: int) -> bool:
    """Return whether it was made with other parameters than today's: to be made anew at the next log-in."""
    return _hasher(memory_mib).check_needs_rehash(kept)


@lru_cache
def _hasher(memory_mib: int) -> PasswordHasher:
    return PasswordHasher(memory_cost=memory_mib * _KIB)
