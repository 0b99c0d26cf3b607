"""The first page: regressions by cost, newest verdicts, failed runs and newest runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, Row, Select, and_, case, exists, func, or_, select
from sqlmodel import Session, col

from app.pipeline.notify import LeaderUpdate, leader_updates
from app.storage.experiments import ExperimentFilter, find_experiments
from app.storage.projects import slugs_by_id
from app.storage.runs import (
    ENDED_BADLY,
    RunListItem,
    aware,
    count_up_to,
    filter_values,
    latest_runs,
    runs_by_id,
)
from app.storage.tables import ProjectRow, RegressionMemberRow, RegressionRow, RunRow, select_any
from app.web.lists import FilterQuery, OneOf

# --- Regressions that need action, the most expensive first.

SHOWN = 10
_NEED_SOMEBODY = ("open", "acknowledged")


@dataclass(frozen=True, slots=True)
class OverviewRegression:
    """`since_run`: its first slow run, with that run's commit and stack; `stacks`: number of stacks affected."""

    id: int
    state: str
    metric: str
    project: str
    delta_pct: float | None
    gpu_hours_per_day: float | None
    cause: str
    assignee: str
    opened_at: datetime
    stacks: int
    since_run: int | None = None
    commit: str = ""
    commit_url: str = ""
    model: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    dispatcher: str | None = None
    branch: str = ""


@dataclass(frozen=True, slots=True)
class NeedsAttention:
    """`hours`: known GPU-hours per day of open regressions, None without any; `without_cost`: unknown costs."""

    items: tuple[OverviewRegression, ...]
    open: int
    acknowledged: int
    hours: float | None
    without_cost: int


def needs_attention(session: Session, branch: str, project: str = "") -> NeedsAttention:
    """Return regressions of runs on `branch` in `project`; empty for any."""
    open_ones = col(RegressionRow.state).in_(_NEED_SOMEBODY)
    conditions = [open_ones, *_on_branch(branch), *_in_project(project)]
    cost = col(RegressionRow.gpu_hours_per_day)
    state: Any = col(RegressionRow.state)
    counted = session.execute(
        select(state, func.count(), func.sum(cost), func.count(cost)).where(*conditions).group_by(state)
    )
    by_state = {name: (count, hours, with_cost) for name, count, hours, with_cost in counted}
    opened, acknowledged = (by_state.get(name, (0, None, 0))[0] for name in _NEED_SOMEBODY)
    costs = [hours for _, hours, _ in by_state.values() if hours is not None]
    without_cost = sum(count - with_cost for count, _, with_cost in by_state.values())
    wanted: Select[Any] = select_any(RegressionRow, ProjectRow.slug, ProjectRow.commit_url)
    rows = session.execute(
        wanted.join(ProjectRow, col(ProjectRow.id) == RegressionRow.project_id)
        .where(*conditions)
        .order_by(cost.is_(None), cost.desc(), col(RegressionRow.id).desc())
        .limit(SHOWN)
    ).all()
    return NeedsAttention(_items(session, rows), opened, acknowledged, sum(costs) if costs else None, without_cost)


def _in_project(project: str) -> list[ColumnElement[bool]]:
    if not project:
        return []
    of_it: Any = select(col(ProjectRow.id)).where(col(ProjectRow.slug) == project)
    return [col(RegressionRow.project_id).in_(of_it)]


def _on_branch(branch: str) -> list[ColumnElement[bool]]:
    if not branch:
        return []
    member = (
        select(col(RunRow.id))
        .join(RegressionMemberRow, col(RegressionMemberRow.run_id) == RunRow.id)
        # As a text, so that SQLite looks the members up, and does not read all runs of the branch.
        .where(col(RegressionMemberRow.regression_id) == RegressionRow.id, col(RunRow.branch).concat("") == branch)
    )
    return [exists(member)]


def _items(session: Session, rows: Sequence[Any]) -> tuple[OverviewRegression, ...]:
    members: dict[int, list[Row[Any]]] = {}
    columns = (
        RegressionMemberRow.regression_id, RegressionMemberRow.stack_key, RunRow.id, RunRow.commit, RunRow.branch,
        RunRow.model, RunRow.gpu, RunRow.gpus, RunRow.dispatcher,
    )  # fmt: skip
    wanted: Select[Any] = select_any(*columns)
    members_of_rows = session.execute(
        wanted.join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .where(col(RegressionMemberRow.regression_id).in_([row.id for row, _, _ in rows]))
        .order_by(col(RunRow.ordered_at), col(RunRow.id))
    )
    for member in members_of_rows:
        members.setdefault(member.regression_id, []).append(member)
    return tuple(_item(row, project, commit_url, members.get(row.id or 0, [])) for row, project, commit_url in rows)


def _item(row: RegressionRow, project: str, commit_url: str, members: list[Row[Any]]) -> OverviewRegression:
    since: dict[str, Any] = {}
    if members:
        first = members[0]
        since = {
            "since_run": first.id,
            "commit": first.commit,
            "branch": first.branch,
            "model": first.model,
            "gpu": first.gpu,
        }
        since |= {"gpus": first.gpus, "dispatcher": first.dispatcher}
    return OverviewRegression(
        id=row.id or 0,
        state=row.state,
        metric=row.metric,
        project=project,
        delta_pct=row.worst_delta_pct,
        gpu_hours_per_day=row.gpu_hours_per_day,
        cause=row.cause,
        assignee=row.assignee,
        opened_at=aware(row.opened_at),
        stacks=len({member.stack_key for member in members}),
        commit_url=commit_url,
        **since,
    )


