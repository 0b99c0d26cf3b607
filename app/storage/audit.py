"""The audit log: who changed what and when. Entries are written in the transaction of the change itself."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar, get_args

from sqlalchemy import Engine, Select, func, select
from sqlmodel import Session, col

from app.errors import FieldError
from app.storage.database import read_session
from app.storage.runs import MOST_COUNTED
from app.storage.tables import AuditEventRow, ProjectRow, from_row, select_any

Subject = Literal[
    "regression",
    "run",
    "stack",
    "project",
    "reference",
    "experiment",
    "account",
    "member",
    "group",
    "token",
    "receiver",
    "share link",
    "invitation",
]

S = TypeVar("S", bound=Select[Any])

MAX_AUTHOR = 100
MAX_NOTE = 1000
SERVICE = "Threewalls"
"""Actor of changes that no user made."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An entry. `before` and `after` hold the changed values by name."""

    id: int
    project_id: int | None
    at: datetime
    who: str
    subject: str
    subject_id: str
    action: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    note: str

    @property
    def by_service(self) -> bool:
        return self.who == SERVICE


def author_errors(author: str) -> list[FieldError]:
    """Return the error of the name that signs a change; none if it is valid."""
    is_valid = 0 < len(author) <= MAX_AUTHOR
    return [] if is_valid else [FieldError("author", f"must name the author in 1 to {MAX_AUTHOR} characters")]


def record(
    session: Session,
    *,
    who: str,
    subject: Subject,
    subject_id: int | str,
    action: str,
    project_id: int | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    note: str = "",
) -> AuditEventRow:
    """Add an entry and return it. Its number exists after the next flush."""
    row = AuditEventRow(
        project_id=project_id,
        who=who,
        subject=subject,
        subject_id=str(subject_id),
        action=action,
        before=dict(before or {}),
        after=dict(after or {}),
        note=note,
    )
    session.add(row)
    return row


def record_project(session: Session, project_id: int | None, action: str, **entry: Any) -> None:
    """Add an entry about a project. `entry`: `who`, and other arguments of `record`."""
    number = project_id or 0
    record(session, subject="project", subject_id=number, project_id=project_id, action=action, **entry)


def events(session: Session, subject: Subject, subject_id: int | str) -> tuple[AuditEvent, ...]:
    """Return all entries about an object, newest first."""
    rows = session.execute(
        select(AuditEventRow)
        .where(col(AuditEventRow.subject) == subject, col(AuditEventRow.subject_id) == str(subject_id))
        .order_by(col(AuditEventRow.id).desc())
    ).scalars()
    return tuple(to_event(row) for row in rows)


def continuations(session: Session, regression_ids: Iterable[int]) -> dict[tuple[int, int], str]:
    """Return the members of regressions that continue another one of it, after its job moved to another stack.

    By regression and first run in the new stack; the value is the key of the stack before.
    """
    moves = select_any(AuditEventRow.subject_id, AuditEventRow.before, AuditEventRow.after).where(
        col(AuditEventRow.subject) == "regression",
        col(AuditEventRow.subject_id).in_([str(number) for number in regression_ids]),
        col(AuditEventRow.action) == "continued",
    )
    return {(int(row.subject_id), row.after["run"]): row.before["stack"] for row in session.execute(moves)}


def events_by_id(session: Session, ids: Sequence[int]) -> tuple[AuditEvent, ...]:
    rows = session.execute(select(AuditEventRow).where(col(AuditEventRow.id).in_(ids))).scalars()
    return tuple(to_event(row) for row in rows)


def to_event(row: AuditEventRow) -> AuditEvent:
    return from_row(AuditEvent, row)


# --- The whole audit log, newest first, page by page. Entries are never rewritten.

SUBJECTS: tuple[str, ...] = get_args(Subject)
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Filters of the audit log. Empty or None: any. `since` (inclusive) and `until` (exclusive) bound the time.

    `users_only`: without the changes that the service itself made.
    """

    project: str = ""
    who: str = ""
    subject: str = ""
    since: datetime | None = None
    until: datetime | None = None
    users_only: bool = False


@dataclass(frozen=True, slots=True)
class AuditPage:
    """One page. `next_before`: the cursor of the next page, None at the end. New entries do not shift pages."""

    events: tuple[AuditEvent, ...]
    next_before: int | None


def find_events(session: Session, wanted: AuditFilter, *, before: int | None, limit: int) -> AuditPage:
    """Return a page of entries, newest first. `before`: only entries with a lower number."""
    chosen = _matching(select(AuditEventRow), wanted).order_by(col(AuditEventRow.id).desc()).limit(limit + 1)
    if before is not None:
        chosen = chosen.where(col(AuditEventRow.id) < before)
    rows = session.execute(chosen).scalars().all()
    events = tuple(to_event(row) for row in rows[:limit])
    return AuditPage(events, events[-1].id if len(rows) > limit else None)


def count_events(session: Session, wanted: AuditFilter) -> tuple[int, int]:
    """Return the number of matching entries, at most `MOST_COUNTED` + 1, and of those who made them."""
    newest = _matching(select_any(AuditEventRow.who), wanted).order_by(col(AuditEventRow.id).desc())
    counted = newest.limit(MOST_COUNTED + 1).subquery()
    entries, authors = session.execute(
        select_any(func.count(), func.count(func.distinct(counted.c.who))).select_from(counted)
    ).one()
    return int(entries), int(authors)


def _matching(chosen: S, wanted: AuditFilter) -> S:
    if wanted.project:
        own = select_any(ProjectRow.id).where(col(ProjectRow.slug) == wanted.project)
        chosen = chosen.where(col(AuditEventRow.project_id).in_(own))
    if wanted.who:
        chosen = chosen.where(col(AuditEventRow.who) == wanted.who)
    if wanted.users_only:
        chosen = chosen.where(col(AuditEventRow.who) != SERVICE)
    if wanted.subject:
        chosen = chosen.where(col(AuditEventRow.subject) == wanted.subject)
    if wanted.since:
        chosen = chosen.where(col(AuditEventRow.at) >= wanted.since)
    if wanted.until:
        chosen = chosen.where(col(AuditEventRow.at) < wanted.until)
    return chosen


def all_events(engine: Engine, wanted: AuditFilter) -> Iterator[tuple[AuditEvent, ...]]:
    """Yield all matching entries in pieces, each in its own read, so that a slow reader holds no transaction."""
    before: int | None = None
    while True:
        with read_session(engine) as session:
            page = find_events(session, wanted, before=before, limit=_AT_ONCE)
        yield page.events
        if page.next_before is None:
            return
        before = page.next_before
