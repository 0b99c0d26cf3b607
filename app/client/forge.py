"""Messages to a forge (GitHub, GitLab), the HTTP client for its API, and where a report is posted.

A message has one of three states, a title, and a comment with a marker that identifies it later. Its text is the
`report.md` of the run, in which the service has escaped names and log text.

PyGithub and python-gitlab are not used: jobs install this client, and the two would triple its packages for a few
calls, while "one comment per job" (`forge_comment.py`) would stay. Most training images have neither `gh` nor `glab`.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from app.client.errors import REGRESSION
from app.client.terminal import one_line
from app.errors import ThreewallsError, UsageError
from threewalls.transport import HttpClient, Response, TransportError, pauses, retry_after_seconds

if TYPE_CHECKING:  # Python 3.11
    from typing import Self

MOST_BYTES = 60_000
"""Limit of a comment. GitHub accepts 65,536 characters in comments and 65,535 in check summaries, GitLab a million."""

_RUN_OF_MARKER = re.compile(r" run=(\d{1,19})(?: regression)? -->")
_REGRESSION = re.compile(r"<!-- threewalls:report project=\S* key=\S* run=\d{1,19} regression -->")
_NUMBERED = re.compile(r"(.+) #(\d{1,9})")


class State(str, Enum):
    """NEUTRAL means no decision (no baseline, inconclusive, not judged yet). It is never shown as green."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"

    def __str__(self) -> str:
        return str(self.value)


_STATE_OF_EXIT_CODE = {0: State.SUCCESS, REGRESSION: State.FAILURE, 3: State.FAILURE}
_WORST_FIRST = (State.FAILURE, State.NEUTRAL, State.SUCCESS)


@dataclass(frozen=True)
class PostedReport:
    """The report of a run. `exit_code` is None without a verdict, `badge` as on its page, `markdown` is report.md.

    `key` is the same for all runs of a CI job; empty if it is not known yet.
    """

    run_id: int
    project: str
    key: str
    url: str
    headline: str
    exit_code: int | None
    badge: str
    markdown: str

    @property
    def state(self) -> State:
        return State.NEUTRAL if self.exit_code is None else _STATE_OF_EXIT_CODE.get(self.exit_code, State.NEUTRAL)


@dataclass(frozen=True)
class Message:
    """A comment and a check. `marker` is the beginning of the comment, the same for all reports of one `key`.

    `key` is empty if the job and the stack are unknown; such a message cannot be updated later.
    """

    key: str
    state: State
    name: str
    title: str
    url: str
    run_id: int
    marker: str
    text: str
    is_regression: bool = False

    @property
    def reference(self) -> str:
        """Return the text that identifies a comment or check as ours, its run, and whether that is a regression."""
        return f"{self.marker} run={self.run_id}{' regression' if self.is_regression else ''} -->"

    @property
    def comment(self) -> str:
        return f"{self.reference}\n{self.text}"


def message(runs: Sequence[PostedReport], key: str = "") -> Message:
    """Return the message for one or more runs of one job. `key` overrides the key of the runs."""
    runs = sorted(runs, key=lambda run: _WORST_FIRST.index(run.state))
    worst = runs[0]
    key = key or _joint_key([run.key for run in runs])
    project = ",".join(sorted({run.project for run in runs}))
    return Message(
        key=key,
        state=worst.state,
        name=f"threewalls ({shortened(key, 100)})",
        title=one_line(worst.headline) if len(runs) == 1 else _title(runs),
        url=worst.url,
        run_id=max(run.run_id for run in runs),
        marker=_marker(project, key),
        text=bounded(worst.markdown if len(runs) == 1 else _table(runs), worst.url),
        is_regression=any(run.exit_code == REGRESSION for run in runs),
    )


def no_verdict(key: str, project: str, why: str, url: str) -> Message:
    """Return a neutral message without a run: any report replaces it, and it replaces none. `why` is untrusted text."""
    escaped = re.sub(r"[`<>@\[\]|*_]", " ", one_line(why))
    return Message(
        key=key,
        state=State.NEUTRAL,
        name=f"threewalls ({shortened(key, 100)})",
        title=f"no verdict: {one_line(why)}",
        url=url,
        run_id=0,
        marker=_marker(project, key),
        text=f"**… no verdict**  \n{shortened(escaped, 1000)}\n",
    )


def _marker(project: str, key: str) -> str:
    return f"<!-- threewalls:report project={quote(project, safe='')} key={quote(key, safe='')}"


