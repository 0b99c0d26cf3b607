"""No other website writes here: while there are no log-ins, a page open in a browser could post to a local service.

A browser says by `Sec-Fetch-Site` and `Origin` whose page asks; command-line clients send neither and pass.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import FieldError
from app.web.error_pages import answer

_WRITING = ("POST", "PUT", "PATCH", "DELETE")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_TITLE = "Another website asked for this"
_DETAIL = (
    "A page of another address tried to write here, so nothing was kept. Open this service at its own address and do "
    "it there, or use a command-line client. Behind a proxy, set THREEWALLS_PUBLIC_URL "
    "to the address that people open."
)


class CrossSiteMiddleware:
    def __init__(self, app: ASGIApp, public_url: str) -> None:
        self._app = app
        self._public_origin = _origin(public_url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in _WRITING and (why := self._foreign(scope)):
            response = answer(Request(scope), 403, _TITLE, _DETAIL, (why,))
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope) -> FieldError | None:
        """The header by which the browser says that the page is another's."""
        headers = Headers(scope=scope)
        site, origin = headers.get("sec-fetch-site", ""), headers.get("origin")
        if site == "cross-site" or (site == "same-site" and origin is None):
            return FieldError("Sec-Fetch-Site", f"is {site}")
        # A browser that compared the addresses itself is right, whatever a proxy made of Host.
        if origin is None or site == "same-origin":
            return None
        ours = {_origin(f"{scope['scheme']}://{headers.get('host', '')}"), self._public_origin} - {""}
        return None if _origin(origin) in ours else FieldError("Origin", f"is {origin[:100]}, not this service")


def _origin(address: str) -> str:
    """Scheme, host and port of an address, without the port of the scheme; empty for what is none (`null`)."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    if parts.scheme not in _DEFAULT_PORTS or not parts.netloc:
        return ""
    return f"{parts.scheme}://{parts.netloc.lower().removesuffix(_DEFAULT_PORTS[parts.scheme])}"
