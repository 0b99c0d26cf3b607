"""Pages of regressions: the triage list and one regression, with their forms. They work without scripts."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from sqlalchemy import select
from sqlmodel import Session, col
from starlette.responses import HTMLResponse, Response

from app.domain.access.principal import Action
from app.domain.contract.values import shown
from app.domain.naming import SEPARATOR, common_parts, distinct_names
from app.domain.numbers import (
    THIN,
    change_text,
    change_verb,
    change_words,
    grouped,
    level_text,
    metric_text,
    plural,
    short_commit,
    slow_or_affected,
    step_time,
)
from app.domain.performance.cost import Cost
from app.domain.text import short_cause, shortened
from app.domain.verdict.assess import changed_field
from app.domain.verdict.comparability import AXES
from app.domain.verdict.document import MeasuredContrast, VerdictDocument
from app.domain.verdict.evidence import RankedSuspect, since_last_good, value_text
from app.domain.verdict.regression import Regression, SlowJob
from app.domain.verdict.regression_text import (
    RegressionSummary,
    how_often_here,
    is_part,
    of_jobs,
    other_jobs,
    summarize,
    what,
)
from app.domain.verdict.step_time import REGRESSION_P, StepTimeChange
from app.domain.verdict.triage import MEANING, STATES, State, next_states
from app.domain.verdict.words import answer as verdict_answer
from app.domain.verdict.words import contrast_sentence, side_text
from app.errors import EditConflict, InvalidChange, NotFound, ThreewallsError
from app.pipeline.regressions import costs_of
from app.regressions import words
from app.regressions.charts import (
    AFTER,
    BEFORE,
    FIRST_JOBS,
    MOST_JOBS,
    DrawnJob,
    chart_height,
    compared_runs,
    history_chart,
    job_rows,
    zoomed,
)
from app.regressions.commands import MAX_AT_ONCE, change_regressions, is_undoable, undo_changes
from app.regressions.feed import feed_url
from app.regressions.forms import OVERVIEW, TriageForm, UndoForm
from app.regressions.queries import (
    KINDS,
    METRICS,
    REGRESSION_COLUMNS,
    RegressionQuery,
    count_states,
    find_regressions,
    options_of,
    regression_rows,
    to_close,
)
from app.regressions.suspects import MOST_SHOWN, SuspectCard, SuspectingJob, UpgradeReportOf, suspect_cards
from app.storage import audit
from app.storage.example_runs import example_runs
from app.storage.regressions import SlowElsewhere, get_regression, slow_elsewhere
from app.storage.runs import stored_contracts
from app.storage.suspect_evidence import document_of_member, last_good, suspects_with_evidence
from app.storage.tables import ProjectRow, RegressionMemberRow, RegressionRow, RunRow, select_any, utc_now
from app.storage.upgrade_changes import measured_changes, upgrade_changes
from app.storage.verdicts import StoredVerdict, current_verdict, later_runs, newest_runs
from app.storage.watches import is_watched
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession, RegressionId, reading
from app.web.forms import answer_form, status_of
from app.web.identity import Access, access_of
from app.web.lists import table_answer
from app.web.pictures import Kind, Picture, Strip, Theme, picture_response, strips_body
from app.web.sparklines import sparklines_of_regressions
from app.web.templating import Toast, render, shown_params, wants_fragment

# --- The page of one regression: its members, the discussion, and the form.

_MOST_IN_TITLE = 2
"""Parts of the name of a stack in a title: model and GPUs, so that it fits on a phone."""
_MOST_BACK = 100
"""Newest runs of a recovered job whose median the proposal states."""


@dataclass(frozen=True, slots=True)
class BaselineRun:
    id: int
    name: str
    commit: str
    step_time: str
    counted: bool


@dataclass(frozen=True, slots=True)
class JobView:
    """A job that became slower.

    `verdict`: current verdict of the first slow run. `interval`: of the change measured in that run, with its level;
    `interval_of_upgrade`: of the change of the job, as the upgrade report has it. `newest_run`: the one
    whose change `job.last` has. `newest_in`: its other regression, if it is much slower.
    `baseline`: oldest first. `newest_before`: number and commit of the last run that was not slow. `elsewhere`: runs
    of the job that were as slow since then, in stacks that are no members, oldest first.
    """

    job: SlowJob
    cost: Cost
    cost_factors: str
    first_seen: str
    usual: str
    slow: str
    verdict: StoredVerdict | None
    verdict_answer: str
    suspects: tuple[RankedSuspect, ...]
    baseline: tuple[BaselineRun, ...]
    upgrade: MeasuredContrast | None
    newest_before: tuple[int, str] | None
    interval: tuple[str, str] | None
    interval_of_upgrade: tuple[str, str] | None
    newest_run: int | None
    newest_in: int | None
    elsewhere: tuple[SlowElsewhere, ...]

    @property
    def against(self) -> str:
        """Return the runs that it was compared with: `13 baseline runs`, or `13 runs before the upgrade`."""
        n = len(self.baseline)
        return f"{plural(n, 'run')} before the upgrade" if self.upgrade else plural(n, "baseline run")

    @property
    def how_often(self) -> str:
        return how_often_here(self.job, is_slow_elsewhere=any(run.is_steady is not False for run in self.elsewhere))

    @property
    def before(self) -> str:
        """Return the commit of `newest_before`."""
        return self.newest_before[1] if self.newest_before else ""

    @property
    def slow_commit(self) -> str:
        """Return the commit that ends the range of suspected code: that of the first run as slow."""
        ended = (item.suspect.difference for item in self.suspects if item.ends_earlier)
        return next((value_text(difference.b) for difference in ended if difference), self.job.first.commit)

    @property
    def can_bisect(self) -> bool:
        """Return whether the code is the first suspect, and its commits are known; an upgrade has none to bisect."""
        is_code = bool(self.suspects) and self.suspects[0].suspect.axis == "code"
        return is_code and bool(self.before and self.job.first.commit) and self.before != self.job.first.commit


class RegressionView:
    """The data of the page. `form`: as the user sent it."""

    def __init__(self, session: Session, regression_id: int, form: TriageForm | None = None) -> None:
        self._session = session
        self.regression: Regression = get_regression(session, regression_id)
        answers = form is not None and form.value("proposal")
        self.answering = form if form and answers else TriageForm()
        self.form = (TriageForm() if answers or form is None else form).over(self.regression)
        self.problem = form.problem if form else ""
        self.project: ProjectRow = session.execute(
            select(ProjectRow).where(col(ProjectRow.slug) == self.regression.project)
        ).scalar_one()

    side = staticmethod(side_text)

    @cached_property
    def summary(self) -> RegressionSummary:
        return summarize(self.regression)

    def is_watched(self, user_id: int | None) -> bool:
        project_id, number = self.regression.project_id, self.regression.id
        return is_watched(self._session, user_id, project_id, "regression", str(number))

    @property
    def title(self) -> str:
        """Return what happened, and where: `Was 6.3 % slower: Qwen3-30B-A3B · 16 × H100`."""
        counted = self.regression.counted_jobs
        change = what(self.regression)
        titles = [job.title for job in counted]
        common = titles if len(titles) == 1 else common_parts(titles)
        where = SEPARATOR.join([part for name in common for part in name.split(SEPARATOR)][:_MOST_IN_TITLE])
        if not counted:
            return change
        is_once = self.regression.is_once and not self.regression.is_back
        if is_part(self.regression) or (is_once and self.regression.is_up_to):
            return of_jobs(self.regression) + (f" on {where}" if where else "")
        if where and all(job.title.startswith(common[0]) for job in counted):
            return f"{change}: {where}"
        return f"{change}: {plural(len(counted), 'job')}" + (f" on {where}" if where else "")

    @property
    def answer(self) -> str:
        return self.summary.text

    @property
    def cause(self) -> str:
        return short_cause(self.regression.cause)

    @property
    def metric_label(self) -> str:
        return METRICS[self.regression.metric].capitalize()

    @property
    def states(self) -> tuple[tuple[State, str], ...]:
        """Return the possible next states with their meaning."""
        return tuple((state, MEANING[state]) for state in next_states(self.regression.state))

    @cached_property
    def jobs(self) -> tuple[JobView, ...]:
        costs = costs_of(self._session, self.regression.id, utc_now())
        return tuple(self._job(job, costs[job.last.run_id]) for job in self.listed_jobs)

    @cached_property
    def listed_jobs(self) -> tuple[SlowJob, ...]:
        """Return its jobs: those that the lead counts first, last those that have recovered."""

        counted = self.regression.counted_jobs

        def place(job: SlowJob) -> tuple[bool, bool, float]:
            return job.is_back, job not in counted, -(job.worst.delta_pct or 0)

        return tuple(sorted(self.regression.jobs, key=place))

    @cached_property
    def discussion(self) -> tuple[words.Done, ...]:
        """Return the events, oldest first."""
        return words.discussion(reversed(audit.events(self._session, "regression", self.regression.id)))

    @cached_property
    def proposal(self) -> str:
        """Return its reason: `The median of the last 4 runs is at the usual level.`; empty without a proposal."""
        if self.regression.proposal == "stale":
            return self._idle
        if not self.regression.proposal:
            return ""
        run = self._session.get(RunRow, self.regression.proposal_run_id) if self.regression.proposal_run_id else None
        values = self._values_since(run) if run else []
        named = zip(self.listed_jobs, self.short_titles, strict=True)
        of_config = [(job.last, name) for job, name in named if run and job.last.config_key == run.config_key]
        of_config.sort(key=lambda pair: run is not None and pair[0].job != run.job)
        last, name = of_config[0] if of_config else (None, "")
        usual = last.usual if last else None
        if run and self.regression.back_in:
            return "The next container or cluster of its job is at the usual level."
        if run is None or not values or not usual:
            return "All of its jobs are back at the usual level."
        which = "The last run" if len(values) == 1 else f"The median of the last {len(values)} runs"
        which += f" of {shortened(name, _NAME_LETTERS)}" if len(self.listed_jobs) > 1 else ""
        above = round(100 * (statistics.median(values) / usual - 1), 1)
        where = f"{grouped(abs(above), 1)}{THIN}% {'above' if above > 0 else 'below'}" if above else "at"
        commit = f" ({short_commit(run.commit)})" if run.commit else ""
        return f"{which} is {where} the usual level, since #{run.id}{commit}."

    @property
    def _idle(self) -> str:
        """Return since when its slow jobs do not run, and how slow they last were."""
        every = len(self.regression.counted_jobs) == len(self.regression.jobs)
        of = "" if every else f" of its {slow_or_affected(self.regression.metric)} jobs"
        since = f" since {idle}" if (idle := self.regression.idle_since) else ""
        newest = self.regression.newest
        if newest and newest.ordered_at == self.regression.last_ran:  # the lead names it with its change
            return f"No run{of}{since}."
        newest_pcts = [pct for job in self.regression.counted_jobs if (pct := job.last.newest_pct) is not None]
        if newest_pcts:
            are_many = len(newest_pcts) > 1
            most = change_words(max(newest_pcts), self.regression.metric, up_to=are_many)
            verb = change_verb(self.regression.metric, is_past=True, of_many=are_many)
            return f"No run{of}{since}. The last {'ones' if are_many else 'one'} {verb} {most} than usual."
        return f"No run{of}{since}, so nothing shows whether it is fixed."

    @property
    def rerun_of(self) -> int | None:
        """Return the run to repeat while it is idle: the newest one of its slow jobs."""
        return self.regression.last_run if self.regression.proposal == "stale" else None

    @cached_property
    def upgrade(self) -> UpgradeReportOf | None:
        """Return the upgrade report that opened it, if one did."""
        verdict = self.jobs[0].verdict if self.regression.kind == "upgrade" and self.jobs else None
        contrast = verdict.document.upgrade if verdict else None
        if contrast is None or not contrast.comparability.stack:
            return None
        changed = changed_field(contrast.comparability)
        sides = {
            name: "" if side is None else shown(side.value) for name, side in (("from", changed.a), ("to", changed.b))
        }
        query = urlencode({"project": self.regression.project, "field": changed.field} | sides)
        return UpgradeReportOf(changed.field, query)

    @property
    def comparison(self) -> str:
        """Return the address that compares the runs around the change of the first job; empty without a run before."""
        row = next((row for row in self.jobs if row.newest_before), None)
        return f"/compare?a={row.newest_before[0]}&b={row.job.first.run_id}" if row and row.newest_before else ""

    @property
    def common(self) -> tuple[str, ...]:
        """Return the parts that the titles of all jobs share; for a single job, its title."""
        titles = [job.title for job in self.listed_jobs]
        return common_parts(titles) or tuple(titles if len(titles) == 1 else ())

    @property
    def not_in_lead(self) -> str:
        """Return `2 more in one run only`, of the jobs that do not count; empty if the lead says so."""
        others = other_jobs(self.regression)
        return "" if others in self.answer else others

    @property
    def short_titles(self) -> list[str]:
        return distinct_names([job.title for job in self.listed_jobs])

    @property
    def bisected(self) -> JobView | None:
        """Return the job with the shortest range of suspected commits; None without one."""
        if self.regression.alternates:
            return None  # it would mislead a bisection
        rows = [row for row in self.jobs if row.can_bisect and row.job in self.regression.counted_jobs]
        return min(rows, key=lambda row: row.suspects[0].bad_at - row.suspects[0].good_at, default=None)

    def suspects(self, access: Access) -> tuple[SuspectCard, ...]:
        rows = [row for row in self.jobs if row.verdict and row.job in self.regression.counted_jobs]
        contracts = stored_contracts(self._session, [row.job.first.run_id for row in rows])
        jobs = [
            SuspectingJob(
                row.suspects,
                run.run_id,
                run.commit,
                row.newest_before,
                value_text(contracts[run.run_id].get("nodes")),
            )
            for row in rows
            for run in (row.job.first,)
        ]
        may_plan = access.may(Action.CONTRIBUTE, self.regression.project_id)
        return suspect_cards(jobs, self.project.compare_url, may_plan=may_plan, upgrade=self.upgrade)

    @property
    def compared_runs(self) -> str:
        return compared_runs(is_upgrade=self.regression.kind == "upgrade")

    def folded(self, jobs: Sequence[SlowJob]) -> str:
        """Return `3 more jobs, up to 45.1 % slower`, of the jobs that the chart can draw but does not; else empty."""
        changes = [delta for job in jobs if (delta := job.worst.delta_pct) is not None]
        most = change_words(max(changes, default=None), self.regression.metric, up_to=len(changes) > 1)
        return f"{plural(len(jobs), 'more job')}{f', {most}' if changes else ''}" if jobs else ""

    def rows(self, jobs: Sequence[SlowJob]) -> tuple[DrawnJob, ...]:
        of = self.regression
        later = later_runs(self._session, [of.id])
        elsewhere = {
            job.first.run_id: [
                *slow_elsewhere(self._session, of, job),
                *later.get((of.id, job.last.run_id), ()),
            ]
            for job in jobs
        }
        return job_rows(self._session, of.project_id, jobs, of.metric, elsewhere, is_upgrade=of.kind == "upgrade")

    def _values_since(self, run: RunRow) -> Sequence[float]:
        """Return the values of the newest counted runs of this job and configuration from `run` on."""
        value = col(RunRow.step_time_ms if self.regression.metric == "step_time_ms" else RunRow.peak_memory_gib)
        counts = (
            col(RunRow.config_key) == run.config_key, col(RunRow.job) == run.job,
            col(RunRow.project_id) == run.project_id,
            col(RunRow.purpose) == "ci", col(RunRow.is_steady).is_(True), col(RunRow.short).is_(False),
            col(RunRow.quarantine) == "", value.is_not(None),
            col(RunRow.ordered_at) >= run.ordered_at,
        )  # fmt: skip
        newest_first = select_any(value).where(*counts).order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        return self._session.execute(newest_first.limit(_MOST_BACK)).scalars().all()

    def _job(self, job: SlowJob, cost: Cost) -> JobView:
        metric, run_id = self.regression.metric, job.first.run_id
        verdict = current_verdict(self._session, run_id)
        document = verdict.document if verdict else None
        upgrade = document.upgrade if document and self.regression.kind == "upgrade" else None
        if document:
            document = document_of_member(document, self.regression.kind)
        suspects = suspects_with_evidence(self._session, run_id, document, metric) if document else ()
        if document:
            document = since_last_good(document, suspects)
            upgrade = document.contrast if upgrade else None
        baseline = self._baseline(document) if document else ()
        good = last_good(self._session, self._session.get_one(RunRow, run_id), document, metric) if document else None
        return JobView(
            job=job,
            cost=cost,
            cost_factors=words.cost_factors(cost),
            first_seen=words.first_seen(metric, job),
            usual=metric_text(metric, job.worst.usual),
            slow=metric_text(metric, job.worst.slow),
            verdict=verdict,
            verdict_answer=self._verdict_answer(document, upgrade),
            suspects=suspects,
            baseline=baseline,
            upgrade=upgrade,
            newest_before=(good.id, good.commit) if good else None,
            interval=self._interval(job, document.measured) if document else None,
            interval_of_upgrade=self._interval_of_upgrade(job, upgrade),
            newest_run=self._newest_runs.get(job.last.run_id),
            newest_in=self._newest_in(job),
            elsewhere=slow_elsewhere(self._session, self.regression, job),
        )

    def _interval(self, job: SlowJob, time: StepTimeChange | None) -> tuple[str, str] | None:
        """Return the interval and its level; None if it is not that of the change in the first slow run."""
        first = job.first.first_delta_pct
        if self.regression.metric != "step_time_ms" or time is None or first is None:
            return None
        text = change_text(first, time.ci_low_pct, time.ci_high_pct)
        if text.figure != change_text(time.delta_pct).figure:
            return None
        return text.interval, f"{level_text(time.interval_level_pct)} interval of the first slow run"

    def _interval_of_upgrade(self, job: SlowJob, upgrade: MeasuredContrast | None) -> tuple[str, str] | None:
        """Return the interval of the job's change and its level as the report has them; None if it is of another."""
        delta = job.worst.delta_pct if job.worst is job.first and self.regression.metric == "step_time_ms" else None
        if upgrade is None or delta is None or job.is_once:
            return None
        changed = changed_field(upgrade.comparability)
        sides = value_text(changed.a), value_text(changed.b)
        for row, measured in measured_changes(self._session, self.regression.project_id, changed.field, *sides):
            is_of_job = (row.stack_key, row.job) == (job.first.stack_key, job.first.job)
            if is_of_job and measured.step_time and (ends := measured.step_time.interval_of(delta, REGRESSION_P)):
                level = f"{100 * (2 * REGRESSION_P - 1):.3g}{THIN}% interval"
                return change_text(delta, *ends).interval, level
        return None

    @cached_property
    def _newest_runs(self) -> Mapping[int, int]:
        return newest_runs(self._session, self.regression.id)

    def _newest_in(self, job: SlowJob) -> int | None:
        """Return the other regression of a job's newest run, if that is much slower than this one states."""
        if not job.has_outgrown:
            return None
        others = (
            select_any(RegressionRow.id)
            .join(RegressionMemberRow, col(RegressionMemberRow.regression_id) == RegressionRow.id)
            .where(
                col(RegressionMemberRow.run_id) == self._newest_runs.get(job.last.run_id),
                col(RegressionRow.id) != self.regression.id,
                col(RegressionRow.metric) == self.regression.metric,
            )
        )
        number: int | None = self._session.execute(others.limit(1)).scalar()
        return number

    def _verdict_answer(self, document: VerdictDocument | None, upgrade: MeasuredContrast | None) -> str:
        """Return the sentence of the verdict, which is about step time; empty for other metrics."""
        if document is None or self.regression.metric != "step_time_ms":
            return ""
        return contrast_sentence(upgrade) if upgrade else verdict_answer(document)

    def _baseline(self, document: VerdictDocument) -> tuple[BaselineRun, ...]:
        """Return the baseline runs; after an upgrade those of the other side."""
        contrast = document.contrast if document.comparability is None else None
        chosen, used = document.baseline, document.verdict.baseline_used
        if contrast is not None:
            chosen, used = contrast.runs, contrast.measured.baseline_used
        ids = [int(name) for name in chosen]
        rows = self._session.execute(
            select_any(RunRow.id, RunRow.name, RunRow.commit, RunRow.step_time_ms).where(col(RunRow.id).in_(ids))
        )
        runs = {
            row.id: BaselineRun(
                row.id, row.name, row.commit,
                "unknown" if row.step_time_ms is None else step_time(row.step_time_ms), str(row.id) in used,
            )
            for row in rows
        }  # fmt: skip
        return tuple(runs[number] for number in ids if number in runs)


