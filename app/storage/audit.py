"""Who changed what, when and from what: written in the transaction of the change itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select
from sqlmodel import Session, col

from app.storage.judging_tables import AuditEventRow
from app.storage.run_records import aware

Subject = Literal[
    "regression", "run", "stack", "project", "reference", "experiment", "account", "member", "token", "receiver"
]

MAX_AUTHOR = 100
MAX_NOTE = 1000
SERVICE = "Threewalls"
"""Who it was when no person did it."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """`before` and `after` hold what changed, by name."""

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
) -> None:
    session.add(
        AuditEventRow(
            project_id=project_id,
            who=who,
            subject=subject,
            subject_id=str(subject_id),
            action=action,
            before=dict(before or {}),
            after=dict(after or {}),
            note=note,
        )
    )


def events(session: Session, subject: Subject, subject_id: int | str) -> tuple[AuditEvent, ...]:
    """All that happened to it, newest first."""
    rows = session.execute(
        select(AuditEventRow)
        .where(col(AuditEventRow.subject) == subject, col(AuditEventRow.subject_id) == str(subject_id))
        .order_by(col(AuditEventRow.id).desc())
    ).scalars()
    return tuple(to_event(row) for row in rows)


def to_event(row: AuditEventRow) -> AuditEvent:
    return AuditEvent(
        row.id or 0, row.project_id, aware(row.at), row.who, row.subject, row.subject_id, row.action, row.before,
        row.after, row.note,
    )  # fmt: skip
