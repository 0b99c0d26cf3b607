"""Reading regressions for pages and the API: filters, selects and read models."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import ColumnElement, Engine, Row, Select, bindparam, exists, false, func, or_, select
from sqlmodel import Session, col

from app.domain.naming import SEPARATOR, short_job, without_common
from app.domain.verdict.comparability import AXES
from app.domain.verdict.triage import ACTIVE, STATES, SumOfCosts
from app.errors import NotFound
from app.regressions.regression import (
    Options,
    Regression,
    RegressionMember,
    RunOfJob,
    SlowJob,
    axis_of_cause,
    figure_of,
    has_axis,
    stacks_of,
)
from app.storage.database import ListPage, read_session
from app.storage.runs import filter_values
from app.storage.stacks import names_of_stacks
from app.storage.suspect_evidence import alternation, document_of_member, last_good, shown_cause, slow_in_other_stacks
from app.storage.tables import ProjectRow, RegressionMemberRow, RegressionRow, RunRow, StackRow, from_row, select_any
from app.storage.verdicts import (
    SUMS_OF_COSTS,
    LaterRun,
    ProposedClosing,
    StoredMember,
    current_verdict,
    jobs_of_regressions,
    last_own_runs,
    later_runs,
    proposed_closings,
    slow_again,
)
from app.web.lists import CellKind, ListQuery, OneOf

# --- Filters of the list of regressions. The query string is the whole state of the page, so it is validated as input.

ACTIVE_STATES, TO_CLOSE, CLOSED, ANY_STATE = "active", "to_close", "closed", "any"
METRICS = {"step_time_ms": "step time", "peak_memory_gib": "peak memory", "lm_loss": "loss"}
KINDS = {"run": "a run", "upgrade": "an upgrade"}
SORTS = {"cost": "cost", "age": "age", "size": "size"}
NOBODY = "nobody"
"""Value of the assignee filter for unassigned regressions."""
UNKNOWN = "unknown"
"""Value of the filters `gpu` and `model` for unknown."""


class RegressionQuery(ListQuery):
    """Filters of the list of regressions; an empty one means any. Its page shows the active ones first."""

    page_defaults = {"state": ACTIVE_STATES, "page_size": "25"}  # noqa: RUF012  # a class variable of the base
    not_narrowing = ("state", "sort")
    refuses_unknown = True
    further_names = ("format", "changed")

    q: str = Field("", description="Words that must all occur in the cause, note, assignee, link or names of a run.")
    state: Annotated[str, OneOf((ACTIVE_STATES, TO_CLOSE, CLOSED, *STATES, ANY_STATE))] = Field(
        ANY_STATE,
        description="A state, `active` (open or acknowledged), `to_close` (those of them with a proposal), `closed` "
        "(all others) or `any`.",
    )
    project: str = ""
    assignee: str = Field("", description="`nobody`: unassigned ones.")
    metric: Annotated[str, OneOf(tuple(METRICS))] = ""
    kind: Annotated[str, OneOf(tuple(KINDS))] = Field("", description="`run` or `upgrade`.")
    axis: Annotated[str, OneOf(AXES)] = Field(
        "", description="Axis of the cause: `container`, `recipe`, `code`, `place` or `workload`."
    )
    gpu: str = Field("", description="`unknown`: regressions without a known value.")
    model: str = ""
    sort: Annotated[str, OneOf(tuple(sign + name for name in SORTS for sign in ("-", "")))] = Field(
        "-cost", description="`cost`, `age` or `size`, with `-` for descending."
    )


def find_regressions(
    session: Session, query: RegressionQuery, total: int | None = None, *, with_evidence: bool = True
) -> ListPage[Regression]:
    """Return the matching regressions in the requested order. A page past the end is empty, with the true total.

    Without evidence, their causes are those recorded when they opened, which are much faster to read.
    `total`: the number of matches, if it was counted before.
    """
    conditions = [*_conditions(query), *_in_state(query.state)]
    if total is None:
        total = session.execute(_joined(select(func.count())).where(*conditions)).scalar_one()
    # Finds ids first, because sorting the wide rows of all earlier pages costs more than reading one page.
    numbers = _joined(select(col(RegressionRow.id))).where(*conditions).order_by(*_order(query.sort))
    on_page = numbers.limit(query.page_size).offset((query.page - 1) * query.page_size)
    chosen = col(RegressionRow.id).in_(session.execute(on_page).scalars().all())
    rows = session.execute(_joined(select(RegressionRow, ProjectRow)).where(chosen).order_by(*_order(query.sort))).all()
    regressions = _with_members(session, rows)
    if with_evidence:
        regressions = tuple(_with_shown_cause(session, item) for item in regressions)
    return ListPage(regressions, total, query.page, query.page_size)


REGRESSION_COLUMNS: Mapping[str, CellKind] = {
    "id": "int", "project": "text", "state": "text", "kind": "text", "metric": "text", "cause": "text", "axis": "text",
    "stacks": "int", "first_run": "int", "worst_delta_pct": "float", "gpu_hours_per_day": "float", "assignee": "text",
    "note": "text", "external_url": "text", "opened_at": "time", "changed_at": "time",
}  # fmt: skip
"""Columns of the list as a table. `cause`: as recorded when the regression opened."""
_ROWS_AT_ONCE = 200


def regression_rows(engine: Engine, query: RegressionQuery) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all matching regressions in batches. Each batch is read in its own session."""
    page_number, is_last = 1, False
    while not is_last:
        with read_session(engine) as session:
            numbered = query.model_copy(update={"page": page_number, "page_size": _ROWS_AT_ONCE})
            page = find_regressions(session, numbered, with_evidence=False)
        yield [tuple(_cell(item, name) for name in REGRESSION_COLUMNS) for item in page.items]
        page_number, is_last = page_number + 1, not page.has_next