def _joint_key(keys: Sequence[str]) -> str:
    """Return one key for several runs of a job: `perf` for `perf`, `perf #2` and `perf #3`."""
    if not all(keys):
        return ""
    first: dict[str, tuple[int, str]] = {}
    for key in keys:
        job, number = (match[1], int(match[2])) if (match := _NUMBERED.fullmatch(key)) else (key, 1)
        first[job] = min(first.get(job, (number, key)), (number, key))
    return ",".join(sorted(key for _, key in first.values()))


def is_marked(comment: str, marker: str) -> bool:
    """Return whether the comment begins with the marker. A quotation of it begins with `>`."""
    return comment.startswith(f"{marker} run=")


def shows_regression(comment: str) -> bool:
    """Return whether the comment is a report of any job that shows a regression."""
    return _REGRESSION.match(comment) is not None


def newest_run(comment: str, marker: str) -> int:
    """Return the newest run of a marked comment, 0 if it names none."""
    match = _RUN_OF_MARKER.match(comment, len(marker))
    return int(match[1]) if match else 0


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def bounded(text: str, url: str) -> str:
    """Return the text if it fits, else without its folded parts, else its beginning with the address of the rest."""
    if _size(text) <= MOST_BYTES:
        return text
    text = "\n".join(_unfolded(text.splitlines())) + "\n"
    if _size(text) <= MOST_BYTES:
        return text
    end = f"\nThe rest is at {url}\n"
    lines: list[str] = []
    left = MOST_BYTES - _size(end)
    for line in text.splitlines(keepends=True):
        left -= _size(line)
        if left < 0:
            break
        lines.append(line)
    return "".join(lines) + end


def _title(runs: Sequence[PostedReport]) -> str:
    """Return how many runs have each badge, worst first: `1 regression; 2 no change`."""
    return "; ".join(f"{count} {badge}" for badge, count in Counter(run.badge for run in runs).items())


def _table(runs: Sequence[PostedReport]) -> str:
    """Return a table with one row per run, worst first, and each report folded below it."""
    lines = [f"**{_title(runs)}**", "", "| run | verdict |", "| --- | --- |"]
    lines += [f"| {_link(run)} | {_verdict(run)} |" for run in runs]
    for run in runs:
        lines += ["", f"<details><summary>Run {run.run_id}</summary>", "", run.markdown.rstrip("\n"), "", "</details>"]
    return "\n".join(lines) + "\n"


def _verdict(run: PostedReport) -> str:
    """Return the first line of the report, which the service has escaped."""
    first = run.markdown.partition("\n")[0].strip()
    return first.removeprefix("**").removesuffix("**") or "…"


def _link(run: PostedReport) -> str:
    """Return the link of the report, which includes the name of the run."""
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


# --- Requests to a forge's API, with limited retries and without redirects.
#
# A request that the forge may have executed although its answer was lost is retried only if that is harmless. Otherwise
# `UnconfirmedError` is raised, and the caller checks before it tries again (`forge_comment.py`).

TRIES = 5
LONGEST_WAIT_SECONDS = 120.0
SETTLE_SECONDS = 2.0
"""Pause before checking an overwritten post again: longer than another job takes between reading and writing."""
PAGE_SIZE = 100
MOST_PAGES = 50
"""Pages of comments to search: a change with more than 5,000 comments gets a new one."""

_SECONDS = 30.0
_FAILED = (500, 502, 503, 504)
_LIMITED = 429
_BUSY = (409, _LIMITED)


