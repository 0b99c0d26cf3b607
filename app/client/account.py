"""Project tokens, and the identity of the caller."""

from __future__ import annotations

import argparse
import getpass
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from app.client.errors import NotThreewalls, Refused, Unreachable
from app.client.options import PROJECT
from app.client.service import ClientSettings, Service
from app.client.terminal import one_line
from app.errors import UsageError
from threewalls.transport import TransportError

_DAYS = re.compile(r"(\d{1,4})d")


_PAGE_SIZE = 500
"""Page size of the list of tokens."""


def tokens_address(settings: ClientSettings, start: str = "/api/v1") -> str:
    """Return the path of the project's tokens. Raises UsageError without a project."""
    if not settings.project:
        raise UsageError(f"No project given: use --project or set {PROJECT}.")
    return f"{start}/projects/{quote(settings.project, safe='')}/tokens"


def list_tokens(service: Service) -> list[dict[str, Any]]:
    tokens: list[dict[str, Any]] = []
    while True:
        page = len(tokens) // _PAGE_SIZE + 1
        answer = service.get(tokens_address(service.settings), params={"page": page, "page_size": _PAGE_SIZE}).json()
        tokens += answer["items"]
        if not answer["items"] or len(tokens) >= answer.get("total", 0):
            return tokens


def create_token(service: Service, options: argparse.Namespace) -> dict[str, Any]:
    """Create a token. The answer is the only place that contains the secret."""
    body: dict[str, Any] = {"name": options.name, "scopes": options.scope or ["upload"]}
    body["author"] = options.user or account_name()
    if options.expires:
        body["expires_at"] = expiry(options.expires, datetime.now(timezone.utc))
    token: dict[str, Any] = service.post(tokens_address(service.settings), json=body).json()
    return token


def revoke_token(service: Service, which: str) -> dict[str, Any]:
    """Revoke the token with this number, or the only active one with this name. Raises UsageError."""
    token_id = which if which.isascii() and which.isdigit() else str(_id_of(list_tokens(service), which))
    path = f"{tokens_address(service.settings)}/{token_id}"
    revoked: dict[str, Any] = service.send(lambda: service.request("DELETE", path)).json()
    return revoked


def expiry(text: str, now: datetime) -> str | None:
    """Parse `90d`, `never` (None) or a date. Raises UsageError."""
    if text == "never":
        return None
    if days := _DAYS.fullmatch(text):
        return (now + timedelta(days=int(days[1]))).isoformat()
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"Invalid --expires {text!r}: use days (90d), a date (2027-03-31) or never.") from None
    return datetime(day.year, day.month, day.day, tzinfo=timezone.utc).isoformat()


def token_line(token: Mapping[str, Any]) -> str:
    """Describe a token in one line, without its secret."""
    scopes = ",".join(str(scope) for scope in token["scopes"])
    expires = f"expires {str(token['expires_at'])[:10]}" if token["expires_at"] else "does not expire"
    used = f"last used {str(token['last_used_at'])[:10]}" if token["last_used_at"] else "never used"
    parts = [str(token["id"]), token["shown"] + "…", token["name"], scopes, token["state"], expires, used]
    return "  ".join(one_line(str(part)) for part in parts)


def _id_of(tokens: list[dict[str, Any]], name: str) -> int:
    matches = [token for token in tokens if token["name"] == name and token["state"] == "in force"]
    if len(matches) != 1:
        count = "No active token has" if not matches else f"{len(matches)} active tokens have"
        raise UsageError(f"{count} the name {name!r}. Use the number in the first column of `threewalls token list`.")
    return int(matches[0]["id"])


