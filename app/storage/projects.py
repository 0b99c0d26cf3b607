"""Create and list projects, and set their visibility, quotas and charts. Each change is audited in its transaction."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.domain.badges import new_badge_secret
from app.domain.text import MAX_PROJECT_NAME, one_line, project_name_problem
from app.errors import Conflict, FieldError, InvalidChange, NotFound, OverQuota, TooManyRuns
from app.settings import Settings
from app.storage import audit
from app.storage.tables import (
    AllowanceRow,
    DashboardChartRow,
    DeletionRow,
    MemberRow,
    ProjectRow,
    RunFileRow,
    RunRow,
    TokenRow,
    select_any,
    utc_now,
)


class ProjectTaken(Conflict):
    title = "The project already exists"


@dataclass(frozen=True, slots=True)
class Project:
    """A project in the list. `tokens`: number of active ones. `uploaded_at`: time of the newest run, None without
    runs. `deleted_runs`: deleted ones, which may be restored.
    """

    id: int
    slug: str
    public: bool
    generated: bool
    created_at: datetime
    runs: int
    uploaded_at: datetime | None
    deleted_runs: int
    members: int
    tokens: int


def find_project(session: Session, slug: str) -> ProjectRow:
    """Return the project with this name, ignoring case. Raises NotFound."""
    row: ProjectRow | None = session.execute(
        select(ProjectRow).where(col(ProjectRow.slug_lower) == slug.lower())
    ).scalar_one_or_none()
    if row is None:
        raise NotFound(f"Project {slug[:MAX_PROJECT_NAME]!r} does not exist.")
    return row


def list_projects(session: Session) -> list[Project]:
    """Return projects in alphabetical order."""
    rows = session.execute(select(ProjectRow).order_by(col(ProjectRow.slug))).scalars().all()
    now = utc_now()
    runs = _by_project(
        session,
        select_any(RunRow.project_id, func.count(), func.max(RunRow.created_at)).group_by(col(RunRow.project_id)),
    )
    members = _by_project(session, select_any(MemberRow.project_id, func.count()).group_by(col(MemberRow.project_id)))
    in_force = col(TokenRow.revoked_at).is_(None) & (
        col(TokenRow.expires_at).is_(None) | (col(TokenRow.expires_at) > now)
    )
    tokens = _by_project(
        session,
        select_any(TokenRow.project_id, func.count()).where(in_force).group_by(col(TokenRow.project_id)),
    )
    deleted = _by_project(
        session,
        select_any(DeletionRow.project_id, func.sum(DeletionRow.runs))
        .where(col(DeletionRow.state).in_(("done", "final")), DeletionRow.selection["kind"].as_string() == "runs")
        .group_by(col(DeletionRow.project_id)),
    )
    return [
        Project(
            row.id or 0, row.slug, row.public, row.generated, row.created_at, *runs.get(row.id or 0, (0, None)),
            *deleted.get(row.id or 0, (0,)), *members.get(row.id or 0, (0,)), *tokens.get(row.id or 0, (0,)),
        )
        for row in rows
    ]  # fmt: skip


def create_project(session: Session, slug: str, *, by: str, public: bool = False) -> ProjectRow:
    """Create a project. Raises InvalidChange for an invalid name, and ProjectTaken."""
    if why := project_name_problem(slug):
        raise InvalidChange(f"Nothing was saved. The name {why}.", (FieldError("slug", why),))
    row = ProjectRow(slug=slug, public=public)
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        raise ProjectTaken(f"Project {slug} already exists. Nothing was changed.") from None
    audit.record_project(session, row.id, "created", who=by, after={"slug": slug, "public": public})
    return row


def set_public(session: Session, row: ProjectRow, public: bool, *, by: str) -> None:
    """Set whether the project can be read without a log-in."""
    if row.public == public:
        return
    row.public = public
    session.add(row)
    audit.record_project(session, row.id, "public", who=by, before={"public": not public}, after={"public": public})


def slugs_by_id(session: Session) -> Mapping[int, str]:
    """Return the names of all projects visible to the caller, by id."""
    rows = session.execute(select_any(ProjectRow.id, ProjectRow.slug))
    return {project_id: slug for project_id, slug in rows}  # noqa: C416  the type checker does not see rows as pairs


@dataclass(frozen=True, slots=True)
class ProjectName:
    id: int
    slug: str


def project_named(session: Session, slug: str) -> ProjectName | None:
    """Return the visible project with this slug; for an empty slug the only visible one, None for several."""
    names = [ProjectName(number, name) for number, name in slugs_by_id(session).items() if not slug or name == slug]
    return names[0] if len(names) == 1 else None


def _by_project(session: Session, chosen: "Select[tuple[int, ...]]") -> dict[int, tuple[int, ...]]:
    return {row[0]: tuple(row[1:]) for row in session.execute(chosen)}


# --- Quotas: bytes of files, and runs within 24 hours.

DAY = timedelta(hours=24)
_WAYS_OUT = "An administrator raises the quota in the project's settings."


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota; 0: unlimited. `own_bytes` and `own_runs_a_day`: set for the project; None: the default applies."""

    bytes: int
    runs_a_day: int
    own_bytes: int | None = None
    own_runs_a_day: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    bytes: int
    runs_today: int


