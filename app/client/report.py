"""`threewalls report RUN`: the report of a run as text, Markdown or JSON. The verdict sets the exit code."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from app.client.errors import (
    FINE,
    NO_VERDICT,
    OUTCOME_OF_CODE,
    SERVICE,
    NotThreewalls,
    Refused,
    apply_allow,
)
from app.client.forge_reports import find_target, post, post_no_verdict, write_outcome
from app.client.service import Service
from app.client.terminal import one_line, out
from app.errors import ThreewallsError, UsageError

_REQUEST_SECONDS = 60.0
"""Longest wait of one request: proxies drop longer ones."""

_SUSPECTS = 3


def report_of(
    service: Service, run_id: int, wait: float = 0, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Return `GET /api/v1/runs/{id}/report`, after at most `wait` seconds while its `status` is `pending`."""
    end = clock() + wait
    while True:
        seconds = max(0.0, min(_REQUEST_SECONDS, end - clock()))
        path = f"/api/v1/runs/{run_id}/report"
        report: dict[str, Any] = service.get(path, {"wait": f"{seconds:g}"} if seconds else None, wait=seconds).json()
        if not (isinstance(report.get("headline"), str) and isinstance(report.get("run"), dict)):
            raise NotThreewalls(service.settings.url, "its answer is not a report")
        if report.get("status") != "pending" or clock() >= end:
            return report


def exit_code_of(report: Mapping[str, Any]) -> int:
    """Return the exit code of a verdict. A run without a verdict never exits with 0."""
    code = report.get("exit_code")
    return code if isinstance(code, int) else SERVICE


def outcome_of(report: Mapping[str, Any]) -> str:
    """Return the outcome as `--allow` names it."""
    return NO_VERDICT if report.get("exit_code") is None else OUTCOME_OF_CODE.get(exit_code_of(report), "")


def verdict_text(report: Mapping[str, Any]) -> list[str]:
    """Render a report in lines for a terminal: verdict, baseline, changes, broken limits, suspects, next step."""
    lines = [one_line(str(report.get("headline", ""))), one_line(str(report.get("baseline", "")))]
    if moved := report.get("moved"):
        columns = ("figure", "baseline", "candidate", "change", "interval", "decision")
        lines += ["", *_table([[str(row.get(name) or "") for name in columns] for row in moved])]
    if decides := report.get("what_would_decide"):
        lines += ["", one_line(str(decides))]
        if report.get("rerun"):
            number = (report.get("run") or {}).get("id")
            lines.append(f"start them: threewalls rerun {number} --exec 'your command'")
    verdict = report.get("verdict") or {}
    if limits := verdict.get("limits_broken"):
        lines += ["", *(one_line(str(limit)) for limit in limits)]
    suspects = [_suspect(suspect) for suspect in verdict.get("suspects") or ()][:_SUSPECTS]
    lines += ["", *(f"suspect: {reason}" for reason in suspects)] if suspects else []
    for regression in report.get("regressions") or ():
        address = one_line(str(regression.get("address", "")))
        lines.append(f"regression {regression.get('id')} ({regression.get('state')}): {address}")
    lines += [one_line(str(problem)) for problem in report.get("problems") or ()]
    for line in report.get("step_lines") or ():
        lines.append(f"looks like a step: line {line.get('line')}: {one_line(str(line.get('example')))}")
    if draft := report.get("suggested_read_as"):
        lines.append(f"to read it, upload it with: --read-as {shlex.quote(one_line(str(draft)))}")
    if step := report.get("next_step"):
        lines.append(f"next step: {one_line(str(step.get('title')))}: {one_line(str(step.get('url')))}")
    return lines


def _suspect(suspect: Mapping[str, Any]) -> str:
    field, reason = suspect.get("field"), one_line(str(suspect.get("reason", "")))
    return f"{one_line(str(field))}: {reason}" if field else reason


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    plain = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in plain) for column in range(len(plain[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in plain]


_ADDRESS = re.compile(r"(?P<service>https?://\S+?)/runs/(?P<number>\d+)(?:[/?#]\S*)?")


WORST_FIRST = (1, SERVICE, 6, 5, 4, FINE)


def report(options: argparse.Namespace, service: Service, env: Mapping[str, str]) -> int:
    """Print the report of each run, post them as one with `--github` or `--gitlab`, and return the worst exit code.

    Raises UsageError, Refused or Unreachable.
    """
    if bool(options.run) == bool(options.no_verdict) or (options.no_verdict and not options.forge):
        raise UsageError("Name a RUN. If none was uploaded, use --no-verdict WHY with --github or --gitlab.")
    target = find_target(options, env) if options.forge else None  # before a long wait
    if target is not None and options.no_verdict:
        post_no_verdict(options, target, options.no_verdict, service.settings.url, env)
        return apply_allow(options.allow, NO_VERDICT, SERVICE)
    try:
        reports = _reports(options, service)
    except ThreewallsError as error:
        if target is not None and not isinstance(error, UsageError):
            post_no_verdict(options, target, error.detail, service.settings.url, env)
        raise
    for run_id, document in reports.items():
        if options.markdown:
            out(service.get(f"/api/v1/runs/{run_id}/report.md", accept="text/markdown").text, end="")
        elif options.json:
            out(json.dumps(document))
        else:
            out("\n".join([*verdict_text(document), str(document["run"]["address"])]))
    worst_first = sorted(reports.values(), key=_badness)
    if target is not None:
        post(options, target, service, reports, env)  # a failed post does not change the exit code
        write_outcome(env, outcome_of(worst_first[0]))
    codes = (apply_allow(options.allow, outcome_of(report), exit_code_of(report)) for report in worst_first)
    return next((code for code in codes if code != FINE), FINE)


def _badness(report: Mapping[str, Any]) -> int:
    """Sort key, worst first. An unknown code of a newer service counts as no verdict."""
    code = exit_code_of(report)
    return WORST_FIRST.index(code if code in WORST_FIRST else SERVICE)


def _reports(options: argparse.Namespace, service: Service) -> dict[int, dict[str, Any]]:
    """Return the report of each run by its number, after `--wait` seconds at most."""
    runs = [(text, run_number(text)) for text in options.run]
    for text, number in runs:
        _check_address(service, text, number)
    numbers = list(dict.fromkeys(number for _, number in runs))
    return {number: report_of(service, number, options.wait or 0) for number in numbers}


def _check_address(service: Service, text: str, number: int) -> None:
    """Raise UsageError for the address of a run on another service, where the same number means another run."""
    base, url = service_of(text), service.settings.url
    if base in ("", service_of(f"{url}/runs/1")):
        return
    with suppress(Refused):
        run = service.get(f"/api/v1/runs/{number}/report").json().get("run")
        if isinstance(run, dict) and base == service_of(str(run.get("address", ""))):
            return
    raise UsageError(f"{text} does not belong to the service {url}. Set --url to the service of this run.")


def service_of(text: str) -> str:
    """Return the normalised address of the service in the address of a run; empty for a number."""
    match = _ADDRESS.fullmatch(text)
    if not match:
        return ""
    parts = urlsplit(match["service"])
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except ValueError:
        raise UsageError(f"Invalid address of a run: {text!r}.") from None
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"


def run_number(text: str) -> int:
    """Return the number in `17` or in the address of a run. Raises UsageError."""
    match = _ADDRESS.fullmatch(text)
    number = match["number"] if match else text
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**31):
        raise UsageError(f"Invalid run {text!r}. Use its number or address, as printed by `threewalls upload`.")
    return int(number)