def _cell(item: Regression, name: str) -> Any:
    if name == "stacks":
        return stacks_of(item.jobs)
    return min((member.run_id for member in item.members), default=None) if name == "first_run" else getattr(item, name)


@dataclass(frozen=True, slots=True)
class StateCounts:
    """Counts of all matches of a query whatever their state, and the cost of its active ones.

    `by_state`: by state filter. `proposed`, `in_work`: active ones with a proposal, and acknowledged ones without.
    """

    by_state: Mapping[str, int]
    proposed: int
    in_work: int
    cost: SumOfCosts

    @property
    def triage(self) -> int:
        """Return the number of active regressions that wait for a decision: open ones, and those with a proposal."""
        return self.by_state[ACTIVE_STATES] - self.in_work


def count_states(session: Session, query: RegressionQuery) -> StateCounts:
    """Count the matches by state, ignoring the state filter of the query, and add up the costs of the active ones."""
    state, is_proposed = col(RegressionRow.state), col(RegressionRow.proposal) != ""
    counted = _joined(select_any(state, is_proposed, func.count(), *SUMS_OF_COSTS)).where(*_conditions(query))
    counts = dict.fromkeys((*STATES, ACTIVE_STATES, TO_CLOSE, CLOSED, ANY_STATE), 0)
    in_work, costs = 0, []
    for name, has_proposal, number, *cost in session.execute(counted.group_by(state, is_proposed)):
        is_active = name in ACTIVE
        shown = (name, ANY_STATE, ACTIVE_STATES if is_active else CLOSED)
        for counter in (*shown, TO_CLOSE) if is_active and has_proposal else shown:
            counts[counter] += number
        if is_active:
            costs.append(tuple(cost))
            in_work += number if name != "open" and not has_proposal else 0
    return StateCounts(counts, counts[TO_CLOSE], in_work, SumOfCosts.total(costs))


def to_close(session: Session, query: RegressionQuery) -> tuple[ProposedClosing, ...]:
    """Return the matching active regressions that the service proposes to close."""
    return proposed_closings(session, *_conditions(query), *_in_state(query.state))


def get_regression(session: Session, regression_id: int) -> Regression:
    """Return a regression. Raises NotFound."""
    rows = session.execute(
        _joined(select(RegressionRow, ProjectRow)).where(col(RegressionRow.id) == regression_id)
    ).all()
    if not rows:
        raise NotFound(f"Regression {regression_id} does not exist. It may have been deleted.")
    return _with_shown_cause(session, _with_members(session, rows)[0])


def options_of(session: Session) -> Options:
    """Return sorted values for select boxes. GPUs and models are those of all runs, because reading members is slow."""
    of_runs = filter_values(session, "gpu", "model")
    has_any = exists(select(col(RegressionRow.id)).where(col(RegressionRow.project_id) == ProjectRow.id))
    projects = select(col(ProjectRow.slug)).where(has_any).order_by(col(ProjectRow.slug))
    assignees = select(col(RegressionRow.assignee)).distinct().where(col(RegressionRow.assignee) != "")
    return Options(
        tuple(session.execute(projects).scalars()),
        tuple(sorted(session.execute(assignees).scalars())),
        of_runs["gpu"],
        of_runs["model"],
    )


