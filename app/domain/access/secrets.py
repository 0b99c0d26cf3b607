"""Secrets that a service hands out and checks: tokens of projects, ids of sessions. 256 random bits each.

What is as random as that needs no slow hash: it is kept as its SHA-256 and found by it, so that no comparison of the
secret itself can be timed, and a copy of the database opens nothing.
"""

import hashlib
import re
import secrets

TOKEN_PREFIX = "tw_"  # noqa: S105  how tokens begin, so that scanners of repositories find them
_BYTES = 32
_SHOWN = 10
_TOKEN = re.compile(r"tw_[A-Za-z0-9_-]{43}")


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(_BYTES)


def new_session_id() -> str:
    return secrets.token_urlsafe(_BYTES)


def digest(secret: str) -> str:
    """What is kept of a secret, in hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()


def shown(token: str) -> str:
    """The beginning by which people tell their tokens apart."""
    return token[:_SHOWN]


def is_token(text: str) -> bool:
    """Whether it has the form of a token; what has not, is looked up nowhere."""
    return _TOKEN.fullmatch(text) is not None
