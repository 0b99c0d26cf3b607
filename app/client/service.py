"""The service over HTTP: sends a request again while that may help, and says what became of it."""

import json
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self

import httpx2

from app.client.backoff import LONGEST_ASKED_SECONDS, asked_seconds, pauses
from app.client.errors import Refused, Unreachable
from app.client.plain import plain
from app.client.settings import TOKEN, ClientSettings

_TIMEOUT = httpx2.Timeout(60, connect=10)
_ANSWER_SLACK_SECONDS = 30
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
        self._http = httpx2.Client(base_url=settings.url, headers=sent, timeout=_TIMEOUT, follow_redirects=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    @property
    def has_cookie(self) -> bool:
        return len(self._http.cookies.jar) > 0

    def get(
        self, path: str, params: Mapping[str, Any] | None = None, *, wait: float = 0, accept: str = ""
    ) -> httpx2.Response:
        """`wait`: seconds that the service was asked to take its time."""
        headers = {"Accept": accept} if accept else {}
        timeout = httpx2.Timeout(60, connect=10, read=wait + _ANSWER_SLACK_SECONDS)
        return self.send(lambda: self._http.get(path, params=params, headers=headers, timeout=timeout))

    def post(self, path: str, **sent: Any) -> httpx2.Response:
        return self.send(lambda: self.request("POST", path, **sent))

    def request(self, method: str, path: str, **sent: Any) -> httpx2.Response:
        """One attempt; `send` makes more of them."""
        return self._http.request(method, path, **sent)

    def send(self, attempt: Callable[[], httpx2.Response]) -> httpx2.Response:
        """The answer of the first attempt that was taken; each begins anew. Raises Refused or Unreachable."""
        waits = pauses(self.settings.retries, random.random)
        while True:
            pause = next(waits, None)
            try:
                response = attempt()
            except httpx2.InvalidURL as error:
                raise Unreachable(f"{self.settings.url}: {error}.") from None
            except httpx2.TransportError as error:
                why, asked = _said(error), None
            else:
                if response.status_code not in _AGAIN:
                    return _taken(response, self.settings.url)
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


def _said(error: httpx2.TransportError) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "did not answer in time."
    return f"could not be reached ({str(error) or type(error).__name__})."


def _taken(response: httpx2.Response, url: str) -> httpx2.Response:
    if response.is_success:
        return response
    if response.is_redirect:
        where = response.headers.get("Location", "elsewhere")
        raise Refused(
            response.status_code, f"{url} sends elsewhere: {plain(where)}. State the address itself; no token follows."
        )
    raise _refusal(response)


def _refusal(response: httpx2.Response) -> Refused:
    """What the answer says went wrong; a proxy in between answers with a page of its own."""
    problem: dict[str, Any] = {}
    if "json" in response.headers.get("Content-Type", ""):
        try:
            problem = json.loads(response.content)
        except ValueError:
            problem = {}
    detail = problem.get("detail") if isinstance(problem, dict) else None
    told = f"answered {response.status_code}: {plain(str(detail))}" if detail else f"answered {response.status_code}."
    if response.status_code == 401 and not response.request.headers.get("Authorization"):
        told += f" Put the token into {TOKEN}."
    return Refused(response.status_code, told, problem if isinstance(problem, dict) else None)
