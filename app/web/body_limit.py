"""No request body over the limit is read to its end: 413 as a problem document, for chunked bodies too.

FastAPI's own `max_body_size` counts as well as this, but where the length is declared it replaces our answer by the
bare words "Content Too Large".
"""

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.error_pages import answer


class BodyLimitMiddleware:
    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            refused = self._too_large()
            response = answer(Request(scope), refused.status_code, "The upload is too large", refused.detail)
            response.headers.update(refused.headers or {})
            await response(scope, receive, send)
            return
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, counted, send)

    def _too_large(self) -> HTTPException:
        return HTTPException(
            413,
            f"The request is larger than {self._max_bytes:,} bytes, the limit of this service. Nothing was kept. "
            "Compress the log (.gz or .zst), or upload that of one rank.",
            # Else the server reads the rest to its end, to have the connection free for another request.
            headers={"Connection": "close"},
        )
