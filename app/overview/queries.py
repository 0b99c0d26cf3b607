"""The first page: the trend, regressions by cost, failures by cause, and what waits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, and_, case, exists, func, or_, select
from sqlmodel import Session, col

from app.domain.verdict.document import UNCONFIRMED
from app.domain.verdict.regression import Regression
from app.domain.verdict.triage import SumOfCosts
from app.overview.trend import Trend, read_trend
from app.pipeline.notify import LeaderUpdate, leader_updates
from app.storage.example_runs import WAITING
from app.storage.experiments import ExperimentFilter, find_experiments
from app.storage.projects import slugs_by_id
from app.storage.regressions import add_evidence, joined_regressions, regressions_of_rows
from app.storage.remembered import WhileSlow
from app.storage.runs import (
    ENDED_BADLY,
    RunListItem,
    count_up_to,
    filter_values,
    runs_by_id,
)
from app.storage.suspect_evidence import shown_cause
from app.storage.tables import (
    GoldenProposalRow,
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunRow,
    not_indexed,
    select_any,
)
from app.storage.upgrade_changes import UpgradeChange, upgrade_changes
from app.storage.verdicts import SUMS_OF_COSTS, ProposedClosing, proposed_closings
from app.web.lists import FilterQuery, OneOf
from app.web.sparklines import Sparkline, sparklines_of_regressions

# --- Regressions that need action, the most expensive first.

SHOWN = 5
_UNFINISHED = ("open", "acknowledged")


@dataclass(frozen=True, slots=True)
class NeedsAttention:
    """Active regressions. `items`: those without a proposal; `more`: number of the others of each project.

    `to_close`: those that the service proposes to close. `sparks`: sparklines of the items, by number.
    """

    items: tuple[Regression, ...]
    sparks: Mapping[int, Sparkline | None]
    more: Mapping[str, int]
    open: int
    acknowledged: int
    cost: SumOfCosts
    to_close: tuple[ProposedClosing, ...]


def needs_attention(session: Session, branch: str, project: str = "") -> NeedsAttention:
    """Return regressions of runs on `branch` in `project`; empty for any."""
    shown = [*_on_branch(branch), *_in_project(project)]
    conditions = [col(RegressionRow.state).in_(_UNFINISHED), *shown]
    is_proposed = col(RegressionRow.proposal) != ""
    cost = col(RegressionRow.gpu_hours_per_day)
    counted = session.execute(
        select_any(ProjectRow.slug, RegressionRow.state, is_proposed, func.count(), *SUMS_OF_COSTS)
        .join(ProjectRow, col(ProjectRow.id) == RegressionRow.project_id)
        .where(*conditions)
        .group_by(col(ProjectRow.slug), col(RegressionRow.state), is_proposed)
    ).all()
    by_project, by_state = Counter[str](), Counter[str]()
    for slug, state, proposed, count, *_ in counted:
        by_project[slug] += 0 if proposed else count
        by_state[state] += count
    rows = session.execute(
        joined_regressions(select(RegressionRow, ProjectRow))
        .where(*conditions, ~is_proposed)
        .order_by(cost.is_(None), cost.desc(), col(RegressionRow.id).desc())
        .limit(SHOWN)
    ).all()
    by_project.subtract(row.ProjectRow.slug for row in rows)
    items = tuple(
        add_evidence(session, item)  # slow in one run: runs elsewhere may show it again
        if item.is_once
        else replace(item, cause=shown_cause(session, item, [job.first.run_id for job in item.counted_jobs]))
        for item in regressions_of_rows(session, rows)
    )
    return NeedsAttention(
        items=items,
        sparks=sparklines_of_regressions(session, items),
        more={slug: count for slug, count in by_project.most_common() if count},
        open=by_state["open"],
        acknowledged=by_state["acknowledged"],
        cost=SumOfCosts.total([row[4:] for row in counted]),
        to_close=proposed_closings(session, *shown),
    )


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
        # Makes SQLite look up the members instead of reading all runs of the branch.
        .where(col(RegressionMemberRow.regression_id) == RegressionRow.id, not_indexed(col(RunRow.branch)) == branch)
    )
    return [exists(member)]


# --- Filters of the first page: period, project and branch. The query string is its whole state.

PERIODS = {"1": "24 hours", "7": "7 days", "30": "30 days", "90": "90 days"}
"""Days -> text."""


class OverviewQuery(FilterQuery):
    """Filters of the first page; `branch` and `project` empty mean any."""

    days: Annotated[str, OneOf(tuple(PERIODS))] = "30"
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


LEADERS = 3
UPGRADES = 3
NEWEST = 40
"""Newest runs among which unconfirmed slowdowns are listed, as the lead of the list of runs counts them."""
FAILED = 40
"""Newest failed runs that are grouped by cause."""
MOST_CAUSES = 5

_OUTCOME = col(RunRow.outcome)
_ENDED_BADLY: ColumnElement[bool] = _OUTCOME.in_(ENDED_BADLY)
_WITHOUT_FIGURE: ColumnElement[bool] = col(RunRow.status) == "failed"


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed runs of one cause, newest first."""

    cause: str
    runs: tuple[RunListItem, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts and newest rows for the requested project.

    `total` counts all runs, `waiting` those that no worker has read yet; `by_outcome` (failed runs) and
    `without_figure` those of the requested branch, as the list filters them. These counts end at 10,000 and more
    (`counted`). `recent` counts runs of the requested period: failed ones, and others without a figure. `failures`: its
    newest failed runs by cause. `unconfirmed`: runs that are slower until a rerun confirms it, newest first.
    `leaders`: new leaders in it, `upgrades`: what upgrades in it changed, both on any branch. `branches` and
    `projects`: choices.
    `generated`: those of the shown projects whose logs are generated. `experiments`: number in each state, of any time.
    `proposals`: number and name of the newest runs that are proposed as golden baselines.
    """

    total: int
    waiting: int
    by_outcome: Mapping[str, int]
    without_figure: int
    recent: int
    recent_ended_badly: int
    recent_without_figure: int
    attention: NeedsAttention
    trend: Trend
    branches: tuple[str, ...]
    projects: tuple[str, ...]
    generated: tuple[str, ...]
    leaders: tuple[LeaderUpdate, ...]
    upgrades: tuple[UpgradeChange, ...]
    unconfirmed: tuple[RunListItem, ...]
    failures: tuple[FailureGroup, ...]
    experiments: Mapping[str, int]
    proposals: tuple[tuple[int, str], ...]


def overview(session: Session, query: OverviewQuery, now: datetime) -> Overview:
    """Return the state of the service at `now` (aware)."""
    project_ids = {slug: number for number, slug in slugs_by_id(session).items()}
    project_id = project_ids.get(query.project, 0)
    of_project = [col(RunRow.project_id) == project_id] if query.project else []
    of_branch = [col(RunRow.branch) == query.branch] if query.branch else []
    recent = [col(RunRow.created_at) >= now - timedelta(days=int(query.days)), *of_project, *of_branch]
    badly = or_(_WITHOUT_FIGURE, _ENDED_BADLY)
    # With a status or an outcome, SQLite shall look up that instead of reading all of the project or branch.
    in_project = [not_indexed(col(RunRow.project_id)) == project_id] if query.project else []
    on_branch = [*in_project, *([not_indexed(col(RunRow.branch)) == query.branch] if query.branch else [])]
    question = (query.days, query.project, query.branch)
    runs, ended_badly, without_figure = _recent_counts.get(session, question, lambda: _recent(session, *recent))
    return Overview(
        total=count_up_to(session, *of_project),
        # One by one: SQLite would rather read all runs of the project than look up two statuses.
        waiting=sum(count_up_to(session, col(RunRow.status) == name, *in_project) for name in WAITING),
        without_figure=count_up_to(session, *on_branch, _WITHOUT_FIGURE),
        by_outcome={name: count_up_to(session, *on_branch, _OUTCOME.in_((name,))) for name in ENDED_BADLY},
        recent=runs,
        recent_ended_badly=ended_badly,
        recent_without_figure=without_figure,
        attention=needs_attention(session, query.branch, query.project),
        trend=read_overview_trend(session, query),
        branches=filter_values(session, "branch", project_id=project_ids.get(query.project))["branch"],
        projects=tuple(sorted(project_ids)),
        generated=_generated(session, query.project),
        leaders=leader_updates(
            session, project=query.project, noticed_since=now - timedelta(days=int(query.days)), most=LEADERS
        ),
        upgrades=upgrade_changes(
            session, project=query.project, since=now - timedelta(days=int(query.days)), most=UPGRADES
        ),
        unconfirmed=_unconfirmed(session, *of_project, *of_branch),
        failures=_by_cause(_latest(session, FAILED, *recent, badly)),
        experiments=find_experiments(session, ExperimentFilter(project=query.project), page_size=1).states,
        proposals=_open_proposals(session, project_ids.get(query.project, 0) if query.project else None),
    )


def _unconfirmed(session: Session, *conditions: ColumnElement[bool]) -> tuple[RunListItem, ...]:
    """Return those of the newest runs whose slowdown is unconfirmed, without those whose job ran again."""
    newest = session.execute(
        select_any(RunRow.id, RunRow.badge_label, RunRow.config_key, RunRow.job)
        .where(*conditions)
        .order_by(col(RunRow.id).desc())
        .limit(NEWEST)
    )
    last: dict[tuple[str | None, str], Any] = {}
    for run in newest:
        last.setdefault((run.config_key, run.job), run)
    return runs_by_id(session, [run.id for run in last.values() if run.badge_label == UNCONFIRMED])


def _open_proposals(session: Session, project_id: int | None) -> tuple[tuple[int, str], ...]:
    # By the project of the proposal: by that of the run, SQLite would read all runs of the project.
    of_project = [col(GoldenProposalRow.project_id) == project_id] if project_id is not None else []
    rows = session.execute(
        select_any(RunRow.id, RunRow.name)
        .join(GoldenProposalRow, col(GoldenProposalRow.run_id) == RunRow.id)
        .where(col(GoldenProposalRow.state) == "open", *of_project)
        .order_by(col(GoldenProposalRow.id).desc())
        .limit(SHOWN)
    )
    return tuple((run_id, name) for run_id, name in rows)


def read_overview_trend(session: Session, query: OverviewQuery) -> Trend:
    """Return the trend of the filtered project and branch over the period."""
    slugs = slugs_by_id(session)
    project = next((number for number, slug in slugs.items() if slug == query.project), 0) if query.project else None
    named = slugs if len(slugs) > 1 and not query.project else {}
    return read_trend(session, int(query.days), project, query.branch, named)


def _generated(session: Session, project: str) -> tuple[str, ...]:
    chosen = select(col(ProjectRow.slug)).where(col(ProjectRow.generated)).order_by(col(ProjectRow.slug))
    return tuple(session.execute(chosen.where(col(ProjectRow.slug) == project) if project else chosen).scalars())


def _by_cause(failed: Sequence[RunListItem]) -> tuple[FailureGroup, ...]:
    """Group runs by their cause, the most frequent one first."""
    groups: dict[str, list[RunListItem]] = {}
    for run in failed:
        groups.setdefault(run.failure_cause, []).append(run)
    ordered = sorted(groups.values(), key=lambda runs: (-len(runs), -runs[0].id))
    return tuple(FailureGroup(runs[0].failure_cause, tuple(runs)) for runs in ordered[:MOST_CAUSES])


_recent_counts = WhileSlow[tuple[int, int, int]](most=50)


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
