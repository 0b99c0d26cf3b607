"""`threewalls token list`, `create`, `revoke`: tokens of a project, by a person. No token can make another."""

import argparse
import getpass
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

from app.client.errors import UsageError
from app.client.plain import one_line
from app.client.service import Service
from app.client.settings import PROJECT, ClientSettings

_DAYS = re.compile(r"(\d{1,4})d")


_AT_ONCE = 500
"""Tokens that the service lists in one answer."""


def tokens_address(settings: ClientSettings, start: str = "/api/v1") -> str:
    """Raises UsageError when no project was named."""
    if not settings.project:
        raise UsageError(f"Name the project with --project, or in {PROJECT}.")
    return f"{start}/projects/{quote(settings.project, safe='')}/tokens"


def list_tokens(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = len(found) // _AT_ONCE + 1
        answer = service.get(tokens_address(service.settings), params={"page": page, "page_size": _AT_ONCE}).json()
        found += answer["items"]
        if not answer["items"] or len(found) >= answer.get("total", 0):
            return found


def create_token(service: Service, options: argparse.Namespace) -> dict[str, Any]:
    """The answer, which is the only place where the secret stands."""
    wanted: dict[str, Any] = {"name": options.name, "scopes": options.scope or ["upload"]}
    wanted["author"] = options.user or _account()
    if options.expires:
        wanted["expires_at"] = ends(options.expires, datetime.now(UTC))
    made: dict[str, Any] = service.post(tokens_address(service.settings), json=wanted).json()
    return made


def revoke_token(service: Service, which: str) -> dict[str, Any]:
    """By its number, or by its name where one in force has it. Raises UsageError."""
    number = which if which.isascii() and which.isdigit() else str(_named(list_tokens(service), which))
    path = f"{tokens_address(service.settings)}/{number}"
    revoked: dict[str, Any] = service.send(lambda: service.request("DELETE", path)).json()
    return revoked


def ends(text: str, now: datetime) -> str | None:
    """When a token ends: `90d`, `never`, or a date. Raises UsageError."""
    if text == "never":
        return None
    if found := _DAYS.fullmatch(text):
        return (now + timedelta(days=int(found[1]))).isoformat()
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--expires {text!r} is neither days (90d), a date (2027-03-31), nor never.") from None
    return datetime(day.year, day.month, day.day, tzinfo=UTC).isoformat()


def as_line(one: Mapping[str, Any]) -> str:
    scopes = ",".join(str(scope) for scope in one["scopes"])
    until = f"until {str(one['expires_at'])[:10]}" if one["expires_at"] else "does not expire"
    used = f"last used {str(one['last_used_at'])[:10]}" if one["last_used_at"] else "never used"
    said = [str(one["id"]), one["shown"] + "…", one["name"], scopes, one["state"], until, used]
    return "  ".join(one_line(str(part)) for part in said)


def _named(tokens: list[dict[str, Any]], name: str) -> int:
    found = [one for one in tokens if one["name"] == name and one["state"] == "in force"]
    if len(found) != 1:
        why = "No token in force has" if not found else f"{len(found)} tokens in force have"
        raise UsageError(f"{why} the name {name!r}. Give the number that `threewalls token list` prints first.")
    return int(found[0]["id"])


def _account() -> str:
    """For the record of a service without log-ins."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
