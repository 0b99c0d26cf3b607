"""Append to a run: the next bytes of a growing log, or another file of the same run.

A client states the (decompressed) byte offset at which its data begin. Bytes that are already stored must be equal and
are skipped, so a client that does not know whether a request arrived can repeat it. An acknowledged append is stored
and committed. The run is then read again, once for all appends since the last reading (`work.py`).

A file is stored as segments. Each is an immutable object, because S3 cannot append. A new segment absorbs the preceding
segments that are no larger than itself, like a carry in a binary counter: n bytes in appends of any size become a few
dozen objects, and each byte is rewritten at most log2(n) times. Segments of 64 MiB are not rewritten.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import BinaryIO

import structlog
from sqlalchemy import Engine, delete, func, select, update
from sqlmodel import Session, col

from app.domain.numbers import size
from app.errors import BrokenCompression, Conflict, InvalidUpload, OffsetConflict, TooLarge, Unavailable
from app.pipeline.receive import deleted_on_failure
from app.pipeline.uploaded_file import UNNAMED, Decompressed, Limits, checked, file_name, run_name
from app.pipeline.work import rested_at, run_queue
from app.queue import PROCESS_RUN, enqueue
from app.settings import Settings
from app.storage import audit, objects
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles, StagedFile
from app.storage.projects import check_room
from app.storage.runs import get_run
from app.storage.tables import RunFileRow, RunRow, SegmentRow, select_any, utc_now

# --- The stored logs of a run.

_FIRST_NAME = "train.log"
CLOSED_SEGMENT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A stored log file. `file_id` is 0 if it does not exist yet. `segments`: (object key, size in bytes), in order."""

    file_id: int
    name: str
    size_bytes: int
    segments: tuple[tuple[str, int], ...]

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.segments]

    def absorbed(self, new_bytes: int) -> int:
        """Return the number of segments at the end that a new segment of `new_bytes` absorbs."""
        count, total = 0, new_bytes
        for _, length in reversed(self.segments):
            if length > total or length >= CLOSED_SEGMENT_BYTES:
                break
            total += length
            count += 1
        return count


def read_log(session: Session, run_id: int, name: str) -> StoredLog:
    get_run(session, run_id)
    rows = session.execute(select(RunFileRow).where(col(RunFileRow.run_id) == run_id, col(RunFileRow.kind) == "log"))
    files = list(rows.scalars())
    row = _file_named(files, name)
    if row is None:
        return StoredLog(0, file_name(name) if name else _FIRST_NAME, 0, ())
    segments = session.execute(
        select_any(SegmentRow.object_key, SegmentRow.size_bytes, SegmentRow.removed_at)
        .where(col(SegmentRow.file_id) == row.id)
        .order_by(col(SegmentRow.position))
    ).all()
    if any(segment.removed_at for segment in segments):
        raise Conflict(f"The raw file {row.name} of run {run_id} was deleted. Nothing was saved.")
    return StoredLog(
        row.id or 0, row.name, row.size_bytes, tuple((segment.object_key, segment.size_bytes) for segment in segments)
    )


def _file_named(files: Sequence[RunFileRow], name: str) -> RunFileRow | None:
    """Return the file of that name, ignoring suffixes of compressions; without a name, the only file; None if new."""
    if name:
        wanted = without_compression(file_name(name))
        return next((row for row in files if without_compression(row.name) == wanted), None)
    if len(files) > 1:
        names = ", ".join(row.name for row in files)
        raise InvalidUpload(f"This run has several logs: {names}. Select one with `name`. Nothing was saved.")
    return files[0] if files else None


def without_compression(name: str) -> str:
    """Return the name without the suffix of a compression; stored files are decompressed."""
    return name.removesuffix(".gz").removesuffix(".zst")


log = structlog.get_logger(__name__)

IntoFinished = Callable[[int], None]
"""Called with a project id; raises if the caller may not change finished runs of the project."""

_FINISHED = ("whole", "complete")
_ATTEMPTS = 5
"""Maximum attempts of an append. If several are concurrent, all but one start over."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The state after an append. `size_bytes`: stored size of the file, the offset of the next append."""

    run_id: int
    status: str
    file: str
    size_bytes: int
    receiving: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """One append: bytes from `offset` of the file `name`; an empty name means the only file.

    `complete`: True ends the run, False reopens it, None changes nothing. `cut`: compression format of a file that ends
    early and whose text was sent in full. `by`: the user who sent it.
    """

    file: BinaryIO | None
    name: str = ""
    offset: int = 0
    complete: bool | None = None
    cut: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class _NewSegment:
    """The new segment: replaces all but the first `keeps` segments and has `added_bytes` more than they had."""

    file: StagedFile
    added_bytes: int
    keeps: int


class _ConcurrentAppendError(Exception):
    """Raised when another request has appended to the file since it was read."""


def allow_everyone(_project_id: int) -> None:
    """Allow every caller, for services without log-in."""


