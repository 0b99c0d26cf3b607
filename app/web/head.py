"""HEAD is GET without the body (RFC 9110, 9.3.2): load balancers and link checkers ask so.

It becomes a GET before anybody asks who the caller is, so that rules, limits and routes know one of the two only.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
