"""Storage use and growth of each project; deletion of deliveries, audit entries and sessions by age.

A small service counts on request. A large one counts every hour into a small table, because pages must not read all
runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Engine, delete, func, insert, select, text
from sqlmodel import Session, col

from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import (
    AuditEventRow,
    DeletionRow,
    DeliveryRow,
    HeartbeatRow,
    ProjectRow,
    RunFileRow,
    RunRow,
    SegmentRow,
    UsageRow,
    select_any,
    table_of,
    utc_now,
)
from app.storage.users import delete_expired_sessions

_AT_ONCE = 1000
_FORECAST_DAYS = 90
"""Number of days whose growth the forecast extrapolates."""
_LEAST_DAYS = 7
"""Minimum days of uploads for a rate."""
_COUNTED = "usage"
MOST_COUNTED_NOW = 5000
"""Maximum runs for a count on request."""


def count_usage(engine: Engine) -> None:
    """Count runs and bytes by project and day of upload, and replace the last count."""
    with read_session(engine) as session:
        rows = _count(session)
    with transaction(engine) as session:
        session.execute(delete(table_of(UsageRow)))
        if rows:
            session.execute(insert(table_of(UsageRow)), rows)
        session.merge(HeartbeatRow(name=_COUNTED, seen_at=utc_now()))


def counted_at(session: Session) -> datetime | None:
    """Return the time of the count that `usage_of_projects` returns; None if it counts on request."""
    if _counts_now(session):
        return None
    return session.execute(select(col(HeartbeatRow.seen_at)).where(col(HeartbeatRow.name) == _COUNTED)).scalar()


def _counts_now(session: Session) -> bool:
    return (session.execute(select(func.max(col(RunRow.id)))).scalar() or 0) <= MOST_COUNTED_NOW


def _count(session: Session, project_id: int | None = None) -> list[dict[str, Any]]:
    """Return runs and bytes by project and day of upload, by column of `UsageRow`."""
    day = func.date(RunRow.created_at)
    of_project = () if project_id is None else (col(RunRow.project_id) == project_id,)
    runs = session.execute(
        select_any(RunRow.project_id, day, func.count()).where(*of_project).group_by(col(RunRow.project_id), day)
    ).all()
    sizes = session.execute(
        select_any(RunRow.project_id, day, func.sum(SegmentRow.size_bytes))
        .join(RunFileRow, col(RunFileRow.run_id) == RunRow.id)
        .join(SegmentRow, col(SegmentRow.file_id) == RunFileRow.id)
        .where(col(SegmentRow.removed_at).is_(None), *of_project)
        .group_by(col(RunRow.project_id), day)
    ).all()
    size_of = {(project, str(on)): int(size) for project, on, size in sizes}
    return [
        {"project_id": project, "day": str(on), "runs": count, "bytes": size_of.get((project, str(on)), 0)}
        for project, on, count in runs
    ]


@dataclass(frozen=True, slots=True)
class ProjectUsage:
    """The storage use of a project. `bytes`: decompressed uploads. `months`: bytes by month of upload, in order.

    `a_day`: recent growth in bytes per day; None before seven days of uploads. `waiting_bytes`: deleted bytes whose
    deletion can still be undone.
    """

    project_id: int
    slug: str
    runs: int
    bytes: int
    a_day: float | None
    months: tuple[tuple[str, int], ...]
    waiting_bytes: int

    def in_days(self, days: int) -> float | None:
        """Return the bytes after `days` at the recent rate, without deletions; None if the rate is unknown."""
        return None if self.a_day is None else self.bytes + self.a_day * days


def usage_of_projects(session: Session, project_id: int | None = None) -> list[ProjectUsage]:
    """Return the usage of the visible projects, the largest first."""
    projects = select_any(ProjectRow.id, ProjectRow.slug)
    deleted = select_any(DeletionRow.project_id, func.sum(DeletionRow.bytes)).where(col(DeletionRow.state) == "done")
    if project_id is not None:
        projects = projects.where(col(ProjectRow.id) == project_id)
        deleted = deleted.where(col(DeletionRow.project_id) == project_id)
    days: dict[int, list[tuple[date, int, int]]] = {}
    for row in _count(session, project_id) if _counts_now(session) else _counted(session, project_id):
        days.setdefault(row["project_id"], []).append((date.fromisoformat(row["day"]), row["runs"], row["bytes"]))
    waiting = {owner: int(size) for owner, size in session.execute(deleted.group_by(col(DeletionRow.project_id)))}
    usages = [
        _project_usage(owner, slug, days.get(owner, ()), waiting.get(owner, 0))
        for owner, slug in session.execute(projects)
    ]
    return sorted(usages, key=lambda usage: (-usage.bytes, usage.slug))


def _counted(session: Session, project_id: int | None) -> list[dict[str, Any]]:
    counted = select_any(UsageRow.project_id, UsageRow.day, UsageRow.runs, UsageRow.bytes)
    if project_id is not None:
        counted = counted.where(col(UsageRow.project_id) == project_id)
    return [dict(row) for row in session.execute(counted).mappings()]


def _project_usage(owner: int, slug: str, days: Sequence[tuple[date, int, int]], waiting: int) -> ProjectUsage:
    today, days = datetime.now(UTC).date(), sorted(days)
    recent = [(day, size) for day, _, size in days if day > today - timedelta(days=_FORECAST_DAYS)]
    months: dict[str, int] = {}
    for day, _, size in days:
        months[f"{day:%Y-%m}"] = months.get(f"{day:%Y-%m}", 0) + size
    span = (today - recent[0][0]).days + 1 if recent else 0
    return ProjectUsage(
        owner,
        slug,
        sum(runs for _, runs, _ in days),
        sum(size for *_, size in days),
        sum(size for _, size in recent) / span if span >= _LEAST_DAYS else None,
        tuple(months.items())[-12:],
        waiting,
    )


def database_bytes(session: Session) -> int:
    if session.get_bind().dialect.name == "sqlite":
        pages = session.execute(text("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"))
        return int(pages.scalar_one())
    return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def delete_expired(engine: Engine, settings: Settings) -> None:
    """Delete expired sessions, and deliveries and audit entries that are older than the settings say."""
    now = utc_now()
    with transaction(engine) as session:
        delete_expired_sessions(session)
    if settings.delivery_days:
        old = (col(DeliveryRow.work) == "", col(DeliveryRow.created_at) < now - timedelta(days=settings.delivery_days))
        _delete_all(engine, DeliveryRow, *old)
    if settings.audit_days:
        _delete_all(engine, AuditEventRow, col(AuditEventRow.at) < now - timedelta(days=settings.audit_days))


def _delete_all(
    engine: Engine, kind: type[DeliveryRow] | type[AuditEventRow], *conditions: ColumnElement[bool]
) -> None:
    """Delete the rows that meet the conditions, in batches so that other writers do not wait long."""
    table = table_of(kind)
    while True:
        chosen = select(col(kind.id)).where(*conditions).limit(_AT_ONCE)
        with transaction(engine) as session:
            ids = list(session.execute(chosen).scalars())
            session.execute(delete(table).where(table.c.id.in_(ids)))
        if len(ids) < _AT_ONCE:
            return