def _joined(wanted: Any) -> Select[Any]:
    chosen: Select[Any] = wanted.select_from(RegressionRow)
    return chosen.join(ProjectRow, col(ProjectRow.id) == RegressionRow.project_id)


def _in_state(state: str) -> list[ColumnElement[bool]]:
    if state == ANY_STATE:
        return []
    if state == CLOSED:
        return [col(RegressionRow.state).not_in(ACTIVE)]
    if state == TO_CLOSE:
        return [*_in_state(ACTIVE_STATES), col(RegressionRow.proposal) != ""]
    return [col(RegressionRow.state).in_(ACTIVE if state == ACTIVE_STATES else (state,))]


def _conditions(query: RegressionQuery) -> list[ColumnElement[bool]]:
    """Return the conditions of all filters except the state."""
    equal = {"project": col(ProjectRow.slug), "metric": col(RegressionRow.metric), "kind": col(RegressionRow.kind)}
    active = query.active
    conditions: list[ColumnElement[bool]] = [column == active[name] for name, column in equal.items() if name in active]
    if query.assignee:
        conditions.append(col(RegressionRow.assignee) == ("" if query.assignee == NOBODY else query.assignee))
    if query.axis:
        conditions.append(has_axis(query.axis))
    for value, column in ((query.gpu, col(StackRow.gpu)), (query.model, col(StackRow.model))):
        if value:
            # All runs of a stack have one GPU and model, and there are far fewer stacks than runs.
            stacks = select(col(StackRow.stack_key)).where(column.is_(None) if value == UNKNOWN else column == value)
            members = select(col(RegressionMemberRow.regression_id)).where(
                col(RegressionMemberRow.stack_key).in_(stacks)
            )
            conditions.append(col(RegressionRow.id).in_(members))
    return conditions + [_mentions(word) for word in query.q.split()]