def quota_of(project: ProjectRow | Row[Any], settings: Settings) -> Quota:
    own_bytes, own_runs = project.quota_bytes, project.quota_runs_a_day
    return Quota(
        settings.quota_bytes if own_bytes is None else own_bytes,
        settings.quota_runs_a_day if own_runs is None else own_runs,
        own_bytes,
        own_runs,
    )


def usage_of(session: Session, project_id: int) -> Usage:
    runs = select(func.count()).select_from(RunRow)
    today = runs.where(col(RunRow.project_id) == project_id, col(RunRow.created_at) > utc_now() - DAY)
    return Usage(_bytes_of(session, project_id), session.execute(today).scalar_one())


def check_room(session: Session, settings: Settings, project_id: int, new_bytes: int, *, new_run: bool) -> None:
    """Check the quota before the rows of an upload are written, in their transaction. Raises OverQuota, TooManyRuns."""
    project = session.get_one(ProjectRow, project_id)
    quota = quota_of(project, settings)
    if not quota.bytes and not quota.runs_a_day:
        return
    # Two concurrent uploads must not both use the last room. Projects without a quota need no lock.
    session.get_one(ProjectRow, project_id, with_for_update=True)
    if new_run and quota.runs_a_day:
        _check_runs(session, project, quota.runs_a_day)
    if new_bytes and quota.bytes:
        _check_bytes(session, project, quota.bytes, new_bytes)


def _check_runs(session: Session, project: ProjectRow, most: int) -> None:
    """Check the limit of runs within 24 hours. The next run may begin a day after the `most`-th newest one."""
    newest = select_any(RunRow.created_at).where(col(RunRow.project_id) == project.id)
    last = session.execute(newest.order_by(col(RunRow.created_at).desc()).offset(most - 1).limit(1)).scalar()
    wait = math.ceil((last + DAY - utc_now()).total_seconds()) if last is not None else 0
    if wait > 0:
        raise TooManyRuns(
            f"Project {project.slug} reached its quota of {most:,} runs within 24 hours. Nothing was saved. Upload it "
            f"again later. {_WAYS_OUT}",
            retry_after=wait,
        )


def _check_bytes(session: Session, project: ProjectRow, most: int, new_bytes: int) -> None:
    used = _bytes_of(session, project.id or 0)
    if used + new_bytes > most:
        raise OverQuota(
            f"The project {project.slug} uses {used:,} bytes of its quota of {most:,}, and this upload has "
            f"{new_bytes:,}. Nothing was saved. {_WAYS_OUT}"
        )


def _bytes_of(session: Session, project_id: int) -> int:
    total = select(func.coalesce(func.sum(RunFileRow.size_bytes), 0)).join(RunRow, col(RunRow.id) == RunFileRow.run_id)
    return int(session.execute(total.where(col(RunRow.project_id) == project_id)).scalar_one())


# --- Rate limits per project, across users and processes.
# Counted in the database, so that limits hold across processes and after the counted rows are deleted.


def use(session: Session, project_id: int, what: str, amount: int, *, most: int, within: timedelta) -> int:
    """Consume part of a limit in the caller's transaction.

    Return the seconds until enough is available, with nothing consumed; else 0. The period starts with the first use. A
    request above `most` passes if nothing was used yet.
    """
    session.get_one(ProjectRow, project_id, with_for_update=True)  # blocks concurrent counting
    now = utc_now()
    row = session.get(AllowanceRow, (project_id, what), populate_existing=True)
    if row is None:
        row = AllowanceRow(project_id=project_id, what=what)
        session.add(row)
    if row.began_at + within <= now:
        row.began_at, row.used = now, 0
    if row.used and row.used + amount > most:
        return max(1, math.ceil((row.began_at + within - now).total_seconds()))
    row.used += amount
    return 0


