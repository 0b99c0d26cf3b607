"""`/api/v1/runs/{id}/report.md`, the comment to post on a change, and the same as JSON and as a page."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlmodel import Session, col
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from app.domain.access.principal import Action
from app.domain.experiments.outcome import short_result
from app.domain.experiments.values import LETTERS
from app.domain.logs.line_template import draft_template
from app.domain.performance.figures import too_much_memory
from app.domain.report.text import (
    LinkedRun,
    ProfiledChange,
    RegressionOfRun,
    RunReport,
    escaped,
    failed_report,
    link,
    markdown,
    pending_report,
    unread_report,
    verdict_text,
)
from app.domain.report.values import FAILED, UNREAD, exit_code, report_key, storable, what_changed_json
from app.domain.report.what_changed import WhatChanged, what_changed
from app.domain.run import UNKNOWN_STEP, LineExample
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.regression import stacks_of
from app.domain.verdict.regression_text import summarize
from app.domain.verdict.words import listed_runs, remarks, what_would_decide
from app.pipeline.suggest import first_suggestion
from app.settings import Settings
from app.storage.database import read_session
from app.storage.experiments import ExperimentSide
from app.storage.profiles import explained_change
from app.storage.regressions import read_regressions
from app.storage.run_answer import RunAnswer, run_answer
from app.storage.runs import detail, get_run, run_warnings
from app.storage.tables import (
    ProjectRow,
    RunResultRow,
    RunRow,
    from_row,
    select_any,
)
from app.storage.verdicts import StoredVerdict, current_verdict, regressions_of, rerun_request
from app.storage.worker_activity import silent_since
from app.web.access_rule import requires
from app.web.dependencies import RunId, WaitSeconds, api_router
from app.web.errors import as_content, documented
from app.web.templating import public_address, render

# --- Read the data of a run's report: the run, its verdict, the names of other runs, its project's templates.

ACTIVE = ("open", "acknowledged", "expected")
"""States of a regression whose level is still slow, regardless of decisions."""
_LONGEST_JOB = timedelta(days=35)
"""CI systems end jobs before that."""


def get_report(
    session: Session, settings: Settings, row: RunRow, address: str
) -> tuple[RunReport, StoredVerdict | None, RunAnswer | None]:
    """Return the report of a run with its verdict and answer. `address`: of the service."""
    run_id = row.id or 0
    run = LinkedRun(str(run_id), row.name, f"{address}/runs/{run_id}")
    if row.status == "unread" and row.reception != "receiving":
        return unread_report(run, row.error or "", _step_lines(row)), None, None
    verdict = current_verdict(session, run_id)
    if verdict is None and row.status == "failed":
        return failed_report(run, row.error or "", _problems(row)), None, None
    if verdict is None or row.status in ("received", "processing"):
        return pending_report(run, row.status, silent_since(session, settings)), None, None
    whole = detail(row, session.get_one(ProjectRow, row.project_id), ())
    answered = run_answer(session, whole, verdict.document)
    report = _judged(session, row, run, answered, address=address)
    memory = whole.metrics.get("peak_memory_gib")
    if contradiction := too_much_memory(whole.contract, None if memory is None else memory.value):
        report = replace(report, remarks=(f"The contract contradicts itself: {contradiction}.", *report.remarks))
    return (report if verdict.side is None else _of_side(report, verdict.side)), verdict, answered


def where_reported(session: Session, row: RunRow) -> dict[str, str]:
    """Return the fields that identify a run's report among those of its job."""
    project = session.get_one(ProjectRow, row.project_id)
    is_read = (
        row.status == "ready" and row.reception != "receiving"
    )  # before that, the stack key covers only the data received so far
    key = report_key(row.result.metadata_stated, _earlier_of_its_job(session, row), row.stack_key if is_read else "")
    if not key and row.status in ("failed", "unread"):
        key = f"run {row.id}"  # its stack will never be known, but its report must be posted
    return {"project": project.slug, "stack_key": row.stack_key, "report_key": key}


