"""A person logs in by a password for what no token may do, and is logged out again whatever happens."""

import getpass
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import httpx2

from app.client.errors import Refused, Unreachable, UsageError
from app.client.service import Service
from app.client.settings import ClientSettings

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
