"""A log-in that is under way: what the browser must bring back, kept in a cookie that only that log-in sees."""

import hmac
import secrets
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote

from fastapi import Request
from starlette.responses import Response

from app.web.templating import public_address

_NAME = "threewalls_oidc"
_PATH = "/login/oidc"
_SECONDS = 600
_BYTES = 32
_MOST_CHARACTERS = 1_500


@dataclass(frozen=True, slots=True)
class Attempt:
    """`state` ties the answer to this browser, `nonce` the ID token, `verifier` the code (PKCE). `wanted`: a path."""

    state: str
    nonce: str
    verifier: str
    wanted: str

    @classmethod
    def new(cls, wanted: str) -> Self:
        short = wanted if len(wanted) <= _MOST_CHARACTERS else "/"
        state, nonce, verifier = (secrets.token_urlsafe(_BYTES) for _ in range(3))
        return cls(state, nonce, verifier, short)

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """None when this browser has begun none, or too long ago."""
        parts = request.cookies.get(_cookie_name(request), "").split(".", 3)
        if len(parts) != 4 or not all(parts):
            return None
        state, nonce, verifier, wanted = parts
        return cls(state, nonce, verifier, unquote(wanted))

    def is_answered_by(self, state: str) -> bool:
        return hmac.compare_digest(self.state.encode(), state.encode(errors="replace"))

    def keep(self, request: Request, response: Response) -> None:
        held = ".".join((self.state, self.nonce, self.verifier, quote(self.wanted, safe="")))
        response.set_cookie(
            _cookie_name(request), held, max_age=_SECONDS, path=_PATH, httponly=True, samesite="lax",
            secure=_is_secure(request),
        )  # fmt: skip


def forget_attempt(request: Request, response: Response) -> None:
    """It can be answered once."""
    response.delete_cookie(
        _cookie_name(request), path=_PATH, httponly=True, samesite="lax", secure=_is_secure(request)
    )  # fmt: skip


def _is_secure(request: Request) -> bool:
    return public_address(request).startswith("https:")


def _cookie_name(request: Request) -> str:
    """Over https by a name that no page without it can set."""
    return f"__Secure-{_NAME}" if _is_secure(request) else _NAME
