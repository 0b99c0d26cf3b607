"""Notices changes of access rights, so that this process forgets what it cached about principals.

Other processes follow a few seconds later, when their cache expires (`access/credentials.py`).
"""

import threading
from collections.abc import Collection

from sqlalchemy import event, select
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.orm import Session as OrmSession
from sqlmodel import Session, col

from app.storage.tables import (
    GroupMemberRow,
    GroupRoleRow,
    GroupRow,
    MemberRow,
    ProjectRow,
    SessionRow,
    ShareLinkRow,
    TokenRow,
    UserRow,
)

OF_NO_ACCOUNT = "of_no_account"
"""Execution option of a statement on these tables that changes no rights, such as storing the time of last use."""

_TABLES = (UserRow, MemberRow, GroupRow, GroupMemberRow, GroupRoleRow, SessionRow, ShareLinkRow, TokenRow, ProjectRow)
_CHANGED = "access_changed"

_lock = threading.Lock()
_generation = 0


def generation() -> int:
    """Return a number that grows with every committed change. Values cached under a lower number are stale."""
    return _generation


@event.listens_for(OrmSession, "before_flush")
def _note_rows(session: OrmSession, _context: object, _instances: object) -> None:
    touched = (*session.new, *session.dirty, *session.deleted)
    if any(isinstance(row, _TABLES) for row in touched):
        session.info[_CHANGED] = True


@event.listens_for(OrmSession, "do_orm_execute")
def _note_statements(state: ORMExecuteState) -> None:
    if not (state.is_update or state.is_delete or state.is_insert) or state.execution_options.get(OF_NO_ACCOUNT):
        return
    mapper = state.bind_mapper
    if mapper is not None and issubclass(mapper.class_, _TABLES):
        state.session.info[_CHANGED] = True


@event.listens_for(OrmSession, "after_commit")
def _count(session: OrmSession) -> None:
    global _generation  # noqa: PLW0603  one number of the process
    if session.info.pop(_CHANGED, False):
        with _lock:
            _generation += 1


# --- The projects of a grant.


def project_slugs(session: Session, ids: Collection[int]) -> list[str]:
    """Return the slugs of the projects that exist, in alphabetical order."""
    chosen = select(col(ProjectRow.slug)).where(col(ProjectRow.id).in_(ids)).order_by(col(ProjectRow.slug))
    return list(session.execute(chosen).scalars())
