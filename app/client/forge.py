"""What a forge (GitHub, GitLab) is told of runs: one of three states, a line, and one comment that is found again.

Pure values. The text of a run is its `report.md`, in which names and log text are escaped already.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx2

from app.client.errors import UsageError
from app.client.service import asked_seconds, pauses
from app.client.terminal import one_line
from app.errors import ThreewallsError

MOST_BYTES = 60_000
"""Of a comment. GitHub takes 65,536 characters in comments and 65,535 in the summary of a check, GitLab a million."""

_WHERE = re.compile(r" run=(\d{1,19}) -->")
_NUMBERED = re.compile(r"(.+) #(\d{1,9})")
_TITLES = {"success": "No regression", "failure": "Regression or failed run", "neutral": "No verdict to act on"}


class State(StrEnum):
    """NEUTRAL: nobody can tell (no baseline, inconclusive, not judged yet). It is never shown as green."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"


_STATE_OF_EXIT_CODE = {0: State.SUCCESS, 1: State.FAILURE, 3: State.FAILURE}
_WORST_FIRST = (State.FAILURE, State.NEUTRAL, State.SUCCESS)


@dataclass(frozen=True, slots=True)
class RunSaid:
    """A run as the service reports it. `exit_code` is None as long as there is no verdict; `markdown` its report.md.

    `key` is the same for the runs of a job from change to change; empty when nobody knows it yet.
    """

    run_id: int
    project: str
    key: str
    url: str
    headline: str
    exit_code: int | None
    markdown: str

    @property
    def state(self) -> State:
        return State.NEUTRAL if self.exit_code is None else _STATE_OF_EXIT_CODE.get(self.exit_code, State.NEUTRAL)


@dataclass(frozen=True, slots=True)
class Message:
    """What is posted. `marker` begins the comment and is the same for every report of the same thing.

    `key` is empty when it cannot be told what it is a report of.
    """

    key: str
    state: State
    name: str
    title: str
    url: str
    run_id: int
    marker: str
    text: str

    @property
    def reference(self) -> str:
        """By which a comment or a check is known as ours, and of which run."""
        return f"{self.marker} run={self.run_id} -->"

    @property
    def comment(self) -> str:
        return f"{self.reference}\n{self.text}"


def message(runs: Sequence[RunSaid], key: str = "") -> Message:
    """Of the runs of one job, at least one. `key` names it where the keys of the runs are not to."""
    runs = sorted(runs, key=lambda run: _WORST_FIRST.index(run.state))
    worst = runs[0]
    what = key or _joint_key([run.key for run in runs])
    project = ",".join(sorted({run.project for run in runs}))
    return Message(
        key=what,
        state=worst.state,
        name=f"threewalls ({shortened(what, 100)})",
        title=one_line(worst.headline) if len(runs) == 1 else _title(runs),
        url=worst.url,
        run_id=max(run.run_id for run in runs),
        marker=_marker(project, what),
        text=bounded(worst.markdown if len(runs) == 1 else _table(runs), worst.url),
    )


def no_verdict(key: str, project: str, why: str, url: str) -> Message:
    """Of no run, so a report of any run replaces it and it replaces none. `why` is text of others."""
    shown = re.sub(r"[`<>@\[\]|*_]", " ", one_line(why))
    return Message(
        key=key,
        state=State.NEUTRAL,
        name=f"threewalls ({shortened(key, 100)})",
        title=f"no verdict came: {one_line(why)}",
        url=url,
        run_id=0,
        marker=_marker(project, key),
        text=f"**… no verdict came**  \n{shortened(shown, 1000)}\n",
    )


def _marker(project: str, key: str) -> str:
    return f"<!-- threewalls:report project={quote(project, safe='')} key={quote(key, safe='')}"


def _joint_key(keys: Sequence[str]) -> str:
    """Of `perf`, `perf #2` and `perf #3` it is `perf`: a job may make three runs today and two tomorrow."""
    if not all(keys):
        return ""
    first: dict[str, tuple[int, str]] = {}
    for key in keys:
        job, number = (found[1], int(found[2])) if (found := _NUMBERED.fullmatch(key)) else (key, 1)
        first[job] = min(first.get(job, (number, key)), (number, key))
    return ",".join(sorted(key for _, key in first.values()))


def is_marked(comment: str, marker: str) -> bool:
    """Whether it begins as ours do. One that quotes ours begins with the sign of a quotation."""
    return comment.startswith(f"{marker} run=")


