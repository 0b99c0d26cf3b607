"""`/api/v1/runs/{id}/report.md`, the comment to post on a change, and the same as JSON."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from app.domain.access.principal import Action
from app.domain.logs.line_template import draft_template
from app.domain.report.exit_codes import FAILED, UNREAD, exit_code
from app.domain.report.text import RunReport, escaped, link, markdown
from app.domain.report.values import storable, verdict_json, what_changed_json
from app.domain.verdict.words import what_would_decide
from app.pipeline.suggest import first_suggestion
from app.reports.queries import get_report, warnings_of, where_reported
from app.storage.database import read_session
from app.storage.verdicts import StoredVerdict, rerun_request
from app.web.access_rule import requires
from app.web.dependencies import api_router
from app.web.errors import as_content, documented
from app.web.templating import public_address

router = api_router("runs")

SCHEMA = "threewalls.report/1"
MARKDOWN = "text/markdown; charset=utf-8"
MAX_WAIT_SECONDS = 300
_ASK_AGAIN_SECONDS = 0.5

RunId = Annotated[int, Path(ge=1, lt=2**63)]
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for a pending verdict.")]


@router.get(
    "/runs/{run_id}/report.md", response_class=Response, responses=documented(404, 422, ok=as_content("text/markdown"))
)
@requires(Action.READ, of="run", own=Action.UPLOAD)
async def report_as_markdown(request: Request, run_id: RunId, wait: Wait = 0) -> Response:
    """Return the comment: line 1 the verdict and worst change, line 2 the baseline, then the details."""
    body, _ = await _once_judged(request, run_id, wait)
    return Response(body, media_type=MARKDOWN)


@router.get("/runs/{run_id}/report", response_class=JSONResponse, responses=documented(404, 422))
@requires(Action.READ, of="run", own=Action.UPLOAD)
async def report_as_json(request: Request, run_id: RunId, wait: Wait = 0) -> JSONResponse:
    """Return the report as values, `schema` = `threewalls.report/1`."""
    _, document = await _once_judged(request, run_id, wait)
    return JSONResponse(document)


async def _once_judged(request: Request, run_id: int, wait: float) -> tuple[str, dict[str, Any]]:
    """Return the report as Markdown and JSON once the run is judged, or after `wait` seconds."""
    until = time.monotonic() + wait
    while True:
        body, document = await run_in_threadpool(_read, request, run_id)
        left = until - time.monotonic()
        if document["status"] != "pending" or left <= 0:
            return body, document
        await asyncio.sleep(min(_ASK_AGAIN_SECONDS, left))


def _read(request: Request, run_id: int) -> tuple[str, dict[str, Any]]:
    state = request.app.state
    with read_session(state.engine) as session:
        report, verdict, suspects = get_report(session, state.settings, run_id, public_address(request))
        of = where_reported(session, run_id)
        warnings = warnings_of(session, run_id)
        rerun = None if verdict is None else rerun_request(session, run_id, verdict.document)
        first = None if report.status in ("pending", "unread") else first_suggestion(session, state.settings, run_id)
    step = None
    if first is not None:
        url = f"{report.run.address}/next/{first.rule}"
        step = {"rule": first.rule, "title": first.title, "url": url, "why": first.why, "place": first.place}
    since = report.nothing_processed_since
    document = {
        "schema": SCHEMA,
        "run": {"id": report.run.id, "name": report.run.name, "address": report.run.address, **of},
        "status": report.status,
        "headline": report.headline,
        "baseline": report.baseline,
        "nothing_processed_since": since and since.isoformat(),
        "exit_code": _exit_code(report, verdict),
        "made_at": None if verdict is None else verdict.made_at.isoformat(),
        "because": None if verdict is None else verdict.because,
        "verdict": None if verdict is None else verdict_json(verdict.document, suspects),
        "what_changed": None if report.changed is None else what_changed_json(report.changed),
        "what_would_decide": "" if verdict is None else what_would_decide(verdict.document),
        "rerun": rerun,
        "moved": [] if report.text is None else report.text.moved,
        "regressions": report.regressions,
        "profiled": report.profiled,
        "problems": report.problems,
        "warnings": warnings,
        "step_lines": report.step_lines,
        "suggested_read_as": draft_template(report.step_lines),
        "next_step": step,
    }
    plain: dict[str, Any] = storable(document)
    more = "" if step is None else f"\nNext step: {link(step['title'], step['url'])}. {escaped(step['place'])}\n"
    return markdown(report) + more, plain


def _exit_code(report: RunReport, verdict: StoredVerdict | None) -> int | None:
    """Return the exit code of the command line for the same result; None while there is no result."""
    if verdict is None:
        return {"failed": FAILED, "unread": UNREAD}.get(report.status)
    return exit_code(verdict.document.decision, raises_regression=verdict.document.alarms)
