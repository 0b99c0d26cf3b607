"""Stored files that are missing or damaged: `threewalls verify` names their runs, the same upload restores them."""

from collections.abc import Sequence

from sqlalchemy import Engine, or_, select
from sqlmodel import col

from app.domain.numbers import counted
from app.errors import DamagedObject
from app.pipeline.run_work import ask_to_read
from app.queue import PROCESS_RUN, enqueue
from app.settings import Settings
from app.storage.database import make_engine, read_session, require_migrated, transaction
from app.storage.log_files import LogFiles, StagedFile
from app.storage.tables import RunFileRow, RunRow, SegmentRow
from app.storage.visible import seeing


def verify(settings: Settings) -> int:
    """Print what is wrong. Returns the number of damaged objects; raises Unavailable when a service does not answer."""
    require_migrated(settings)
    log_files = LogFiles.from_settings(settings)
    objects = _objects(settings)
    damaged = 0
    for key, files in objects.items():
        try:
            log_files.check_object(key)
        except DamagedObject as error:
            damaged += 1
            print(f"{', '.join(files)}: {error.detail}")
    print(f"{counted(len(objects), 'stored object')} read, {damaged:,} of them missing or damaged.")
    return damaged


def restore(engine: Engine, log_files: LogFiles, files: Sequence[StagedFile]) -> None:
    """Put back what is missing or damaged of the files of runs, and have the runs read that failed for lack of it."""
    needed = select(SegmentRow.object_key).where(col(SegmentRow.object_key).in_({file.stored.key for file in files}))  # type: ignore[call-overload]
    with seeing(None), read_session(engine) as session:
        stored = set(session.execute(needed).scalars())
    restored = {file.stored.key for file in files if file.stored.key in stored and log_files.keep(file)}
    if not restored:
        return
    holders = select(RunFileRow.run_id).join(SegmentRow, col(SegmentRow.file_id) == RunFileRow.id)  # type: ignore[call-overload]
    failed = (
        col(RunRow.id).in_(holders.where(col(SegmentRow.object_key).in_(restored))),
        or_(col(RunRow.status) == "failed", col(RunRow.recompute_failed) > 0),
    )
    with seeing(None), transaction(engine) as session:
        run_ids = session.execute(select(RunRow.id).where(*failed)).scalars().all()  # type: ignore[call-overload]
        ask_to_read(session, *failed)
    for run_id in run_ids:
        enqueue(PROCESS_RUN, run_id)


def _objects(settings: Settings) -> dict[str, list[str]]:
    """Which files of runs each object holds, or a part of."""
    chosen = (
        select(SegmentRow.object_key, RunFileRow.run_id, RunFileRow.name)  # type: ignore[call-overload]
        .join(RunFileRow, col(RunFileRow.id) == SegmentRow.file_id)
        .order_by(RunFileRow.run_id, RunFileRow.position, SegmentRow.position)
    )
    engine = make_engine(settings)
    objects: dict[str, list[str]] = {}
    try:
        with read_session(engine) as session:
            for key, run_id, name in session.execute(chosen):
                objects.setdefault(key, []).append(f"run {run_id}, {name}")
    finally:
        engine.dispose()
    return objects
