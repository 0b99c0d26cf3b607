"""Invitations to projects: created, shown once, looked up by SHA-256, accepted once, revoked. The audit log is written
in the same transaction."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import CursorResult, func, select, update
from sqlmodel import Session, col

from app.domain.access.principal import Role
from app.domain.access.secrets import digest, new_share_secret
from app.errors import InvalidChange, NotFound
from app.storage import audit
from app.storage.tables import InvitationRow, ProjectRow, from_row, select_any, utc_now

MAX_EMAIL = 300
MAX_DAYS = 30
MAX_OPEN = 200
"""Open invitations of a project."""
_ENDED = "This invitation is unknown, used, expired or revoked. Ask its sender for a new one."


@dataclass(frozen=True, slots=True)
class Invitation:
    """`project`: the slug. `state`: open, accepted, revoked or expired. `email`: of the invited person; may be
    empty."""

    id: int
    project_id: int
    project: str
    role: Role
    email: str
    created_by: str
    created_at: datetime
    expires_at: datetime
    accepted_at: datetime | None
    accepted_by: str
    revoked_at: datetime | None
    revoked_by: str

    @property
    def state(self) -> str:
        if self.accepted_at is not None:
            return "accepted"
        if self.revoked_at is not None:
            return "revoked"
        return "open" if self.expires_at > utc_now() else "expired"


def create_invitation(
    session: Session, *, project: ProjectRow, role: Role, email: str, days: int, by: str
) -> tuple[Invitation, str]:
    """Create an invitation and return it with its secret, which is never shown again. Raises InvalidChange."""
    if not 1 <= days <= MAX_DAYS:
        raise InvalidChange.of_field("days", f"must be 1 to {MAX_DAYS} days", "No invitation was created")
    open_now = select(func.count()).select_from(InvitationRow).where(
        col(InvitationRow.project_id) == project.id, *_OPEN, col(InvitationRow.expires_at) > utc_now()
    )  # fmt: skip
    if session.execute(open_now).scalar_one() >= MAX_OPEN:
        raise InvalidChange.of_field(
            "role",
            f"cannot be given: {MAX_OPEN} invitations are open. Revoke those no longer needed",
            "No invitation was created",
        )
    secret = new_share_secret()
    row = InvitationRow(
        project_id=project.id or 0, role=role.value, email=email, digest=digest(secret), created_by=by,
        expires_at=utc_now() + timedelta(days=days),
    )  # fmt: skip
    session.add(row)
    session.flush()
    audit.record(
        session, who=by, subject="invitation", subject_id=row.id or 0, action="created", project_id=project.id,
        after={"role": role.value, "email": email, "expires_at": row.expires_at.isoformat()},
    )  # fmt: skip
    return _invitation(row, project.slug), secret


def find_invitation(session: Session, secret: str) -> Invitation:
    """Return the open invitation with this secret. Raises NotFound."""
    chosen = (
        select_any(InvitationRow, ProjectRow.slug)
        .join(ProjectRow, col(ProjectRow.id) == InvitationRow.project_id)
        .where(col(InvitationRow.digest) == digest(secret))
    )
    row = session.execute(chosen).one_or_none()
    invitation = _invitation(*row) if row is not None else None
    if invitation is None or invitation.state != "open":
        raise NotFound(_ENDED)
    return invitation


def use_invitation(session: Session, invitation: Invitation, *, by: str) -> None:
    """Record who accepted an invitation. Raises NotFound if another person was faster, or it ended."""
    used = cast(
        "CursorResult[Any]",
        session.execute(
            update(InvitationRow)
            .where(col(InvitationRow.id) == invitation.id, *_OPEN, col(InvitationRow.expires_at) > utc_now())
            .values(accepted_at=utc_now(), accepted_by=by),
            execution_options={"synchronize_session": False},
        ),
    )
    if used.rowcount != 1:
        raise NotFound(_ENDED)
    audit.record(
        session, who=by, subject="invitation", subject_id=invitation.id, action="accepted",
        project_id=invitation.project_id, after={"role": invitation.role.value, "created_by": invitation.created_by},
    )  # fmt: skip


def list_invitations(session: Session, project: ProjectRow) -> list[Invitation]:
    """Return the newest invitations of a project, the open ones first."""
    ended = col(InvitationRow.accepted_at).is_not(None) | col(InvitationRow.revoked_at).is_not(None)
    chosen = (
        select(InvitationRow)
        .where(col(InvitationRow.project_id) == project.id)
        .order_by(ended, col(InvitationRow.id).desc())
        .limit(MAX_OPEN)
    )
    return [_invitation(row, project.slug) for row in session.execute(chosen).scalars()]


def revoke_invitation(session: Session, project: ProjectRow, invitation_id: int, *, by: str) -> Invitation:
    """Revoke an invitation. Raises NotFound; has no effect on one that was accepted or revoked."""
    row = session.get(InvitationRow, invitation_id)
    if row is None or row.project_id != project.id:
        raise NotFound("This invitation does not exist.")
    if row.accepted_at is None and row.revoked_at is None:
        row.revoked_at, row.revoked_by = utc_now(), by
        session.add(row)
        audit.record(
            session, who=by, subject="invitation", subject_id=invitation_id, action="revoked", project_id=project.id,
            before={"role": row.role, "email": row.email},
        )  # fmt: skip
    return _invitation(row, project.slug)


_OPEN = (col(InvitationRow.accepted_at).is_(None), col(InvitationRow.revoked_at).is_(None))


def _invitation(row: InvitationRow, slug: str) -> Invitation:
    return from_row(Invitation, row, project=slug, role=Role(row.role))