def _earlier_of_its_job(session: Session, row: RunRow) -> list[dict[str, object]]:
    """Return the metadata of earlier runs with the same job address."""
    if not row.ci_url:
        return []
    same_job = (col(RunRow.project_id) == row.project_id, col(RunRow.ci_url) == row.ci_url, col(RunRow.id) < row.id)
    recent = col(RunRow.created_at) >= row.created_at - _LONGEST_JOB
    stated = select_any(RunResultRow.metadata_stated).join(RunRow, col(RunRow.id) == RunResultRow.run_id)
    return list(session.execute(stated.where(*same_job, recent)).scalars())


def _judged(session: Session, row: RunRow, run: LinkedRun, answered: RunAnswer, *, address: str) -> RunReport:
    document = answered.document
    text = verdict_text(document, answered.badge, label=_label, suspects=answered.suspects)
    if answered.ongoing is not None and text.still:
        still = f"No figure changed, because regression {answered.ongoing.id} slowed the baseline as well."
        text = replace(text, still=still)
    return RunReport(
        run=run,
        status="judged",
        decision=answered.badge[0] or document.decision,
        headline=answered.headline,
        baseline=text.baseline,
        text=text,
        changed=_changed(session, row, document),
        baseline_runs=_linked(session, document.verdict.baseline_used, address),
        regressions=tuple(_regressions(session, row, answered, address)),
        problems=_problems(row) if document.decision == "failed" else (),
        profiled=_profiled(session, row, document, address),
        remarks=tuple(filter(None, (*remarks(document, _label), answered.rerun))),
    )


def _of_side(report: RunReport, side: ExperimentSide) -> RunReport:
    """Begin the report of an experiment's run with its side and the result in place of a verdict on the run."""
    if report.decision == "failed":
        return report
    result = side.result
    runs = [listed_runs(result.counted(name), _label) or "no run yet" for name in LETTERS]
    return replace(
        report,
        headline=f"{side.letter} of experiment {side.experiment_id}. {short_result(result)}",
        baseline=f"A: {runs[0]}; B: {runs[1]}",
    )


def _changed(session: Session, run: RunRow, document: VerdictDocument) -> WhatChanged:
    """Compare with the newest run of the baseline, or of the contrast if there is no baseline."""
    others = document.baseline or (document.contrast.runs if document.contrast else ())
    other = session.get(RunRow, int(others[-1])) if others else None
    project = session.get_one(ProjectRow, run.project_id)
    return what_changed(
        document.compared,
        commit_url=project.commit_url,
        compare_url=project.compare_url,
        environment=(_environment(other), _environment(run)),
    )


def _environment(run: RunRow | None) -> Mapping[str, Any]:
    """Return the environment variables that the upload stated."""
    stated = None if run is None else run.result.metadata_stated.get("env")
    return stated if isinstance(stated, dict) else {}


def _profiled(session: Session, row: RunRow, document: VerdictDocument, address: str) -> ProfiledChange | None:
    """Return what the profiles nearest to both sides of a change of the step time explain."""
    change = explained_change(session, row.id or 0) if document.decision in ("regression", "improvement") else None
    if change is None:
        return None
    return ProfiledChange(change.sentence, f"{address}/compare/profiles?a={change.before}&b={change.after}")


def _label(run: str) -> str:
    """Return a short, safe label; names follow in the list of the baseline."""
    return f"run {run}"


def _linked(session: Session, runs: Iterable[str], address: str) -> tuple[LinkedRun, ...]:
    ids = [int(run) for run in runs]
    rows = session.execute(select_any(RunRow.id, RunRow.name).where(col(RunRow.id).in_(ids)))
    names = {row.id: row.name for row in rows}
    return tuple(LinkedRun(str(run), names.get(run, "deleted"), f"{address}/runs/{run}") for run in ids)


def _step_lines(row: RunRow) -> tuple[LineExample, ...]:
    examples = (LineExample(**values) for values in row.result.not_understood)
    return tuple(example for example in examples if example.kind == UNKNOWN_STEP)


def _problems(row: RunRow) -> tuple[str, ...]:
    sentences = (
        f"{failure.get('title', '')}. {failure.get('explanation', '')} {failure.get('advice', '')}"
        for failure in row.result.failures
    )
    return tuple(sentence.strip() for sentence in sentences)