def _some_member(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that one of the regression's slow runs matches."""
    return exists(
        select(col(RunRow.id))
        .join(RegressionMemberRow, col(RegressionMemberRow.run_id) == RunRow.id)
        .where(col(RegressionMemberRow.regression_id) == RegressionRow.id, condition)
    )


def _mentions(word: str) -> ColumnElement[bool]:
    """Return the condition that a regression matches a word of the search: part of a text, a number or a stack key."""
    number = word.removeprefix("#")
    # Ids fit in 63 bits; a longer number is part of a text, not an id.
    is_number = number.isascii() and number.isdigit() and len(number) < 19
    by_id = col(RegressionRow.id) == int(number) if is_number else false()
    by_run = col(RunRow.id) == int(number) if is_number else false()
    own = (RegressionRow.cause, RegressionRow.assignee, RegressionRow.note, RegressionRow.external_url, ProjectRow.slug)
    of_run = (RunRow.name, RunRow.branch, RunRow.commit, RunRow.model, RunRow.gpu, RunRow.dispatcher)
    by_stack = col(RunRow.stack_key).startswith(word, autoescape=True)
    return or_(by_id, *_contain(own, word), _some_member(or_(by_run, by_stack, *_contain(of_run, word))))


def _contain(columns: Iterable[Any], word: str) -> list[ColumnElement[bool]]:
    return [func.lower(col(column)).contains(word.lower(), autoescape=True) for column in columns]


def _order(sort: str) -> tuple[ColumnElement[Any], ...]:
    columns: dict[str, Any] = {
        "cost": col(RegressionRow.gpu_hours_per_day),
        "age": col(RegressionRow.opened_at),
        "size": col(RegressionRow.worst_delta_pct),
    }
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    column = columns[name]
    # The oldest regression has the earliest time.
    ordered = column.desc() if descending != (name == "age") else column.asc()
    # Sorting by `is null` first puts missing figures last in both directions and on both databases.
    # Regressions with a proposal only wait for a click.
    over = [col(RegressionRow.proposal) != ""] if name == "cost" else []
    return (*over, column.is_(None), ordered, col(RegressionRow.id).desc())


_MEMBERS: Select[Any] = (
    select_any(
        RegressionMemberRow, RunRow.name, RunRow.branch, RunRow.commit, RunRow.ordered_at, RunRow.quarantine,
        RunRow.model, RunRow.gpu, RunRow.gpus, RunRow.dispatcher, RunRow.job,
    )
    .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
    .where(col(RegressionMemberRow.regression_id).in_(bindparam("ids", expanding=True)))
    .order_by(col(RegressionMemberRow.joined_at), col(RegressionMemberRow.run_id))
)  # fmt: skip


def _with_members(session: Session, rows: Sequence[Row[Any]]) -> tuple[Regression, ...]:
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
    last_ran = {key: at for key, at in last_own_runs(session, idle).items() if stored[key].proposal != "fixed"}
    members: dict[int, list[Row[Any]]] = {id_: [] for id_ in ids}
    for row in member_rows:
        members[row.RegressionMemberRow.regression_id].append(row)
    regressions = (_regression(row, members[row.RegressionRow.id], names, stored, back) for row in rows)
    return tuple(_with_newest(session, item, last_ran, later) for item in regressions)


def _with_newest(
    session: Session,
    regression: Regression,
    last_ran: Mapping[tuple[int, int], datetime],
    later: Mapping[tuple[int, int], Sequence[LaterRun]],
) -> Regression:
    """Add the runs that show where its jobs are now, in later containers and clusters as well."""
    counted = regression.counted_jobs
    keys = [(regression.id, member.run_id) for job in counted for member in job.stacks]
    runs = [(job, later.get((regression.id, job.last.run_id), ())) for job in counted]
    newest = max(((job, of[-1]) for job, of in runs if of), key=lambda pair: pair[1].ordered_at, default=None)
    streaks = [(job, streak[0]) for job, of in runs if job.is_back and (streak := slow_again(of))]
    again = min(streaks, key=lambda pair: pair[1].ordered_at, default=None)
    at = max((last_ran[key] for key in keys if key in last_ran), default=None)
    back_runs = (
        (job, run)
        for job in regression.jobs
        for run in later.get((regression.id, job.last.run_id), ())
        if regression.is_back and run.id == regression.proposal_run_id
    )
    back = next(back_runs, None)
    return replace(
        regression,
        last_ran=max(at, newest[1].ordered_at) if at and newest else at,
        newest=_run_of_job(session, *newest) if newest else None,
        again=_run_of_job(session, *again) if again and not regression.proposal else None,
        back_in=_run_of_job(session, *back).place if back else "",
    )


def _run_of_job(session: Session, job: SlowJob, run: LaterRun) -> RunOfJob:
    return RunOfJob(run.id, run.ordered_at, run.change_pct, _place(session, job.last.stack_key, run.stack_key))


def _place(session: Session, own: str, other: str) -> str:
    """Return the parts of a stack's name that another stack lacks, such as the container: `26.02-py3`."""
    names = names_of_stacks(session, {own, other})
    return without_common([names.get(own, ""), names.get(other, "")])[1]


_MOST_ELSEWHERE = 20


@dataclass(frozen=True, slots=True)
class SlowElsewhere:
    """A run of a job that is as slow in another container or cluster. `is_before`: it precedes the first slow run."""

    id: int
    stack_key: str
    ordered_at: datetime
    name: str
    is_steady: bool | None
    is_before: bool


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
    chosen = select_any(*columns, is_before.label("is_before")).where(
        *slow_in_other_stacks(regression.project_id, first, regression.metric, middle, since),
        is_before | col(RunRow.stack_key).not_in([member.stack_key for member in job.stacks]),
    )
    in_order = chosen.order_by(col(RunRow.ordered_at), col(RunRow.id)).limit(_MOST_ELSEWHERE)
    return tuple(SlowElsewhere(*row) for row in session.execute(in_order))


def first_elsewhere(session: Session, regression: Regression) -> int | None:
    """Return the run that was as slow in another stack before the first slow run of the counted jobs, if any."""
    runs = (run for job in regression.counted_jobs for run in slow_elsewhere(session, regression, job))
    first = min((run for run in runs if run.is_before), key=lambda run: (run.ordered_at, run.id), default=None)
    return first.id if first else None


def alternating_levels(session: Session, regression: Regression) -> tuple[float, float] | None:
    """Return the two levels (ms) of the first counted job that alternates between them, if any."""
    if regression.metric != "step_time_ms":
        return None
    measured = ((job.first.run_id, job.first.usual, job.first.slow) for job in regression.counted_jobs)
    levels = (
        alternation(session, session.get_one(RunRow, run_id), usual, slow)
        for run_id, usual, slow in measured
        if usual and slow and slow > usual
    )
    return next((both for both in levels if both), None)


def _with_shown_cause(session: Session, item: Regression) -> Regression:
    return replace(item, cause=shown_cause(session, item, [job.first.run_id for job in item.counted_jobs]))


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
    """Return the name of the stack, with the job if several jobs of it are members."""
    key = member.RegressionMemberRow.stack_key
    jobs = {other.job for other in members if other.RegressionMemberRow.stack_key == key}
    job = [short_job(member.job, jobs)] if len(jobs) > 1 else []
    return SEPARATOR.join([names.get(key, key[:12]), *job])