class ForgeError(ThreewallsError):
    """The forge refused or did not answer. `status` is 0 without an answer."""

    title = "The forge refused the request"

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__(detail)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Return whether the token lacks permission."""
        return self.status in (401, 403, 404)


class UnconfirmedError(ForgeError):
    """The request may or may not have been executed."""


@dataclass
class ForgeApi:
    """The API at address `base`. `headers` contain the token, which is sent to no other address."""

    base: str
    headers: Mapping[str, str]
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    _client: HttpClient = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._client = HttpClient(self.base, self.headers)
        except (OSError, ValueError) as error:  # an invalid proxy or certificate file
            raise ForgeError(f"The proxy or certificates of the job are invalid: {one_line(str(error))}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def get(self, path: str, **params: str | int) -> dict[str, Any]:
        return self._object(self._request("GET", path, params=params), path)

    def pages(self, path: str, inside: str = "", **params: str | int) -> Iterator[dict[str, Any]]:
        """Yield all entries of a list, which is the answer or its member `inside`.

        Pages are requested by number. The `Link` header only shows whether there are more.
        """
        for page in range(1, MOST_PAGES + 1):
            answer = self._request("GET", path, params={**params, "per_page": PAGE_SIZE, "page": page})
            entries = self._object(answer, path).get(inside) if inside else self._json(answer, path)
            if not isinstance(entries, list) or not all(
                isinstance(entry, dict) and isinstance(entry.get("id"), int) for entry in entries
            ):
                raise self.unexpected_answer(path)
            yield from entries
            if 'rel="next"' not in answer.headers.get("Link", ""):
                return

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object and return it with its `id`. Raises UnconfirmedError if the answer was lost."""
        created = self._object(self._request("POST", path, json=body, repeatable=False), path)
        if not isinstance(created.get("id"), int):
            raise self.unexpected_answer(path)
        return created

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Send a request that is safe to repeat."""
        answer = self._request(method, path, json=body)
        if answer.content:
            self._json(answer, path)

    def unexpected_answer(self, path: str) -> ForgeError:
        return ForgeError(
            f"{self.base} does not answer like the API of a forge ({path}). Check --forge-url, and any proxy or log-in "
            "page in front of it."
        )

    def _object(self, answer: Response, path: str) -> dict[str, Any]:
        document = self._json(answer, path)
        if not isinstance(document, dict):
            raise self.unexpected_answer(path)
        return document

    def _json(self, answer: Response, path: str) -> Any:
        try:
            return answer.json()
        except ValueError as error:
            raise self.unexpected_answer(path) from error

    def _request(self, method: str, path: str, *, repeatable: bool = True, **request: Any) -> Response:
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
                self.sleep(pause)  # before the caller checks whether it was executed
                raise UnconfirmedError(f"{what}: {problem}", status)
            wait = max(pause, self._requested_wait(answer))
            waited += wait
            if attempt == TRIES or waited > LONGEST_WAIT_SECONDS:
                break
            self.sleep(wait)
        late = f" The forge requests a pause of {wait:.0f} s." if wait > LONGEST_WAIT_SECONDS else ""
        # GitHub answers 403 both to too many requests and to a missing permission.
        raise ForgeError(f"{what}: {problem}.{late} Tried {attempt} times.", _LIMITED if is_limit else status)

    def _once(self, method: str, path: str, request: Mapping[str, Any]) -> tuple[Response | None, str]:
        try:
            answer = self._client.request(method, path, seconds=_SECONDS, **request)
        except TransportError as error:
            return None, f"no answer from {self.base} ({type(error).__name__})"
        return answer, f"{answer.status_code} {_error_message(answer)}"

    def _requested_wait(self, answer: Response | None) -> float:
        """Return the seconds that the forge requests, 0 if none. Rate-limit headers name the time of the next quota."""
        if answer is None:
            return 0
        requested = retry_after_seconds(
            answer.headers.get("retry-after"), datetime.fromtimestamp(self.now(), timezone.utc)
        )
        reset = answer.headers.get("x-ratelimit-reset") or answer.headers.get("ratelimit-reset") or ""
        if requested is None and _is_limited(answer) and reset.isdigit():
            return max(1.0, int(reset) - self.now())
        return requested or 0


def part(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a nested object, empty if there is none."""
    value = entry.get(name)
    return value if isinstance(value, Mapping) else {}


def _is_limited(answer: Response) -> bool:
    """Return whether the request hit a rate limit, which GitHub also reports as 403."""
    if answer.status_code == 403:
        return "retry-after" in answer.headers or answer.headers.get("x-ratelimit-remaining") == "0"
    return answer.status_code in _BUSY


def _error_message(answer: Response) -> str:
    """Return the error message of the forge in one short line."""
    try:
        document = answer.json()
    except ValueError:
        return answer.reason_phrase
    message = (document.get("message") or document.get("error") or "") if isinstance(document, dict) else ""
    return shortened(one_line(str(message)), 200)


# --- Where a report is posted: options, else the environment of the job.

OWN_TOKEN = "THREEWALLS_FORGE_TOKEN"  # noqa: S105  the name of the variable
_GITHUB_API = "https://api.github.com"
_GITHUB_NAMES = ("github.com", "api.github.com", "www.github.com")
_SHA = re.compile(r"[0-9a-fA-F]{7,64}")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class ForgeOptions:
    """Options of the command line; empty or 0 if not given."""

    url: str = ""
    repository: str = ""
    change: int = 0
    sha: str = ""


@dataclass(frozen=True)
class PostTarget:
    """Where a report is posted. `api` is the address of the API, `change` the number of the change (0 without one).

    `sha` is empty if only the change is known; its head is then looked up. `status_path` is the project of the commit
    status, in GitLab the fork for a change from a fork. `pipeline` is the pipeline of the status, 0 if unknown.
    """

    api: str
    path: str
    status_path: str
    change: int
    sha: str
    token: str = field(repr=False)
    is_job_token: bool = False
    pipeline: int = 0


