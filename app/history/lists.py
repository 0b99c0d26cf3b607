"""The list of stacks, newest runs first: fields, number of runs and current state."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any

from sqlalchemy import ColumnElement, Row, Select, bindparam, select
from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.naming import SEPARATOR, TitledStack, container_tag, short_job, stack_title
from app.domain.numbers import contract_value
from app.domain.run import Stated, Value
from app.domain.verdict.triage import ACTIVE, is_half_gone, state_text
from app.domain.verdict.words import knobs_text
from app.history.page import HistoryPage
from app.history.queries import (
    EXTENTS,
    VERDICTS,
    HistoryStack,
    HistoryView,
    get_stack,
    get_stacks,
    read_histories,
    works_of_stacks,
)
from app.history.workloads import configuration_steps
from app.storage.database import ListPage
from app.storage.remembered import Remembered
from app.storage.runs import RunListItem, filter_values, runs_by_id, stored_contracts
from app.storage.search import search_conditions
from app.storage.stacks import unique_names
from app.storage.suspect_evidence import alternation
from app.storage.tables import (
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunRow,
    StackRow,
    select_any,
)
from app.storage.verdicts import changes_of_jobs
from app.web.lists import ListQuery, OneOf
from app.web.sparklines import (
    OF_STACK,
    READ,
    RECENT,
    SPARK_RUNS,
    SlowRun,
    Sparkline,
    TimedRun,
    is_timed,
    leading_runs,
    regression_sparklines,
    sparkline,
    timed_runs,
)

# --- Filters of the list of stacks. The query string is the whole state of the page, so it is validated as input.

UNKNOWN = "unknown"
"""Value of the filters `model`, `gpu` and `dispatcher` for unknown."""


MOST_STACKS = 500
"""Newest stacks that the list groups by workload; filters reach the older ones."""
MOST_EARLIER = 1
"""Earlier containers of a workload that its row links to; the page of its stack has all."""
LEAST_RANGE = 0.12
"""Minimum range of the trend in a row as a share of the step time, so that rows are comparable."""


class StackQuery(ListQuery):
    """Filters of the list of stacks. `q`: words that must all occur. `verdict`: of the last judged run."""

    page_size: int = 25
    q: str = ""
    project: str = ""
    model: str = ""
    gpu: str = ""
    dispatcher: str = ""
    verdict: Annotated[str, OneOf(VERDICTS)] = ""


NO_NAME = "?"
"""The name of an unknown dispatcher in `StackRow.dispatchers`."""
_JUDGED = OF_STACK.where(col(RunRow.verdict) != "", col(RunRow.purpose) != "experiment").limit(1)
_IN_NAME = ("cluster", "seq_len", "gbs", "mbs", "precision", "pp", "pp_layout", "graph_modules", "task", "data_mode")
"""Fields that distinguish stacks with the same title, where known."""


@dataclass(frozen=True, slots=True)
class StackRegression:
    """The newest active step-time regression of a stack, with the first slow run of the job that changed most.

    `config_key`: of that run. `later`: what followed. `is_stale`: its jobs no longer run. `state`: as pages name it.
    `alternates`: the levels (ms) between which the job alternates, as the page of the stack says.
    """

    number: int
    is_stale: bool
    state: str
    delta_pct: float | None
    job: str
    config_key: str
    slow: SlowRun
    later: "LaterChange | None" = None
    alternates: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class LaterChange:
    """What followed a regression: its job continued with another configuration, at `step_times`.

    `knobs`: that changed, as text; empty if unknown.
    """

    delta_pct: float
    knobs: str
    step_times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StackItem:
    """One row of the list. `model` and similar fields are None if unknown. `also`: other distinguishing fields.

    `group`: shared with its neighbours in the list (model, GPUs, routing); `name`: parts that distinguish it.
    `step_time_ms`, `spark`: of one job, that of `regression` if it has one; in a list after those in the container
    before. `job`: its name where the stack has several. `verdict`: that of its last judged run, `judged`: that run as
    in the list of runs. `not_counted`: why its step time, of the newest run, does not count; then none does. `idle`:
    other regressions of the step time of its jobs, in any container, that are stale. `earlier`: key and container of
    the same work in other containers, newest first, at most MOST_EARLIER; `more_earlier`: number of the others.
    """

    stack_key: str
    title: str
    group: str
    name: tuple[str, ...]
    project: str
    generated: bool
    model: str | None
    gpu: str | None
    gpus: int | None
    also: tuple[tuple[str, Any], ...]
    dispatchers: tuple[str, ...]
    runs: int
    last_at: datetime
    verdict: str
    verdict_run_id: int | None
    step_time_ms: float | None
    job: str = ""
    spark: Sparkline | None = None
    regression: StackRegression | None = None
    earlier: tuple[tuple[str, str], ...] = ()
    more_earlier: int = 0
    judged: RunListItem | None = None
    idle: tuple[int, ...] = ()
    not_counted: str = ""

    @property
    def newest_pct(self) -> float | None:
        """Return the change of the slow job's newest run if it is less than half of the regression's; else None."""
        regression, usual = self.regression, self.regression.slow.usual if self.regression else None
        if regression is None or regression.later or not usual or self.step_time_ms is None or self.not_counted:
            return None
        newest = 100 * (self.step_time_ms / usual - 1)
        return newest if is_half_gone(regression.delta_pct, newest) else None

    @property
    def has_state(self) -> bool:
        """Return whether its row has a trend or a slowdown to show."""
        is_slower = self.judged is not None and self.judged.badge == "regression"
        return bool(self.spark or self.regression or self.idle or is_slower)

    @property
    def fields_text(self) -> str:
        """Return the distinguishing fields and the stack key, for a tooltip."""
        return ", ".join([*(f"{name} {contract_value(value)}" for name, value in self.also), self.stack_key[:8]])


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The choices of the select boxes."""

    projects: tuple[str, ...]
    models: tuple[str, ...]
    gpus: tuple[str, ...]
    dispatchers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StackPage(ListPage[StackItem]):
    """One page of workloads. `slow`: number of matching workloads with an active step-time regression, `idle`: those of
    them all of whose regressions are stale.

    `is_cut`: whether only the MOST_STACKS newest matching stacks are grouped.
    """

    slow: int = field(default=0, kw_only=True)
    idle: int = field(default=0, kw_only=True)
    is_cut: bool = field(default=False, kw_only=True)


