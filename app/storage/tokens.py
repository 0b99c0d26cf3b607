"""Project tokens: create, look up by SHA-256, revoke. Each change is audited in the same transaction."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, and_, case, func, or_, select, update
from sqlmodel import Session, col

from app.domain.access.principal import Scope, TokenHolder
from app.domain.access.secrets import digest, new_token, shown
from app.domain.text import one_line
from app.errors import InvalidChange, NotFound
from app.storage import audit
from app.storage.tables import ProjectRow, TokenRow, select_any, utc_now
from app.storage.visible import CHANGES_NO_RIGHTS

MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class ActiveToken:
    """An active token. `ends_at`: when it expires; None: never."""

    holder: TokenHolder
    ends_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A token. `project`: its slug."""

    id: int
    name: str
    project: str


def make_token(
    session: Session,
    *,
    project_id: int,
    name: str,
    scopes: Collection[Scope],
    by: str,
    expires_at: datetime | None = None,
) -> tuple[TokenRow, str]:
    """Create a token; return its row and its secret, which is not stored. Raises InvalidChange.

    The audit log names tokens, so two active tokens of a project cannot have the same name.
    """
    name = one_line(name)
    if not 0 < len(name) <= MAX_NAME:
        raise InvalidChange.of_field("name", f"must have 1 to {MAX_NAME} characters")
    if not scopes:
        raise InvalidChange.of_field("scopes", "must be one or more of upload, read and triage")
    if expires_at is not None and expires_at <= utc_now():
        raise InvalidChange.of_field("expires_at", "must be in the future")
    if name in _active_names(session, project_id):
        raise InvalidChange.of_field(
            "name", f"must be unique: an active token has the name {name}. Revoke that token or choose another name"
        )
    token = new_token()
    row = TokenRow(
        project_id=project_id, name=name, shown=shown(token), digest=digest(token),
        scopes=[scope.value for scope in Scope if scope in scopes], created_by=by,
        expires_at=expires_at and expires_at.astimezone(UTC),
    )  # fmt: skip
    session.add(row)
    session.flush()
    audit.record(
        session, who=by, subject="token", subject_id=row.id or 0, action="created", project_id=project_id,
        after={"name": name, "scopes": row.scopes, "expires_at": expires_at.isoformat() if expires_at else None},
    )  # fmt: skip
    return row, token


def find_token(session: Session, token_digest: str) -> ActiveToken | None:
    """Return the token with this SHA-256; None if it is unknown, expired or revoked."""
    result = session.execute(
        select_any(TokenRow, ProjectRow.slug)
        .join(ProjectRow, col(ProjectRow.id) == TokenRow.project_id)
        .where(col(TokenRow.digest) == token_digest, col(TokenRow.revoked_at).is_(None))
    ).one_or_none()
    if result is None:
        return None
    row, slug = result
    if row.expires_at is not None and row.expires_at <= utc_now():
        return None
    holder = TokenHolder(row.id, row.name, row.project_id, slug, frozenset(Scope(scope) for scope in row.scopes))
    return ActiveToken(holder, row.expires_at, row.last_used_at)


def note_used(session: Session, token_id: int) -> None:
    session.execute(
        update(TokenRow).where(col(TokenRow.id) == token_id).values(last_used_at=utc_now()),
        execution_options={CHANGES_NO_RIGHTS: True, "synchronize_session": False},
    )


def revoke_token(session: Session, token_id: int, *, by: str) -> TokenRow:
    """Revoke a token; a second call has no effect. Raises NotFound."""
    row = session.get(TokenRow, token_id)
    if row is None:
        raise NotFound("This token does not exist.")
    if row.revoked_at is None:
        row.revoked_at, row.revoked_by = utc_now(), by
        session.add(row)
        audit.record(
            session, who=by, subject="token", subject_id=token_id, action="revoked", project_id=row.project_id,
            before={"name": row.name},
        )  # fmt: skip
    return row


def is_active_token() -> ColumnElement[bool]:
    return and_(
        col(TokenRow.revoked_at).is_(None),
        or_(col(TokenRow.expires_at).is_(None), col(TokenRow.expires_at) > utc_now()),
    )


def tokens_by_creator(session: Session, *, project_id: int | None = None) -> dict[str, list[CreatedToken]]:
    """Return active tokens by the name of their creator. They stay active after the creator loses the role."""
    chosen = select_any(TokenRow.id, TokenRow.name, ProjectRow.slug, TokenRow.created_by).where(is_active_token())
    chosen = chosen.join(ProjectRow, col(ProjectRow.id) == TokenRow.project_id)
    if project_id is not None:
        chosen = chosen.where(col(TokenRow.project_id) == project_id)
    tokens: dict[str, list[CreatedToken]] = {}
    for number, name, slug, creator in session.execute(chosen.order_by(col(ProjectRow.slug), col(TokenRow.id))):
        tokens.setdefault(creator, []).append(CreatedToken(number, name, slug))
    return tokens


def revoke_tokens_of(session: Session, creator: str, *, by: str, project_id: int | None = None) -> None:
    """Revoke all tokens that a user created, in one project or anywhere."""
    for token in tokens_by_creator(session, project_id=project_id).get(creator, []):
        revoke_token(session, token.id, by=by)


def _active_names(session: Session, project_id: int) -> set[str]:
    """Return the names of active tokens. Locks the project, so that two requests cannot take the same name."""
    session.get(ProjectRow, project_id, with_for_update=True)
    active = select(TokenRow).where(col(TokenRow.project_id) == project_id, is_active_token())
    return {row.name for row in session.execute(active).scalars()}


def tokens_of(session: Session, project_id: int, *, first: int, limit: int) -> list[TokenRow]:
    """Return up to `limit` tokens of a project from index `first` (0-based): active, then others; newest first."""
    chosen = select(TokenRow).where(col(TokenRow.project_id) == project_id)
    ordered = chosen.order_by(case((is_active_token(), 0), else_=1), col(TokenRow.id).desc())
    return list(session.execute(ordered.offset(first).limit(limit)).scalars())


def count_tokens(session: Session, project_id: int) -> tuple[int, int]:
    """Return the number of tokens of a project, and of its active tokens."""
    counts = select(func.count(), func.count().filter(is_active_token())).where(col(TokenRow.project_id) == project_id)
    total, valid = session.execute(counts.select_from(TokenRow)).one()
    return total, valid
