"""What the first page shows: regressions by cost, the newest verdicts, what failed and why, what came in last."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlmodel import Session, col

from app.overview.filters import OverviewFilters
from app.overview.regressions import NeedsAttention, in_project, needs_attention
from app.storage.experiments import ExperimentFilter, find_experiments
from app.storage.leader_news import LeaderNews, leader_news
from app.storage.projects import slugs_by_id
from app.storage.run_list import RunListItem, count_runs, latest_runs
from app.storage.run_records import ENDED_BADLY
from app.storage.tables import RunRow

NEWEST = 6
VERDICTS = 12
STANDINGS = 6
FAILED = 6

_OUTCOME = col(RunRow.health)["outcome"].as_string()
_ENDED_BADLY: ColumnElement[bool] = _OUTCOME.in_(ENDED_BADLY)
_WITHOUT_FIGURE: ColumnElement[bool] = col(RunRow.status) == "failed"


@dataclass(frozen=True, slots=True)
class Overview:
    """Of the project that is asked for. `by_status` counts all runs; `by_outcome` (those that ended badly) and
    `without_figure` those of the branch that is asked for, as the list filters them.

    `recent` counts the runs of the period that is asked for: those that ended badly, and the others without a figure.
    `verdicts`: the newest runs that were judged in it. `standings`: who came to lead in it, on whichever branch.
    `branches` and `projects`: what can be asked for. `experiments`: how many are in which state, over all times.
    """

    by_status: Mapping[str, int]
    by_outcome: Mapping[str, int]
    without_figure: int
    recent: int
    recent_ended_badly: int
    recent_without_figure: int
    attention: NeedsAttention
    verdicts: tuple[RunListItem, ...]
    branches: tuple[str, ...]
    projects: tuple[str, ...]
    standings: tuple[LeaderNews, ...]
    newest: tuple[RunListItem, ...]
    failed: tuple[RunListItem, ...]
    experiments: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.by_status.values())

    @property
    def waiting(self) -> int:
        return self.by_status.get("received", 0) + self.by_status.get("processing", 0)


def overview(session: Session, filters: OverviewFilters, now: datetime) -> Overview:
    """The state of the house at `now` (aware)."""
    of_project = in_project(RunRow, filters.project)
    on_branch = [*of_project, *([col(RunRow.branch) == filters.branch] if filters.branch else [])]
    recent = [col(RunRow.created_at) >= now - timedelta(days=filters.days), *on_branch]
    badly = or_(_WITHOUT_FIGURE, _ENDED_BADLY)
    not_counted = func.coalesce(_OUTCOME, "").not_in(ENDED_BADLY)
    return Overview(
        by_status=Counter(dict(_statuses(session, *of_project))),
        without_figure=count_runs(session, *on_branch, _WITHOUT_FIGURE),
        recent=count_runs(session, *recent),
        by_outcome={name: count_runs(session, *on_branch, _OUTCOME.in_((name,))) for name in ENDED_BADLY},
        recent_ended_badly=count_runs(session, *recent, _ENDED_BADLY),
        recent_without_figure=count_runs(session, *recent, _WITHOUT_FIGURE, not_counted),
        attention=needs_attention(session, filters.branch, filters.project),
        verdicts=latest_runs(session, VERDICTS, *recent, col(RunRow.verdict) != ""),
        branches=_branches(session, *of_project),
        projects=tuple(sorted(slugs_by_id(session).values())),
        standings=leader_news(
            session, project=filters.project, noticed_since=now - timedelta(days=filters.days), most=STANDINGS
        ),
        newest=latest_runs(session, NEWEST, *on_branch),
        failed=latest_runs(session, FAILED, *recent, badly),
        experiments=find_experiments(session, ExperimentFilter(project=filters.project), page_size=1).states,
    )


def _branches(session: Session, *conditions: ColumnElement[bool]) -> tuple[str, ...]:
    column = col(RunRow.branch)
    found = session.execute(select(column).where(*conditions).distinct().order_by(column)).scalars()
    return tuple(value for value in found if value)


def _statuses(session: Session, *conditions: ColumnElement[bool]) -> list[tuple[str, int]]:
    grouped: Any = select(col(RunRow.status), func.count()).where(*conditions).group_by(col(RunRow.status))
    return [(status, count) for status, count in session.execute(grouped)]
