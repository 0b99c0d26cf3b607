"""The service over HTTP: sends a request again while that may help, and says what became of it."""

import json
import os
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2

from app.client.errors import Refused, Strange, Unreachable, UsageError
from app.client.terminal import plain

# --- How long to wait before the next attempt: exponential with full jitter, or what the service asks for.

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0
LONGEST_ASKED_SECONDS = 300.0
"""A service that asks for more than this is taken for one that cannot be reached."""


def pauses(retries: int, random: Callable[[], float]) -> Iterator[float]:
    """Seconds before each further attempt. `random` gives numbers from 0 to 1: many jobs must not come back at once."""
    for attempt in range(retries):
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2**attempt)
        yield longest / 2 + longest / 2 * random()


def asked_seconds(retry_after: str | None, now: datetime) -> float | None:
    """Seconds that `Retry-After` asks for, as a number or as a date; None when it says nothing that can be read."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds())


# --- What stands between a client and its service, told by name: proxies, certificates, the network.

_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def proxies(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and value of each that is set; a password is in none."""
    for name in _PROXIES:
        if value := env.get(name) or env.get(name.lower()):
            yield name, _without_password(value)
    if value := env.get("NO_PROXY") or env.get("no_proxy"):
        yield "NO_PROXY", value


def not_opened(error: Exception, env: Mapping[str, str]) -> str:
    """Why not even a connection could be tried: a variable of the environment says what nobody can do."""
    if isinstance(error, OSError):
        stated = " and ".join(f"{name}={env[name]}" for name in _CERTIFICATES if env.get(name))
        return (
            f"The certificates of {stated or 'this machine'} cannot be read ({error.strerror or error}). Name a file "
            "of certificates (PEM) in SSL_CERT_FILE, or take the variable away."
        )
    stated = ", ".join(f"{name}={value}" for name, value in proxies(env) if name != "NO_PROXY")
    if not stated:
        return f"No connection can be made: {error}."
    return f"The proxy cannot be used ({stated}): it must be an address that begins with http:// or https://."


def untrusted(error: BaseException, url: str) -> str:
    """Of an error that is one of certificates: what to do. Else empty."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, ssl.SSLCertVerificationError):
        at = at.__cause__ or at.__context__
    if at is None:
        return ""
    return (
        f"{url} has a certificate that nobody vouches for here ({at.verify_message}). Where the authority is your own, "
        "name its file (PEM) in SSL_CERT_FILE."
    )


def said(error: httpx2.RequestError) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "did not answer in time."
    if isinstance(error, httpx2.DecodingError):
        return f"sent an answer that cannot be read ({error})."
    return f"could not be reached ({str(error) or type(error).__name__})."


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    except ValueError:
        return "(not an address)"
    return f"{parts.scheme}://{host}" if parts.scheme else host


# --- Which service, which project, which token: options first, then THREEWALLS_* variables.

URL, PROJECT, TOKEN, SPOOL = "THREEWALLS_URL", "THREEWALLS_PROJECT", "THREEWALLS_TOKEN", "THREEWALLS_SPOOL"
DEFAULT_URL = "http://127.0.0.1:8000"
RETRIES = 5


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """`url` has no slash at its end. The token is in no text made of this, so that no message can show it."""

    url: str = DEFAULT_URL
    project: str = ""
    token: str = field(default="", repr=False)
    retries: int = RETRIES


def read_settings(
    env: Mapping[str, str], *, url: str | None = None, project: str | None = None, retries: int = RETRIES
) -> ClientSettings:
    """Raises UsageError for an address or a token that cannot be one."""
    token = env.get(TOKEN, "").strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"{TOKEN} holds characters that no token has. Paste it again; it begins with tw_.")
    stated = project if project is not None else env.get(PROJECT, "")
    return ClientSettings(read_url(url or env.get(URL, "") or DEFAULT_URL), stated.strip(), token, retries)


def read_url(text: str) -> str:
    """The address of a service, as it is written down and compared. Raises UsageError."""
    url = text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
        parts = urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"The address of the service must hold no password: put a token into {TOKEN} instead.")
    if not valid or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is no address of a service. Write {URL}=https://threewalls.example.org")
    return url


_TIMEOUT = httpx2.Timeout(60, connect=10)
_ANSWER_SLACK_SECONDS = 30
_JSON = "application/json"
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which the same request may be taken: each call that the client sends can be repeated without harm."""