def newest_run(comment: str, marker: str) -> int:
    """The newest run that a marked comment tells of."""
    found = _WHERE.match(comment, len(marker))
    return int(found[1]) if found else 0


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def bounded(text: str, url: str, most: int = MOST_BYTES) -> str:
    """The text where it fits; else without what is folded; else its beginning, with the address of the rest."""
    if _size(text) <= most:
        return text
    text = "\n".join(_unfolded(text.splitlines())) + "\n"
    if _size(text) <= most:
        return text
    end = f"\nThe rest is at {url}\n"
    kept: list[str] = []
    left = most - _size(end)
    for line in text.splitlines(keepends=True):
        left -= _size(line)
        if left < 0:
            break
        kept.append(line)
    return "".join(kept) + end


def _title(runs: Sequence[RunSaid]) -> str:
    counts = [(state, sum(run.state is state for run in runs)) for state in _WORST_FIRST]
    return f"{_TITLES[runs[0].state]}: " + ", ".join(f"{count} {state}" for state, count in counts if count)


def _table(runs: Sequence[RunSaid]) -> str:
    """One row a run, the worst first, and the report of each folded below."""
    lines = [f"**{_title(runs)}**", "", "| run | verdict |", "| --- | --- |"]
    lines += [f"| {_link(run)} | {_verdict(run)} |" for run in runs]
    for run in runs:
        lines += ["", f"<details><summary>Run {run.run_id}</summary>", "", run.markdown.rstrip("\n"), "", "</details>"]
    return "\n".join(lines) + "\n"


def _verdict(run: RunSaid) -> str:
    """The first line of its report, which the service has escaped."""
    first = run.markdown.partition("\n")[0].strip()
    return first.removeprefix("**").removesuffix("**") or "…"


def _link(run: RunSaid) -> str:
    """As the report links it, with its name."""
    for line in run.markdown.splitlines():
        if line.startswith("[") and f"(run {run.run_id})](" in line and line.endswith(")"):
            return line
    return f"[run {run.run_id}]({run.url})"


def _unfolded(lines: Iterable[str]) -> Iterable[str]:
    depth = 0
    for line in lines:
        depth += line.startswith("<details>")
        if not depth:
            yield line
        depth -= line.startswith("</details>")


def _size(text: str) -> int:
    return len(text.encode())


# --- Requests to a forge's API: what is worth a repetition is repeated, within limits; no redirect is followed.
#
# A request that may have been carried out although its answer was lost is repeated here only when that does no harm;
# else `UnsureError` says so, and whoever asked looks before asking again (`comment.py`).

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


# --- Where in a forge a report belongs, read from the job's environment: options first. Pure functions of a mapping.

OWN_TOKEN = "THREEWALLS_FORGE_TOKEN"  # noqa: S105  the name of the variable
_GITHUB_API = "https://api.github.com"
_GITHUB_NAMES = ("github.com", "api.github.com", "www.github.com")
_SHA = re.compile(r"[0-9a-fA-F]{7,64}")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stated:
    """What the command line says. Empty or 0: it does not."""

    url: str = ""
    repository: str = ""
    change: int = 0
    sha: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """`api`: address of the API. `change`: number of the pull or merge request, 0 without one.

    `sha` is empty where only the change is known, whose head it is. `status_path`: the project in which the commit's
    status is set; in GitLab a change from a fork has its own. `pipeline` is that which the status belongs to, where
    the commit may have several; 0: not known.
    """

    api: str
    path: str
    status_path: str
    change: int
    sha: str
    token: str = field(repr=False)
    is_job_token: bool = False
    pipeline: int = 0


def github_place(env: Mapping[str, str], event: Mapping[str, Any], stated: Stated = Stated()) -> Place:
    """`event`: the document that began the job. Raises UsageError naming what is missing."""
    repository = stated.repository or env.get("GITHUB_REPOSITORY", "")
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError("State the repository: --repo OWNER/NAME (in GitHub Actions it is known).")
    pull = _pull_request(event)
    of_ref = _number(_match(r"refs/pull/(\d+)/", env, "GITHUB_REF"))
    change = stated.change or _number(pull.get("number")) or of_ref or _commented(event)
    head = pull.get("head") or {}
    sha = stated.sha or str(head.get("sha") or _workflow_run(event).get("head_sha") or "")
    if not (sha or of_ref or _commented(event)):
        sha = env.get("GITHUB_SHA", "")  # else it is a merge that nobody sees, or main's: the head is asked for later
    token = _token(env, (OWN_TOKEN, "GITHUB_TOKEN", "GH_TOKEN"))
    path = f"/repos/{repository}"
    known = env.get("GITHUB_API_URL", "") or _GITHUB_API
    api = _github_api(stated.url) if stated.url else _checked(known)
    return Place(api, path, path, change, _sha(sha, "--sha") if sha or not change else "", token)


