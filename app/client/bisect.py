"""`threewalls bisect RUN`: the commit to measure next, between a good commit and the commit of a run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.client.errors import FINE, SERVICE
from app.client.report import report_of, run_number
from app.client.service import Service
from app.client.terminal import one_line, out
from app.errors import UsageError

# --- `threewalls rerun RUN`: print the reruns that would decide a verdict, or start them with a command of your own.


def rerun(options: argparse.Namespace, service: Service, env: Mapping[str, str]) -> int:
    """Print the request, or run `--exec` once for each rerun, and return 0, or 3 when a command failed.

    Only the run that requested reruns starts them. The reruns request the missing ones, too, which are on their way.

    Each command gets THREEWALLS_RERUN_OF, _COMMIT, _CONFIG_KEY, _JOB, _NUMBER and _COUNT. Raises UsageError, Refused or
    Unreachable.
    """
    run_id = run_number(options.run)
    report = report_of(service, run_id, options.wait or 0)
    if report.get("status") == "pending":
        raise UsageError(f"Run {run_id} has no verdict yet. Wait for it with --wait.")
    request: Mapping[str, Any] | None = report.get("rerun")
    first = request.get("requested_by", run_id) if request else run_id
    if options.json:
        out(json.dumps({"schema": "rerun/1", "run": run_id, "rerun": request}))
    elif not request:
        out(f"run {run_id} needs no rerun: {one_line(str(report.get('headline', '')))}")
    elif first != run_id:
        out(f"run {run_id} starts no rerun: run {first} requested {request['runs']} more of the commit")
    elif not options.exec:
        out(request_text(run_id, request))
    return _start(run_id, request, options.exec, env) if request and options.exec and first == run_id else FINE


def request_text(run_id: int, request: Mapping[str, Any]) -> str:
    """Return the request in lines: how many runs, of what, and the command of the run if it stated one."""
    commit = one_line(str(request.get("commit") or "the same commit"))
    lines = [f"{request['runs']} more of run {run_id}: commit {commit}, configuration {request['config_key'][:12]}"]
    if job := request.get("job"):
        lines.append(f"job: {one_line(str(job))}")
    if command := request.get("command"):
        lines.append(f"command: {one_line(str(command))}")
    return "\n".join(lines)


def _start(run_id: int, request: Mapping[str, Any], command: str, env: Mapping[str, str]) -> int:
    count = int(request["runs"])
    failed = 0
    for number in range(1, count + 1):
        stated: dict[str, object] = {"OF": run_id, "NUMBER": number, "COUNT": count}
        stated |= {name.upper(): request.get(name) or "" for name in ("commit", "config_key", "job")}
        variables = {f"THREEWALLS_RERUN_{name}": str(value) for name, value in stated.items()}
        done = subprocess.run(command, shell=True, env={**os.environ, **env, **variables}, check=False)  # noqa: S602  # the user's own command
        failed += done.returncode != 0
    if failed:
        out(f"{failed} of {count} commands failed; the reruns that did start still count")
    return SERVICE if failed else FINE


# --- `threewalls bisect RUN`.

_GIT_SECONDS = 60
_MOST_LISTED = 10


def bisect(options: argparse.Namespace, service: Service) -> int:
    """Print the next commit of the range in this checkout. Raises UsageError, Refused or Unreachable."""
    run_id = run_number(options.run)
    metric = {"metric": options.metric} if options.metric else {}
    ends = service.get(f"/api/v1/runs/{run_id}/bisect", metric).json()
    good, bad = options.good or ends["good"], options.bad or ends["bad"]
    if not good or not bad:
        raise UsageError(f"Run {run_id} has no {'good' if not good else 'bad'} commit. Pass --good and --bad.")
    if good == bad:
        raise UsageError(
            f"The good and the bad commit are the same, {one_line(str(bad))[:12]}: the code did not change. "
            f"Other suspects are in the report: threewalls report {run_id}"
        )
    commits = commits_between(options.repository, good, bad)
    answer = service.post(f"/api/v1/runs/{run_id}/bisect", json={"commits": commits, **metric}).json()
    if options.json:
        out(json.dumps({"schema": "bisect/1", **answer}))
    else:
        out(text_of(answer, commits, options.repository))
    return FINE


def commits_between(folder: Path, good: str, bad: str) -> list[str]:
    """Return the full hashes from `good` to `bad`, oldest first, along first parents. Raises UsageError."""
    first, last = (_git(folder, "rev-parse", "--verify", "--quiet", f"{end}^{{commit}}") for end in (good, bad))
    between = _git(folder, "rev-list", "--reverse", "--first-parent", f"{first}..{last}").split()
    if not between:
        raise UsageError(f"{bad[:12]} is not a descendant of {good[:12]} in this checkout. Pass --good and --bad.")
    return [first, *between]


_METRICS = {"step_time_ms": ("step time", "slower", "faster"), "peak_memory_gib": ("peak memory", "more", "less")}


def _change(answer: dict[str, Any], delta_pct: float) -> str:
    _, more, less = _METRICS[answer.get("metric", "step_time_ms")]
    return f"{abs(delta_pct):.2f} % {more if delta_pct > 0 else less}"


def text_of(answer: dict[str, Any], commits: list[str], folder: Path) -> str:
    """Return lines about the measured range and the next run."""
    metric = _METRICS[answer.get("metric", "step_time_ms")][0]
    lines = [f"{len(commits) - 1} commits, {metric} {_change(answer, answer['change_pct'])}"]
    for entry in answer["measured"]:
        delta = "" if entry["delta_pct"] is None else f" {_change(answer, entry['delta_pct'])}"
        runs = ", ".join(f"#{run}" for run in entry["runs"])
        lines.append(f"  {entry['commit'][:12]} {entry['state']}{delta} (run {runs})")
    if answer["is_mixed"]:
        lines.append("A good commit follows a bad one, so there is more than one change. This finds the first.")
    if first := answer["first_bad"]:
        return "\n".join([*lines, f"first bad commit: {first} {_subject(folder, first)}"])
    lines.append(f"{answer['commits_left']} commits are left, {answer['steps']} to measure")
    for commit in answer["left"] if answer["commits_left"] <= _MOST_LISTED else ():
        lines.append(f"  {commit[:12]} {_subject(folder, commit)}")
    if not answer["next"]:
        return "\n".join([*lines, "None of them can be measured: their runs failed or stayed unclear."])
    cost = f", {answer['gpu_hours_each']:.1f} GPU-hours each" if answer["gpu_hours_each"] else ""
    plural = "s" if answer["launches"] > 1 else ""
    lines.append(f"next: {answer['next']} {_subject(folder, answer['next'])}")
    lines.append(f"  {answer['launches']} run{plural}{cost}; then run bisect again:")
    lines.append(f"  git checkout {answer['next']}")
    stated = f"--set commit={answer['next']} --purpose experiment --tag {answer['tag']}"
    lines.append(f"  threewalls upload LOG {stated} --wait")
    return "\n".join(lines)


def _subject(folder: Path, commit: str) -> str:
    return one_line(_git(folder, "show", "--no-patch", "--format=%s", commit))[:80]


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],  # the user's own git
            capture_output=True, text=True, errors="replace", timeout=_GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git could not be run: {error}") from error
    if done.returncode:
        reason = one_line(done.stderr)[:200] or "no such commit"
        raise UsageError(f"git {words[0]} failed in {folder}: {reason}. A shallow checkout lacks history; fetch it.")
    return done.stdout.strip()
