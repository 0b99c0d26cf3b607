"""Requests to a forge's API: what is worth a repetition is repeated, within limits; no redirect is followed.

A request that may have been carried out although its answer was lost is repeated here only when that does no harm;
else `UnsureError` says so, and whoever asked looks before asking again (`comment.py`).
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import httpx2

from app.client.backoff import asked_seconds, pauses
from app.client.forge import shortened
from app.client.plain import one_line
from app.errors import ThreewallsError

TRIES = 5
LONGEST_WAIT_SECONDS = 120.0
SETTLE_SECONDS = 2.0
"""Before a second look at what was overwritten: longer than another job takes between its look and its write."""
PAGE_SIZE = 100
MOST_PAGES = 50
"""Of comments: a change with more than 5,000 gets a new one."""

_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
_FAILED = (500, 502, 503, 504)
_LIMITED = 429
_BUSY = (409, _LIMITED)


class ForgeError(ThreewallsError):
    """The forge refused, or did not answer. `status` is 0 when there was no answer."""

    title = "The forge did not take it"

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__(detail)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """The token may not do it."""
        return self.status in (401, 403, 404)


class UnsureError(ForgeError):
    """No answer, or one that says nothing about whether it was done."""


@dataclass
class ForgeApi:
    """`base`: address of the API. `headers` carry the token, which is sent nowhere else."""

    base: str
    headers: Mapping[str, str]
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    _client: httpx2.Client = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._client = httpx2.Client(headers=dict(self.headers), timeout=_TIMEOUT, follow_redirects=False)
        except (ImportError, OSError, ValueError) as error:  # a proxy or a file of certificates that cannot be used
            raise ForgeError(f"The job's proxy or certificates cannot be used: {one_line(str(error))}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def get(self, path: str, **params: str | int) -> dict[str, Any]:
        return self._object(self._asked("GET", path, params=params), path)

    def pages(self, path: str, inside: str = "", **params: str | int) -> Iterator[dict[str, Any]]:
        """All entries of a list, which lies `inside` an object or is the answer.

        Pages are asked for by number: a `Link` is believed only about there being more.
        """
        for page in range(1, MOST_PAGES + 1):
            answer = self._asked("GET", path, params={**params, "per_page": PAGE_SIZE, "page": page})
            found = self._object(answer, path).get(inside) if inside else self._json(answer, path)
            if not isinstance(found, list) or not all(
                isinstance(one, dict) and isinstance(one.get("id"), int) for one in found
            ):
                raise self.strange(path)
            yield from found
            if "next" not in answer.links:
                return

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """What was made, with its `id`. Raises UnsureError instead of asking again when the answer was lost."""
        made = self._object(self._asked("POST", path, json=body, repeatable=False), path)
        if not isinstance(made.get("id"), int):
            raise self.strange(path)
        return made

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """What does no harm when it is done twice."""
        answer = self._asked(method, path, json=body)
        if answer.content:
            self._object(answer, path)

    def strange(self, path: str) -> ForgeError:
        return ForgeError(
            f"{self.base} answers, but not as a forge's API does ({path}). Check --forge-url; a log-in page or a proxy "
            "may stand before it."
        )

    def _object(self, answer: httpx2.Response, path: str) -> dict[str, Any]:
        found = self._json(answer, path)
        if not isinstance(found, dict):
            raise self.strange(path)
        return found

    def _json(self, answer: httpx2.Response, path: str) -> Any:
        try:
            return answer.json()
        except ValueError as error:
            raise self.strange(path) from error

    def _asked(self, method: str, path: str, *, repeatable: bool = True, **request: Any) -> httpx2.Response:
        what, waited = f"{method} {path}", 0.0
        for attempt, pause in enumerate(pauses(TRIES, random.random), 1):
            answer, problem = self._once(method, path, request)
            if answer is not None and answer.is_success:
                return answer
            status = answer.status_code if answer is not None else 0
            is_limit = answer is not None and _is_limited(answer)
            if status and not is_limit and status not in _FAILED:
                raise ForgeError(f"{what}: {problem}", status)
            if not is_limit and not repeatable:
                self.sleep(pause)  # before whoever asked looks what became of it
                raise UnsureError(f"{what}: {problem}", status)
            wait = max(pause, self._asked_to_wait(answer))
            waited += wait
            if attempt == TRIES or waited > LONGEST_WAIT_SECONDS:
                break
            self.sleep(wait)
        late = f" It asks to wait {wait:.0f} s." if wait > LONGEST_WAIT_SECONDS else ""
        # GitHub says 403 to both: too much was asked, and the token may not.
        raise ForgeError(f"{what}: {problem}.{late} It was tried {attempt} times.", _LIMITED if is_limit else status)

    def _once(self, method: str, path: str, request: Mapping[str, Any]) -> tuple[httpx2.Response | None, str]:
        try:
            answer = self._client.request(method, self.base.rstrip("/") + path, **request)
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            return None, f"no answer from {self.base} ({type(error).__name__})"
        return answer, f"{answer.status_code} {_said(answer)}"

    def _asked_to_wait(self, answer: httpx2.Response | None) -> float:
        """Seconds; 0 when it does not say. GitHub and GitLab name the time of the next full quota."""
        if answer is None:
            return 0
        asked = asked_seconds(answer.headers.get("retry-after"), datetime.fromtimestamp(self.now(), UTC))
        reset = answer.headers.get("x-ratelimit-reset") or answer.headers.get("ratelimit-reset") or ""
        if asked is None and _is_limited(answer) and reset.isdigit():
            return max(1.0, int(reset) - self.now())
        return asked or 0


def part(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside of another; empty where there is none."""
    found = entry.get(name)
    return found if isinstance(found, Mapping) else {}


def _is_limited(answer: httpx2.Response) -> bool:
    """Nothing was done because too much was asked; GitHub says so with 403, too."""
    if answer.status_code == 403:
        return "retry-after" in answer.headers or answer.headers.get("x-ratelimit-remaining") == "0"
    return answer.status_code in _BUSY


def _said(answer: httpx2.Response) -> str:
    """What the forge says about it, as one short line."""
    try:
        document = answer.json()
    except ValueError:
        return answer.reason_phrase
    said = (document.get("message") or document.get("error") or "") if isinstance(document, dict) else ""
    return shortened(one_line(str(said)), 200)
