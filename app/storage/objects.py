"""Which stored objects there are and which of them a run needs: so that a failed upload leaves none for long.

An upload first commits the keys that it is about to put, then puts them, then commits its run. Whatever dies in
between, the keys are known, and `forget_unused` deletes what no run came to need. Objects are shared by content, so
one is deleted only while its record is locked: an upload of the same content then waits, and puts it anew.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, Engine, delete, exists
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, col

from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import ProfileFileRow, SegmentRow, StoredObjectRow, select_any, utc_now
from app.storage.visible import EVERY_PROJECT, seeing

log = structlog.get_logger(__name__)

GRACE = timedelta(hours=6)
"""Longer than any upload takes from its first key to its run, and than a reader needs objects that were replaced."""

_DELETED_AT_ONCE = 200


def about_to_put(session: Session, keys: Iterable[str]) -> datetime:
    """Record the keys, or that they are wanted again. Commit before the objects are put. Returns the time noted."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    now = utc_now()
    for key in sorted(set(keys)):  # in one order, so that two uploads do not wait for each other
        statement = insert(StoredObjectRow).values(key=key, touched_at=now)
        session.execute(statement.on_conflict_do_update(index_elements=["key"], set_={"touched_at": now}))
    return now


def forget(engine: Engine, log_files: LogFiles, keys: Iterable[str], noted: datetime) -> int:
    """Delete those of the objects that no run needs and that nobody wanted after `noted`. Returns how many."""
    deleted = 0
    for key in sorted(set(keys)):
        with (
            seeing(EVERY_PROJECT),
            transaction(engine) as session,
        ):  # whoever needs it, also a project that the caller does not see
            statement = delete(StoredObjectRow).where(col(StoredObjectRow.key) == key, *_unused(noted))
            if session.execute(statement.returning(col(StoredObjectRow.key))).first():
                log_files.delete(key)
                deleted += 1
    return deleted


def forget_unused(engine: Engine, log_files: LogFiles, grace: timedelta = GRACE) -> int:
    """Delete the objects that no run needs and that nobody wanted for `grace`, some at a time. Returns how many."""
    noted = utc_now() - grace
    chosen = select_any(StoredObjectRow.key).where(*_unused(noted)).limit(_DELETED_AT_ONCE)
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        keys = session.execute(chosen).scalars().all()
    if deleted := forget(engine, log_files, keys, noted):
        log.info("unused_objects_deleted", objects=deleted)
    return deleted


def _unused(noted: datetime) -> tuple[ColumnElement[bool], ...]:
    of_run = exists().where(col(SegmentRow.object_key) == col(StoredObjectRow.key))
    of_profile = exists().where(col(ProfileFileRow.object_key) == col(StoredObjectRow.key))
    return col(StoredObjectRow.touched_at) <= noted, ~of_run, ~of_profile
