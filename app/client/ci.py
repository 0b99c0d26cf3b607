"""A job of a CI system, in the words of an upload."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CiJob:
    """Empty where the environment says nothing.

    `job` is what the job is called from change to change: its reports are found again by it. `key` names this attempt
    of it, so that a repeated upload is known as one. `change` is the number of the pull or merge request, and `commit`
    its own, not that of a trial merge. `commit_time` is ISO 8601. A branch of a fork is `owner:branch`, so that
    nobody's fork passes for the baseline branch. `repository` is `owner/name`. `doubt` says why there is no branch
    where one could have been expected: what may be another's is not stated.
    """

    system: str
    key: str = ""
    job: str = ""
    name: str = ""
    branch: str = ""
    commit: str = ""
    commit_time: str = ""
    ci_url: str = ""
    change: str = ""
    attempt: int = 1
    tag: str = ""
    repository: str = ""
    doubt: str = ""

    def metadata(self) -> dict[str, object]:
        """What of it an upload states."""
        said = {
            "job": self.job,
            "name": self.name,
            "branch": self.branch,
            "commit": self.commit,
            "commit_time": self.commit_time,
            "ci_url": self.ci_url,
        }
        tags = [f"change-{self.change}"] if self.change else []
        tags += [self.tag] if self.tag else []
        return {name: value for name, value in said.items() if value} | ({"tags": tags} if tags else {})


# --- One function a CI system; the variables are those of its own documentation.

Env = Mapping[str, str]
Event = Mapping[str, Any]

_QUEUED = re.compile(r"gh-readonly-queue/(?P<onto>.+)/pr-(?P<number>\d+)-[0-9a-f]+")
_TRIAL_MERGE = re.compile(r"refs/pull/(\d+)/")
_OF_ITS_REF = ("push", "schedule", "workflow_dispatch", "merge_group", "create", "release", "deployment")
"""Events of GitHub whose GITHUB_REF is what they are about."""
_UNKNOWN_HEAD = "No branch and no commit are stated, so the run is no baseline; state them with --set."
_SHA = re.compile(r"[0-9a-f]{7,64}")
_OWNER = re.compile(r"[:/]([^:/]+/[^:/]+?)(?:\.git)?/?$")


def ci_job(env: Env, event: Event | None = None) -> CiJob | None:
    """The job that the environment is of; None outside of CI. `event`: what GITHUB_EVENT_PATH holds.

    A scheduler's job inside that of a CI system is the latter's: it knows the commit.
    """
    for is_here, read in _SYSTEMS:
        if is_here(env):
            return read(env, event or {})
    return None


def _github(env: Env, event: Event) -> CiJob:
    repository, run, attempt = (env.get(f"GITHUB_{name}", "") for name in ("REPOSITORY", "RUN_ID", "RUN_ATTEMPT"))
    code = _github_code(env, event, repository)
    address = f"{env.get('GITHUB_SERVER_URL', '').rstrip('/')}/{repository}/actions/runs/{run}"
    return replace(
        code,
        key=_key("github", repository, run, attempt, env.get("GITHUB_JOB", "")),
        job=_within(env.get("GITHUB_WORKFLOW", ""), env.get("GITHUB_JOB", "")),
        name=_numbered(env.get("GITHUB_WORKFLOW", ""), env.get("GITHUB_RUN_NUMBER", "")),
        ci_url=(f"{address}/attempts/{attempt}" if attempt else address) if run else "",
        attempt=_number(attempt, 1),
        repository=repository,
    )


def _github_code(env: Env, event: Event, repository: str) -> CiJob:
    """Which commit it is about. Only of some events GITHUB_REF and GITHUB_SHA say that; of others they are main's."""
    job = CiJob(system="GitHub Actions")
    pull, caller, name = (
        _object(event, "pull_request"),
        _object(event, "workflow_run"),
        env.get("GITHUB_EVENT_NAME", ""),
    )
    branch, commit = env.get("GITHUB_REF_NAME", ""), env.get("GITHUB_SHA", "")
    if pull:
        head = _object(pull, "head")
        return replace(job, branch=_of_fork(head, repository), commit=_text(head, "sha"), change=_text(pull, "number"))
    if caller:
        return _of_caller(job, caller, repository)
    if trial := _TRIAL_MERGE.match(env.get("GITHUB_REF", "") or f"refs/pull/{branch}"):
        return replace(job, change=trial[1], doubt=f"{_UNKNOWN_HEAD} GITHUB_EVENT_PATH names no file that can be read.")
    if name not in _OF_ITS_REF:
        change = _text(_object(event, "issue"), "number") if _object(_object(event, "issue"), "pull_request") else ""
        what = f"An event `{name}`" if name else "A job without GITHUB_EVENT_NAME"
        return replace(job, change=change, doubt=f"{_UNKNOWN_HEAD} {what} does not say which commit was checked out.")
    if env.get("GITHUB_REF_TYPE") == "tag":
        return replace(job, commit=commit, tag=branch)
    pushed, queued = _object(event, "head_commit"), _QUEUED.fullmatch(branch)
    time = _text(pushed, "timestamp") if _text(pushed, "id") == commit and not queued else ""
    return replace(job, branch=branch, commit=commit, change=queued["number"] if queued else "", commit_time=time)