def account_name() -> str:
    """Return the name of the local account, which a service without log-ins records."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


# --- Log-in with a password, for actions that no token may do.

PASSWORD = "THREEWALLS_PASSWORD"  # noqa: S105  name of a variable
CODE = "THREEWALLS_CODE"
_BROWSER_HEADERS = {"Sec-Fetch-Site": "none"}
"""Marks requests that no other website started, as browsers do for a typed address."""


@contextmanager
def logged_in(
    settings: ClientSettings, user: str, env: Mapping[str, str], page: str, say: Callable[[str], None]
) -> Iterator[Service]:
    """Log in, yield the service, and log out. A service without log-ins needs no password.

    `page` is the path of the page for the same purpose. Requests are not retried, because some must not be repeated.
    Raises UsageError, Refused or Unreachable.
    """
    with Service(replace(settings, token="", retries=0), headers=_BROWSER_HEADERS) as service:
        if service.get("/api/v1/whoami").json()["kind"] == "everyone":
            yield service
            return
        if not user:
            raise UsageError("No user given: use --user NAME. Tokens belong to the user who creates them.")
        _log_in(service, user, _password(user, env), _code(env), page)
        try:
            yield service
        finally:
            _log_out(service, say)


def _log_in(service: Service, user: str, password: str, code: str, page: str) -> None:
    url = service.settings.url
    try:
        form = {"name": user, "password": password, "code": code, "next": "/"}
        answer = service.request("POST", "/login", data=form)
    except TransportError as error:
        raise Unreachable(f"{url} could not be reached ({str(error) or type(error).__name__}).") from None
    if answer.status_code == 422:
        raise Refused(
            401,
            f"rejected the name, the password or the code of the authenticator app ({CODE}). Users of an identity "
            f"provider have no password here; they use {url}{page}",
        )
    if answer.status_code == 429:
        raise Refused(
            429, f"accepts no log-in for {answer.headers.get('Retry-After', 'some')} seconds, after too many wrong "
            "passwords. Retry later.",
        )  # fmt: skip
    if answer.status_code != 303 or not service.has_cookie:
        raise Refused(answer.status_code, f"answered {answer.status_code} to the log-in. Use {url}{page} instead.")


def _log_out(service: Service, say: Callable[[str], None]) -> None:
    try:
        is_logged_out = service.request("POST", "/logout").status_code == 303
    except TransportError:
        is_logged_out = False
    if not is_logged_out:
        say(f"The log-out failed. End this session at {service.settings.url}/settings/account")


def _code(env: Mapping[str, str]) -> str:
    """Return the code of the authenticator app, empty for a user without one."""
    if CODE in env or PASSWORD in env or sys.stdin is None or not sys.stdin.isatty():
        return env.get(CODE, "")
    return input("Code of your authenticator app (empty if you have none): ").strip()


def _password(user: str, env: Mapping[str, str]) -> str:
    """Read the password. It is never an option, because options are visible in the list of processes."""
    if PASSWORD in env:
        return env[PASSWORD]
    if sys.stdin is not None and sys.stdin.isatty():
        return getpass.getpass(f"Password of {user}: ")
    line = sys.stdin.readline().rstrip("\r\n") if sys.stdin is not None else ""
    if not line:
        raise UsageError(f"No password given: set {PASSWORD}, or enter it on a terminal or standard input.")
    return line


# --- `threewalls token`


def whoami(service: Service) -> dict[str, Any]:
    """Return `GET /api/v1/whoami`. Raises Refused for an unknown, revoked or expired token."""
    caller: dict[str, Any] = service.get("/api/v1/whoami").json()
    types = {"kind": str, "name": str} | ({"project": str, "scopes": list} if caller.get("kind") == "token" else {})
    if not all(isinstance(caller.get(name), expected) for name, expected in types.items()):
        raise NotThreewalls(service.settings.url, "its /api/v1/whoami identifies no caller")
    return caller


def caller_text(caller: Mapping[str, Any]) -> list[str]:
    """Describe the caller in lines for a terminal."""
    name = one_line(caller["name"])
    if caller["kind"] == "token":
        expires = one_line(str(caller["expires_at"])) if caller["expires_at"] else "never"
        scopes = ", ".join(one_line(str(scope)) for scope in caller["scopes"])
        return [
            f"token {name}", f"project  {one_line(caller['project'])}", f"scopes   {scopes}", f"expires  {expires}"
        ]  # fmt: skip
    texts = {
        "everyone": "this service has no log-ins; no token is needed",
        "nobody": "no token was sent: set THREEWALLS_TOKEN",
        "person": f"user {name}",
    }
    return [texts.get(caller["kind"], f"{caller['kind']} {name}")]
