"""What stands before every handler: host names, cross-site writes, sizes and speed of bodies, overload."""

import asyncio
import re
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.rules import RouteTable, RuledRoute
from app.domain.access.principal import Anonymous
from app.errors import FieldError, Overloaded
from app.web.dependencies import READING
from app.web.errors import answer, answer_error, problem
from app.web.identity import access_of, is_loopback

CREDENTIALS_BYTES = 16 * 1024
"""Of a log-in or a password."""

FORM_BYTES = 2 * 1024 * 1024
"""Of other forms and of JSON."""

UPLOAD_BYTES = 2**62
"""Of a log: as many as THREEWALLS_MAX_UPLOAD_BYTES allows."""

MOST_VALUES = 5_000
"""Of a JSON body, counted by its commas and brackets: many small ones take seconds to be refused one by one."""

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_JSON = ("application/json",)


class BodyLimitMiddleware:
    """`most`: bytes that no body may exceed, whatever its route."""

    def __init__(self, app: ASGIApp, table: RouteTable, most: int) -> None:
        self._app = app
        self._table = table
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        declared = headers.get("content-length", "0")
        if declared == "0" and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        found = self._table.find(scope["method"], scope["path"])
        limit = min(self._most, _limit(found.route) if found else FORM_BYTES)
        try:
            if declared.isdigit() and int(declared) > limit:
                raise _too_large(limit)
            if found is not None and scope["method"] != "GET":
                _check_type(headers, _types(found.route))
        except HTTPException as refused:
            title = "The request is too large" if refused.status_code == 413 else "This type of body is not taken here"
            response = answer(Request(scope), refused.status_code, title, refused.detail)
            response.headers.update(refused.headers or {})
            await response(scope, receive, send)
            return
        total, values = 0, 0
        is_json = headers.get("content-type", "").startswith(_JSON)

        async def counted() -> Message:
            nonlocal total, values
            message = await receive()
            body = message.get("body", b"")
            total += len(body)
            if total > limit:
                raise _too_large(limit)
            values += sum(map(body.count, b",[{")) if is_json else 0
            if values > MOST_VALUES:
                raise HTTPException(
                    413,
                    f"The JSON holds more than {MOST_VALUES:,} values. Nothing was kept. Send fewer at once.",
                    headers={"Connection": "close"},
                )
            return message

        await self._app(scope, counted, send)


def _limit(route: RuledRoute) -> int:
    declared: int | None = getattr(route.route, "max_body_size", None)
    return FORM_BYTES if declared is None else declared


def _types(route: RuledRoute) -> Collection[str]:
    declared = (getattr(route.route, "openapi_extra", None) or {}).get("requestBody", {}).get("content")
    return declared or (_JSON if route.path.startswith("/api/") else _FORMS)


def _check_type(headers: Headers, types: Collection[str]) -> None:
    sent = headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()
    if sent not in types:
        raise HTTPException(
            415,
            f"A body of the type {sent[:100]} is not taken here. Nothing was kept. Send {' or '.join(types)}.",
            headers={"Accept": ", ".join(types), "Connection": "close"},
        )


def _too_large(limit: int) -> HTTPException:
    compress = " Compress the log (.gz or .zst), or upload that of one rank." if limit > FORM_BYTES else ""
    return HTTPException(
        413,
        f"The request is larger than {limit:,} bytes, the limit here. Nothing was kept.{compress}",
        # Else the server reads the rest to its end, to have the connection free for another request.
        headers={"Connection": "close"},
    )


# --- A body that does not come is waited for no longer than it has earned: 408.
#
# Of who is not logged in, all of it within `seconds`. Of others, the next piece within them, and on the whole as fast
# as LEAST_RATE: gigabytes over a slow line take their hours. Only waiting counts, not what the service does
# meanwhile.

LEAST_RATE = 1_000
"""Bytes a second, some hundredth of the slowest line that logs are sent by."""


class SlowBodyMiddleware:
    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        earns = not isinstance(access_of(Request(scope)).principal, Anonymous)
        came, waited, whole = 0, 0.0, False

        async def in_time() -> Message:
            nonlocal came, waited, whole
            if whole:  # what comes then is the end of the connection, which may take as long as the answer
                return await receive()
            left = self._seconds - waited
            if earns:
                left = min(self._seconds, left + came / LEAST_RATE)
            began = time.monotonic()
            try:
                async with asyncio.timeout(max(left, 0)):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408,
                    f"The body came too slowly, or not at all: more of it is awaited for {self._seconds:g} seconds. "
                    "Nothing was kept. Send it again.",
                    headers={"Connection": "close"},
                ) from None
            waited += time.monotonic() - began
            came += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            return message

        await self._app(scope, in_time, send)


# --- No other website writes here: while there are no log-ins, a page open in a browser could post to a local service.
#
# A browser says by `Sec-Fetch-Site` and `Origin` whose page asks; command-line clients send neither and pass.

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


# --- At which names the service answers: a Host header is what a client makes up, and links are made of it.
#
# Health is answered at every name, because a load balancer asks by address.

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


# --- Refuses requests at once, 503 with `Retry-After`, while too many wait already: a queue that grows answers nobody.
#
# What counts are requests that wait for a thread or for their turn to read, not those that send a log or wait for a
# run.

_ALWAYS_ANSWERED = "/healthz"


class OverloadMiddleware:
    """`most`: requests that may wait, some seconds of work."""

    def __init__(self, app: ASGIApp, most: int = 200) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == _ALWAYS_ANSWERED or _waiting() < self._most:
            await self._app(scope, receive, send)
            return
        refused = Overloaded("Too many requests wait for this service. Nothing was kept. Try again in a moment.")
        await answer_error(Request(scope), refused)(scope, receive, send)


def _waiting() -> int:
    limiters = (to_thread.current_default_thread_limiter(), READING)
    return sum(limiter.statistics().tasks_waiting for limiter in limiters)


# --- HEAD is GET without the body (RFC 9110, 9.3.2): load balancers and link checkers ask so.
#
# It becomes a GET before anybody asks who the caller is, so that rules, limits and routes know one of the two only.


class HeadMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        asked = {**scope, "method": "GET"}
        try:
            await self._app(asked, receive, without_body)
        finally:
            scope.update(asked, method="HEAD")  # with its route, which it is logged and counted under