def _of_caller(job: CiJob, caller: Event, repository: str) -> CiJob:
    """Of a job that follows another workflow."""
    branch, owner = _text(caller, "head_branch"), _object(caller, "head_repository")
    if branch and owner and _text(owner, "full_name") != repository:
        branch = f"{_text(owner, 'full_name').partition('/')[0]}:{branch}"
    pulls = caller.get("pull_requests")
    change = _text(pulls[0], "number") if isinstance(pulls, list) and len(pulls) == 1 else ""
    return replace(job, branch=branch, commit=_text(caller, "head_sha"), change=change)


def _of_fork(head: Event, repository: str) -> str:
    branch, owner = _text(head, "ref"), _text(_object(head, "repo"), "full_name")
    # The repository of a head is null once the fork was deleted.
    return branch if owner == repository else f"{owner.partition('/')[0] or 'fork'}:{branch}"


def _gitlab(env: Env, _: Event) -> CiJob:
    source, target = env.get("CI_MERGE_REQUEST_SOURCE_PROJECT_PATH", ""), env.get("CI_MERGE_REQUEST_PROJECT_PATH", "")
    branch = env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "") or env.get("CI_COMMIT_BRANCH", "")
    if source != target:
        branch = f"{source.rpartition('/')[0] or 'fork'}:{branch}"
    here = env.get("CI_COMMIT_SHA", "")
    commit = env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", "") or here  # else that of a merge that exists nowhere
    return CiJob(
        system="GitLab CI",
        key=_key("gitlab", env.get("CI_SERVER_HOST", ""), env.get("CI_JOB_ID", "")),
        job=env.get("CI_JOB_NAME", ""),
        name=_numbered(env.get("CI_JOB_NAME", ""), env.get("CI_PIPELINE_IID", "")),
        branch=branch,
        commit=commit,
        commit_time=env.get("CI_COMMIT_TIMESTAMP", "") if commit == here else "",
        ci_url=env.get("CI_JOB_URL", ""),
        change=env.get("CI_MERGE_REQUEST_IID", ""),
        tag=env.get("CI_COMMIT_TAG", ""),
        repository=env.get("CI_PROJECT_PATH", ""),
    )


def _jenkins(env: Env, _: Event) -> CiJob:
    change = env.get("CHANGE_ID", "")
    branch = env.get("BRANCH_NAME", "") or re.sub(r"^(refs/remotes/)?origin/", "", env.get("GIT_BRANCH", ""))
    branch = "" if branch == "detached" else branch  # a commit was checked out, and git names no branch
    if change:
        fork = env.get("CHANGE_FORK", "").partition("/")[0]
        branch = (f"{fork}:" if fork else "") + (env.get("CHANGE_BRANCH", "") or branch)
    return CiJob(
        system="Jenkins",
        key=_key("jenkins", env.get("BUILD_URL", "") or env.get("BUILD_TAG", "")),
        job=env.get("JOB_NAME", ""),
        name=_numbered(env.get("JOB_NAME", ""), env.get("BUILD_NUMBER", "")),
        branch="" if env.get("TAG_NAME") else branch,
        commit=env.get("GIT_COMMIT", ""),
        ci_url=env.get("BUILD_URL", ""),
        change=change,
        tag=env.get("TAG_NAME", ""),
    )


def _buildkite(env: Env, _: Event) -> CiJob:
    number, commit = env.get("BUILDKITE_PULL_REQUEST", ""), env.get("BUILDKITE_COMMIT", "")
    job, address = env.get("BUILDKITE_JOB_ID", ""), env.get("BUILDKITE_BUILD_URL", "")
    branch, doubt = ("", "") if env.get("BUILDKITE_TAG") else _buildkite_branch(env)
    return CiJob(
        system="Buildkite",
        key=_key("buildkite", job),
        job=_within(
            env.get("BUILDKITE_PIPELINE_SLUG", ""), env.get("BUILDKITE_STEP_KEY", "") or env.get("BUILDKITE_LABEL", "")
        ),
        name=_numbered(env.get("BUILDKITE_PIPELINE_SLUG", ""), env.get("BUILDKITE_BUILD_NUMBER", "")),
        branch=branch,
        commit=commit if _SHA.fullmatch(commit) else "",  # a build may say HEAD
        ci_url=f"{address}#{job}" if address and job else address,
        change=number if number.isdigit() else "",
        attempt=_number(env.get("BUILDKITE_RETRY_COUNT", ""), 0) + 1,
        tag=env.get("BUILDKITE_TAG", ""),
        doubt=doubt,
    )


