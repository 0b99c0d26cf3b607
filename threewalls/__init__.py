"""The Python client of a Threewalls service (docs/client.md): upload logs, wait for verdicts, search runs, read series.

    from threewalls import Client

    with Client("https://threewalls.example.org", token="tw_...") as client:
        run = client.upload("train.log", meta={"gpu": "H100"})
        print(client.verdict(run, wait=600).headline)

It needs Python 3.9 or newer and no other package. `Series.arrays` needs numpy, `Series.frame` pandas.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from threewalls.transport import (
    LONGEST_RETRY_AFTER_SECONDS,
    RETRIED,
    HttpClient,
    Response,
    TransportError,
    pauses,
    retry_after_seconds,
)

if TYPE_CHECKING:
    import numpy
    import pandas

__all__ = ["Client", "Run", "Series", "ServiceError", "Verdict"]

_WAIT_SECONDS = 60.0
"""Longest time that one request waits for a verdict; a proxy may end longer ones."""
_PAGE_SIZE = 200
_UPLOAD_SECONDS = 300.0


class ServiceError(Exception):
    """The service refused a request, or could not be reached (`status` 0). `problem` is its problem document."""

    def __init__(self, message: str, status: int = 0, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status, self.problem = status, problem or {}


@dataclass(frozen=True)
class Run:
    """A run. `data` is the object of the API with all its fields; `step_time_ms` is None until the run was read."""

    id: int
    name: str
    project: str
    status: str
    branch: str
    commit: str
    verdict: str
    step_time_ms: float | None
    data: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Verdict:
    """The verdict of a run. `data` is the report, as of `GET /api/v1/runs/{id}/report`.

    `outcome` is `regression`, `improvement`, `no_change`, `inconclusive`, `no_baseline`, `failed`, `unread` or
    `pending`. `exit_code` is that of the command line, None while pending.
    """

    run: int
    outcome: str
    exit_code: int | None
    headline: str
    step_time_change_pct: float | None
    data: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Series:
    """The per-iteration values of a run: for each column a list, and its unit. Missing values are None."""

    columns: Mapping[str, Sequence[float | None]]
    units: Mapping[str, str]

    def arrays(self) -> dict[str, numpy.ndarray[Any, Any]]:
        """Return each column as an array of floats, with NaN for missing values."""
        import numpy  # noqa: PLC0415  optional

        return {name: numpy.array(values, dtype=float) for name, values in self.columns.items()}

    def frame(self) -> pandas.DataFrame:
        """Return all columns as a DataFrame with the iteration as its index."""
        import pandas  # noqa: PLC0415  optional

        return pandas.DataFrame(self.arrays()).set_index("iteration")


RunOrId = Union[Run, int]


class Client:
    """Calls one service. Every request is safe to repeat and is retried after lost connections and 5xx answers."""

    def __init__(self, url: str = "", token: str | None = None, *, project: str = "", retries: int = 5) -> None:
        """Default to THREEWALLS_URL, THREEWALLS_TOKEN and THREEWALLS_PROJECT; an empty token sends none.

        The token needs the `read` scope, or `upload` for `upload` and for the verdicts of its own runs.
        """
        self.url = (url or os.environ.get("THREEWALLS_URL", "") or "http://127.0.0.1:8000").rstrip("/")
        self.project = project or os.environ.get("THREEWALLS_PROJECT", "")
        self.retries = retries
        token = os.environ.get("THREEWALLS_TOKEN", "").strip() if token is None else token
        self._http = HttpClient(self.url, {"Authorization": f"Bearer {token}"} if token else {})

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def upload(
        self,
        *logs: str | os.PathLike[str],
        meta: Mapping[str, Any] | None = None,
        configs: Sequence[str | os.PathLike[str]] = (),
        events: Sequence[str | os.PathLike[str]] = (),
        key: str = "",
    ) -> Run:
        """Upload the logs of one run, plain, `.gz` or `.zst`, and return it. The same files and metadata are one run,
        however often they are sent, and so is everything with the same `key`.

        For logs that grow, huge logs and an unreachable service, use the command `threewalls upload`.
        """
        paths = [("log", Path(log)) for log in logs]
        paths += [("config", Path(path)) for path in configs] + [("events", Path(path)) for path in events]
        stated = {**({"project": self.project} if self.project else {}), **(meta or {})}
        text = json.dumps(stated, sort_keys=True)
        if not key:
            digest = hashlib.sha256(text.encode())
            for name, path in paths:
                digest.update(f"\n{name} {path.name} ".encode())
                with path.open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
            key = f"threewalls-{digest.hexdigest()[:48]}"

        def send() -> Response:
            with ExitStack() as opened:
                files = [
                    (name, (path.name, opened.enter_context(path.open("rb")), "application/octet-stream"))
                    for name, path in paths
                ]
                return self._http.request(
                    "POST", "/api/v1/runs", headers={"Idempotency-Key": key}, seconds=_UPLOAD_SECONDS,
                    files=[("meta", (None, text)), *files],
                )  # fmt: skip

        answer = self._send(send)
        return _run({"name": stated.get("name", ""), "project": self.project, **answer})

    def run(self, run: RunOrId) -> Run:
        """Return the run as it is now, with every field in `data`."""
        return _run(self.get(f"/api/v1/runs/{_id(run)}"))

    def verdict(self, run: RunOrId, *, wait: float = 0) -> Verdict:
        """Return the verdict, after at most `wait` seconds; its outcome is `pending` if there is none by then."""
        until = time.monotonic() + wait
        while True:
            left = max(0.0, until - time.monotonic())
            report = self.get(f"/api/v1/runs/{_id(run)}/report", wait=min(left, _WAIT_SECONDS))
            if report["status"] != "pending" or left == 0:
                return _verdict(_id(run), report)

    def search(self, words: str = "", **filters: Any) -> Iterator[Run]:
        """Yield all runs that match, newest first. `filters` are those of `GET /api/v1/runs`: `model`, `gpu`,
        `verdict`, `branch`, ..., and `sort`. Without `project`, the project of the client counts."""
        params = {"q": words, "project": self.project, **filters, "page_size": _PAGE_SIZE}
        params = {name: value for name, value in params.items() if value not in ("", None)}
        page = 1
        while True:
            answer = self.get("/api/v1/runs", **params, page=page)
            yield from map(_run, answer["items"])
            page += 1
            if page > answer["pages"]:
                return

    def series(self, run: RunOrId) -> Series:
        """Return the values of every iteration."""
        answer = self.get(f"/api/v1/runs/{_id(run)}/series")
        return Series(answer["columns"], answer["units"])

    def suggestions(self, run: RunOrId) -> list[Mapping[str, Any]]:
        """Return what to try next for a run, best first, as of `GET /api/v1/runs/{id}/suggestions`."""
        return list(self.get(f"/api/v1/runs/{_id(run)}/suggestions")["suggestions"])

    def regressions(self, **filters: Any) -> Iterator[Mapping[str, Any]]:
        """Yield all regressions that match, as of `GET /api/v1/regressions`, for example `state="open"`."""
        params = {"project": self.project, **filters}
        page = 1
        while True:
            answer = self.get("/api/v1/regressions", **{n: v for n, v in params.items() if v != ""}, page=page)
            yield from answer["items"]
            page += 1
            if page > answer["pages"]:
                return

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON answer of any call of the API (docs/api.md)."""
        seconds = float(params.get("wait", 0)) + 60
        return self._send(lambda: self._http.request("GET", path, params=params, seconds=seconds))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a JSON object and return the JSON answer. It is not retried."""
        return self._send(lambda: self._http.request("POST", path, json=body), retries=0)

    def _send(self, attempt: Any, retries: int | None = None) -> Any:
        waits = pauses(self.retries if retries is None else retries)
        while True:
            requested: float | None = None
            try:
                answer: Response = attempt()
            except TransportError as error:
                problem = ServiceError(f"{self.url} could not be reached: {error}")
            else:
                if answer.is_success:
                    return self._document(answer)
                problem = self._problem(answer)
                if answer.status_code not in RETRIED:
                    raise problem
                requested = retry_after_seconds(answer.headers.get("Retry-After"), datetime.now(timezone.utc))
            pause = next(waits, None)
            if pause is None or (requested or 0) > LONGEST_RETRY_AFTER_SECONDS:
                raise problem
            time.sleep(max(pause, requested or 0))

    def _document(self, answer: Response) -> Any:
        try:
            return answer.json()
        except ValueError:
            raise ServiceError(f"The server at {self.url} is not Threewalls: its answer is not JSON.") from None

    def _problem(self, answer: Response) -> ServiceError:
        try:
            problem = answer.json()
        except ValueError:
            problem = {}
        problem = problem if isinstance(problem, dict) else {}
        fields = "".join(f" {entry.get('field')}: {entry.get('message')}" for entry in problem.get("errors", ()))
        detail = problem.get("detail", answer.reason_phrase)
        return ServiceError(f"{self.url} answered {answer.status_code}: {detail}{fields}", answer.status_code, problem)


def _id(run: RunOrId) -> int:
    return run.id if isinstance(run, Run) else run


def _run(data: Mapping[str, Any]) -> Run:
    step_time = (data.get("metrics") or {}).get("step_time_ms")
    texts = {name: str(data.get(name) or "") for name in ("name", "project", "status", "branch", "commit", "verdict")}
    return Run(id=int(data["id"]), **texts, step_time_ms=step_time["value"] if step_time else None, data=data)


def _verdict(run: int, report: Mapping[str, Any]) -> Verdict:
    verdict = report.get("verdict") or {}
    outcome = verdict.get("verdict") or report["status"]
    change = (verdict.get("metrics") or {}).get("step_time_ms") or {}
    return Verdict(run, outcome, report.get("exit_code"), report["headline"], change.get("delta_pct"), report)
