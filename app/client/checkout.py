"""What the environment and the checkout of a job say: the event file of GitHub, and git."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.client.ci import CiJob, ci_job

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