def _buildkite_branch(env: Env) -> tuple[str, str]:
    """With the pipeline's setting "prefix third-party fork branch names" a fork's is `owner:branch` already."""
    branch = env.get("BUILDKITE_BRANCH", "")
    if ":" in branch or not env.get("BUILDKITE_PULL_REQUEST", "").isdigit():
        return branch, ""
    ours, theirs = (_OWNER.search(env.get(name, "")) for name in ("BUILDKITE_REPO", "BUILDKITE_PULL_REQUEST_REPO"))
    if ours is None or theirs is None:
        return "", (
            "No branch is stated, so the run is no baseline: BUILDKITE_REPO and BUILDKITE_PULL_REQUEST_REPO do not say "
            "whether the pull request is from a fork. State it with --set branch=NAME."
        )
    return (branch if ours[1].lower() == theirs[1].lower() else f"{theirs[1].partition('/')[0]}:{branch}"), ""


def _slurm(env: Env, _: Event) -> CiJob:
    """A scheduler knows no commit; the checkout in which the job runs may (`app/client/ci.py`)."""
    job, restarts = env.get("SLURM_JOB_ID", ""), env.get("SLURM_RESTART_COUNT", "")
    name = env.get("SLURM_JOB_NAME", "")
    return CiJob(
        system="Slurm",
        key=_key("slurm", env.get("SLURM_CLUSTER_NAME", ""), job, restarts),
        job=name,
        name=f"{name} {job}".strip(),
        attempt=_number(restarts, 0) + 1,
    )


_SYSTEMS: tuple[tuple[Callable[[Env], bool], Callable[[Env, Event], CiJob]], ...] = (
    (lambda env: env.get("GITHUB_ACTIONS") == "true", _github),
    (lambda env: env.get("GITLAB_CI") == "true", _gitlab),
    (lambda env: env.get("BUILDKITE") == "true", _buildkite),
    (lambda env: bool(env.get("JENKINS_URL")), _jenkins),
    (lambda env: bool(env.get("SLURM_JOB_ID")), _slurm),
)


def _key(*parts: str) -> str:
    return ":".join(parts)


def _numbered(name: str, number: str) -> str:
    return f"{name} #{number}" if name and number else name


def _within(whole: str, part: str) -> str:
    return f"{whole}/{part}" if whole and part else whole or part


def _number(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() else default


def _object(event: Event, name: str) -> Event:
    found = event.get(name)
    return found if isinstance(found, Mapping) else {}


def _text(event: Event, name: str) -> str:
    found = event.get(name)
    return str(found) if isinstance(found, str | int) else ""


# --- What the environment and the checkout of a job say: the event file of GitHub, and git.

_GIT_SECONDS = 10
_LARGEST_EVENT_BYTES = 32 << 20


def surrounding_job(env: Mapping[str, str], folder: Path | None = None) -> CiJob | None:
    """The CI job that this process runs in, with the commit's time where `folder` is a checkout that has it."""
    job = ci_job(env, _event(env))
    if job is None:
        return None
    folder = folder or Path.cwd()
    if job.system == "Slurm":
        return _with_checkout(job, folder)
    if job.commit and not job.commit_time:
        return replace(job, commit_time=_commit_time(folder, job.commit))
    return job


def _with_checkout(job: CiJob, folder: Path) -> CiJob:
    """A scheduler runs whatever lies there: a commit is stated only where nothing was changed since."""
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if not commit or changed != "":
        return job
    branch = _git(folder, "symbolic-ref", "--quiet", "--short", "HEAD") or ""
    return replace(job, commit=commit, branch=branch, commit_time=_commit_time(folder, commit))


def _commit_time(folder: Path, commit: str) -> str:
    return _git(folder, "show", "--no-patch", "--format=%cI", f"{commit}^{{commit}}") or ""


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None when it cannot say it."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _event(env: Mapping[str, str]) -> dict[str, Any]:
    """What happened, as GitHub wrote it into a file; empty without one."""
    name = env.get("GITHUB_EVENT_PATH", "")
    try:
        file = Path(name)
        if not name or file.stat().st_size > _LARGEST_EVENT_BYTES:
            return {}
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