router = APIRouter(include_in_schema=False)

_MAX_FIELDS = MAX_AT_ONCE + 20
_MOST_UPGRADES = 4
"""Newest upgrades that the list shows. Earlier ones are folded, as are inconclusive ones if there are others."""
_NAME_LETTERS = 24
"""Maximum letters of the name of a job in a sentence, so that a phone shows the picture below it."""
_MOST_PROFILED = 3
"""Maximum members whose profiles the page compares."""


@router.get("/regressions")
@requires(Action.READ)
def list_regressions(
    request: Request, session: ReadSession, changed: Annotated[int | None, Query(ge=0)] = None
) -> HTMLResponse:
    return _render_list(request, session, TriageForm(), changed=changed)


@router.post("/regressions")
@requires(Action.CONTRIBUTE)
async def change_selected(request: Request, engine: AppEngine) -> Response:
    """Change the selected rows like the API."""

    def change(form: TriageForm) -> str | Response:
        address = RegressionQuery.from_params(request.query_params).address("/regressions")
        changed = change_regressions(engine, form.seen_rows(), form.bulk_change())
        if not wants_fragment(request):
            return f"{address}{'&' if '?' in address else '?'}changed={len(changed)}"
        with reading(request) as session:
            verb = "closed" if form.value("proposal") else "changed"
            text = f"{plural(len(changed), 'regression')} {verb}." if changed else "Nothing to change."
            if form.value("page") == OVERVIEW:
                toast = _toast(session, text, changed, "#to-close", page=OVERVIEW)
                page = f"/?{urlencode(shown_params(request))}"
                return render(request, "regressions/closed.html", block="closed", toast=toast, text=text, page=page)
            toast = _toast(session, text, changed, "#regression-table")
            return _render_list(request, session, TriageForm(), toast=toast)

    def again(session: Session, form: TriageForm, error: ThreewallsError) -> Response:
        return _render_list(request, session, form, status=status_of(error))

    catch = (InvalidChange, EditConflict, NotFound)
    return await answer_form(request, TriageForm, change, again, max_fields=_MAX_FIELDS, catch=catch)


