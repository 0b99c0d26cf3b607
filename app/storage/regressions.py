"""The read model of regressions, for pages, the API, reports and messages."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, Select, and_, bindparam, false, func, or_, select
from sqlmodel import Session, col

from app.domain.naming import SEPARATOR, short_job, without_common
from app.domain.verdict.regression import (
    Regression,
    RegressionMember,
    RunOfJob,
    SlowJob,
    axis_of_cause,
    figure_of,
)
from app.domain.verdict.triage import ACTIVE
from app.errors import NotFound
from app.storage.remembered import Remembered
from app.storage.stacks import names_of_stacks
from app.storage.suspect_evidence import (
    alternation,
    document_of_member,
    last_good,
    shown_cause,
    slow_in_other_stacks,
)
from app.storage.tables import (
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunAlarmRow,
    RunRow,
    StackRow,
    from_row,
    select_any,
    utc_now,
)
from app.storage.verdicts import (
    Costs,
    LaterRun,
    StoredMember,
    current_verdict,
    jobs_of_regressions,
    last_own_runs,
    later_runs,
    slow_again,
)
from app.storage.visible import visible_projects


@dataclass(frozen=True, slots=True)
class SlowElsewhere:
    """A run of a job that is as slow in another container or cluster.

    `change_pct`: against the usual level. `is_before`: it precedes the first slow run. `regression`: the one that lists
    it as a slow run, if any.
    """

    id: int
    stack_key: str
    ordered_at: datetime
    name: str
    is_steady: bool | None
    change_pct: float
    is_before: bool
    regression: int | None


def joined_regressions(wanted: Any) -> Select[Any]:
    chosen: Select[Any] = wanted.select_from(RegressionRow)
    return chosen.join(ProjectRow, col(ProjectRow.id) == RegressionRow.project_id)


def get_regression(session: Session, regression_id: int) -> Regression:
    """Return a regression. Raises NotFound."""
    for regression in read_regressions(session, [regression_id]):
        return regression
    raise NotFound(f"Regression {regression_id} does not exist. It may have been deleted.")


def read_regressions(session: Session, ids: Collection[int]) -> tuple[Regression, ...]:
    """Return these regressions with their evidence, newest first."""
    if not ids:
        return ()
    chosen = joined_regressions(select(RegressionRow, ProjectRow)).where(col(RegressionRow.id).in_(ids))
    rows = session.execute(chosen.order_by(col(RegressionRow.id).desc())).all()
    return tuple(add_evidence(session, item) for item in regressions_of_rows(session, rows))


def ends_of_costs(session: Session, ids: Collection[int]) -> dict[int, str]:
    """Return `, last run 30 Sep` of these regressions, as `Regression.cost_end`, without those of now."""
    if not ids:
        return {}
    chosen = joined_regressions(select(RegressionRow, ProjectRow)).where(col(RegressionRow.id).in_(ids))
    read = regressions_of_rows(session, session.execute(chosen).all())
    return {regression.id: regression.cost_end for regression in read if regression.cost_end}


_MEMBERS: Select[Any] = (
    select_any(
        RegressionMemberRow, RunRow.name, RunRow.branch, RunRow.commit, RunRow.ordered_at, RunRow.quarantine,
        RunRow.model, RunRow.gpu, RunRow.gpus, RunRow.dispatcher, RunRow.job,
    )
    .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
    .where(col(RegressionMemberRow.regression_id).in_(bindparam("ids", expanding=True)))
    .order_by(col(RegressionMemberRow.joined_at), col(RegressionMemberRow.run_id))
)  # fmt: skip


_STILL_NOW = timedelta(days=3)
"""A cost up to an earlier time than this is not of now: the project's newest run is as old."""