# --- Filters of the first page: period, project and branch. The query string is its whole state.

PERIODS = {"1": "24 hours", "7": "7 days", "30": "30 days", "90": "90 days"}
"""Days -> text."""


class OverviewQuery(FilterQuery):
    """Filters of the first page; `branch` and `project` empty mean any."""

    days: Annotated[str, OneOf(tuple(PERIODS))] = "7"
    branch: str = ""
    project: str = ""

    @property
    def period(self) -> str:
        return PERIODS[self.days]

    def runs_query(self, **more: str) -> str:
        """Return the query string of the list of runs, with this project and branch."""
        return urlencode(self.of_project() | ({"branch": self.branch} if self.branch else {}) | more)

    def of_project(self) -> dict[str, str]:
        return {"project": self.project} if self.project else {}

    def project_query(self, **more: str) -> str:
        """Return the query string of a list that has no branch filter."""
        return urlencode(self.of_project() | more)

    @property
    def where(self) -> str:
        """Return the filters as part of a sentence; empty without filters."""
        on = f" on {self.branch}" if self.branch else ""
        return on + (f" in {self.project}" if self.project else "")


NEWEST = 6
VERDICTS = 12
STANDINGS = 6
FAILED = 6
WAITING = ("received", "processing")

_OUTCOME = col(RunRow.outcome)
_ENDED_BADLY: ColumnElement[bool] = _OUTCOME.in_(ENDED_BADLY)
_WITHOUT_FIGURE: ColumnElement[bool] = col(RunRow.status) == "failed"


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts and newest rows for the requested project.

    `total` counts all runs, `waiting` those that no worker has read yet; `by_outcome` (failed runs) and
    `without_figure` those of the requested branch, as the list filters them. These counts end at 10,000 and more
    (`counted`). `recent` counts runs of the requested period: failed ones, and others without a figure.
    `verdicts`: the newest runs judged in it. `standings`: new leaders in it, on any branch. `branches` and `projects`:
    choices. `experiments`: number in each state, of any time.
    """

    total: int
    waiting: int
    by_outcome: Mapping[str, int]
    without_figure: int
    recent: int
    recent_ended_badly: int
    recent_without_figure: int
    attention: NeedsAttention
    verdicts: tuple[RunListItem, ...]
    branches: tuple[str, ...]
    projects: tuple[str, ...]
    standings: tuple[LeaderUpdate, ...]
    newest: tuple[RunListItem, ...]
    failed: tuple[RunListItem, ...]
    experiments: Mapping[str, int]


def overview(session: Session, query: OverviewQuery, now: datetime) -> Overview:
    """Return the state of the service at `now` (aware)."""
    project_ids = {slug: number for number, slug in slugs_by_id(session).items()}
    of_project = [col(RunRow.project_id) == project_ids.get(query.project, 0)] if query.project else []
    on_branch = [*of_project, *([col(RunRow.branch) == query.branch] if query.branch else [])]
    recent = [col(RunRow.created_at) >= now - timedelta(days=int(query.days)), *on_branch]
    badly = or_(_WITHOUT_FIGURE, _ENDED_BADLY)
    runs, ended_badly, without_figure = _recent(session, *recent)
    return Overview(
        total=count_up_to(session, *of_project),
        # One by one: SQLite would rather read all runs of the project than look up two statuses.
        waiting=sum(count_up_to(session, col(RunRow.status) == name, *of_project) for name in WAITING),
        without_figure=count_up_to(session, *on_branch, _WITHOUT_FIGURE),
        by_outcome={name: count_up_to(session, *on_branch, _OUTCOME.in_((name,))) for name in ENDED_BADLY},
        recent=runs,
        recent_ended_badly=ended_badly,
        recent_without_figure=without_figure,
        attention=needs_attention(session, query.branch, query.project),
        verdicts=_latest(session, VERDICTS, *recent, col(RunRow.verdict) != ""),
        branches=filter_values(session, "branch", project_id=project_ids.get(query.project))["branch"],
        projects=tuple(sorted(project_ids)),
        standings=leader_updates(
            session, project=query.project, noticed_since=now - timedelta(days=int(query.days)), most=STANDINGS
        ),
        newest=latest_runs(session, NEWEST, *on_branch),
        failed=_latest(session, FAILED, *recent, badly),
        experiments=find_experiments(session, ExperimentFilter(project=query.project), page_size=1).states,
    )


def _recent(session: Session, *recent: ColumnElement[bool]) -> tuple[int, int, int]:
    """Return the number of runs, of failed ones, and of others without a figure: one pass over an index.

    As sums, because for groups SQLite would read an index of their order, which has all runs.
    """
    without = and_(_WITHOUT_FIGURE, _OUTCOME.not_in(ENDED_BADLY))
    sums = (func.sum(case((condition, 1), else_=0)) for condition in (_ENDED_BADLY, without))
    runs, badly, unread = session.execute(select(func.count(), *sums).select_from(RunRow).where(*recent)).one()
    return runs, badly or 0, unread or 0


def _latest(session: Session, limit: int, *recent: ColumnElement[bool]) -> tuple[RunListItem, ...]:
    """Return the newest runs of a period: in the order of upload, in which an index reads nothing before the period."""
    newest = select_any(RunRow.id).where(*recent).order_by(col(RunRow.created_at).desc(), col(RunRow.id).desc())
    return runs_by_id(session, session.execute(newest.limit(limit)).scalars().all())
