"""`/api/v1/commits/{commit}/report`: the verdicts on one commit over all stacks, for a nightly report.

Many stacks make chance findings likely, so each change has its q-value (`app/domain/verdict/upgrade.py`).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.access.principal import Action
from app.domain.numbers import THIN, plural
from app.domain.report.text import escaped, link
from app.domain.verdict.upgrade import CALLED, discoveries, doubt
from app.errors import NotFound
from app.storage.projects import find_project
from app.storage.run_answer import run_answer
from app.storage.runs import WITH_RESULT, detail
from app.storage.stacks import names_of_stacks
from app.storage.tables import RunRow
from app.storage.verdicts import StoredVerdict, current_verdicts
from app.web.access_rule import requires
from app.web.dependencies import ReadSession, api_router
from app.web.errors import as_content, documented
from app.web.templating import public_address

router = api_router("runs")

MARKDOWN = "text/markdown; charset=utf-8"
MOST_RUNS = 500
"""Newest runs of a commit that are read."""
_ORDER = ("failed", "regression", "improvement", "inconclusive", "no_baseline", "no_change")


class StackVerdictOut(BaseModel):
    """The verdict on the commit in one stack. Its reruns are one candidate."""

    title: str
    stack_key: str
    job: str
    runs: list[int]
    url: str
    verdict: str
    badge: str = Field(description="As the run's page shows it: `regression`, `slower, unconfirmed`, `no change`.")
    headline: str = Field(description="Badge and lead of the run's page.")
    raises_regression: bool
    needs_confirmation: bool = Field(description="Slower, but a rerun must confirm it.")
    delta_pct: float | None = Field(None, description="Change of step time; null without a baseline.")
    ci_low_pct: float | None = None
    ci_high_pct: float | None = None
    p_value: float | None = Field(None, description="Two-sided, of no change in this stack.")
    q_value: float | None = Field(
        None, description="Expected share of false detections among changes at least this clear."
    )
    may_be_chance: bool = Field(False, description="A called change whose q-value is above 5 %.")


class CommitReportOut(BaseModel):
    project: str
    commit: str
    summary: str
    stacks: list[StackVerdictOut]


Commit = Annotated[str, Path(min_length=7, max_length=100, description="The commit, or its first 7 digits or more.")]
Project = Annotated[str, Query(max_length=100, description="The slug of the project.")]


@router.get("/commits/{commit}/report", responses=documented(404, 422))
@requires(Action.READ)
def report_commit(request: Request, session: ReadSession, commit: Commit, project: Project) -> CommitReportOut:
    """Return the verdicts on a commit over all stacks of a project, failures and regressions first."""
    return _report(session, project, commit, public_address(request))


@router.get(
    "/commits/{commit}/report.md",
    response_class=Response,
    responses=documented(404, 422, ok=as_content("text/markdown")),
)
@requires(Action.READ)
def report_commit_as_markdown(request: Request, session: ReadSession, commit: Commit, project: Project) -> Response:
    """Return the same as Markdown, to post as a nightly report."""
    report = _report(session, project, commit, public_address(request))
    lines = [f"**{escaped(report.summary)}**", "", "| stack | verdict | q |", "| --- | --- | ---: |"]
    lines += [
        f"| {link(stack.title, stack.url)} | {escaped(stack.headline)} | {_q(stack)} |" for stack in report.stacks
    ]
    return Response("\n".join(lines).replace(THIN, " ") + "\n", media_type=MARKDOWN)


def _q(stack: StackVerdictOut) -> str:
    if stack.q_value is None:
        return ""
    return f"{100 * stack.q_value:.1f} %{', may be chance' if stack.may_be_chance else ''}"


def _report(session: Session, slug: str, commit: str, base: str) -> CommitReportOut:
    """Return the report of a commit. Raises NotFound for a project without a judged run of it."""
    project = find_project(session, slug)
    rows = session.execute(
        select(RunRow)
        .where(
            col(RunRow.project_id) == project.id,
            col(RunRow.commit).startswith(commit, autoescape=True),
            col(RunRow.purpose) == "ci",
            col(RunRow.quarantine) == "",
        )
        .order_by(col(RunRow.id).desc())
        .limit(MOST_RUNS)
        .options(WITH_RESULT)
    ).scalars()
    runs = {row.id or 0: row for row in rows}
    verdicts = _newest_of_each_candidate(list(current_verdicts(session, list(runs)).values()))
    if not verdicts:
        raise NotFound(f"No judged CI run of commit {commit} in {project.slug}.")
    changes = [verdict.document.verdict.step_time for verdict in verdicts]
    names = names_of_stacks(session, {runs[verdict.run_id].stack_key for verdict in verdicts})
    ordered = []
    for verdict, change, chance in zip(verdicts, changes, discoveries(changes), strict=True):
        run = runs[verdict.run_id]
        answer = run_answer(session, detail(run, project, ()), verdict.document)
        stack = StackVerdictOut(
            title=names.get(run.stack_key, run.stack_key[:12]),
            stack_key=run.stack_key,
            job=run.job,
            runs=[int(name) for name in answer.document.candidates],
            url=f"{base}/runs/{verdict.run_id}",
            verdict=answer.document.decision,
            badge=answer.word,
            headline=answer.headline,
            raises_regression=answer.document.alarms,
            needs_confirmation=answer.needs_confirmation,
            delta_pct=change and change.delta_pct,
            ci_low_pct=change and change.ci_low_pct,
            ci_high_pct=change and change.ci_high_pct,
            p_value=chance and chance.p_value,
            q_value=chance and chance.q_value,
            may_be_chance=bool(change and chance and change.decision in CALLED and chance.may_be_chance),
        )
        shown = _ORDER.index(answer.badge[0] or stack.verdict)
        ordered.append(((shown, stack.needs_confirmation, -(stack.delta_pct or 0.0)), stack))
    stacks = [stack for _, stack in sorted(ordered, key=lambda pair: pair[0])]
    parts = [f"{n} {badge}" for badge, n in Counter(stack.badge for stack in stacks).items()]
    summary = "; ".join(filter(None, (f"{plural(len(stacks), 'stack')}: {'; '.join(parts)}", doubt(changes)))) + "."
    return CommitReportOut(
        project=project.slug,
        commit=next(iter(runs.values())).commit,
        summary=summary,
        stacks=stacks,
    )


def _newest_of_each_candidate(verdicts: Sequence[StoredVerdict]) -> list[StoredVerdict]:
    """Return one verdict of each candidate, because reruns share theirs; newest first."""
    by_candidate = {verdict.document.candidates: verdict for verdict in sorted(verdicts, key=lambda v: v.run_id)}
    return list(reversed(by_candidate.values()))
