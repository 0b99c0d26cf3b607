"""At which names the service answers: a Host header is what a client makes up, and links are made of it.

Health is answered at every name, because a load balancer asks by address.
"""

import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.web.access.open_mode import is_loopback
from app.web.problems import problem

_HOST = re.compile(r"([A-Za-z0-9_.-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
_AT_ANY = ("/healthz", "/readyz")


class HostMiddleware:
    """`allowed`: names, or `*.example.com` for all below one; empty for any. Names of this machine always are."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._names = {name.lower() for name in allowed if not name.startswith("*.")}
        self._below = tuple(name.lower()[1:] for name in allowed if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _AT_ANY or self._is_ours(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        # No page: it would hold links of that name.
        detail = "This service does not answer at the name that the Host header states. Nothing was kept."
        if Request(scope).headers.get("host"):
            detail += " Whoever runs it lists its names in THREEWALLS_ALLOWED_HOSTS."
        await problem(400, "Not at this address", detail)(scope, receive, send)

    def _is_ours(self, headers: Headers) -> bool:
        hosts = headers.getlist("host")
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            return False
        name = found[1].lower()
        if not self._names and not self._below:
            return True
        return is_loopback(name) or name in self._names or name.endswith(self._below)