def regressions_of_rows(session: Session, rows: Sequence[Row[Any]]) -> tuple[Regression, ...]:
    """Return the regressions of joined rows without evidence, which takes longer to read."""
    ids = [row.RegressionRow.id for row in rows]
    member_rows = session.execute(_MEMBERS, {"ids": ids}).all()
    names = names_of_stacks(session, {row.RegressionMemberRow.stack_key for row in member_rows})
    stored = {
        (number, member.run_id): member
        for number, jobs in jobs_of_regressions(session, ids).items()
        for job in jobs
        for member in job
    }
    back = _positions(session, [row.RegressionRow.proposal_run_id for row in rows])
    listed = [row.RegressionRow for row in rows]
    idle = [row.id for row in listed if row.proposal == "stale" or row.gpu_hours_per_day == 0]
    later = later_runs(session, [row.id for row in listed if row.state in ACTIVE and not row.gpu_hours_per_day])
    now = utc_now()
    costs = Costs(session, now)
    costly = [row for row in listed if row.gpu_hours_per_day and row.id not in idle]
    past = {row.id for row in costly if now - costs.clock_of(row.project_id) > _STILL_NOW}
    last_own = {
        key: run for key, run in last_own_runs(session, [*idle, *past]).items() if stored[key].proposal != "fixed"
    }
    members: dict[int, list[Row[Any]]] = {id_: [] for id_ in ids}
    for row in member_rows:
        members[row.RegressionMemberRow.regression_id].append(row)
    regressions = (_regression(row, members[row.RegressionRow.id], names, stored, back) for row in rows)
    return tuple(_with_newest(session, item, last_own, later, is_past=item.id in past) for item in regressions)


def _with_newest(
    session: Session,
    regression: Regression,
    last_own: Mapping[tuple[int, int], tuple[datetime, int]],
    later: Mapping[tuple[int, int], Sequence[LaterRun]],
    *,
    is_past: bool,
) -> Regression:
    """Add the runs that show where its jobs are now, in later containers and clusters as well.

    `is_past`: it costs time up to the newest run of its project, which is days ago.
    """
    counted = regression.counted_jobs
    keys = [(regression.id, member.run_id) for job in counted for member in job.stacks]
    runs = [(job, later.get((regression.id, job.last.run_id), ())) for job in counted]
    newest = max(((job, of[-1]) for job, of in runs if of), key=lambda pair: pair[1].ordered_at, default=None)
    streaks = [
        (job, streak[0])
        for job, of in runs
        if job.is_back and (streak := slow_again(of)) and any(run.is_steady is not False for run in streak)
    ]
    again = min(streaks, key=lambda pair: pair[1].ordered_at, default=None)
    last = max((last_own[key] for key in keys if key in last_own), default=None)
    if last and newest:
        last = max(last, (newest[1].ordered_at, newest[1].id))
    back_runs = (
        (job, run)
        for job in regression.jobs
        for run in later.get((regression.id, job.last.run_id), ())
        if regression.is_back and run.id == regression.proposal_run_id
    )
    back = next(back_runs, None)
    return replace(
        regression,
        last_ran=last[0] if last and not is_past else None,
        last_run=last[1] if last and not is_past else None,
        cost_until=last[0] if last and is_past else None,
        newest=_run_of_job(session, *newest) if newest else None,
        again=_run_of_job(session, *again) if again and not regression.proposal else None,
        back_in=_run_of_job(session, *back).place if back else "",
    )


def _run_of_job(session: Session, job: SlowJob, run: LaterRun | SlowElsewhere) -> RunOfJob:
    place = _place(session, job.last.stack_key, run.stack_key)
    return RunOfJob(run.id, run.ordered_at, run.change_pct, place, run.is_steady is not False)


def _place(session: Session, own: str, other: str) -> str:
    """Return the parts of a stack's name that another stack lacks, such as the container: `26.02-py3`."""
    names = names_of_stacks(session, {own, other})
    return without_common([names.get(own, ""), names.get(other, "")])[1]


_MOST_ELSEWHERE = 20


