"""The audit as a whole: what was changed, by anybody, newest first, page by page. Nothing of it is ever rewritten."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from sqlalchemy import Engine, select
from sqlmodel import Session, col

from app.storage.audit import AuditEvent, Subject, to_event
from app.storage.database import read_session
from app.storage.judging_tables import AuditEventRow
from app.storage.tables import ProjectRow

SUBJECTS: tuple[str, ...] = get_args(Subject)
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Empty and None: any. `since` and `until` (not included) are of the change."""

    project: str = ""
    who: str = ""
    subject: str = ""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """`next_before`: the cursor of the page after this one, None at the end. What comes meanwhile does not move it."""

    events: tuple[AuditEvent, ...]
    next_before: int | None


def find_events(session: Session, wanted: AuditFilter, *, before: int | None = None, limit: int = 50) -> AuditPage:
    """Newest first; `before`: only those with a smaller number."""
    chosen = select(AuditEventRow).order_by(col(AuditEventRow.id).desc()).limit(limit + 1)
    if wanted.project:
        own = select(ProjectRow.id).where(col(ProjectRow.slug) == wanted.project)  # type: ignore[call-overload]
        chosen = chosen.where(col(AuditEventRow.project_id).in_(own))
    if wanted.who:
        chosen = chosen.where(col(AuditEventRow.who) == wanted.who)
    if wanted.subject:
        chosen = chosen.where(col(AuditEventRow.subject) == wanted.subject)
    if wanted.since:
        chosen = chosen.where(col(AuditEventRow.at) >= wanted.since)
    if wanted.until:
        chosen = chosen.where(col(AuditEventRow.at) < wanted.until)
    if before is not None:
        chosen = chosen.where(col(AuditEventRow.id) < before)
    rows = session.execute(chosen).scalars().all()
    events = tuple(to_event(row) for row in rows[:limit])
    return AuditPage(events, events[-1].id if len(rows) > limit else None)


def all_events(engine: Engine, wanted: AuditFilter) -> Iterator[tuple[AuditEvent, ...]]:
    """All of them in pieces, each read by itself, so that a slow reader holds no transaction."""
    before: int | None = None
    while True:
        with read_session(engine) as session:
            page = find_events(session, wanted, before=before, limit=_AT_ONCE)
        yield page.events
        if page.next_before is None:
            return
        before = page.next_before
