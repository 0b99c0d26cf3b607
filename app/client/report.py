"""`threewalls report RUN`: the report of a run as text, Markdown or JSON; its verdict is the exit code."""

import argparse
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from app.client.errors import FINE, NO_VERDICT, OUTCOME_OF_CODE, SERVICE, Refused, Strange, UsageError, allowing
from app.client.forge_reports import find_place, keep_outcome, post, post_no_verdict
from app.client.service import Service
from app.client.terminal import one_line, out
from app.errors import ThreewallsError

# --- The report of a run, once it was judged, in lines for a terminal.

_ASK_SECONDS = 60.0
"""Of one request: proxies give up on longer ones."""

_SUSPECTS = 3


def report_of(
    service: Service, run_id: int, wait: float = 0, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """`GET /api/v1/runs/{id}/report`, asked for until its `status` is not `pending` or so many seconds have passed."""
    end = clock() + wait
    while True:
        ask = max(0.0, min(_ASK_SECONDS, end - clock()))
        path = f"/api/v1/runs/{run_id}/report"
        found: dict[str, Any] = service.get(path, {"wait": f"{ask:g}"} if ask else None, wait=ask).json()
        if not (isinstance(found.get("headline"), str) and isinstance(found.get("run"), dict)):
            raise Strange(service.settings.url, "what it sent is no report")
        if found.get("status") != "pending" or clock() >= end:
            return found


def code_of(report: Mapping[str, Any]) -> int:
    """The exit code of a verdict; a run without one yet is nobody's green."""
    code = report.get("exit_code")
    return code if isinstance(code, int) else SERVICE


def outcome_of(report: Mapping[str, Any]) -> str:
    """The word that `--allow` takes for it."""
    return NO_VERDICT if report.get("exit_code") is None else OUTCOME_OF_CODE.get(code_of(report), "")


def verdict_text(report: Mapping[str, Any]) -> list[str]:
    """Verdict, baseline, what moved, why, what next."""
    lines = [one_line(str(report.get("headline", ""))), one_line(str(report.get("baseline", "")))]
    if moved := report.get("moved"):
        lines += ["", *_table([[str(cell or "") for cell in _cells(row)] for row in moved])]
    if decides := report.get("what_would_decide"):
        lines += ["", one_line(str(decides))]
    verdict = report.get("verdict") or {}
    suspects = [_suspect(suspect) for suspect in verdict.get("suspects") or ()][:_SUSPECTS]
    lines += ["", *(f"suspect: {reason}" for reason in suspects)] if suspects else []
    for one in report.get("regressions") or ():
        lines.append(f"regression {one.get('id')} ({one.get('state')}): {one_line(str(one.get('address', '')))}")
    lines += [one_line(str(problem)) for problem in report.get("problems") or ()]
    for one in report.get("step_lines") or ():
        lines.append(f"looks like a step: line {one.get('line')}: {one_line(str(one.get('example')))}")
    if step := report.get("next_step"):
        lines.append(f"next step: {one_line(str(step.get('title')))}: {one_line(str(step.get('url')))}")
    return lines


def _suspect(suspect: Mapping[str, Any]) -> str:
    field, reason = suspect.get("field"), one_line(str(suspect.get("reason", "")))
    return f"{one_line(str(field))}: {reason}" if field else reason


def _cells(row: Mapping[str, Any]) -> Sequence[Any]:
    return [row.get(name) for name in ("figure", "baseline", "candidate", "change", "interval", "decision")]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    plain = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in plain) for at in range(len(plain[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in plain]


_ADDRESS = re.compile(r"(?P<service>https?://\S+?)/runs/(?P<number>\d+)(?:[/?#]\S*)?")


_WORST_FIRST = (1, SERVICE, 6, 5, 4, FINE)


def report(options: argparse.Namespace, service: Service, env: Mapping[str, str]) -> int:
    """Print each, and post them all as one where that is asked for; the worst decides. Raises Refused, Unreachable."""
    if bool(options.run) == bool(options.no_verdict) or (options.no_verdict and not options.forge):
        raise UsageError("State a RUN; or, where none could be uploaded, --no-verdict WHY with --github or --gitlab.")
    place = find_place(options, env) if options.forge else None  # before a long wait
    if place is not None and options.no_verdict:
        post_no_verdict(options, place, options.no_verdict, service.settings.url, env)
        return allowing(options.allow, NO_VERDICT, SERVICE)
    try:
        found = _reports(options, service)
    except ThreewallsError as error:
        if place is not None and not isinstance(error, UsageError):
            post_no_verdict(options, place, error.detail, service.settings.url, env)
        raise
    for number, one in found.items():
        if options.markdown:
            out(markdown_of(service, number), end="")
        elif options.json:
            out(json.dumps(one))
        else:
            out("\n".join([*verdict_text(one), str(one["run"]["address"])]))
    if place is not None:
        # What the forge did not take changes no exit code: that one is the verdict's.
        post(options, place, service, found, env)
    worst_first = sorted(found.values(), key=_badness)
    if place is not None:
        keep_outcome(env, outcome_of(worst_first[0]))
    codes = (allowing(options.allow, outcome_of(report), code_of(report)) for report in worst_first)
    return next((code for code in codes if code != FINE), FINE)


def _badness(report: Mapping[str, Any]) -> int:
    """The order of reports, the worst first; a code of a later service is as bad as no verdict."""
    code = code_of(report)
    return _WORST_FIRST.index(code if code in _WORST_FIRST else SERVICE)


def _reports(options: argparse.Namespace, service: Service) -> dict[int, dict[str, Any]]:
    """By number, once they are judged."""
    named = [(text, run_number(text)) for text in options.run]
    for text, number in named:
        _check_address(service, text, number)
    numbers = list(dict.fromkeys(number for _, number in named))
    return {number: report_of(service, number, options.wait or 0) for number in numbers}


def markdown_of(service: Service, run_id: int) -> str:
    """The comment to post on a change."""
    return service.get(f"/api/v1/runs/{run_id}/report.md", accept="text/markdown").text


def _check_address(service: Service, text: str, number: int) -> None:
    """An address is that of this service, as it was stated or as it gives its own; a run of another one has the same
    number and another verdict. Raises UsageError."""
    base, url = service_of(text), service.settings.url
    if base in ("", service_of(f"{url}/runs/1")):
        return
    with suppress(Refused):
        found = service.get(f"/api/v1/runs/{number}/report").json().get("run")
        if isinstance(found, dict) and base == service_of(str(found.get("address", ""))):
            return
    raise UsageError(f"{text} is a run of another service than {url}. State its address with --url.")


def service_of(text: str) -> str:
    """The address of the service in that of a run, in one spelling; empty for a number."""
    found = _ADDRESS.fullmatch(text)
    if not found:
        return ""
    parts = urlsplit(found["service"])
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except ValueError:
        raise UsageError(f"{text!r} is no address of a run.") from None
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path.rstrip('/')}"


def run_number(text: str) -> int:
    """Of `17` or of the address of a run. Raises UsageError."""
    found = _ADDRESS.fullmatch(text)
    number = found["number"] if found else text
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 2**31):
        raise UsageError(f"{text!r} is no run. Give its number or its address, as `threewalls upload` printed it.")
    return int(number)