class Service:
    """`told` hears, in a sentence, why an attempt is made again."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        told: Callable[[str], None] = lambda _: None,
        sleep: Callable[[float], None] = time.sleep,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self._told, self._sleep = told, sleep
        sent = {"User-Agent": f"threewalls/{client_version()}", "Accept": "application/json", **(headers or {})}
        if settings.token:
            sent["Authorization"] = f"Bearer {settings.token}"
        # No redirect is followed: the token is for the address that was stated.
        self._http: httpx2.Client | None = None
        try:
            self._http = httpx2.Client(base_url=settings.url, headers=sent, timeout=_TIMEOUT, follow_redirects=False)
        except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:  # told when something is to be sent
            self._why_not = not_opened(error, os.environ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._http is not None:
            self._http.close()

    @property
    def has_cookie(self) -> bool:
        return self._http is not None and len(self._http.cookies.jar) > 0

    def get(
        self, path: str, params: Mapping[str, Any] | None = None, *, wait: float = 0, accept: str = ""
    ) -> httpx2.Response:
        """`wait`: seconds that the service was asked to take its time."""
        headers = {"Accept": accept} if accept else {}
        timeout = httpx2.Timeout(60, connect=10, read=wait + _ANSWER_SLACK_SECONDS)
        return self.send(
            lambda: self.request("GET", path, params=params, headers=headers, timeout=timeout), accept or _JSON
        )

    def post(self, path: str, **sent: Any) -> httpx2.Response:
        return self.send(lambda: self.request("POST", path, **sent))

    def request(self, method: str, path: str, **sent: Any) -> httpx2.Response:
        """One attempt; `send` makes more of them."""
        if self._http is None:
            raise Unreachable(self._why_not)
        return self._http.request(method, path, **sent)

    def send(self, attempt: Callable[[], httpx2.Response], kind: str = _JSON) -> httpx2.Response:
        """The answer of the first attempt that was taken; each begins anew. Raises Refused or Unreachable.

        It is of the media type `kind`, and JSON of it is an object: all that the service says to this client is.
        """
        waits = pauses(self.settings.retries, random.random)
        while True:
            pause = next(waits, None)
            try:
                response = attempt()
            except httpx2.InvalidURL as error:
                raise Unreachable(f"{self.settings.url}: {error}.") from None
            except httpx2.RequestError as error:
                if why_not := untrusted(error, self.settings.url):
                    raise Unreachable(why_not) from None  # time does not change that
                why, asked = said(error), None
            else:
                if response.status_code not in _AGAIN:
                    return _taken(response, self.settings.url, kind)
                why = _refusal(response).detail
                asked = asked_seconds(response.headers.get("Retry-After"), datetime.now(UTC))
            if pause is None or (asked or 0) > LONGEST_ASKED_SECONDS:
                raise Unreachable(f"{self.settings.url} {plain(why)}")
            pause = max(pause, asked or 0)
            self._told(f"{self.settings.url} {plain(why)} Trying again in {pause:.0f} s.")
            self._sleep(pause)


def client_version() -> str:
    try:
        return version("threewalls")
    except PackageNotFoundError:
        return "unknown"


def _taken(response: httpx2.Response, url: str, kind: str) -> httpx2.Response:
    if response.is_redirect:
        where = response.headers.get("Location", "elsewhere")
        raise Refused(
            response.status_code, f"sends elsewhere: {plain(where)}. State the address itself; no token follows."
        )
    if not response.is_success:
        raise _refusal(response)
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
    if media_type != kind:
        raise Strange(url, f"it answered {response.status_code} with {plain(media_type) or 'nothing'}")
    if kind == _JSON and not _is_object(response):
        raise Strange(url, f"it answered {response.status_code} with other JSON")
    return response


def _is_object(response: httpx2.Response) -> bool:
    try:
        return isinstance(response.json(), dict)
    except (ValueError, RecursionError):
        return False


def _refusal(response: httpx2.Response) -> Refused:
    """What the answer says went wrong; a proxy in between answers with a page of its own."""
    problem: dict[str, Any] = {}
    if "json" in response.headers.get("Content-Type", ""):
        try:
            problem = json.loads(response.content)
        except (ValueError, RecursionError):
            problem = {}
    detail = problem.get("detail") if isinstance(problem, dict) else None
    told = f"answered {response.status_code}: {plain(str(detail))}" if detail else _of_a_proxy(response.status_code)
    if response.status_code == 401 and not response.request.headers.get("Authorization"):
        told += f" Put the token into {TOKEN}."
    return Refused(response.status_code, told, problem if isinstance(problem, dict) else None)


def _of_a_proxy(status: int) -> str:
    """Without a word of the service: what stands in front of it said no."""
    does = {
        407: "The proxy wants a log-in: put it into the proxy's variable, as http://NAME:PASSWORD@HOST:PORT.",
        413: "A proxy in front of the service takes no request of this size: raise its limit (docs/deploy.md).",
        404: "Look at the path in THREEWALLS_URL.",
    }
    return " ".join(filter(None, (f"answered {status}.", does.get(status, ""))))
