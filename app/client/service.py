"""The service over HTTP: sends a request again while that may help, and says what became of it."""

import json
import os
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self

import httpx2

from app.client.backoff import LONGEST_ASKED_SECONDS, asked_seconds, pauses
from app.client.errors import Refused, Strange, Unreachable
from app.client.passage import not_opened, said, untrusted
from app.client.plain import plain
from app.client.settings import TOKEN, ClientSettings

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