def find_stacks(session: Session, query: StackQuery) -> StackPage:
    """Return the newest stack of each matching workload, those with comparable runs first.

    A page past the end is empty, with the true total.
    """
    wanted = (
        select_any(
            StackRow.stack_key, StackRow.project_id, StackRow.model, StackRow.gpu, StackRow.gpus, StackRow.runs,
            StackRow.verdict, StackRow.revision,
        )
        .where(*_conditions(session, query))
        .order_by(col(StackRow.last_at).desc(), col(StackRow.stack_key).desc())
        .limit(MOST_STACKS)
    )  # fmt: skip
    rows = session.execute(wanted).all()
    runs = {row.stack_key: row.runs for row in rows}
    compared = {row.stack_key for row in rows if row.verdict not in ("", "no_baseline")}
    revisions = {row.stack_key: row.revision for row in rows}
    groups = _newest_first(session, _by_workload(session, rows), revisions)
    regressed, stale = _regressed(session, list(runs))
    carried = _carried(session, groups, regressed, revisions)
    regressed = {newest: regressed[newest] for newest, *_ in groups if newest in regressed} | carried
    idle = {
        keys[0]: sorted(numbers - ({regressed[keys[0]].number} if keys[0] in regressed else set()), reverse=True)
        for keys in groups
        if (numbers := set[int]().union(*(stale.get(key, ()) for key in keys)))
    }
    slow = regressed.keys() | idle.keys()
    only_idle = [key for key in slow if key not in regressed or regressed[key].is_stale]
    # A trend means that runs were compared with each other.
    groups.sort(
        key=lambda keys: (
            keys[0] not in slow and compared.isdisjoint(keys),
            sum(runs[key] for key in keys) < 2,
        )
    )
    page = ListPage.cut(groups, query.page, query.page_size)
    others = {newest: keys for newest, *keys in page.items}
    own_regressions = {key: regressed[key] for key in others if key in regressed and key not in carried}
    carried |= _alternating(session, own_regressions, {key: [key, *others[key]] for key in own_regressions}, revisions)
    regressed |= carried
    shown = {newest: keys[:MOST_EARLIER] for newest, keys in others.items()}
    works = works_of_stacks(session, [key for keys in shown.values() for key in keys])
    read = _read_stacks_of(session, [key for newest, keys in shown.items() for key in (newest, *keys[:1])])
    own = [key for key in own_regressions if key not in carried]
    later = _later(session, read, {key: regressed[key] for key in own})
    for key, change in later.items():
        slow_run = replace(regressed[key].slow, then=change.step_times)
        regressed[key] = replace(regressed[key], slow=slow_run, later=change)
    drawn = regression_sparklines(session, [regressed[key].slow for key in own], least=LEAST_RANGE)
    listed = stacks_of(session, list(others))
    items = tuple(
        replace(
            _of_regression(item, regressed[item.stack_key], read.get(item.stack_key), drawn)
            if item.stack_key in own
            else replace(
                item,
                spark=_trend(read, item.stack_key, shown[item.stack_key]),
                regression=carried.get(item.stack_key),
            ),
            earlier=tuple((key, works[key][1] or "unknown container") for key in shown[item.stack_key]),
            more_earlier=len(others[item.stack_key]) - len(shown[item.stack_key]),
            idle=tuple(idle.get(item.stack_key, ())),
        )
        for item in listed
    )
    is_cut = len(rows) == MOST_STACKS
    return StackPage(items, page.total, page.page, page.page_size, slow=len(slow), idle=len(only_idle), is_cut=is_cut)