def append_log(
    engine: Engine,
    log_files: LogFiles,
    settings: Settings,
    run_id: int,
    piece: Piece,
    *,
    into_finished: IntoFinished = allow_everyone,
) -> Appended:
    """Store one append.

    Raises InvalidUpload, OffsetConflict, NotFound, Unavailable or an error of `into_finished`; then nothing changed.
    """
    for _ in range(_ATTEMPTS):
        try:
            done, enqueues = _append(engine, log_files, settings, run_id, piece, into_finished=into_finished)
        except _ConcurrentAppendError:
            continue
        log.info("log_appended", run_id=run_id, file=done.file, size_bytes=done.size_bytes, receiving=done.receiving)
        if enqueues:
            enqueue(PROCESS_RUN, run_id)
        return done
    raise Unavailable("Other clients appended to this file at the same time. Send it again.")


def close_abandoned(session: Session, settings: Settings) -> None:
    """Close runs that have received nothing for too long, and request a last reading. A later append reopens them."""
    silent_since = utc_now() - timedelta(seconds=settings.receiving_timeout_seconds)
    abandoned = (col(RunRow.reception) == "receiving", col(RunRow.heard_at) < silent_since)
    ids = session.execute(select_any(RunRow.id).where(*abandoned).with_for_update(skip_locked=True)).scalars().all()
    if ids:
        run_queue.request(session, col(RunRow.id).in_(ids))
        session.execute(update(RunRow).where(col(RunRow.id).in_(ids)).values(reception="incomplete"))
        log.info("runs_closed_as_incomplete", run_ids=list(ids))


def _append(
    engine: Engine,
    log_files: LogFiles,
    settings: Settings,
    run_id: int,
    piece: Piece,
    *,
    into_finished: IntoFinished,
) -> tuple[Appended, bool]:
    """Store one append; return the new state, and whether to enqueue processing now."""
    with read_session(engine) as session:
        stored_log = read_log(session, run_id, piece.name)
        project_id = session.get_one(RunRow, run_id).project_id
    if piece.offset > stored_log.size_bytes:
        raise OffsetConflict(
            f"This append begins at byte {piece.offset:,}, but only {stored_log.size_bytes:,} bytes of "
            f"{stored_log.name} are stored. Nothing was saved. Continue from byte {stored_log.size_bytes:,}.",
            offset=stored_log.size_bytes,
        )
    with _staged(log_files, settings, stored_log, piece) as new:
        if new is None:
            with transaction(engine, durable=True) as session:
                row = session.get_one(RunRow, run_id, with_for_update=True)
                ends_early = _ends_early(session, stored_log.file_id, piece)
                # Only an append that reopens or changes the run needs the check; ending a finished run again does not.
                if piece.complete is False or ends_early:
                    _check_finished(row, settings, into_finished)
                return _record_append(session, run_id, piece, stored_log, new_bytes=0, changes_cut=ends_early)
        with transaction(engine) as session:
            check_room(session, settings, project_id, new.added_bytes, new_run=False)
            # Replaced segments stay for a while, for requests that are still reading them.
            noted_at = objects.about_to_put(session, [new.file.stored.key, *stored_log.keys[new.keeps :]])
        with deleted_on_failure(engine, log_files, [new.file.stored.key], noted_at):
            log_files.keep(new.file)
            with transaction(engine, durable=True) as session:
                row = session.get_one(RunRow, run_id, with_for_update=True)  # one append at a time
                _check_finished(row, settings, into_finished)
                if read_log(session, run_id, piece.name) != stored_log:
                    raise _ConcurrentAppendError
                check_room(session, settings, project_id, new.added_bytes, new_run=False)
                file_id = _write_segment(session, run_id, stored_log, new)
                _ends_early(session, file_id, piece)
                return _record_append(session, run_id, piece, stored_log, new_bytes=new.added_bytes)


def _check_finished(row: RunRow, settings: Settings, into_finished: IntoFinished) -> None:
    """Check that the caller may change a finished run. A run that was closed recently stays open to its job, so that a
    client that was stopped too early can continue."""
    closed_for = utc_now() - (row.heard_at or row.created_at)
    late = closed_for > timedelta(seconds=settings.receiving_timeout_seconds)
    if row.reception == "whole" or (row.reception == "complete" and late):
        into_finished(row.project_id)