def github_target(
    env: Mapping[str, str], event: Mapping[str, Any], stated: ForgeOptions = ForgeOptions()
) -> PostTarget:
    """Return where a GitHub job posts. `event` is GitHub's event file. Raises UsageError for missing information."""
    repository = stated.repository or env.get("GITHUB_REPOSITORY", "")
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError("State the repository with --repo OWNER/NAME (GitHub Actions sets it).")
    pull = _pull_request(event)
    ref = re.match(r"refs/pull/(\d+)/", env.get("GITHUB_REF", ""))
    of_ref = _number(ref and ref[1])
    change = stated.change or _number(pull.get("number")) or of_ref or _commented(event)
    head = pull.get("head") or {}
    sha = stated.sha or str(head.get("sha") or _workflow_run(event).get("head_sha") or "")
    if not (sha or of_ref or _commented(event)):
        sha = env.get("GITHUB_SHA", "")  # otherwise a trial merge or main; the head is looked up later
    token = _token(env, (OWN_TOKEN, "GITHUB_TOKEN", "GH_TOKEN"))
    path = f"/repos/{repository}"
    api = _github_api(stated.url) if stated.url else _checked(env.get("GITHUB_API_URL", "") or _GITHUB_API)
    return PostTarget(api, path, path, change, _sha(sha) if sha or not change else "", token)


def gitlab_target(env: Mapping[str, str], stated: ForgeOptions = ForgeOptions()) -> PostTarget:
    """Return where a GitLab job posts. Raises UsageError for missing information."""
    own = stated.repository or env.get("CI_PROJECT_ID", "") or env.get("CI_PROJECT_PATH", "")
    if not own:
        raise UsageError("State the project with --repo GROUP/NAME or its number (GitLab CI sets it).")
    of_change = stated.repository or env.get("CI_MERGE_REQUEST_PROJECT_ID", "") or own
    head, ran = env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", ""), env.get("CI_COMMIT_SHA", "")
    sha = _sha(stated.sha or head or ran)
    names = (OWN_TOKEN, "GITLAB_TOKEN", "CI_JOB_TOKEN")
    return PostTarget(
        api=_gitlab_api(stated.url or env.get("CI_API_V4_URL", "") or env.get("CI_SERVER_URL", "https://gitlab.com")),
        path=f"/projects/{quote(of_change, safe='')}",
        status_path=f"/projects/{quote(own, safe='')}",
        change=stated.change or _number(env.get("CI_MERGE_REQUEST_IID")),
        sha=sha,
        token=_token(env, names),
        is_job_token=not any(env.get(name, "").strip() for name in names[:2]),
        # The pipeline of a merged result belongs to another commit than the head of the change.
        pipeline=_number(env.get("CI_PIPELINE_ID")) if sha == ran and not stated.repository else 0,
    )


def read_event(env: Mapping[str, str]) -> Mapping[str, Any]:
    """Return GitHub's event file, empty if there is none."""
    try:
        document = json.loads(Path(env.get("GITHUB_EVENT_PATH", "")).read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _pull_request(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pull request of the event, or of the workflow that triggered this one (for changes from forks)."""
    pulls = _workflow_run(event).get("pull_requests") or [{}]
    pull = event.get("pull_request") or pulls[0]
    return pull if isinstance(pull, dict) else {}


def _commented(event: Mapping[str, Any]) -> int:
    """Return the pull request of a comment event, whose job runs on main, else 0."""
    issue = event.get("issue")
    return _number(issue.get("number")) if isinstance(issue, dict) and issue.get("pull_request") else 0


def _workflow_run(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return event.get("workflow_run") or {}


def _token(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    token = next((text for name in names if (text := env.get(name, "").strip())), "")
    if not token:
        raise UsageError(f"No token for the forge: set {' or '.join(names)}.")
    if not (token.isascii() and token.isprintable()):
        raise UsageError(f"The token in {names[0]} or {names[1]} contains invalid characters.")
    return token


def _github_api(text: str) -> str:
    """Return the address of the API for the address of a GitHub server."""
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
        raise UsageError(
            "Invalid address of the forge. Example, without a password: --forge-url https://git.example.org"
        )
    return url


def _sha(text: str) -> str:
    if not _SHA.fullmatch(text):
        raise UsageError("State the hexadecimal commit of the report with --sha.")
    return text


def _number(value: Any) -> int:
    text = str(value or "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