@router.post("/regressions/undo")
@requires(Action.CONTRIBUTE)
async def undo(request: Request, engine: AppEngine) -> Response:
    """Put back what a change replaced; sent by the toast that answered the change."""

    def change(form: UndoForm) -> str | Response:
        undo_changes(engine, form.event_ids, form.value("author"))
        if not wants_fragment(request):
            return f"/regressions/{form.regression_id}" if form.regression_id else "/regressions"
        if form.value("page") == OVERVIEW:
            return Response(headers={"HX-Refresh": "true"})
        toast = Toast("Undone.")
        with reading(request) as session:
            if form.regression_id:
                view = RegressionView(session, form.regression_id)
                return _render_regression(request, view, block="decided", toast=toast)
            return _render_list(request, session, TriageForm(), shown_params(request), toast=toast)

    return await answer_form(request, UndoForm, change, max_fields=_MAX_FIELDS)


@router.get("/regressions.csv")
@requires(Action.READ)
def export_regressions(request: Request, engine: AppEngine) -> Response:
    """Return all regressions that match the filters of the address."""
    query = RegressionQuery.from_params(request.query_params)
    return table_answer("csv", REGRESSION_COLUMNS, regression_rows(engine, query), "regressions")


@router.get("/regressions/{regression_id}")
@requires(Action.READ, of="regression")
def show_regression(request: Request, session: ReadSession, regression_id: RegressionId) -> HTMLResponse:
    return _render_regression(request, RegressionView(session, regression_id))