def slow_elsewhere(session: Session, regression: Regression, job: SlowJob) -> tuple[SlowElsewhere, ...]:
    """Return the runs of a job that are as slow since its last good one in stacks to which it did not move.

    Oldest first; empty for a job without a name, which any run may share.
    """
    first, verdict = job.first, current_verdict(session, job.first.run_id)
    if verdict is None:
        return ()
    document = document_of_member(verdict.document, regression.kind)
    good = last_good(session, session.get_one(RunRow, first.run_id), document, regression.metric)
    since = good.ordered_at if good else None
    if not (first.job and first.usual and first.slow) or since is None or regression.metric == "lm_loss":
        return ()
    is_before = col(RunRow.ordered_at) < first.ordered_at
    middle = math.sqrt(first.usual * first.slow)
    columns = (RunRow.id, RunRow.stack_key, RunRow.ordered_at, RunRow.name, RunRow.is_steady)
    value = col(RunRow.peak_memory_gib if regression.metric == "peak_memory_gib" else RunRow.step_time_ms)
    change_pct = (100 * (value / first.usual - 1)).label("change_pct")
    of_run = and_(col(RunAlarmRow.run_id) == RunRow.id, col(RunAlarmRow.metric) == regression.metric)
    chosen = (
        select_any(*columns, change_pct, is_before.label("is_before"), RunAlarmRow.regression_id)
        .join(RunAlarmRow, of_run, isouter=True)
        .where(
            *slow_in_other_stacks(regression.project_id, first, regression.metric, middle, since),
            is_before | col(RunRow.stack_key).not_in([member.stack_key for member in job.stacks]),
        )
    )
    in_order = chosen.order_by(col(RunRow.ordered_at), col(RunRow.id)).limit(_MOST_ELSEWHERE)
    return tuple(SlowElsewhere(*row) for row in session.execute(in_order))


def regressions_elsewhere(session: Session, run_id: int) -> tuple[Regression, ...]:
    """Return the regressions that list a run as slow elsewhere, newest first, without evidence: those of its job in
    another container or cluster."""
    run = session.get_one(RunRow, run_id)
    if not run.job or run.purpose != "ci" or run.quarantine:
        return ()
    middle = (col(RegressionMemberRow.usual_level) + col(RegressionMemberRow.slow_level)) / 2
    levels = {"step_time_ms": run.step_time_ms, "peak_memory_gib": run.peak_memory_gib}
    is_slow = [
        and_(col(RegressionRow.metric) == name, middle < math.log(value)) for name, value in levels.items() if value
    ]
    of_job = (
        select_any(RegressionMemberRow.regression_id)
        .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
        .where(
            or_(false(), *is_slow),
            col(RunRow.project_id) == run.project_id, col(RunRow.job) == run.job,
            *(col(getattr(RunRow, name)) == getattr(run, name) for name in ("model", "gpu", "gpus")),
            col(RegressionMemberRow.stack_key) != run.stack_key,
        )
    )  # fmt: skip
    chosen = joined_regressions(select(RegressionRow, ProjectRow)).where(
        col(RegressionRow.id).in_(of_job), col(RegressionRow.state) != "invalid"
    )
    rows = session.execute(chosen.order_by(col(RegressionRow.id).desc())).all()
    return tuple(
        regression
        for regression in regressions_of_rows(session, rows)
        if any(
            run_id == slow.id
            for job in regression.jobs
            if job.first.job == run.job
            for slow in slow_elsewhere(session, regression, job)
        )
    )


@dataclass(frozen=True, slots=True)
class _OtherStacks:
    """What other stacks say about a regression; see `Regression`."""

    slow_before: RunOfJob | None
    slow_after: tuple[int, ...]
    alternates: tuple[float, float] | None
    alternating: int | None
    slow_there: RunOfJob | None


_remembered = Remembered[_OtherStacks](most=1000)
"""By regression, until runs of its project change: reading them takes 20 ms per job."""


def add_evidence(session: Session, item: Regression) -> Regression:
    """Add the cause that the evidence supports, and what the runs of its jobs in other stacks show."""
    firsts = tuple(job.first.run_id for job in item.counted_jobs)
    of_stacks = select_any(func.count(), func.sum(StackRow.revision), func.sum(StackRow.runs))
    state = tuple(session.execute(of_stacks.where(col(StackRow.project_id) == item.project_id)).one())
    question = (str(session.get_bind().engine.url), visible_projects(), item.id, firsts)
    others = _remembered.find(question, state)
    if others is None:
        others = _other_stacks(session, item)
        _remembered.keep(question, state, others)
    cause = shown_cause(session, item, firsts)
    return replace(
        item, cause=cause, slow_before=others.slow_before, slow_after=others.slow_after,
        alternates=others.alternates, alternating=others.alternating, slow_there=others.slow_there,
    )  # fmt: skip


_MOST_AFTER = 3


