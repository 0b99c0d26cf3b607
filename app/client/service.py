"""Requests to the service over HTTP, with retries."""

from __future__ import annotations

import json
import os
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from app.client.errors import NotThreewalls, Refused, Unreachable
from app.client.options import DEFAULT_URL, PROJECT, RETRIES, TOKEN, URL
from app.client.terminal import plain
from app.errors import UsageError
from threewalls.transport import (
    LONGEST_RETRY_AFTER_SECONDS,
    RETRIED,
    HttpClient,
    Response,
    TimedOut,
    TransportError,
    UnreadableAnswer,
    pauses,
    retry_after_seconds,
)

if TYPE_CHECKING:  # Python 3.11
    from typing import Self

# --- Messages about proxies, certificates and the network.

_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def proxies(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each proxy variable that is set, without passwords."""
    for name in _PROXIES:
        if value := env.get(name) or env.get(name.lower()):
            yield name, _without_password(value)
    if value := env.get("NO_PROXY") or env.get("no_proxy"):
        yield "NO_PROXY", value


def connection_problem(error: Exception, env: Mapping[str, str]) -> str:
    """Explain why no HTTP client could be created: invalid certificate or proxy variables."""
    if isinstance(error, OSError):
        variables = " and ".join(f"{name}={env[name]}" for name in _CERTIFICATES if env.get(name))
        return (
            f"The certificates of {variables or 'this machine'} cannot be read ({error.strerror or error}). Set "
            "SSL_CERT_FILE to a PEM file of certificates, or unset the variable."
        )
    variables = ", ".join(f"{name}={value}" for name, value in proxies(env) if name != "NO_PROXY")
    if not variables:
        return f"Cannot connect: {error}."
    return f"Invalid proxy ({variables}): the address must begin with http://."


def certificate_problem(error: BaseException, url: str) -> str:
    """Explain a failed certificate verification. Return an empty text for any other error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return ""
    return (
        f"The certificate of {url} is not trusted ({cause.verify_message}). If your own authority issued it, set "
        "SSL_CERT_FILE to the PEM file of that authority."
    )


def transport_problem(error: TransportError) -> str:
    """Describe a failed request, as the end of a sentence that begins with the address."""
    if isinstance(error, TimedOut):
        return "did not answer in time."
    if isinstance(error, UnreadableAnswer):
        return f"sent an answer that cannot be read ({error})."
    return f"could not be reached ({str(error) or type(error).__name__})."


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    except ValueError:
        return "(not an address)"
    return f"{parts.scheme}://{host}" if parts.scheme else host


# --- Settings: options override THREEWALLS_* variables.


@dataclass(frozen=True)
class ClientSettings:
    """`url` has no trailing slash. The token is excluded from `repr`, so that no message can contain it."""

    url: str = DEFAULT_URL
    project: str = ""
    token: str = field(default="", repr=False)
    retries: int = RETRIES


def read_settings(
    env: Mapping[str, str], *, url: str | None = None, project: str | None = None, retries: int = RETRIES
) -> ClientSettings:
    """Read the settings of the client. Raises UsageError for an invalid address or token."""
    token = env.get(TOKEN, "").strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"{TOKEN} contains invalid characters. Paste the token again; it begins with tw_.")
    stated = project if project is not None else env.get(PROJECT, "")
    return ClientSettings(read_url(url or env.get(URL, "") or DEFAULT_URL), stated.strip(), token, retries)


def read_url(text: str) -> str:
    """Normalise the address of a service. Raises UsageError if it is invalid or contains a password."""
    url = text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
        parts = urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"The address of the service must not contain a password. Set {TOKEN} to a token instead.")
    if not valid or parts.query or parts.fragment:
        raise UsageError(f"Invalid address of the service: {url!r}. Example: {URL}=https://threewalls.example.org")
    return url


_ANSWER_SLACK_SECONDS = 30
_JSON = "application/json"


