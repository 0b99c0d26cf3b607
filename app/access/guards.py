"""Middleware before every handler: host names, cross-site writes, size and speed of bodies, overload, HEAD."""

import asyncio
import re
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.routes import RouteTable, RuledRoute
from app.domain.access.principal import Anonymous
from app.domain.numbers import file_size
from app.errors import FieldError, Overloaded
from app.web.dependencies import READING
from app.web.errors import answer, answer_error, problem
from app.web.identity import access_of, is_loopback

CREDENTIALS_BYTES = 16 * 1024
"""Limit for log-ins and passwords."""

FORM_BYTES = 2 * 1024 * 1024
"""Limit for other forms and for JSON."""

UPLOAD_BYTES = 2**62
"""Limit for logs: only THREEWALLS_MAX_UPLOAD_BYTES applies."""

MOST_VALUES = 5_000
"""Limit for values in a JSON body, counted by commas and brackets: validating many small ones takes seconds."""

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_JSON = ("application/json",)


class BodyLimitMiddleware:
    """Refuse bodies that are too large or of a wrong type.

    `most`: limit in bytes for all routes.
    """

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
        match = self._table.find(scope["method"], scope["path"])
        limit = min(self._most, _limit(match.route) if match else FORM_BYTES)
        try:
            if declared.isdigit() and int(declared) > limit:
                raise _too_large(limit)
            if match is not None and scope["method"] != "GET":
                _check_type(headers, _types(match.route))
        except HTTPException as refused:
            title = "The request is too large" if refused.status_code == 413 else "Unsupported media type"
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
                    f"The JSON has more than {MOST_VALUES:,} values. Nothing was saved. Send fewer at a time.",
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
            f"This call does not accept the content type {sent[:100]}. Nothing was saved. Send {' or '.join(types)}.",
            headers={"Accept": ", ".join(types), "Connection": "close"},
        )


def _too_large(limit: int) -> HTTPException:
    is_upload = limit > FORM_BYTES
    way = "Compress the log (.gz or .zst), or upload the log of one rank only" if is_upload else "Send less at once"
    return HTTPException(
        413,
        f"The request is larger than {file_size(limit)}, the limit here. Nothing was saved. {way}.",
        # Otherwise the server reads the rest of the body to reuse the connection.
        headers={"Connection": "close"},
    )


# --- Slow bodies: 408.
#
# Callers without credentials must send the whole body within `seconds`. Others must send each piece within `seconds`
# and at least LEAST_RATE on average, so that gigabytes over a slow line may take hours. Only waiting time counts.

LEAST_RATE = 1_000
"""Bytes per second, about a hundredth of the slowest line that sends logs."""


class SlowBodyMiddleware:
    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        earns = not isinstance(access_of(Request(scope)).principal, Anonymous)
        received, waited, complete = 0, 0.0, False

        async def in_time() -> Message:
            nonlocal received, waited, complete
            if complete:  # only the disconnect follows, which may take as long as the answer
                return await receive()
            left = self._seconds - waited
            if earns:
                left = min(self._seconds, left + received / LEAST_RATE)
            began = time.monotonic()
            try:
                async with asyncio.timeout(max(left, 0)):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408,
                    f"No more of the body arrived within {self._seconds:g} seconds, or it arrived too slowly. "
                    "Nothing was saved. Send it again.",
                    headers={"Connection": "close"},
                ) from None
            waited += time.monotonic() - began
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            return message

        await self._app(scope, in_time, send)


# --- Cross-site writes. Without log-ins, any page open in a browser could otherwise post to a local service.
#
# Browsers name the requesting page in `Sec-Fetch-Site` and `Origin`; command-line clients send neither and pass.

_WRITING = ("POST", "PUT", "PATCH", "DELETE")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_TITLE = "Cross-site request refused"
_DETAIL = (
    "A page of another website sent this request. Nothing was saved. Open this service at its own address and try "
    "again, or use a command-line client. Behind a proxy, set THREEWALLS_PUBLIC_URL to the address that users open."
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
        """Return the header that names another website; None when the request may pass."""
        headers = Headers(scope=scope)
        site, origin = headers.get("sec-fetch-site", ""), headers.get("origin")
        if site == "cross-site" or (site == "same-site" and origin is None):
            return FieldError("Sec-Fetch-Site", f"is {site}")
        # The browser compared the addresses itself. A proxy may have changed Host.
        if origin is None or site == "same-origin":
            return None
        ours = {_origin(f"{scope['scheme']}://{headers.get('host', '')}"), self._public_origin} - {""}
        return None if _origin(origin) in ours else FieldError("Origin", f"is {origin[:100]}, not this service")


def _origin(address: str) -> str:
    """Return scheme, host and port without the default port; empty for anything else, such as `null`."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    if parts.scheme not in _DEFAULT_PORTS or not parts.netloc:
        return ""
    return f"{parts.scheme}://{parts.netloc.lower().removesuffix(_DEFAULT_PORTS[parts.scheme])}"


# --- Host names. Clients choose the Host header freely, and links are built from it.
#
# Health checks are answered at every name, because load balancers use addresses. Starlette's TrustedHostMiddleware
# would replace four lines: without a list it accepts any text, it reads the first of two headers and answers as text.

_HOST = re.compile(r"([A-Za-z0-9_.-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
_AT_ANY = ("/healthz", "/readyz")


class HostMiddleware:
    """Refuse requests for host names of others.

    `allowed`: names, or `*.example.com` for subdomains; empty allows all. Loopback names are always allowed.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._names = {name.lower() for name in allowed if not name.startswith("*.")}
        self._below = tuple(name.lower()[1:] for name in allowed if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _AT_ANY or self._is_ours(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        # Not a page: its links would use that name.
        detail = "This service does not answer at the name in the Host header. Nothing was saved."
        if Request(scope).headers.get("host"):
            detail += " The operator lists its names in THREEWALLS_ALLOWED_HOSTS."
        await problem(400, "Unknown host name", detail)(scope, receive, send)

    def _is_ours(self, headers: Headers) -> bool:
        hosts = headers.getlist("host")
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            return False
        name = match[1].lower()
        if not self._names and not self._below:
            return True
        return is_loopback(name) or name in self._names or name.endswith(self._below)


# --- Overload: 503 with `Retry-After` while too many requests wait, because a growing queue serves no request.
#
# Counted are requests that wait for a thread or for a turn to read, not those that send a log or wait for a run.

_ALWAYS_ANSWERED = "/healthz"


class OverloadMiddleware:
    """Refuse requests while `most` others wait, which is a few seconds of work. `turns`: where GET requests wait."""

    def __init__(self, app: ASGIApp, turns: CapacityLimiter, most: int = 200) -> None:
        self._app = app
        self._turns = turns
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == _ALWAYS_ANSWERED or self._waiting() < self._most:
            await self._app(scope, receive, send)
            return
        refused = Overloaded("The service is overloaded. Nothing was saved. Try again in a moment.")
        await answer_error(Request(scope), refused)(scope, receive, send)

    def _waiting(self) -> int:
        limiters = (to_thread.current_default_thread_limiter(), READING, self._turns)
        return sum(limiter.statistics().tasks_waiting for limiter in limiters)


# --- HEAD is GET without the body (RFC 9110, 9.3.2); load balancers and link checkers use it.
#
# It becomes a GET before the access check, so that rules, limits and routes handle only GET.


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
