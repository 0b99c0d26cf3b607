"""The cookie of a browser that is logged in."""

from starlette.requests import Request
from starlette.responses import Response

from app.storage.sessions import LONGEST
from app.web.templating import public_address

NAME = "threewalls_session"
_MOST_CHARACTERS = 100


def session_secret(request: Request) -> str:
    """What the browser holds; empty when it holds none."""
    secret = request.cookies.get(NAME, "")
    return secret if secret.isascii() and len(secret) <= _MOST_CHARACTERS else ""


def set_session(request: Request, response: Response, secret: str) -> None:
    """No script reads it, no other website sends it. How long it counts is the service's matter, not the cookie's."""
    response.set_cookie(
        NAME, secret, max_age=int(LONGEST.total_seconds()), path="/", httponly=True, samesite="lax",
        secure=public_address(request).startswith("https:"),
    )  # fmt: skip


def forget_session(request: Request, response: Response) -> None:
    response.delete_cookie(
        NAME, path="/", httponly=True, samesite="lax", secure=public_address(request).startswith("https:")
    )