def _regressions(session: Session, row: RunRow, answered: RunAnswer, address: str) -> Iterable[RegressionOfRun]:
    """Yield active regressions that the run or a rerun opened, or that explain its slowness. Newest first."""
    runs = [int(run) for run in answered.document.candidates]
    of_reruns = (item for run in runs if run != row.id for item in regressions_of(session, run))
    items = [*answered.regressions, *of_reruns]
    own, opened = {item.id for item in items}, {item.id for item in items if item.opened}
    for regression in read_regressions(session, own | {item.id for item in answered.elsewhere}):
        if regression.shown_state not in ACTIVE:
            continue
        yield from_row(
            RegressionOfRun,
            regression,
            address=f"{address}/regressions/{regression.id}",
            cause=regression.cause.rstrip("."),
            stacks=stacks_of(regression.jobs),
            opened_by_it=regression.id in opened,
            elsewhere=regression.id not in own,
            summary=summarize(regression),
        )


# --- `/api/v1/runs/{id}/report.md` and the same as JSON.

router = api_router("runs")

SCHEMA = "threewalls.report/1"
MARKDOWN = "text/markdown; charset=utf-8"
_ASK_AGAIN_SECONDS = 0.5


@router.get(
    "/runs/{run_id}/report.md", response_class=Response, responses=documented(404, 422, ok=as_content("text/markdown"))
)
@requires(Action.READ, of="run", own=Action.UPLOAD)
async def report_as_markdown(request: Request, run_id: RunId, wait: WaitSeconds) -> Response:
    """Return the comment: line 1 badge and lead of the run's page, line 2 the baseline, then the details."""
    body, _ = await _once_judged(request, run_id, wait)
    return Response(body, media_type=MARKDOWN)


@router.get("/runs/{run_id}/report", response_class=JSONResponse, responses=documented(404, 422))
@requires(Action.READ, of="run", own=Action.UPLOAD)
async def report_as_json(request: Request, run_id: RunId, wait: WaitSeconds) -> JSONResponse:
    """Return the report as values, `schema` = `threewalls.report/1`."""
    _, document = await _once_judged(request, run_id, wait)
    return JSONResponse(document)


async def _once_judged(request: Request, run_id: int, wait: float) -> tuple[str, dict[str, Any]]:
    """Return the report as Markdown and JSON once the run is judged, or after `wait` seconds."""
    until = time.monotonic() + wait
    while True:
        report, step, document = await run_in_threadpool(read_report, request, run_id)
        left = until - time.monotonic()
        if document["status"] != "pending" or left <= 0:
            return markdown(report) + step, document
        await asyncio.sleep(min(_ASK_AGAIN_SECONDS, left))


def read_report(request: Request, run_id: int) -> tuple[RunReport, str, dict[str, Any]]:
    """Return the report, its last line about the next step as Markdown, and the same as JSON. Raises NotFound."""
    state = request.app.state
    with read_session(state.engine) as session:
        row = get_run(session, run_id)
        report, verdict, answered = get_report(session, state.settings, row, public_address(request))
        of = where_reported(session, row)
        warnings = run_warnings(row)
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
        "badge": report.decision or report.status if answered is None else answered.word,
        "headline": report.headline,
        "baseline": report.baseline,
        "nothing_processed_since": since and since.isoformat(),
        "exit_code": _exit_code(report, verdict),
        "made_at": None if verdict is None else verdict.made_at.isoformat(),
        "because": None if verdict is None else verdict.because,
        "verdict": None if answered is None else answered.values,
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
    return report, more, plain


def _exit_code(report: RunReport, verdict: StoredVerdict | None) -> int | None:
    """Return the exit code of the command line for the same result; None while there is no result."""
    if verdict is None:
        return {"failed": FAILED, "unread": UNREAD}.get(report.status)
    return exit_code(verdict.document.decision, raises_regression=verdict.document.alarms)


# --- The report as a page, to copy or download as Markdown.

pages = APIRouter(include_in_schema=False)


@pages.get("/runs/{run_id}/report")
@requires(Action.READ, of="run")
def show_report(request: Request, run_id: RunId) -> Response:
    """Return the report as a page, or as Markdown to clients that ask for it."""
    report, step, document = read_report(request, run_id)
    comment = markdown(report) + step
    if "text/markdown" in request.headers.get("Accept", ""):
        return Response(comment, media_type=MARKDOWN)
    shown = markdown(report, is_folded=False) + step
    return render(request, "reports/report.html", run=document["run"], shown=shown, comment=comment)
