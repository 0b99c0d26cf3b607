"""Reads the CI job that the client runs in: branch, commit, change, attempt."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CiJob:
    """A CI job. Fields are empty if the environment does not state them.

    `job` is the same for every change and identifies the job's comment and check. `key` identifies this attempt.
    `change` is the number of the pull or merge request; `commit` is its head, not a trial merge. `commit_time` is ISO
    8601. `target` is the branch that a change is for, `merge_base` the commit at which it left that branch. The branch
    of a fork is `owner:branch`, so that it cannot be mistaken for the baseline branch. `repository` is
    `owner/name`. `doubt` explains why the branch is empty although one was expected.
    """

    system: str
    key: str = ""
    job: str = ""
    name: str = ""
    branch: str = ""
    commit: str = ""
    commit_time: str = ""
    target: str = ""
    merge_base: str = ""
    merge_base_time: str = ""
    ci_url: str = ""
    change: str = ""
    attempt: int = 1
    tag: str = ""
    repository: str = ""
    doubt: str = ""

    def metadata(self) -> dict[str, object]:
        """Return the metadata of an upload from this job."""
        names = ("job", "name", "branch", "commit", "commit_time", "merge_base", "merge_base_time", "ci_url")
        fields = {name: getattr(self, name) for name in names}
        tags = [f"change-{self.change}"] if self.change else []
        tags += [self.tag] if self.tag else []
        return {name: value for name, value in fields.items() if value} | ({"tags": tags} if tags else {})


# --- One function per CI system, after the documentation of its variables.

Env = Mapping[str, str]
Event = Mapping[str, Any]

_QUEUED = re.compile(r"gh-readonly-queue/(?P<onto>.+)/pr-(?P<number>\d+)-[0-9a-f]+")
_TRIAL_MERGE = re.compile(r"refs/pull/(\d+)/")
_OF_ITS_REF = ("push", "schedule", "workflow_dispatch", "merge_group", "create", "release", "deployment")
"""GitHub events whose GITHUB_REF and GITHUB_SHA name the tested code."""
_UNKNOWN_HEAD = "Branch and commit are unknown, so the run cannot serve as a baseline. State them with --set."
_SHA = re.compile(r"[0-9a-f]{7,64}")
_OWNER = re.compile(r"[:/]([^:/]+/[^:/]+?)(?:\.git)?/?$")


def ci_job(env: Env, event: Event | None = None) -> CiJob | None:
    """Return the CI job of this environment, None outside of CI. `event` is the content of GITHUB_EVENT_PATH.

    A CI system takes precedence over a scheduler, because it knows the commit.
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
    """Return the tested branch and commit. For some events, GITHUB_REF and GITHUB_SHA refer to main instead."""
    job = CiJob(system="GitHub Actions")
    pull, caller, name = (
        _object(event, "pull_request"),
        _object(event, "workflow_run"),
        env.get("GITHUB_EVENT_NAME", ""),
    )
    branch, commit = env.get("GITHUB_REF_NAME", ""), env.get("GITHUB_SHA", "")
    if pull:
        head = _object(pull, "head")
        return replace(
            job,
            branch=_of_fork(head, repository),
            commit=_text(head, "sha"),
            change=_text(pull, "number"),
            target=_text(_object(pull, "base"), "ref"),
        )
    if caller:
        return _of_caller(job, caller, repository)
    if trial := _TRIAL_MERGE.match(env.get("GITHUB_REF", "") or f"refs/pull/{branch}"):
        return replace(job, change=trial[1], doubt=f"{_UNKNOWN_HEAD} GITHUB_EVENT_PATH is not a readable file.")
    if name not in _OF_ITS_REF:
        change = _text(_object(event, "issue"), "number") if _object(_object(event, "issue"), "pull_request") else ""
        what = f"The event `{name}`" if name else "A job without GITHUB_EVENT_NAME"
        return replace(job, change=change, doubt=f"{_UNKNOWN_HEAD} {what} does not name the tested commit.")
    if env.get("GITHUB_REF_TYPE") == "tag":
        return replace(job, commit=commit, tag=branch)
    pushed, queued = _object(event, "head_commit"), _QUEUED.fullmatch(branch)
    time = _text(pushed, "timestamp") if _text(pushed, "id") == commit and not queued else ""
    change, target = (queued["number"], queued["onto"]) if queued else ("", "")
    return replace(job, branch=branch, commit=commit, change=change, target=target, commit_time=time)


def _of_caller(job: CiJob, caller: Event, repository: str) -> CiJob:
    """Return the code of a job that another workflow triggered."""
    branch, owner = _text(caller, "head_branch"), _object(caller, "head_repository")
    if branch and owner and _text(owner, "full_name") != repository:
        branch = f"{_text(owner, 'full_name').partition('/')[0]}:{branch}"
    pulls = caller.get("pull_requests")
    pull = pulls[0] if isinstance(pulls, list) and len(pulls) == 1 and isinstance(pulls[0], Mapping) else {}
    return replace(
        job,
        branch=branch,
        commit=_text(caller, "head_sha"),
        change=_text(pull, "number"),
        target=_text(_object(pull, "base"), "ref"),
    )


def _of_fork(head: Event, repository: str) -> str:
    branch, owner = _text(head, "ref"), _text(_object(head, "repo"), "full_name")
    # The repository of the head is null if the fork was deleted.
    return branch if owner == repository else f"{owner.partition('/')[0] or 'fork'}:{branch}"


