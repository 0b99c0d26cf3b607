"""Where in a forge a report belongs, read from the job's environment: options first. Pure functions of a mapping."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from app.client.errors import UsageError

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
