"""A token that may write but not read hears that it was done, and no more: 204, and of what it made the address.

Answers of writes are the whole thing as it is then, and refusals tell what is there already: both is reading.
"""

from starlette.types import Message, Send

from app.domain.access.principal import ProjectIds, TokenHolder, may
from app.domain.access.roles import Action
from app.web.access.route_table import RuledRoute
from app.web.access.state import Access
from app.web.problems import problem

_TELLING = (404, 409, 422)
_TITLE = "Refused"
_DETAIL = (
    "It cannot be done so, and nothing was kept. Why not, this token may not read: one that has the scope read besides "
    "is told."
)


def is_in_brief(access: Access, route: RuledRoute) -> bool:
    """For a caller who may do what the route does."""
    if route.rule.needs is not Action.CONTRIBUTE or route.rule.own or not isinstance(access.principal, TokenHolder):
        return False
    return not may(access.principal, Action.READ, access.principal.project_id, access.public)


def both(one: ProjectIds | None, other: ProjectIds | None) -> ProjectIds | None:
    """The projects of both; None is all of them."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def in_brief(send: Send) -> Send:
    hidden: bytes | None = None

    async def told(message: Message) -> None:
        nonlocal hidden
        if message["type"] == "http.response.start":
            status = message["status"]
            if status < 300:
                hidden = b""
                message = {**message, "status": 204, "headers": _without_body(message)}
            elif status in _TELLING:
                refused = problem(status, _TITLE, _DETAIL)
                hidden = bytes(refused.body)
                message = {**message, "headers": [*_without_body(message), *refused.raw_headers]}
        elif hidden is not None:
            if message.get("more_body"):
                return
            message = {**message, "body": hidden}
        await send(message)

    return told


def _without_body(message: Message) -> list[tuple[bytes, bytes]]:
    return [one for one in message["headers"] if not one[0].lower().startswith(b"content-")]