def _gitlab(env: Env, _: Event) -> CiJob:
    source, target = env.get("CI_MERGE_REQUEST_SOURCE_PROJECT_PATH", ""), env.get("CI_MERGE_REQUEST_PROJECT_PATH", "")
    branch = env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "") or env.get("CI_COMMIT_BRANCH", "")
    if source != target:
        branch = f"{source.rpartition('/')[0] or 'fork'}:{branch}"
    checked_out = env.get("CI_COMMIT_SHA", "")  # may be a merged result, which is on no branch
    commit = env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", "") or checked_out
    return CiJob(
        system="GitLab CI",
        key=_key("gitlab", env.get("CI_SERVER_HOST", ""), env.get("CI_JOB_ID", "")),
        job=env.get("CI_JOB_NAME", ""),
        name=_numbered(env.get("CI_JOB_NAME", ""), env.get("CI_PIPELINE_IID", "")),
        branch=branch,
        commit=commit,
        commit_time=env.get("CI_COMMIT_TIMESTAMP", "") if commit == checked_out else "",
        target=env.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", ""),
        merge_base=env.get("CI_MERGE_REQUEST_DIFF_BASE_SHA", ""),
        ci_url=env.get("CI_JOB_URL", ""),
        change=env.get("CI_MERGE_REQUEST_IID", ""),
        tag=env.get("CI_COMMIT_TAG", ""),
        repository=env.get("CI_PROJECT_PATH", ""),
    )


def _jenkins(env: Env, _: Event) -> CiJob:
    change = env.get("CHANGE_ID", "")
    branch = env.get("BRANCH_NAME", "") or re.sub(r"^(refs/remotes/)?origin/", "", env.get("GIT_BRANCH", ""))
    branch = "" if branch == "detached" else branch  # the checkout of a commit has no branch
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
        target=env.get("CHANGE_TARGET", ""),
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
        commit=commit if _SHA.fullmatch(commit) else "",  # may be HEAD
        ci_url=f"{address}#{job}" if address and job else address,
        change=number if number.isdigit() else "",
        target=env.get("BUILDKITE_PULL_REQUEST_BASE_BRANCH", ""),
        attempt=_number(env.get("BUILDKITE_RETRY_COUNT", ""), 0) + 1,
        tag=env.get("BUILDKITE_TAG", ""),
        doubt=doubt,
    )


def _buildkite_branch(env: Env) -> tuple[str, str]:
    """Return branch and doubt. The pipeline setting "prefix third-party fork branch names" already adds the owner."""
    branch = env.get("BUILDKITE_BRANCH", "")
    if ":" in branch or not env.get("BUILDKITE_PULL_REQUEST", "").isdigit():
        return branch, ""
    ours, theirs = (_OWNER.search(env.get(name, "")) for name in ("BUILDKITE_REPO", "BUILDKITE_PULL_REQUEST_REPO"))
    if ours is None or theirs is None:
        return "", (
            "The branch is unknown, so the run cannot serve as a baseline: BUILDKITE_REPO and "
            "BUILDKITE_PULL_REQUEST_REPO do not show whether the pull request comes from a fork. State the branch with "
            "--set branch=NAME."
        )
    return (branch if ours[1].lower() == theirs[1].lower() else f"{theirs[1].partition('/')[0]}:{branch}"), ""


def _slurm(env: Env, _: Event) -> CiJob:
    """Read a Slurm job. A scheduler knows no commit; `_with_checkout` reads it from the working folder."""
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
    value = event.get(name)
    return value if isinstance(value, Mapping) else {}


def _text(event: Event, name: str) -> str:
    value = event.get(name)
    return str(value) if isinstance(value, (str, int)) else ""


# --- The event file of GitHub and the git checkout.

_GIT_SECONDS = 10
_LARGEST_EVENT_BYTES = 32 << 20


def surrounding_job(env: Mapping[str, str], folder: Path) -> CiJob | None:
    """Return the CI job that this process runs in, with commit time and merge base, if known to git in `folder`."""
    job = ci_job(env, _event(env))
    if job is None:
        return None
    if job.system == "Slurm":
        return _with_checkout(job, folder)
    if job.commit and not job.commit_time:
        job = replace(job, commit_time=_commit_time(folder, job.commit))
    return _with_merge_base(job, folder)


def _with_merge_base(job: CiJob, folder: Path) -> CiJob:
    """Add the merge base of a change. A shallow checkout does not have it."""
    base = job.merge_base
    for target in (f"origin/{job.target}", job.target) if job.target and job.commit else ():
        base = base or _git(folder, "merge-base", "--", target, job.commit) or ""
    return replace(job, merge_base=base, merge_base_time=_commit_time(folder, base) if base else "")


def _with_checkout(job: CiJob, folder: Path) -> CiJob:
    """Add the commit of an unmodified checkout. A modified checkout has no commit."""
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if not commit or changed != "":
        return job
    branch = _git(folder, "symbolic-ref", "--quiet", "--short", "HEAD") or ""
    return replace(job, commit=commit, branch=branch, commit_time=_commit_time(folder, commit))


def _commit_time(folder: Path, commit: str) -> str:
    return _git(folder, "show", "--no-patch", "--format=%cI", f"{commit}^{{commit}}") or ""


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of git, None if it fails."""
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def _event(env: Mapping[str, str]) -> dict[str, Any]:
    """Return GitHub's event file, empty if there is none."""
    name = env.get("GITHUB_EVENT_PATH", "")
    try:
        file = Path(name)
        if not name or file.stat().st_size > _LARGEST_EVENT_BYTES:
            return {}
        event = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return event if isinstance(event, dict) else {}
