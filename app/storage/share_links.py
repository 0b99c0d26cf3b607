"""Share links: create, look up by the SHA-256 of the secret, revoke. Each change is audited in the same transaction."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import parse_qsl, urlsplit

from sqlalchemy import func, select, update
from sqlmodel import Session, col

from app.domain.access.secrets import digest, new_share_secret
from app.errors import InvalidChange, NotFound
from app.storage import audit
from app.storage.tables import ShareLinkRow, from_row, utc_now
from app.storage.visible import CHANGES_NO_RIGHTS

MAX_PAGE = 300
MAX_DAYS = 365
MAX_ACTIVE = 500
"""Maximum active links of a project."""


@dataclass(frozen=True, slots=True)
class ShareLink:
    """`state`: active, expired or revoked."""

    id: int
    project_id: int
    page: str
    created_by: str
    created_at: datetime
    expires_at: datetime
    opened_at: datetime | None
    opened: int
    revoked_at: datetime | None
    revoked_by: str

    @property
    def state(self) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.expires_at > utc_now() else "expired"

    @property
    def path(self) -> str:
        return urlsplit(self.page).path

    def covers(self, path: str, query: str) -> bool:
        """Return whether the link opens this address: its page, or a file below it, with the query of a comparison."""
        if path != self.path and not path.startswith(f"{self.path}/"):
            return False
        sent = set(parse_qsl(query))
        return all(pair in sent for pair in parse_qsl(urlsplit(self.page).query))


def make_share_link(session: Session, *, project_id: int, page: str, days: int, by: str) -> tuple[ShareLink, str]:
    """Create a link and return it with its secret, which is never shown again. Raises InvalidChange."""
    if not 1 <= days <= MAX_DAYS:
        raise InvalidChange.of_field("days", f"must be 1 to {MAX_DAYS} days", "No link was created")
    active = select(func.count()).select_from(ShareLinkRow).where(
        col(ShareLinkRow.project_id) == project_id,
        col(ShareLinkRow.revoked_at).is_(None),
        col(ShareLinkRow.expires_at) > utc_now(),
    )  # fmt: skip
    if session.execute(active).scalar_one() >= MAX_ACTIVE:
        raise InvalidChange.of_field(
            "page",
            f"has too many active links: {MAX_ACTIVE}. Revoke links that are no longer needed",
            "No link was created",
        )
    secret = new_share_secret()
    row = ShareLinkRow(
        project_id=project_id,
        page=page,
        digest=digest(secret),
        created_by=by,
        expires_at=utc_now() + timedelta(days=days),
    )
    session.add(row)
    session.flush()
    audit.record(
        session, who=by, subject="share link", subject_id=row.id or 0, action="created", project_id=project_id,
        after={"page": page, "expires_at": row.expires_at.isoformat()},
    )  # fmt: skip
    return from_row(ShareLink, row), secret


def find_share_link(session: Session, secret_digest: str) -> ShareLink | None:
    """Return the active link with this SHA-256."""
    row = session.execute(select(ShareLinkRow).where(col(ShareLinkRow.digest) == secret_digest)).scalar_one_or_none()
    link = from_row(ShareLink, row) if row is not None else None
    return link if link is not None and link.state == "active" else None


def note_opened(session: Session, link_id: int) -> None:
    session.execute(
        update(ShareLinkRow)
        .where(col(ShareLinkRow.id) == link_id)
        .values(opened_at=utc_now(), opened=col(ShareLinkRow.opened) + 1),
        execution_options={CHANGES_NO_RIGHTS: True, "synchronize_session": False},
    )


def list_share_links(session: Session, project_id: int) -> list[ShareLink]:
    """Return the newest links of a project, the active ones first."""
    chosen = (
        select(ShareLinkRow)
        .where(col(ShareLinkRow.project_id) == project_id)
        .order_by(col(ShareLinkRow.revoked_at).is_not(None), col(ShareLinkRow.id).desc())
        .limit(MAX_ACTIVE)
    )
    return [from_row(ShareLink, row) for row in session.execute(chosen).scalars()]


def revoke_share_link(session: Session, project_id: int, link_id: int, *, by: str) -> ShareLink:
    """Revoke a link and return it; a second call has no effect. Raises NotFound."""
    row = session.get(ShareLinkRow, link_id)
    if row is None or row.project_id != project_id:
        raise NotFound("This link does not exist.")
    if row.revoked_at is None:
        row.revoked_at, row.revoked_by = utc_now(), by
        session.add(row)
        audit.record(
            session, who=by, subject="share link", subject_id=link_id, action="revoked", project_id=project_id,
            before={"page": row.page},
        )  # fmt: skip
    return from_row(ShareLink, row)
