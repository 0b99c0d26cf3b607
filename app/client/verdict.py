"""The report of a run, once it was judged, in lines for a terminal."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.client.errors import Strange
from app.client.exit_codes import NO_VERDICT, OUTCOME_OF_CODE, SERVICE
from app.client.plain import one_line
from app.client.service import Service

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


def as_text(report: Mapping[str, Any]) -> list[str]:
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
