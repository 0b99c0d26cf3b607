"""Projects: made, listed, shown to everybody or not. Who did it goes to the audit in the same transaction."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, func, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.errors import Conflict, FieldError, InvalidChange, NotFound
from app.storage import audit
from app.storage.access_tables import MemberRow, TokenRow
from app.storage.run_records import aware
from app.storage.tables import ProjectRow, RunRow, utc_now

MAX_SLUG = 100
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ProjectTaken(Conflict):
    title = "There is such a project"


@dataclass(frozen=True, slots=True)
class Project:
    """`tokens`: in force. `uploaded_at`: of its newest run, None without runs."""

    id: int
    slug: str
    public: bool
    generated: bool
    created_at: datetime
    runs: int
    uploaded_at: datetime | None
    members: int
    tokens: int


def find_project(session: Session, slug: str) -> ProjectRow:
    """Raises NotFound."""
    found: ProjectRow | None = session.execute(
        select(ProjectRow).where(col(ProjectRow.slug_lower) == slug.lower())
    ).scalar_one_or_none()
    if found is None:
        raise NotFound(f"There is no project {slug[:MAX_SLUG]!r}.")
    return found


def list_projects(session: Session) -> list[Project]:
    """In alphabetical order."""
    rows = session.execute(select(ProjectRow).order_by(col(ProjectRow.slug))).scalars().all()
    now = utc_now()
    runs = _by_project(
        session,
        select(RunRow.project_id, func.count(), func.max(RunRow.created_at)).group_by(col(RunRow.project_id)),  # type: ignore[call-overload]
    )
    members = _by_project(session, select(MemberRow.project_id, func.count()).group_by(col(MemberRow.project_id)))  # type: ignore[call-overload]
    in_force = col(TokenRow.revoked_at).is_(None) & (
        col(TokenRow.expires_at).is_(None) | (col(TokenRow.expires_at) > now)
    )
    tokens = _by_project(
        session,
        select(TokenRow.project_id, func.count()).where(in_force).group_by(col(TokenRow.project_id)),  # type: ignore[call-overload]
    )
    return [
        Project(
            row.id or 0, row.slug, row.public, row.generated, aware(row.created_at), *runs.get(row.id or 0, (0, None)),
            *members.get(row.id or 0, (0,)), *tokens.get(row.id or 0, (0,)),
        )
        for row in rows
    ]  # fmt: skip


def create_project(session: Session, slug: str, *, by: str, public: bool = False) -> ProjectRow:
    """Raises InvalidChange for a name that will not do in an address, ProjectTaken."""
    if not _SLUG.fullmatch(slug):
        why = f"must have 1 to {MAX_SLUG} letters, digits, dots, dashes or underscores, a letter or digit first"
        raise InvalidChange(f"Nothing was kept: the name {why}.", (FieldError("slug", why),))
    row = ProjectRow(slug=slug, public=public)
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        raise ProjectTaken(f"There is a project {slug} already. Nothing was changed.") from None
    audit.record(
        session, who=by, subject="project", subject_id=row.id or 0, action="created", project_id=row.id,
        after={"slug": slug, "public": public},
    )  # fmt: skip
    return row


def set_public(session: Session, row: ProjectRow, public: bool, *, by: str) -> None:
    """Whether everybody who reaches the service may read it, without a log-in."""
    if row.public == public:
        return
    row.public = public
    session.add(row)
    audit.record(
        session, who=by, subject="project", subject_id=row.id or 0, action="public", project_id=row.id,
        before={"public": not public}, after={"public": public},
    )  # fmt: skip


def slugs_by_id(session: Session) -> Mapping[int, str]:
    """Of all projects that the caller may see."""
    found = session.execute(select(ProjectRow.id, ProjectRow.slug))  # type: ignore[call-overload]
    return {project_id: slug for project_id, slug in found}  # noqa: C416  rows are no pairs to the type checker


def _by_project(session: Session, chosen: "Select[tuple[int, ...]]") -> dict[int, tuple[int, ...]]:
    return {row[0]: tuple(row[1:]) for row in session.execute(chosen)}