# --- The secret that badge keys are derived from (`domain/badges.py`).


def renew_badge_secret(session: Session, project_id: int, who: str) -> None:
    """Replace the secret. All badge URLs that were handed out stop working."""
    project = session.get_one(ProjectRow, project_id)
    project.badge_secret = new_badge_secret()
    session.add(project)
    audit.record_project(session, project_id, "renew_badges", who=one_line(who)[:100])


# --- Charts on the overview of a project, in order.

MAX_CHARTS = 12
"""Charts of a project."""
MAX_PAGE, MAX_TITLE = 300, 200


@dataclass(frozen=True, slots=True)
class DashboardChart:
    """`page`: the address of the page it shows; `position`: from 1."""

    id: int
    page: str
    title: str
    position: int
    added_by: str
    added_at: datetime

    @property
    def picture(self) -> str:
        """Return the address of the chart as an image."""
        path, _, query = self.page.partition("?")
        return f"{path}/picture.svg{'?' + query if query else ''}"

    @property
    def dark_picture(self) -> str:
        return f"{self.picture}{'&' if '?' in self.picture else '?'}theme=dark"


def list_charts(session: Session, project_id: int) -> list[DashboardChart]:
    return [
        DashboardChart(row.id or 0, row.page, row.title, place, row.added_by, row.added_at)
        for place, row in enumerate(_rows(session, project_id), 1)
    ]


def add_chart(session: Session, project_id: int, *, page: str, title: str, by: str) -> DashboardChart:
    """Add a chart at the end; one that is there already stays where it is. Raises InvalidChange."""
    rows = _rows(session, project_id)
    if len(page) > MAX_PAGE:
        raise _refused(f"has more than {MAX_PAGE} characters")
    if all(row.page != page for row in rows):
        if len(rows) >= MAX_CHARTS:
            raise _refused(f"exceeds the limit of {MAX_CHARTS} charts per project. Remove another chart first")
        last = max((row.position for row in rows), default=0)
        row = DashboardChartRow(
            project_id=project_id, page=page, title=title[:MAX_TITLE], position=last + 1, added_by=by
        )
        session.add(row)
        session.flush()
        _record(session, project_id, "chart_added", by, after={"page": page})
    return next(chart for chart in list_charts(session, project_id) if chart.page == page)


def move_chart(session: Session, project_id: int, chart_id: int, position: int, *, by: str) -> None:
    """Move a chart to a position from 1. Raises NotFound."""
    rows = _rows(session, project_id)
    row = _find(rows, chart_id)
    before = rows.index(row) + 1
    rows.remove(row)
    rows.insert(max(position, 1) - 1, row)
    for place, other in enumerate(rows, 1):
        other.position = place
        session.add(other)
    if row.position != before:
        after = {"position": row.position, "page": row.page}
        _record(session, project_id, "chart_moved", by, before={"position": before}, after=after)


def remove_chart(session: Session, project_id: int, chart_id: int, *, by: str) -> None:
    """Remove a chart. Raises NotFound."""
    row = _find(_rows(session, project_id), chart_id)
    session.delete(row)
    _record(session, project_id, "chart_removed", by, before={"page": row.page})


def _rows(session: Session, project_id: int) -> list[DashboardChartRow]:
    chosen = select(DashboardChartRow).where(col(DashboardChartRow.project_id) == project_id)
    ordered = chosen.order_by(col(DashboardChartRow.position), col(DashboardChartRow.id))
    return list(session.execute(ordered).scalars())


def _find(rows: list[DashboardChartRow], chart_id: int) -> DashboardChartRow:
    row = next((row for row in rows if row.id == chart_id), None)
    if row is None:
        raise NotFound("This chart is not on the overview of the project. Nothing was changed.")
    return row


def _record(
    session: Session,
    project_id: int,
    action: str,
    by: str,
    *,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> None:
    audit.record_project(session, project_id, action, who=by, before=before, after=after)


def _refused(why: str) -> InvalidChange:
    return InvalidChange(f"No chart was added: the page {why}.", (FieldError("page", why),))