def stack_options(session: Session) -> StackOptions:
    projects = tuple(session.execute(select_any(ProjectRow.slug).order_by(ProjectRow.slug)).scalars())
    values = filter_values(session, "model", "gpu", "dispatcher")
    return StackOptions(projects, values["model"], values["gpu"], values["dispatcher"])


def stacks_of(session: Session, keys: Sequence[str]) -> tuple[StackItem, ...]:
    """Return the stacks with these keys, newest runs first."""
    chosen = select(StackRow).where(col(StackRow.stack_key).in_(keys)).order_by(col(StackRow.last_at).desc())
    items = _items(session, session.execute(chosen).scalars().all())
    judged = runs_by_id(session, [item.verdict_run_id for item in items if item.verdict_run_id is not None])
    by_id = {run.id: run for run in judged}
    return tuple(replace(item, judged=by_id.get(item.verdict_run_id or 0)) for item in items)


@dataclass(frozen=True, slots=True)
class _ReadStack:
    """The row of a stack without name and project, and the parts of its name.

    `job`, `config_key`, `dispatcher` and `step_times`: of its leading runs. `jobs`: of its newest runs.
    `of_job`: the newest counted runs of that job in any configuration, oldest first.
    """

    item: StackItem
    container: str
    values: Mapping[str, Value]
    job: str
    config_key: str
    jobs: tuple[str, ...]
    dispatcher: str
    step_times: tuple[float, ...]
    of_job: tuple[TimedRun, ...]


_read_stacks = Remembered[_ReadStack](4000)
_sparkline = lru_cache(4000)(sparkline)
"""Sparklines, kept because drawing takes longer than the rest of an unchanged row."""


