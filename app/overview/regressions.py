"""The regressions that need somebody, the dearest first, as the first page shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, exists, func, select
from sqlmodel import Session, col

from app.storage.judging_tables import RegressionMemberRow, RegressionRow
from app.storage.run_records import aware
from app.storage.tables import ProjectRow, RunRow

SHOWN = 10
_NEED_SOMEBODY = ("open", "acknowledged")


@dataclass(frozen=True, slots=True)
class OverviewRegression:
    """`since`: its first slow run, with that run's commit and stack; `stacks` counts the stacks that it made slower."""

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
    """`hours`: known cost of the open ones a day, None without one; `without_cost` counts those of unknown cost."""

    items: tuple[OverviewRegression, ...]
    open: int
    acknowledged: int
    hours: float | None
    without_cost: int


def needs_attention(session: Session, branch: str, project: str = "") -> NeedsAttention:
    """Of runs on `branch` in `project`; empty for any."""
    open_ones = col(RegressionRow.state).in_(_NEED_SOMEBODY)
    conditions = [open_ones, *_on_branch(branch), *in_project(RegressionRow, project)]
    cost = col(RegressionRow.gpu_hours_per_day)
    state: Any = col(RegressionRow.state)
    counted = session.execute(
        select(state, func.count(), func.sum(cost), func.count(cost)).where(*conditions).group_by(state)
    )
    by_state = {name: (count, hours, known) for name, count, hours, known in counted}
    opened, hours, known = by_state.get("open", (0, None, 0))
    acknowledged = by_state.get("acknowledged", (0, None, 0))[0]
    wanted: Select[Any] = select(RegressionRow, ProjectRow.slug, ProjectRow.commit_url)  # type: ignore[call-overload]
    rows = session.execute(
        wanted.join(ProjectRow, col(ProjectRow.id) == RegressionRow.project_id)
        .where(*conditions)
        .order_by(cost.is_(None), cost.desc(), col(RegressionRow.id).desc())
        .limit(SHOWN)
    ).all()
    return NeedsAttention(_items(session, rows), opened, acknowledged, hours, opened - known)


def in_project(table: type[RunRow] | type[RegressionRow], project: str) -> list[ColumnElement[bool]]:
    """What the rows of a project meet, by its name; nothing for any."""
    if not project:
        return []
    of_it: Any = select(col(ProjectRow.id)).where(col(ProjectRow.slug) == project)
    return [col(table.project_id).in_(of_it)]


def _on_branch(branch: str) -> list[ColumnElement[bool]]:
    if not branch:
        return []
    member = (
        select(col(RunRow.id))
        .join(RegressionMemberRow, col(RegressionMemberRow.run_id) == RunRow.id)
        .where(col(RegressionMemberRow.regression_id) == RegressionRow.id, col(RunRow.branch) == branch)
    )
    return [exists(member)]


def _items(session: Session, rows: Sequence[Any]) -> tuple[OverviewRegression, ...]:
    members: dict[int, list[Row[Any]]] = {}
    columns = (
        RegressionMemberRow.regression_id, RegressionMemberRow.stack_key, RunRow.id, RunRow.commit, RunRow.branch,
        RunRow.model, RunRow.gpu, RunRow.gpus, RunRow.dispatcher,
    )  # fmt: skip
    wanted: Select[Any] = select(*columns)  # type: ignore[call-overload]
    found = session.execute(
        wanted.join(RunRow, col(RunRow.id) == RegressionMemberRow.run_id)
        .where(col(RegressionMemberRow.regression_id).in_([row.id for row, _, _ in rows]))
        .order_by(col(RunRow.ordered_at), col(RunRow.id))
    )
    for member in found:
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
