"""Which stored objects exist and which of them are in use, so that failed uploads leave no garbage.

An upload first commits the keys it is about to store, then stores the objects, then commits its run. If it dies in
between, `forget_unused` deletes the objects that no run uses. Objects are shared by content, so one is deleted only
while its record is locked: a concurrent upload of the same content waits and stores it again.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, Engine, delete, exists, or_
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, col

from app.domain.retention import UNDO_DAYS
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles
from app.storage.tables import DeletionObjectRow, ProfileFileRow, SegmentRow, StoredObjectRow, select_any, utc_now
from app.storage.visible import EVERY_PROJECT, seeing

log = structlog.get_logger(__name__)

GRACE = timedelta(hours=6)
"""Longer than any upload takes from its first key to its run, and longer than readers need replaced objects."""

_DELETED_AT_ONCE = 200


def about_to_put(session: Session, keys: Iterable[str]) -> datetime:
    """Record the keys as about to be stored. Commit before storing the objects. Returns the recorded time."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    now = utc_now()
    for key in sorted(set(keys)):  # sorted, so that two uploads do not wait for each other
        statement = insert(StoredObjectRow).values(key=key, touched_at=now)
        session.execute(statement.on_conflict_do_update(index_elements=["key"], set_={"touched_at": now}))
    return now


def forget(engine: Engine, log_files: LogFiles, keys: Iterable[str], noted: datetime) -> int:
    """Delete those of the objects that are unused and were not requested after `noted`. Returns how many."""
    deleted = 0
    for key in sorted(set(keys)):
        with (
            seeing(EVERY_PROJECT),
            transaction(engine) as session,
        ):  # including objects of projects that the caller cannot see
            statement = delete(StoredObjectRow).where(col(StoredObjectRow.key) == key, *_unused(noted))
            if session.execute(statement.returning(col(StoredObjectRow.key))).first():
                log_files.delete(key)
                deleted += 1
    return deleted


def forget_unused(engine: Engine, log_files: LogFiles, grace: timedelta = GRACE) -> int:
    """Delete unused objects that were not requested for `grace`, in batches. Returns how many."""
    noted = utc_now() - grace
    chosen = select_any(StoredObjectRow.key).where(*_unused(noted)).limit(_DELETED_AT_ONCE)
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        keys = session.execute(chosen).scalars().all()
    if deleted := forget(engine, log_files, keys, noted):
        log.info("unused_objects_deleted", objects=deleted)
    return deleted


def _unused(noted: datetime) -> tuple[ColumnElement[bool], ...]:
    is_there = or_(
        col(SegmentRow.removed_at).is_(None), col(SegmentRow.removed_at) > utc_now() - timedelta(days=UNDO_DAYS)
    )
    of_run = exists().where(col(SegmentRow.object_key) == col(StoredObjectRow.key), is_there)
    of_deletion = exists().where(col(DeletionObjectRow.object_key) == col(StoredObjectRow.key))
    of_profile = exists().where(col(ProfileFileRow.object_key) == col(StoredObjectRow.key))
    return col(StoredObjectRow.touched_at) <= noted, ~of_run, ~of_profile, ~of_deletion