class Service:
    """The HTTP API of one service. `say` receives a sentence before each retry."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        say: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self._say, self._sleep = say, sleep
        sent = {"User-Agent": f"threewalls/{client_version()}", "Accept": "application/json", **(headers or {})}
        if settings.token:
            sent["Authorization"] = f"Bearer {settings.token}"
        # Redirects are not followed, because the token is meant for the configured address only.
        self._http: HttpClient | None = None
        try:
            self._http = HttpClient(settings.url, sent)
        except (ValueError, OSError) as error:  # raised with the first request
            self._problem = connection_problem(error, os.environ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._http is not None:
            self._http.close()

    @property
    def has_cookie(self) -> bool:
        return self._http is not None and bool(self._http.cookies)

    def get(self, path: str, params: Mapping[str, Any] | None = None, *, wait: float = 0, accept: str = "") -> Response:
        """Send a GET request. `wait` is the number of seconds that the service may wait before it answers."""
        headers = {"Accept": accept} if accept else {}
        seconds = wait + _ANSWER_SLACK_SECONDS
        return self.send(
            lambda: self.request("GET", path, params=params, headers=headers, seconds=seconds), accept or _JSON
        )

    def post(self, path: str, **sent: Any) -> Response:
        return self.send(lambda: self.request("POST", path, **sent))

    def request(self, method: str, path: str, **sent: Any) -> Response:
        """Make one attempt; `send` retries."""
        if self._http is None:
            raise Unreachable(self._problem)
        return self._http.request(method, path, **sent)

    def send(self, attempt: Callable[[], Response], kind: str = _JSON) -> Response:
        """Call `attempt` until the service accepts it, and return the answer. Raises Refused or Unreachable.

        The answer has the media type `kind`; a JSON answer is an object.
        """
        waits = pauses(self.settings.retries, random.random)
        while True:
            pause = next(waits, None)
            try:
                response = attempt()
            except TransportError as error:
                if problem := certificate_problem(error, self.settings.url):
                    raise Unreachable(problem) from None  # a retry would not help
                reason, requested = transport_problem(error), None
            else:
                if response.status_code not in RETRIED:
                    return _accepted(response, self.settings.url, kind)
                reason = _refusal(response).detail
                requested = retry_after_seconds(response.headers.get("Retry-After"), datetime.now(timezone.utc))
            if pause is None or (requested or 0) > LONGEST_RETRY_AFTER_SECONDS:
                raise Unreachable(f"{self.settings.url} {plain(reason)}")
            pause = max(pause, requested or 0)
            self._say(f"{self.settings.url} {plain(reason)} Retrying in {pause:.0f} s.")
            self._sleep(pause)


def client_version() -> str:
    try:
        return version("threewalls")
    except PackageNotFoundError:
        return "unknown"


def _accepted(response: Response, url: str, kind: str) -> Response:
    if response.is_redirect:
        location = response.headers.get("Location", "another address")
        raise Refused(
            response.status_code, f"redirects to {plain(location)}. Set THREEWALLS_URL to that address: the client "
                "never sends its token to another address.",
        )  # fmt: skip
    if not response.is_success:
        raise _refusal(response)
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
    if media_type != kind:
        raise NotThreewalls(url, f"it answered {response.status_code} with {plain(media_type) or 'no content type'}")
    if kind == _JSON and not _is_object(response):
        raise NotThreewalls(url, f"it answered {response.status_code} with JSON that is not an object")
    return response


def _is_object(response: Response) -> bool:
    try:
        return isinstance(response.json(), dict)
    except (ValueError, RecursionError):
        return False


def _refusal(response: Response) -> Refused:
    """Return the error of an answer. A proxy answers with its own page instead of a problem document."""
    problem: dict[str, Any] = {}
    if "json" in response.headers.get("Content-Type", ""):
        try:
            problem = json.loads(response.content)
        except (ValueError, RecursionError):
            problem = {}
    detail = problem.get("detail") if isinstance(problem, dict) else None
    message = (
        f"answered {response.status_code}: {plain(str(detail))}" if detail else _proxy_message(response.status_code)
    )
    if response.status_code == 401 and not response.is_authorized:
        message += f" Set {TOKEN} to a project token."
    return Refused(response.status_code, message, problem if isinstance(problem, dict) else None)


def _proxy_message(status: int) -> str:
    """Describe an answer without a problem document: it comes from a proxy in front of the service."""
    advice = {
        407: "The proxy requires a log-in: set the proxy variable to http://NAME:PASSWORD@HOST:PORT.",
        413: "A proxy in front of the service rejects requests of this size: raise its limit (docs/deploy.md).",
        404: "Check the path in THREEWALLS_URL.",
    }
    return " ".join(filter(None, (f"answered {status}.", advice.get(status, ""))))
