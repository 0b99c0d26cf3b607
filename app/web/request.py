"""The outermost layer of every request: id, log line, metrics and security headers."""

import re
import time
import uuid

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.storage.visible import NO_PROJECT, seeing
from app.web.errors import unexpected

# --- Prometheus metrics. Labels have the route, not the address, because each id in an address would create a series.

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class Metrics:
    """The metrics of one application, in a separate registry, so that a process can have several applications."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "threewalls_http_requests", "Answered requests.", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "threewalls_http_request_seconds",
            "Time until the whole answer was sent.",
            ("method", "route"),
            buckets=REQUEST_SECONDS,
            registry=self.registry,
        )


log = structlog.get_logger(__name__)

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers without frame-ancestors
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=(), browsing-topics=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",  # badges override this, because other sites embed them
}
HTTPS_ONLY = "max-age=31536000"
"""Strict-Transport-Security: browsers then use only https for a year."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECRET_FOLLOWS = ("/s/", "/invite/")
_QUIET_ROUTES = ("/healthz", "/readyz", "/metrics", "/static", "/assets/htmx.js")


class RequestFrameMiddleware:
    """The outermost middleware. Adds request id, security headers, log line and metrics; answers unexpected errors."""

    def __init__(self, app: ASGIApp, metrics: Metrics, public_url: str) -> None:
        self._app = app
        self._metrics = metrics
        self._https = public_url.startswith("https://")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        began, status = time.perf_counter(), 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if self._https or scope["scheme"] == "https":
                    headers["Strict-Transport-Security"] = HTTPS_ONLY
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id), seeing(NO_PROJECT):  # until the check
            try:
                await self._app(scope, receive, framed)
            except ClientDisconnect:
                log.info("client_went_away", path=_logged_path(scope))
            except Exception as error:
                # Otherwise Starlette would answer outside this middleware, without headers and metrics.
                response = unexpected(Request(scope), error)
                if status:
                    raise
                await response(scope, receive, framed)
            finally:
                self._record(scope, status, time.perf_counter() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route, method = _route(scope), scope["method"]
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        write = log.debug if route in _QUIET_ROUTES and status < 500 else log.info
        write("request", method=method, path=_logged_path(scope), status=status, ms=round(seconds * 1000, 1))


def _logged_path(scope: Scope) -> str:
    """Return the path for the log, without the secret of a share link or invitation."""
    path: str = scope["path"]
    prefix = next((prefix for prefix in _SECRET_FOLLOWS if path.startswith(prefix)), "")
    return f"{prefix}..." if prefix else path


def _request_id(scope: Scope) -> str:
    """Return the caller's request id if it is valid, so that it matches a proxy's log; else a new one."""
    sent = Headers(scope=scope).get("x-request-id", "")
    return sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex


def _route(scope: Scope) -> str:
    route = scope.get("route")
    # Mounts have a root path instead of a route. All addresses without a route share one label.
    return getattr(route, "path", None) or scope.get("root_path") or "unmatched"
