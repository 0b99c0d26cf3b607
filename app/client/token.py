"""`threewalls token`: what the service takes this client for."""

from collections.abc import Mapping
from typing import Any

from app.client.errors import Strange
from app.client.plain import one_line
from app.client.service import Service


def own(service: Service) -> dict[str, Any]:
    """`GET /api/v1/whoami`. Raises Refused for a token that is unknown, revoked or expired."""
    found: dict[str, Any] = service.get("/api/v1/whoami").json()
    needed = {"kind": str, "name": str} | ({"project": str, "scopes": list} if found.get("kind") == "token" else {})
    if not all(isinstance(found.get(name), kind) for name, kind in needed.items()):
        raise Strange(service.settings.url, "its /api/v1/whoami names nobody")
    return found


def as_text(found: Mapping[str, Any]) -> list[str]:
    match found["kind"]:
        case "token":
            ends = one_line(str(found["expires_at"])) if found["expires_at"] else "never"
            scopes = ", ".join(one_line(str(scope)) for scope in found["scopes"])
            return [
                f"token {one_line(found['name'])}", f"project  {one_line(found['project'])}",
                f"may      {scopes}", f"expires  {ends}",
            ]  # fmt: skip
        case "everyone":
            return ["this service asks nobody to log in; no token is needed"]
        case "nobody":
            return ["no token was sent. Put one into THREEWALLS_TOKEN"]
    return [f"{found['kind']} {one_line(found['name'])}"]