def _items(session: Session, stacks: Sequence[StackRow]) -> list[StackItem]:
    read = _read_all(session, stacks)
    projects = {row.id: row for row in session.execute(_PROJECTS, {"ids": [stack.project_id for stack in stacks]})}
    # The stacks of a group are listed together, at the position of the newest stack.
    groups: dict[tuple[str, str], list[StackItem]] = {}
    names = unique_names(session, (TitledStack(key, row.item.title, "", row.values) for key, row in read.items()))
    for stack in stacks:
        if row := read.get(stack.stack_key):
            project = projects[stack.project_id]
            parts = names[stack.stack_key].split(SEPARATOR)[len(row.item.group.split(SEPARATOR)) :]
            item = replace(
                row.item,
                name=tuple(parts if row.container else ["unknown container", *parts]),
                spark=_sparkline(row.step_times, least=LEAST_RANGE),
                project=project.slug,
                generated=project.generated,
            )
            groups.setdefault((project.slug, item.group), []).append(item)
    return [item for group in groups.values() for item in group]


def _read_stacks_of(session: Session, keys: Sequence[str]) -> dict[str, _ReadStack]:
    chosen = select(StackRow).where(col(StackRow.stack_key).in_(keys))
    return _read_all(session, session.execute(chosen).scalars().all())


def _read_all(session: Session, stacks: Sequence[StackRow]) -> dict[str, _ReadStack]:
    """Return the stacks by key. It reads only stacks whose runs have changed since the last call."""
    database = str(session.get_bind().engine.url)
    read: dict[str, _ReadStack] = {}
    for stack in stacks:
        if row := _read_stacks.find((database, stack.project_id, stack.stack_key), (stack.revision, stack.last_at)):
            read[stack.stack_key] = row
    changed = [stack for stack in stacks if stack.stack_key not in read]
    for stack, row in _read(session, changed) if changed else ():
        _read_stacks.keep((database, stack.project_id, stack.stack_key), (stack.revision, stack.last_at), row)
        read[stack.stack_key] = row
    return read