@router.post("/regressions/{regression_id}")
@requires(Action.CONTRIBUTE, of="regression")
async def change_regression(request: Request, engine: AppEngine, regression_id: RegressionId) -> Response:
    """Change one regression like the API."""

    def change(form: TriageForm) -> str | Response:
        changed = change_regressions(engine, [form.seen_regression(regression_id)], form.change())
        if not wants_fragment(request):
            return f"/regressions/{regression_id}"
        with reading(request) as session:
            view = RegressionView(session, regression_id)
            text = words.decided(view.regression, form.change()) if changed else "Nothing to change."
            undoable = () if form.value("quarantine") else changed
            toast = _toast(session, text, undoable, "#decided", page=str(regression_id))
            return _render_regression(request, view, block="decided", toast=toast)

    def again(session: Session, form: TriageForm, error: ThreewallsError) -> Response:
        view = RegressionView(session, regression_id, form)
        return _render_regression(request, view, block="decided", status=status_of(error))

    catch = (InvalidChange, EditConflict)
    return await answer_form(request, TriageForm, change, again, max_fields=_MAX_FIELDS, catch=catch)


@router.get("/regressions/{regression_id}/chart")
@requires(Action.READ, of="regression")
def show_chart(
    request: Request,
    session: ReadSession,
    regression_id: RegressionId,
    *,
    run: int | None = None,
    every: bool = False,
    first: int = 0,
    last: int = 0,
) -> HTMLResponse:
    """Render the chart of its first jobs, of `every` job, or of that of one run: the block for htmx, else the page.

    `first` and `last`: the runs at the ends of the zoom.
    """
    view = RegressionView(session, regression_id)
    jobs = [job for job in view.listed_jobs if run is None or run in [member.run_id for member in job.stacks]]
    if run is not None and not jobs:
        raise NotFound(f"Run {run} is not a member of regression {regression_id}.")
    drawn = jobs if every else jobs[:FIRST_JOBS]
    rows, ends = zoomed(view.rows(drawn), first, last)
    spec = history_chart(rows, view.regression.metric, ends) if rows else None
    chosen = {"run": run} if run is not None else {"every": "true"} if every else {}
    address = f"{request.url.path}?{urlencode(chosen)}" if chosen else request.url.path
    return _render_regression(
        request, view, block="member_chart", rows=rows, spec=spec, address_of_chart=address, is_zoomed=bool(ends),
        folded=view.folded(jobs[len(drawn) : MOST_JOBS]), chart_height=chart_height(len(rows)),
    )  # fmt: skip


