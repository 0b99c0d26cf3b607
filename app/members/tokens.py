"""Tokens of a project as people handle them: made with an end, listed with their state, revoked."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.access.roles import Scope
from app.errors import FieldError, InvalidChange, NotFound
from app.storage import tokens
from app.storage.access_tables import TokenRow
from app.storage.database import transaction
from app.storage.projects import find_project
from app.storage.run_records import aware
from app.storage.tables import utc_now

log = structlog.get_logger(__name__)

LIFE = timedelta(days=365)
"""What a token lives unless it is said."""

PAGE_SIZE = 100

State = Literal["in force", "expired", "revoked"]


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    name: str
    shown: str
    scopes: tuple[str, ...]
    state: State
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str


@dataclass(frozen=True, slots=True)
class TokenPage:
    """`total` and `in_force` count all tokens of the project."""

    items: tuple[Token, ...]
    page: int
    pages: int
    total: int
    in_force: int


def list_tokens(session: Session, slug: str, *, page: int = 1, page_size: int = PAGE_SIZE) -> TokenPage:
    """Those in force first, newest first. Raises NotFound."""
    project_id = find_project(session, slug).id or 0
    total, valid = tokens.count_tokens(session, project_id)
    rows = tokens.tokens_of(session, project_id, first=(page - 1) * page_size, limit=page_size)
    return TokenPage(tuple(map(_token, rows)), page, max(1, -(-total // page_size)), total, valid)


def make_token(
    engine: Engine, slug: str, *, name: str, scopes: Collection[str], expires_at: datetime | None, by: str
) -> tuple[Token, str]:
    """The token, and what nobody can see again. Raises InvalidChange, NotFound."""
    try:
        wanted = {Scope(scope) for scope in scopes}
    except ValueError:
        why = "must be one or more of upload, read and triage"
        raise InvalidChange(f"Nothing was kept: scopes {why}.", (FieldError("scopes", why),)) from None
    with transaction(engine) as session:
        project = find_project(session, slug)
        row, secret = tokens.make_token(
            session, project_id=project.id or 0, name=name, scopes=wanted, by=by, expires_at=expires_at
        )
        made = _token(row)
    log.info("token_made", project=slug, token=made.id, scopes=made.scopes)
    return made, secret


def revoke_token(engine: Engine, slug: str, token_id: int, *, by: str) -> Token:
    """Raises NotFound, also for a token of another project."""
    with transaction(engine) as session:
        project = find_project(session, slug)
        row = session.get(TokenRow, token_id)
        if row is None or row.project_id != project.id:
            raise NotFound(f"The project {slug} has no token {token_id}.")
        revoked = _token(tokens.revoke_token(session, token_id, by=by))
    log.info("token_revoked", project=slug, token=token_id)
    return revoked


def _token(row: TokenRow) -> Token:
    ends = aware(row.expires_at) if row.expires_at else None
    state: State = "revoked" if row.revoked_at else "expired" if ends and ends <= utc_now() else "in force"
    return Token(
        row.id or 0, row.name, row.shown, tuple(row.scopes), state, row.created_by, aware(row.created_at), ends,
        aware(row.last_used_at) if row.last_used_at else None, aware(row.revoked_at) if row.revoked_at else None,
        row.revoked_by,
    )  # fmt: skip