def gitlab_place(env: Mapping[str, str], stated: Stated = Stated()) -> Place:
    """Raises UsageError naming what is missing."""
    own = stated.repository or env.get("CI_PROJECT_ID", "") or env.get("CI_PROJECT_PATH", "")
    if not own:
        raise UsageError("State the project: --repo GROUP/NAME or its number (in GitLab CI it is known).")
    of_change = stated.repository or env.get("CI_MERGE_REQUEST_PROJECT_ID", "") or own
    head, ran = env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", ""), env.get("CI_COMMIT_SHA", "")
    sha = _sha(stated.sha or head or ran, "--sha")
    names = (OWN_TOKEN, "GITLAB_TOKEN", "CI_JOB_TOKEN")
    return Place(
        api=_gitlab_api(stated.url or env.get("CI_API_V4_URL", "") or env.get("CI_SERVER_URL", "https://gitlab.com")),
        path=f"/projects/{quote(of_change, safe='')}",
        status_path=f"/projects/{quote(own, safe='')}",
        change=stated.change or _number(env.get("CI_MERGE_REQUEST_IID")),
        sha=sha,
        token=_token(env, names),
        is_job_token=not any(env.get(name, "").strip() for name in names[:2]),
        # A pipeline of a merged result is of another commit than the one that the change shows.
        pipeline=_number(env.get("CI_PIPELINE_ID")) if sha == ran and not stated.repository else 0,
    )


def read_event(env: Mapping[str, str]) -> Mapping[str, Any]:
    """The document that began a job of GitHub Actions; empty when there is none that can be read."""
    try:
        document = json.loads(Path(env.get("GITHUB_EVENT_PATH", "")).read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _pull_request(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Also of a job that another workflow started, which is how changes from forks are told of."""
    pulls = _workflow_run(event).get("pull_requests") or [{}]
    found = event.get("pull_request") or pulls[0]
    return found if isinstance(found, dict) else {}


def _commented(event: Mapping[str, Any]) -> int:
    """The pull request on which somebody commented; its job runs on main all the same."""
    issue = event.get("issue")
    return _number(issue.get("number")) if isinstance(issue, dict) and issue.get("pull_request") else 0


def _workflow_run(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return event.get("workflow_run") or {}


def _token(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    token = next((text for name in names if (text := env.get(name, "").strip())), "")
    if not token:
        raise UsageError(f"There is no token for the forge: set {' or '.join(names)}.")
    if not (token.isascii() and token.isprintable()):
        raise UsageError(f"The token in {names[0]} or {names[1]} holds characters that no token has.")
    return token


def _github_api(text: str) -> str:
    """`https://ghe.example.org` means its API; so do the names of GitHub's own cloud."""
    url = _checked(text)
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in _GITHUB_NAMES:
        return _GITHUB_API
    if host.endswith(".ghe.com"):
        return f"https://{host}" if host.startswith("api.") else f"https://api.{host}"
    return url if parts.path.strip("/") else f"{url}/api/v3"


def _gitlab_api(text: str) -> str:
    url = _checked(text)
    return url if url.endswith("/api/v4") else f"{url}/api/v4"


def _checked(text: str) -> str:
    url = text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
    except ValueError:
        valid = False
    if not valid or parts.username is not None or parts.password is not None:
        raise UsageError("The forge's address is none: write --forge-url https://git.example.org, without a password.")
    return url


def _sha(text: str, option: str) -> str:
    if not _SHA.fullmatch(text):
        raise UsageError(f"State the commit that is reported on: {option} with its hexadecimal name.")
    return text


def _number(value: Any) -> int:
    text = str(value or "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _match(pattern: str, env: Mapping[str, str], name: str) -> str:
    found = re.match(pattern, env.get(name, ""))
    return found[1] if found else ""
