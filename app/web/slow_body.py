"""A body that does not come is waited for no longer than it has earned: 408.

Of who is not logged in, all of it within `seconds`. Of others, the next piece within them, and on the whole as fast as
LEAST_RATE: gigabytes over a slow line take their hours. Only waiting counts, not what the service does meanwhile.
"""

import asyncio
import time

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain.access.principal import Anonymous
from app.web.access.state import access_of

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