def _trend(read: Mapping[str, _ReadStack], key: str, earlier: Sequence[str]) -> Sparkline | None:
    """Return the sparkline of a workload: its job in the previous container, then in the newest one."""
    own = read.get(key)
    if own is None:
        return None
    before = read.get(earlier[0]) if earlier else None
    of_job = before is not None and (before.job, before.dispatcher) == (own.job, own.dispatcher)
    previous = before.step_times[-SPARK_RUNS // 2 :] if before is not None and of_job else ()
    values = (*previous, *own.step_times) if own.step_times else ()
    return _sparkline(values, least=LEAST_RANGE)


def _of_regression(
    item: StackItem,
    regression: StackRegression,
    read: _ReadStack | None,
    drawn: Mapping[SlowRun, Sparkline | None],
) -> StackItem:
    """Return the row with the step time and sparkline of the slow job."""
    spark, jobs = drawn[regression.slow], read.jobs if read else ()
    return replace(
        item, regression=regression, spark=spark, step_time_ms=spark.last if spark else item.step_time_ms,
        not_counted="" if spark else item.not_counted,
        job=short_job(regression.job, jobs) if len({regression.job, *jobs}) > 1 else "",
    )  # fmt: skip


def _later(
    session: Session, read: Mapping[str, _ReadStack], regressed: Mapping[str, StackRegression]
) -> dict[str, LaterChange]:
    """Return what followed the regressions whose configuration has been replaced in their job, by stack key.

    The change matches the page of the stack.
    """
    replaced: dict[str, tuple[int, tuple[float, ...]]] = {}
    for key, regression in regressed.items():
        stack = read.get(key)
        if stack is None or stack.job != regression.job or stack.config_key == regression.config_key:
            continue
        old = [run for run in stack.of_job if run.config_key == regression.config_key]
        new = [run for run in stack.of_job if run.config_key == stack.config_key]
        if old and new and stack.of_job.index(old[-1]) < stack.of_job.index(new[0]):
            replaced[key] = new[0].id, tuple(run.step_time_ms for run in new)
    by_project: dict[int, list[HistoryStack]] = {}
    for own in get_stacks(session, list(replaced)).values() if replaced else ():
        by_project.setdefault(own.project_id, []).append(own)
    histories = [history for stacks in by_project.values() for history in read_histories(session, stacks)]
    return {
        history.stack.stack_key: LaterChange(step.delta_pct, knobs_text(step.knobs), step_times)
        for history in histories
        for first, step_times in (replaced[history.stack.stack_key],)
        for step in configuration_steps(session, history)
        if step.run.id == first and step.delta_pct is not None
    }


def _regressed(session: Session, keys: Sequence[str]) -> tuple[dict[str, StackRegression], dict[str, set[int]]]:
    """Return by stack its newest step-time regression that is not idle, else its newest idle one, and all idle ones.

    Only stacks that are still slow have one.
    """
    chosen = (
        select_any(
            RegressionMemberRow, RegressionRow.project_id, RegressionRow.state, RegressionRow.proposal, RunRow.job
        )
        .join(RegressionRow, col(RegressionRow.id) == RegressionMemberRow.regression_id)
        .join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .where(
            col(RegressionMemberRow.stack_key).in_(keys),
            col(RegressionRow.metric) == "step_time_ms",
            col(RegressionRow.state).in_(ACTIVE),
            col(RegressionMemberRow.proposal) != "fixed",
        )
        .order_by(col(RegressionRow.proposal) != "stale", col(RegressionRow.id), col(RegressionMemberRow.delta_pct))
    )
    rows = session.execute(chosen).all()
    changes = changes_of_jobs(session, {row.RegressionMemberRow.regression_id for row in rows})
    stale: dict[str, set[int]] = {}
    for row in rows:
        if row.proposal == "stale":
            stale.setdefault(row.RegressionMemberRow.stack_key, set()).add(row.RegressionMemberRow.regression_id)
    newest = {
        member.stack_key: StackRegression(
            member.regression_id, proposal == "stale", state_text(state, proposal),
            changes[member.regression_id, member.run_id], job,
            member.config_key,
            SlowRun(
                project_id, member.stack_key, member.run_id,
                None if member.usual_level is None else math.exp(member.usual_level),
            ),
        )
        for member, project_id, state, proposal, job in rows
    }  # fmt: skip
    return newest, stale


_carried_alarms = Remembered[tuple[StackRegression | None]](4000)
_MOST_CARRIED = 25
"""Number of workloads, the newest, whose pages are read for the list. A page costs up to 50 ms the first time."""


def _carried(
    session: Session,
    groups: Sequence[Sequence[str]],
    regressed: Mapping[str, StackRegression],
    revisions: Mapping[str, int],
) -> dict[str, StackRegression]:
    """Return the regressions that began in an earlier container and that the page of the workload is about.

    By the newest stack, which has no regression of its own. The page is read again only after a run or regression of
    the workload has changed.
    """
    database = str(session.get_bind().engine.url)
    carried = {}
    moved = [group for group in groups if group[0] not in regressed and not regressed.keys().isdisjoint(group[1:])]
    for newest, *earlier in moved[:_MOST_CARRIED]:
        state = tuple((key, revisions[key], regressed.get(key)) for key in (newest, *earlier))
        row = _carried_alarms.find((database, newest), state)
        if row is None:
            row = (_of_page(session, newest),)
            _carried_alarms.keep((database, newest), state, row)
        if row[0] is not None:
            carried[newest] = row[0]
    return carried


_alternating_jobs = Remembered[tuple[StackRegression | None]](4000)


def _alternating(
    session: Session,
    regressed: Mapping[str, StackRegression],
    groups: Mapping[str, Sequence[str]],
    revisions: Mapping[str, int],
) -> dict[str, StackRegression]:
    """Return the regressions, as their pages name them, of jobs that alternate between two levels, by newest stack."""
    database = str(session.get_bind().engine.url)
    alternating = {}
    for newest, regression in regressed.items():
        state = (regression, *((key, revisions[key]) for key in groups[newest]))
        row = _alternating_jobs.find((database, newest), state)
        if row is None:
            usual, pct = regression.slow.usual, regression.delta_pct
            first = session.get_one(RunRow, regression.slow.run_id)
            is_likely = usual and pct and pct > 0 and alternation(session, first, usual, usual * (1 + pct / 100))
            row = (_of_page(session, newest) if is_likely else None,)
            _alternating_jobs.keep((database, newest), state, row)
        if row[0] is not None and row[0].alternates:
            alternating[newest] = row[0]
    return alternating


def _of_page(session: Session, stack_key: str) -> StackRegression | None:
    """Return the regression that leads the page of a stack, else that of its primary button, unless idle."""
    stack = get_stack(session, stack_key)
    page = HistoryPage(session, stack, "", HistoryView()) if stack else None
    alarm = page.leading_alarm if page else None
    if page and alarm is None and (first := page.first_alarm) and first.metric == "step_time_ms" and not first.proposal:
        alarm = first
    run = session.get(RunRow, alarm.run_id) if alarm else None
    if page is None or alarm is None or run is None:
        return None
    return StackRegression(
        alarm.regression_id, alarm.is_stale, state_text(alarm.shown_state, alarm.proposal), alarm.delta_pct,
        run.job, run.config_key,
        SlowRun(run.project_id, run.stack_key, alarm.run_id, alarm.usual_ms), alternates=page.alternates,
    )  # fmt: skip


_PROJECTS: Select[Any] = select_any(ProjectRow.id, ProjectRow.slug, ProjectRow.generated).where(
    col(ProjectRow.id).in_(bindparam("ids", expanding=True))
)


def _read(session: Session, stacks: Sequence[StackRow]) -> Iterator[tuple[StackRow, _ReadStack]]:
    recent = {stack.stack_key: session.execute(RECENT, _key(stack)).all() for stack in stacks}
    contracts = stored_contracts(session, [rows[0].id for rows in recent.values() if rows])
    for stack in stacks:
        if rows := recent[stack.stack_key]:
            contract = contracts[rows[0].id]
            leading = leading_runs(rows)
            judged = _last_judged(session, stack, rows, leading[-1].job if leading else None) if stack.verdict else None
            values = {name: stated.value for name, stated in contract.items() if stated.value is not None}
            item = _item(rows, stack, contract, judged, leading[-1].step_time_ms if leading else None)
            timed = None if leading else next(filter(is_timed, rows), None)
            if timed is not None:
                reason = "short" if timed.short else "not steady"
                item = replace(item, step_time_ms=timed.step_time_ms, not_counted=reason)
            job, jobs = leading[-1].job if leading else "", tuple(sorted({row.job for row in rows}))
            if leading and len(jobs) > 1:
                item = replace(item, job=short_job(job, jobs))
            yield stack, _ReadStack(
                item, container_tag(contract), values, job=job, jobs=jobs,
                config_key=leading[-1].config_key if leading else "",
                dispatcher=(leading[-1].dispatcher or "") if leading else "",
                step_times=tuple(run.step_time_ms for run in leading),
                of_job=timed_runs(rows, job) if leading else (),
            )  # fmt: skip


def _by_workload(session: Session, rows: Sequence[Row[Any]]) -> list[list[str]]:
    """Return the stack keys of each workload, in the order of `rows`, so that the newest stack is first."""
    # Stacks without others on the same hardware need no contract.
    hardware = Counter(row[1:5] for row in rows)
    works = works_of_stacks(session, [row.stack_key for row in rows if hardware[row[1:5]] > 1])
    together: dict[object, list[str]] = {}
    containers: dict[object, set[str]] = {}
    for row in rows:
        work, container = works.get(row.stack_key, (row.stack_key, ""))
        own = row.project_id, work
        before = containers.setdefault(own, set())
        if container in before:
            together[row.project_id, row.stack_key] = [row.stack_key]  # such stacks differ in more than these fields
        else:
            before.add(container)
            together.setdefault(own, []).append(row.stack_key)
    return list(together.values())


_began = Remembered[datetime](10_000)


def _newest_first(
    session: Session, groups: Sequence[Sequence[str]], revisions: Mapping[str, int]
) -> list[Sequence[str]]:
    """Return the groups with the container first that began last, as on the page of the workload."""
    database = str(session.get_bind().engine.url)
    keys = [key for group in groups if len(group) > 1 for key in group]
    began = {key: at for key in keys if (at := _began.find((database, key), revisions[key])) is not None}
    if unread := [key for key in keys if key not in began]:
        for row in session.execute(EXTENTS, {"stack_keys": unread}):
            began[row.stack_key] = row.first_at or row.last_at
            _began.keep((database, row.stack_key), revisions[row.stack_key], began[row.stack_key])
    return [sorted(group, key=began.__getitem__, reverse=True) if len(group) > 1 else group for group in groups]


def _key(stack: StackRow) -> dict[str, Any]:
    return {"project_id": stack.project_id, "stack_key": stack.stack_key}


def _last_judged(session: Session, stack: StackRow, rows: Sequence[Row[Any]], job: str | None) -> Row[Any] | None:
    """Return the last judged run: of `job`, whose step time the row has, else of the stack."""
    own = (row for row in rows if row.verdict and row.purpose != "experiment" and job in (None, row.job))
    judged = next(own, None)
    return judged if judged or job is not None else session.execute(_JUDGED, _key(stack)).first()


def _item(
    rows: Sequence[Any], stack: StackRow, contract: dict[str, Stated], judged: Any, step_time_ms: float | None
) -> StackItem:
    """Return the row of a stack without name and project. `rows`: its newest runs, newest first.

    A dispatcher is left out if none of its newest runs has a step time: it only failed.
    """
    newest = rows[0]
    failed = {row.dispatcher for row in rows} - {row.dispatcher for row in rows if row.step_time_ms is not None}
    return StackItem(
        stack_key=newest.stack_key,
        title=stack_title(contract, dispatcher=False),
        group=stack_title({name: contract[name] for name in contract if name != "container"}, dispatcher=False),
        name=(),
        project="",
        generated=False,
        model=newest.model,
        gpu=newest.gpu,
        gpus=newest.gpus,
        also=tuple(
            (name, contract[name].value) for name in _IN_NAME if name in contract and FIELDS[name].role == "stack"
        ),
        dispatchers=tuple(sorted(name for name in stack.dispatchers.split(",") if name not in ("", NO_NAME, *failed))),
        runs=stack.runs,
        last_at=newest.ordered_at,
        verdict=judged.verdict if judged else "",
        verdict_run_id=judged.id if judged else None,
        step_time_ms=step_time_ms,
    )


def _conditions(session: Session, query: StackQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [col(StackRow.runs) > 0]
    if query.project:
        number = select_any(ProjectRow.id).where(col(ProjectRow.slug) == query.project)
        conditions.append(col(StackRow.project_id) == number.scalar_subquery())
    for name, column in (("model", col(StackRow.model)), ("gpu", col(StackRow.gpu))):
        if value := getattr(query, name):
            conditions.append(column.is_(None) if value == UNKNOWN else column == value)
    if query.dispatcher:
        name = NO_NAME if query.dispatcher == UNKNOWN else query.dispatcher
        conditions.append(col(StackRow.dispatchers).contains(f",{name},", autoescape=True))
    if query.verdict:
        conditions.append(col(StackRow.verdict) == query.verdict)
    return conditions + [_mentions(session, word) for word in query.q.split()]


def _mentions(session: Session, word: str) -> ColumnElement[bool]:
    """Return the condition that a run of the stack matches a word of the search."""
    runs = select_any(RunRow.stack_key).where(READ, *search_conditions(session, word).conditions)
    return col(StackRow.stack_key).in_(runs)
