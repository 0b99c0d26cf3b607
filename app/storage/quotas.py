"""What a project may take, and what it takes: bytes of its files, runs that it began within 24 hours."""

import math
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.errors import OverQuota, TooManyRuns
from app.settings import Settings
from app.storage.run_records import aware
from app.storage.tables import ProjectRow, RunFileRow, RunRow, utc_now

DAY = timedelta(hours=24)
_WAYS_OUT = "An administrator raises the quota in the project's settings."


@dataclass(frozen=True, slots=True)
class Quota:
    """0: no limit. `own_bytes` and `own_runs_a_day`: as set for the project, None where the service's own counts."""

    bytes: int
    runs_a_day: int
    own_bytes: int | None = None
    own_runs_a_day: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    bytes: int
    runs_today: int


def quota_of(project: ProjectRow, settings: Settings) -> Quota:
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


def check_room_in(session: Session, settings: Settings, slug: str, new_bytes: int) -> None:
    """Early, so that what has no room is not stored first; a project that is still to be made has room for one."""
    found = session.execute(select(ProjectRow.id).where(col(ProjectRow.slug_lower) == slug.lower())).scalar()  # type: ignore[call-overload]
    if found is not None:
        check_room(session, settings, found, new_bytes, new_run=True)


def check_room(session: Session, settings: Settings, project_id: int, new_bytes: int, *, new_run: bool) -> None:
    """Before rows of an upload are written, in their transaction. Raises OverQuota, TooManyRuns."""
    project = session.get_one(ProjectRow, project_id)
    quota = quota_of(project, settings)
    if not quota.bytes and not quota.runs_a_day:
        return
    # Two uploads at once must not both take the last room; without a quota nobody waits.
    session.get_one(ProjectRow, project_id, with_for_update=True)
    if new_run and quota.runs_a_day:
        _check_runs(session, project, quota.runs_a_day)
    if new_bytes and quota.bytes:
        _check_bytes(session, project, quota.bytes, new_bytes)


def _check_runs(session: Session, project: ProjectRow, most: int) -> None:
    """The run that has to be a day old before another may begin is the `most`-th newest."""
    newest = select(RunRow.created_at).where(col(RunRow.project_id) == project.id)  # type: ignore[call-overload]
    last = session.execute(newest.order_by(col(RunRow.created_at).desc()).offset(most - 1).limit(1)).scalar()
    wait = math.ceil((aware(last) + DAY - utc_now()).total_seconds()) if last is not None else 0
    if wait > 0:
        raise TooManyRuns(
            f"The project {project.slug} began {most:,} runs within 24 hours, its quota. Nothing was kept, so send it "
            f"again later. {_WAYS_OUT}",
            retry_after=wait,
        )


def _check_bytes(session: Session, project: ProjectRow, most: int, new_bytes: int) -> None:
    used = _bytes_of(session, project.id or 0)
    if used + new_bytes > most:
        raise OverQuota(
            f"The project {project.slug} holds {used:,} of the {most:,} bytes of its quota, and this upload has "
            f"{new_bytes:,}. Nothing of it was kept, and what was there stays. {_WAYS_OUT}"
        )


def _bytes_of(session: Session, project_id: int) -> int:
    held = select(func.coalesce(func.sum(RunFileRow.size_bytes), 0)).join(RunRow, col(RunRow.id) == RunFileRow.run_id)
    return int(session.execute(held.where(col(RunRow.project_id) == project_id)).scalar_one())
