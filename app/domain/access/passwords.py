"""Passwords: argon2id by RFC 9106's second choice (64 MiB, three passes), about a tenth of a second a check."""

import threading

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

LEAST_LENGTH = 12
MOST_LENGTH = 200
AT_ONCE = 2
"""Checks at a time: each takes 64 MiB, and who guesses must not be able to take all of the memory."""

_turn = threading.BoundedSemaphore(AT_ONCE)

_hasher = PasswordHasher()
_NOBODYS = "$argon2id$v=19$m=65536,t=3,p=4$sRcPeg/t7FJAVmfP7fVSaQ$mAHKNrxDZC8PUiJaHVms2p5bySWWJNhOEA/WLz8bcSs"
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


def hashed(password: str) -> str:
    with _turn:
        return _hasher.hash(password)


def is_right(password: str, kept: str) -> bool:
    """Whether it is the password of this hash. An empty hash (nobody, or nobody with a password) takes as long."""
    with _turn:
        try:
            return _hasher.verify(kept or _NOBODYS, password[: MOST_LENGTH + 1]) and bool(kept)
        except (VerificationError, InvalidHashError):
            return False


def is_outdated(kept: str) -> bool:
    """Made with other parameters than today's: to be made anew at the next log-in."""
    return _hasher.check_needs_rehash(kept)