def _other_stacks(session: Session, regression: Regression) -> _OtherStacks:
    runs = [(job, run) for job in regression.counted_jobs for run in slow_elsewhere(session, regression, job)]
    # A run that is not steady does not show that its job was slow.
    runs = [pair for pair in runs if pair[1].is_steady is not False]
    before = (pair for pair in runs if pair[1].is_before)
    first = min(before, key=lambda pair: (pair[1].ordered_at, pair[1].id), default=None)
    is_alone = regression.is_once and len(regression.counted_jobs) == 1
    alternating, levels = _alternating_job(session, regression) or (None, None)
    return _OtherStacks(
        _run_of_job(session, *first) if first else None,
        tuple(run.id for _, run in runs if is_alone and not run.is_before)[:_MOST_AFTER],
        levels,
        alternating,
        _slow_there(session, regression, alternating) if alternating is not None else None,
    )


def _slow_there(session: Session, regression: Regression, alternating: int) -> RunOfJob | None:
    """Return the newest later run of another job that is back in its own stack but slow there, steady or not."""
    later = later_runs(session, [regression.id])
    others = (job for job in regression.jobs if job.first.run_id != alternating and job.has_returned)
    newest = [(job, runs[-1]) for job in others if (runs := later.get((regression.id, job.last.run_id)))]
    slow = (pair for pair in newest if pair[1].is_slow)
    last = max(slow, key=lambda pair: pair[1].ordered_at, default=None)
    return _run_of_job(session, *last) if last else None


def _alternating_job(session: Session, regression: Regression) -> tuple[int, tuple[float, float]] | None:
    """Return the first slow run of the first counted job that alternates between two levels (ms), with them, if any."""
    if regression.metric != "step_time_ms":
        return None
    for job in regression.counted_jobs:
        usual, slow = job.first.usual, job.first.slow
        if usual and slow and slow > usual:
            levels = alternation(session, session.get_one(RunRow, job.first.run_id), usual, slow)
            if levels:
                return job.first.run_id, levels
    return None


def _positions(session: Session, run_ids: Iterable[int | None]) -> dict[int | None, tuple[int, datetime]]:
    """Return (number, history position) of these runs by number."""
    chosen = select_any(RunRow.id, RunRow.ordered_at).where(col(RunRow.id).in_(set(run_ids) - {None}))
    return {row.id: (row.id, row.ordered_at) for row in session.execute(chosen)}


def _regression(
    listed: Row[Any],
    members: Sequence[Row[Any]],
    names: Mapping[str, str],
    stored: Mapping[tuple[int, int], StoredMember],
    back: Mapping[int | None, tuple[int, datetime]],
) -> Regression:
    row: RegressionRow = listed.RegressionRow
    project: ProjectRow = listed.ProjectRow
    assert row.id is not None  # noqa: S101  # a row that was read has its key
    return from_row(
        Regression, row, project,
        project=project.slug, axis=axis_of_cause(row.cause_key) or "",
        # `proposal_run_id` can also belong to an earlier, declined proposal.
        proposal_run_id=None if row.proposal == "stale" else row.proposal_run_id,
        members=tuple(
            _member(member, _title(member, members, names), stored[row.id, member.RegressionMemberRow.run_id])
            for member in members
        ),
        back=back.get(row.proposal_run_id),
    )  # fmt: skip


def _member(row: Row[Any], title: str, stored: StoredMember) -> RegressionMember:
    member: RegressionMemberRow = row.RegressionMemberRow
    return from_row(
        RegressionMember, member, row, stored,
        run_name=row.name, title=title, usual=figure_of(member.usual_level), slow=figure_of(member.slow_level),
    )  # fmt: skip


def _title(member: Row[Any], members: Sequence[Row[Any]], names: Mapping[str, str]) -> str:
    """Return the name of the stack, with the job if several jobs of it, or of another stack of the job, are members."""
    key = member.RegressionMemberRow.stack_key
    own = {key, *(other.RegressionMemberRow.stack_key for other in members if other.job == member.job != "")}
    jobs = {other.job for other in members if other.RegressionMemberRow.stack_key in own}
    job = [short_job(member.job, jobs)] if len(jobs) > 1 else []
    return SEPARATOR.join([names.get(key, key[:12]), *job])