@router.get("/regressions/{regression_id}/picture.{kind}")
@requires(Action.READ, of="regression")
def draw_regression(
    request: Request, session: ReadSession, regression_id: RegressionId, kind: Kind, theme: Theme = "light"
) -> Response:
    """Return the regression as a slide: the runs of each member before and after the change."""
    view = RegressionView(session, regression_id)
    names = dict(zip(view.listed_jobs, view.short_titles, strict=True))
    metric = view.regression.metric
    strips = [
        Strip(
            label=names[row.job],
            figure="" if (delta := row.job.worst.delta_pct) is None else change_text(delta, metric=metric).figure,
            before=[point.delta_pct for point in row.points if point.role in BEFORE],
            after=[point.delta_pct for point in row.points if point.role in AFTER],
        )
        for row in view.rows(view.listed_jobs)
    ]
    picture = Picture(
        view.title, f"{view.answer} {view.cause}",
        f"/regressions/{regression_id}", view.regression.generated, strips_body(strips),
    )  # fmt: skip
    return picture_response(request, picture, kind, theme)


def _toast(session: Session, text: str, changed: Sequence[int], target: str, *, page: str = "") -> Toast:
    """Return the message after a change, with Undo if the whole change can be undone."""
    if not changed or not all(is_undoable(event) for event in audit.events_by_id(session, changed)):
        return Toast(text)
    return Toast(text, "/regressions/undo", (*(("event", str(number)) for number in changed), ("page", page)), target)


