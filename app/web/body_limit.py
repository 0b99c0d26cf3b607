"""Refuses a body before it is read: of a type that the route does not take (415), or larger than its limit (413).

What a route takes is declared with it: the limit as `max_body_size`, bytes, else FORM_BYTES; the types as `requestBody`
in `openapi_extra`, else JSON for the API and forms for pages. The limit holds for chunked bodies, too. FastAPI's own
check of `max_body_size` comes later and says only "Content Too Large".
"""

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.access.route_table import RouteTable, RuledRoute
from app.web.error_pages import answer

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
