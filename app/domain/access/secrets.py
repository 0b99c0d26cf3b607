"""Tokens of projects and ids of sessions: 256 random bits each.

Random secrets of this length need no slow hash. The database stores their SHA-256 and looks them up by it, so no
comparison leaks timing, and a copy of the database gives no access.
"""

import hashlib
import re
import secrets

TOKEN_PREFIX = "tw_"  # noqa: S105  lets secret scanners recognise tokens
_BYTES = 32
_SHOWN = 10
_TOKEN = re.compile(r"tw_[A-Za-z0-9_-]{43}")


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(_BYTES)


def new_share_secret() -> str:
    return secrets.token_urlsafe(_BYTES)


def new_session_id() -> str:
    return secrets.token_urlsafe(_BYTES)


def digest(secret: str) -> str:
    """Return the SHA-256 of a secret in hexadecimal, which the database stores."""
    return hashlib.sha256(secret.encode()).hexdigest()


def shown(token: str) -> str:
    """Return the first characters of a token, which pages show to identify it."""
    return token[:_SHOWN]


def is_token(text: str) -> bool:
    """Return whether the text has the form of a token. Other texts are not looked up."""
    return _TOKEN.fullmatch(text) is not None