def _render_list(
    request: Request,
    session: Session,
    form: TriageForm,
    params: Mapping[str, str] | None = None,
    *,
    changed: int | None = None,
    status: int = 200,
    toast: Toast | None = None,
) -> HTMLResponse:
    query = RegressionQuery.from_params(request.query_params if params is None else params)
    counted = count_states(session, query)
    is_filtered = query.active.keys() - {"state"}
    page, access = find_regressions(session, query, counted.by_state[query.state]), access_of(request)
    options = options_of(session)
    project = query.project or (options.projects[0] if len(options.projects) == 1 else "")
    return render(
        request,
        "regressions/list.html",
        block="regression_table",
        address=query.address("/regressions"),
        status=status,
        toast=toast,
        page=page,
        to_close=to_close(session, query),
        may_triage={item.id for item in page.items if access.may("contribute", item.project_id)},
        filters=query,
        query=query.query(query.page),
        counted=counted,
        total=(count_states(session, RegressionQuery()) if is_filtered else counted).by_state["any"],
        answer=words.list_answer(counted, page.items, is_filtered=bool(is_filtered)),
        upgrades=sorted(upgrade_changes(session, project=query.project), key=lambda change: change.is_inconclusive),
        most_upgrades=_MOST_UPGRADES,
        options=options,
        feed=feed_url(session, project) if project else "",
        choices={"metric": METRICS, "kind": KINDS, "axis": AXES, "state": STATES},
        what=what,
        sparks=sparklines_of_regressions(session, page.items),
        form=form,
        selected={seen.split("@")[0] for seen in form.chosen.get("seen", ())},
        changed=changed,
        loading=example_runs(session),
    )


def _render_regression(
    request: Request,
    view: RegressionView,
    *,
    block: str | None = None,
    status: int = 200,
    toast: Toast | None = None,
    **drawn: Any,
) -> HTMLResponse:
    return render(
        request,
        "regressions/regression.html",
        block=block,
        status=status,
        toast=toast,
        view=view,
        regression=view.regression,
        suspects_of=lambda: view.suspects(access_of(request)),
        most_suspects=MOST_SHOWN,
        most_profiled=_MOST_PROFILED,
        watched=view.is_watched(access_of(request).watcher),
        **(
            {"rows": None, "spec": None, "folded": ""}
            | {"chart_height": chart_height(min(len(view.regression.jobs), FIRST_JOBS))}
            | drawn
        ),
    )
