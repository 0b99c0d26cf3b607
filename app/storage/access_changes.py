"""Tells this process at once that somebody's access changed: what it remembers of principals is good no longer.

Other processes notice when what they remember grows old (`web/access/known.py`), a few seconds later.
"""

import threading

from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState
from sqlalchemy.orm import Session as OrmSession

from app.storage.access_tables import MemberRow, SessionRow, TokenRow, UserRow
from app.storage.tables import ProjectRow

OF_NO_ACCOUNT = "of_no_account"
"""Execution option of a statement on these tables that changes nothing of who may do what: a time of last use."""

_TABLES = (UserRow, MemberRow, SessionRow, TokenRow, ProjectRow)
_CHANGED = "access_changed"

_lock = threading.Lock()
_generation = 0


def generation() -> int:
    """Grows with every committed change; what was read under an older one is to be read again."""
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
