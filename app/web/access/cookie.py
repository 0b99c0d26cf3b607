"""The cookie of a browser that is logged in."""

from starlette.requests import Request
from starlette.responses import Response

from app.settings import Settings
from app.web.templating import is_https

NAME = "threewalls_session"
HOST_NAME = f"__Host-{NAME}"
"""Over https. A browser takes a cookie of such a name from this very host only, by https and for all of its paths:
neither a page without https nor a host beside this one can plant a session under it."""

_MOST_CHARACTERS = 100


def session_secret(request: Request) -> str:
    """What the browser holds; empty when it holds none."""
    secret = request.cookies.get(_name(request), "")
    return secret if secret.isascii() and len(secret) <= _MOST_CHARACTERS else ""


def set_session(request: Request, response: Response, secret: str) -> None:
    """No script reads it, no other website sends it. How long it counts is the service's matter, not the cookie's."""
    settings: Settings = request.app.state.settings
    response.set_cookie(
        _name(request),
        secret,
        max_age=int(settings.session_longest.total_seconds()),
        path="/",
        httponly=True,
        samesite="lax",
        secure=is_https(request),
    )


def forget_session(request: Request, response: Response) -> None:
    response.delete_cookie(_name(request), path="/", httponly=True, samesite="lax", secure=is_https(request))


def _name(request: Request) -> str:
    return HOST_NAME if is_https(request) else NAME