@contextmanager
def _staged(
    log_files: LogFiles, settings: Settings, stored_log: StoredLog, piece: Piece
) -> Iterator[_NewSegment | None]:
    """Yield the new segment: the absorbed segments followed by the new bytes. None when nothing is new."""
    if piece.file is None:
        yield None
        return
    limits = Limits.from_settings(settings)
    chunks = Decompressed(piece.file, stored_log.name, limits)
    is_first = stored_log.size_bytes == 0
    with StagedFile(_only_new(log_files, stored_log, piece.offset, chunks)) as fresh:
        added = fresh.stored.size_bytes
        if chunks.cut:
            raise BrokenCompression(
                f"This piece of {stored_log.name} is {chunks.cut}, but ends early. Nothing was saved. Send it again."
            )
        if stored_log.size_bytes + added > limits.decompressed_bytes:
            raise TooLarge(f"{stored_log.name} would exceed {size(limits.decompressed_bytes)}. Nothing was saved.")
        if added == 0:
            yield None
            return
        if is_first and fresh.head.strip(b"\0"):  # a log may begin with NUL bytes before its first text
            for _ in checked([fresh.head], "log", stored_log.name):
                pass
        keeps = len(stored_log.segments) - stored_log.absorbed(added)
        if keeps == len(stored_log.segments):
            yield _NewSegment(fresh, added, keeps)
            return
        with StagedFile(chain(log_files.stream(stored_log.keys[keeps:]), fresh.chunks())) as joined:
            yield _NewSegment(joined, added, keeps)


def _only_new(log_files: LogFiles, stored_log: StoredLog, offset: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes that are not stored yet. Raises OffsetConflict if the bytes before them differ."""
    stored = log_files.stream_range(stored_log.keys, offset, stored_log.size_bytes)
    expected, at = b"", offset
    for chunk in chunks:
        left = chunk
        while left and at < stored_log.size_bytes:
            expected = expected or next(stored)
            length = min(len(expected), len(left))
            if expected[:length] != left[:length]:
                raise OffsetConflict(
                    f"This append differs from the stored {stored_log.name} within the {length:,} bytes from byte "
                    f"{at:,} on. Nothing was saved. If it is another file, send it under another `name`.",
                    offset=stored_log.size_bytes,
                )
            expected, left, at = expected[length:], left[length:], at + length
        if left:
            yield left


def _ends_early(session: Session, file_id: int, piece: Piece) -> bool:
    """Record that the file ends early, if the append states so. Return whether the record changed."""
    row = session.get(RunFileRow, file_id) if piece.cut else None
    if row is None or row.cut == piece.cut:
        return False
    row.cut = piece.cut
    return True


def _write_segment(session: Session, run_id: int, stored_log: StoredLog, new: _NewSegment) -> int:
    """Write the new segment in place of the absorbed ones. Return the file's id."""
    file_id = stored_log.file_id
    if not file_id:
        positions = session.execute(select(func.max(RunFileRow.position)).where(col(RunFileRow.run_id) == run_id))
        last = positions.scalar_one()
        row = RunFileRow(
            run_id=run_id,
            kind="log",
            name=stored_log.name,
            position=0 if last is None else last + 1,
            size_bytes=new.added_bytes,
            sha256=new.file.stored.sha256,
        )
        session.add(row)
        session.flush()
        file_id = row.id or 0
    else:
        row = session.get_one(RunFileRow, file_id)
        row.size_bytes += new.added_bytes
        # The hash of a file in several segments is unknown: computing it would mean reading all of them.
        row.sha256 = new.file.stored.sha256 if new.keeps == 0 else ""
        row.cut = ""  # the text now continues
    late = delete(SegmentRow).where(col(SegmentRow.file_id) == file_id, col(SegmentRow.position) >= new.keeps)
    session.execute(late)
    session.add(
        SegmentRow(
            file_id=file_id, position=new.keeps, size_bytes=new.file.stored.size_bytes, object_key=new.file.stored.key
        )
    )
    return file_id


def _record_append(
    session: Session,
    run_id: int,
    piece: Piece,
    stored_log: StoredLog,
    *,
    new_bytes: int,
    changes_cut: bool = False,
) -> tuple[Appended, bool]:
    """Update the run after an append and request a reading if it changed. Also return whether to enqueue now."""
    row = session.get_one(RunRow, run_id, with_for_update=True)
    before = row.reception
    if piece.complete is not None:
        row.reception = "complete" if piece.complete else "receiving"
    elif before == "incomplete" and new_bytes:
        row.reception = "receiving"
    if new_bytes or row.reception != before or before == "receiving":  # a repeated append changes nothing
        row.heard_at = utc_now()
    if row.name == UNNAMED and not row.result.metadata_stated.get("name") and stored_log.name:
        row.name = run_name(stored_log.name)
    if before in _FINISHED and (new_bytes or row.reception == "receiving"):
        audit.record(
            session, who=piece.by or audit.SERVICE, subject="run", subject_id=run_id, action="appended",
            project_id=row.project_id, before={"reception": before, "bytes": stored_log.size_bytes},
            after={"reception": row.reception, "bytes": stored_log.size_bytes + new_bytes}, note=stored_log.name,
        )  # fmt: skip
    enqueues = False
    if new_bytes or changes_cut or row.reception != before:
        due = utc_now() if row.reception == "complete" else rested_at(row)
        enqueues = row.work == "" and due <= utc_now()
        session.flush()
        run_queue.request(session, col(RunRow.id) == run_id, due_at=due)
    size_bytes = stored_log.size_bytes + new_bytes
    return Appended(run_id, row.status, stored_log.name, size_bytes, row.reception == "receiving"), enqueues
