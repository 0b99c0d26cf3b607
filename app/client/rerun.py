"""`threewalls rerun RUN`: print the reruns that would decide a verdict, or start them with a command of your own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from app.client.errors import FINE, SERVICE
from app.client.report import report_of, run_number
from app.client.service import Service
from app.client.terminal import one_line, out
from app.errors import UsageError


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
