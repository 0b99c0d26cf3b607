"""Tokens of a project, and what the service takes this client for."""

import argparse
import getpass
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx2

from app.client.errors import Refused, Strange, Unreachable, UsageError
from app.client.service import PROJECT, ClientSettings, Service
from app.client.terminal import one_line

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


# --- A person logs in by a password for what no token may do, and is logged out again whatever happens.

PASSWORD = "THREEWALLS_PASSWORD"  # noqa: S105  name of a variable
CODE = "THREEWALLS_CODE"
_AS_A_PERSON = {"Sec-Fetch-Site": "none"}
"""What a browser says of an address that a person typed: no page of another website asks."""


@contextmanager
def logged_in(
    settings: ClientSettings, user: str, env: Mapping[str, str], page: str, told: Callable[[str], None]
) -> Iterator[Service]:
    """The service as this person sees it; without log-ins nobody is asked. `page` does the same for browsers.

    Raises UsageError, Refused or Unreachable. One attempt a request: repeated, some would be done twice.
    """
    with Service(replace(settings, token="", retries=0), headers=_AS_A_PERSON) as service:
        if service.get("/api/v1/whoami").json()["kind"] == "everyone":
            yield service
            return
        if not user:
            raise UsageError("Say who you are with --user NAME: tokens are made by people.")
        _log_in(service, user, _password(user, env), _code(env), page)
        try:
            yield service
        finally:
            _log_out(service, told)


def _log_in(service: Service, user: str, password: str, code: str, page: str) -> None:
    url, shown = service.settings.url, {"name": user, "password": password, "code": code}
    try:
        answer = service.request("POST", "/login", data=shown | {"next": "/"})
    except httpx2.TransportError as error:
        raise Unreachable(f"{url} could not be reached ({str(error) or type(error).__name__}).") from None
    if answer.status_code == 422:
        raise Refused(
            401,
            f"knows no such name with this password, or wants another code ({CODE}) beside it. Users of an "
            f"identity provider have no password here and do this at {url}{page}",
        )
    if answer.status_code == 429:
        raise Refused(
            429, f"looks at no more passwords for {answer.headers.get('Retry-After', 'some')} seconds. Try again then."
        )
    if answer.status_code != 303 or not service.has_cookie:
        raise Refused(answer.status_code, f"answered {answer.status_code} to the log-in, so it is done at {url}{page}")


def _log_out(service: Service, told: Callable[[str], None]) -> None:
    try:
        done = service.request("POST", "/logout").status_code == 303
    except httpx2.TransportError:
        done = False
    if not done:
        told(f"The log-out did not arrive. End this session at {service.settings.url}/settings/account")


def _code(env: Mapping[str, str]) -> str:
    """Of the authenticator app; empty for an account without one."""
    if CODE in env or PASSWORD in env or sys.stdin is None or not sys.stdin.isatty():
        return env.get(CODE, "")
    return input("Code of your authenticator app, empty without one: ").strip()


def _password(user: str, env: Mapping[str, str]) -> str:
    """Never an option: others see those in the list of processes."""
    if PASSWORD in env:
        return env[PASSWORD]
    if sys.stdin is not None and sys.stdin.isatty():
        return getpass.getpass(f"Password of {user}: ")
    line = sys.stdin.readline().rstrip("\r\n") if sys.stdin is not None else ""
    if not line:
        raise UsageError(f"Give the password on standard input, in {PASSWORD}, or on a terminal.")
    return line


# --- `threewalls token`: what the service takes this client for.


def own(service: Service) -> dict[str, Any]:
    """`GET /api/v1/whoami`. Raises Refused for a token that is unknown, revoked or expired."""
    found: dict[str, Any] = service.get("/api/v1/whoami").json()
    needed = {"kind": str, "name": str} | ({"project": str, "scopes": list} if found.get("kind") == "token" else {})
    if not all(isinstance(found.get(name), kind) for name, kind in needed.items()):
        raise Strange(service.settings.url, "its /api/v1/whoami names nobody")
    return found


def token_text(found: Mapping[str, Any]) -> list[str]:
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
