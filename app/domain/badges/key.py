"""The key of a badge's address: it opens this stack's badges and nothing else, and cannot be made without the secret.

A forge shows badges to whoever reads a README, and fetches them without a log-in. All keys of a project end when its
secret is made anew.
"""

import hashlib
import hmac
import secrets

_BYTES = 16


def new_badge_secret() -> str:
    return secrets.token_hex(_BYTES)


def badge_key(secret: str, stack_key: str) -> str:
    made = hmac.new(secret.encode(), f"threewalls badges of {stack_key}".encode(), hashlib.sha256)
    return made.hexdigest()[: 2 * _BYTES]


def opens(key: str, secret: str, stack_key: str) -> bool:
    """In the same time for every wrong key. A project without a secret has no keys."""
    return bool(secret) and hmac.compare_digest(key.encode(), badge_key(secret, stack_key).encode())
