"""More of a log: the next bytes of a file that grows, or another file of the same run.

A client says at which byte of the file (decompressed) what it sends begins. Bytes that are there already must be equal
and are skipped, so that whoever does not know whether a request arrived sends it again. What is acknowledged is stored
and committed; the run is then read anew, once for however many appends came meanwhile (`pipeline/work.py`).

A file is stored as segments, each an object of its own that never changes (so that S3 will do). A new segment takes in
the older ones at its end that are no larger than what it brings, as a binary counter carries: n bytes in appends of any
size are a few dozen objects, and each byte is written again log2(n) times at most. Segments of 64 MiB stay as they are.
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
from app.errors import BrokenCompression, InvalidUpload, NotFound, OffsetConflict, TooLarge, Unavailable
from app.pipeline.receive import UNNAMED, Decompressed, Limits, checked, file_name, forgotten_on_failure, run_name
from app.pipeline.work import rested_at, run_queue
from app.queue import PROCESS_RUN, enqueue
from app.settings import Settings
from app.storage import audit, objects
from app.storage.database import read_session, transaction
from app.storage.log_files import LogFiles, StagedFile
from app.storage.projects import check_room
from app.storage.runs import aware
from app.storage.tables import RunFileRow, RunRow, SegmentRow, utc_now

# --- The logs of a run as they are stored, found by name.

_FIRST_NAME = "train.log"
CLOSED_SEGMENT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class HeldLog:
    """A log file as it is now; `file_id` is 0 when there is none yet. `segments` are (key, bytes), in their order."""

    file_id: int
    name: str
    size_bytes: int
    segments: tuple[tuple[str, int], ...]

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.segments]

    def carried(self, new_bytes: int) -> int:
        """How many of the last segments a new one takes in."""
        count, total = 0, new_bytes
        for _, length in reversed(self.segments):
            if length > total or length >= CLOSED_SEGMENT_BYTES:
                break
            total += length
            count += 1
        return count


def held_log(session: Session, run_id: int, name: str) -> HeldLog:
    if session.get(RunRow, run_id) is None:
        raise NotFound(f"There is no run {run_id}. It may have been deleted, or the address is mistyped.")
    rows = session.execute(select(RunFileRow).where(col(RunFileRow.run_id) == run_id, col(RunFileRow.kind) == "log"))
    files = list(rows.scalars())
    row = _chosen(files, name)
    if row is None:
        return HeldLog(0, file_name(name) if name else _FIRST_NAME, 0, ())
    segments = session.execute(
        select(SegmentRow.object_key, SegmentRow.size_bytes)  # type: ignore[call-overload]
        .where(col(SegmentRow.file_id) == row.id)
        .order_by(col(SegmentRow.position))
    )
    return HeldLog(
        row.id or 0, row.name, row.size_bytes, tuple((found.object_key, found.size_bytes) for found in segments)
    )


def _chosen(files: Sequence[RunFileRow], name: str) -> RunFileRow | None:
    """The file of that name, compressed or not; without a name the only one. None: it would be a new one."""
    if name:
        wanted = _plain(file_name(name))
        return next((row for row in files if _plain(row.name) == wanted), None)
    if len(files) > 1:
        names = ", ".join(row.name for row in files)
        raise InvalidUpload(f"This run has several logs: {names}. Say by `name` which one it is. Nothing was kept.")
    return files[0] if files else None


def _plain(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".zst")


log = structlog.get_logger(__name__)

IntoFinished = Callable[[int], None]
"""Raises for whom may not change a run of this project (its id) of which no more is to come."""

_FINISHED = ("whole", "complete")
_ATTEMPTS = 5
"""Several requests that append to one file at once: each but one begins again."""


@dataclass(frozen=True, slots=True)
class Appended:
    """`size_bytes` is what is held of the file now: the offset of what comes next."""

    run_id: int
    status: str
    file: str
    size_bytes: int
    receiving: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """What was sent: bytes that begin at byte `offset` of the file `name`; an empty name means the only one.

    `complete` True ends the run, False opens it, None leaves it as it is. `cut`: the kind of the compression of a file
    that ends early, of whose text all was sent. `by`: the user who sent it.
    """

    file: BinaryIO | None
    name: str = ""
    offset: int = 0
    complete: bool | None = None
    cut: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class _New:
    """The segment to come: it holds `added_bytes` more than the segments behind the first `keeps`, that it replaces."""

    file: StagedFile
    added_bytes: int
    keeps: int

    @property
    def key(self) -> str:
        return self.file.stored.key


class _OvertakenError(Exception):
    """Another request appended to the file meanwhile."""


def by_anybody(_project_id: int) -> None:
    """Where nobody logs in."""


def append_log(
    engine: Engine,
    log_files: LogFiles,
    settings: Settings,
    run_id: int,
    piece: Piece,
    *,
    into_finished: IntoFinished = by_anybody,
) -> Appended:
    """Store one piece of a log.

    Raises InvalidUpload, OffsetConflict, NotFound, Unavailable or what `into_finished` does; then nothing changed.
    """
    for _ in range(_ATTEMPTS):
        try:
            done, rings = _append(engine, log_files, settings, run_id, piece, into_finished=into_finished)
        except _OvertakenError:
            continue
        log.info("log_appended", run_id=run_id, file=done.file, size_bytes=done.size_bytes, receiving=done.receiving)
        if rings:
            enqueue(PROCESS_RUN, run_id)
        return done
    raise Unavailable("Several clients append to this file at once, and others were faster. Send it again.")


def close_abandoned(session: Session, settings: Settings) -> None:
    """Close the runs that had no news for too long, to be read a last time. Later news opens them again."""
    silent_since = utc_now() - timedelta(seconds=settings.receiving_timeout_seconds)
    abandoned = (col(RunRow.reception) == "receiving", col(RunRow.heard_at) < silent_since)
    ids = session.execute(select(RunRow.id).where(*abandoned).with_for_update(skip_locked=True)).scalars().all()  # type: ignore[call-overload]
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
    """Also says whether a worker is to be rung for now."""
    with read_session(engine) as session:
        held = held_log(session, run_id, piece.name)
        project_id = session.get_one(RunRow, run_id).project_id
    _check_offset(held, piece)
    with _staged(log_files, settings, held, piece) as new:
        if new is None:
            with transaction(engine, durable=True) as session:
                row = session.get_one(RunRow, run_id, with_for_update=True)
                ends_early = _ends_early(session, held.file_id, piece)
                # Opens it again, or says more of it; without news, an end of what has ended changes nothing.
                if piece.complete is False or ends_early:
                    _check_finished(row, settings, into_finished)
                return _news(session, run_id, piece, held, new_bytes=0, says_more=ends_early)
        with transaction(engine) as session:
            check_room(session, settings, project_id, new.added_bytes, new_run=False)
            # What it takes the place of stays for a while, for whoever reads it just now.
            noted = objects.about_to_put(session, [new.key, *held.keys[new.keeps :]])
        with forgotten_on_failure(engine, log_files, [new.key], noted):
            log_files.keep(new.file)
            with transaction(engine, durable=True) as session:
                row = session.get_one(RunRow, run_id, with_for_update=True)  # one append at a time changes a run
                _check_finished(row, settings, into_finished)
                if held_log(session, run_id, piece.name) != held:
                    raise _OvertakenError
                check_room(session, settings, project_id, new.added_bytes, new_run=False)
                file_id = _write_segment(session, run_id, held, new)
                _ends_early(session, file_id, piece)
                return _news(session, run_id, piece, held, new_bytes=new.added_bytes)


def _check_finished(row: RunRow, settings: Settings, into_finished: IntoFinished) -> None:
    """One that was closed is open to its job for as long as it would have been without: a follower that was stopped
    too early goes on in it."""
    closed_for = utc_now() - aware(row.heard_at or row.created_at)
    late = closed_for > timedelta(seconds=settings.receiving_timeout_seconds)
    if row.reception == "whole" or (row.reception == "complete" and late):
        into_finished(row.project_id)


def _check_offset(held: HeldLog, piece: Piece) -> None:
    if piece.offset > held.size_bytes:
        raise OffsetConflict(
            f"What was sent begins at byte {piece.offset:,}, but only {held.size_bytes:,} bytes of {held.name} are "
            f"held. Nothing was kept. Send what follows byte {held.size_bytes:,}.",
            offset=held.size_bytes,
        )


@contextmanager
def _staged(log_files: LogFiles, settings: Settings, held: HeldLog, piece: Piece) -> Iterator[_New | None]:
    """The new segment: what is new of the piece, behind the text of the segments that it takes in."""
    if piece.file is None:
        yield None
        return
    limits = Limits.from_settings(settings)
    chunks = Decompressed(piece.file, held.name, limits)
    is_first = held.size_bytes == 0
    with StagedFile(_only_new(log_files, held, piece.offset, chunks)) as fresh:
        added = fresh.stored.size_bytes
        if chunks.cut:
            raise BrokenCompression(
                f"This piece of {held.name} is {chunks.cut}, but ends early. Nothing was kept. Send it again whole."
            )
        if held.size_bytes + added > limits.decompressed_bytes:
            raise TooLarge(f"{held.name} would be larger than {size(limits.decompressed_bytes)}. Nothing was kept.")
        if added == 0:
            yield None
            return
        if is_first and fresh.head.strip(b"\0"):  # a log may begin with a hole, and its text is still to come
            for _ in checked([fresh.head], "log", held.name):
                pass
        keeps = len(held.segments) - held.carried(added)
        if keeps == len(held.segments):
            yield _New(fresh, added, keeps)
            return
        with StagedFile(chain(log_files.stream(held.keys[keeps:]), fresh.chunks())) as joined:
            yield _New(joined, added, keeps)


def _only_new(log_files: LogFiles, held: HeldLog, offset: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """What of the chunks, that begin at `offset`, is not held yet. Raises OffsetConflict when the rest is not equal."""
    stored = log_files.stream_range(held.keys, offset, held.size_bytes)
    known, at = b"", offset
    for chunk in chunks:
        left = chunk
        while left and at < held.size_bytes:
            known = known or next(stored)
            length = min(len(known), len(left))
            if known[:length] != left[:length]:
                raise OffsetConflict(
                    f"What was sent differs from what is held of {held.name} within the {length:,} bytes from byte "
                    f"{at:,} on. Nothing was kept. If it is another file, send it under another `name`.",
                    offset=held.size_bytes,
                )
            known, left, at = known[length:], left[length:], at + length
        if left:
            yield left


def _ends_early(session: Session, file_id: int, piece: Piece) -> bool:
    """Note where the piece says so; whether that is news."""
    row = session.get(RunFileRow, file_id) if piece.cut else None
    if row is None or row.cut == piece.cut:
        return False
    row.cut = piece.cut
    return True


def _write_segment(session: Session, run_id: int, held: HeldLog, new: _New) -> int:
    """Returns the file's id."""
    file_id = held.file_id
    if not file_id:
        positions = session.execute(select(func.max(RunFileRow.position)).where(col(RunFileRow.run_id) == run_id))
        last = positions.scalar_one()
        row = RunFileRow(
            run_id=run_id,
            kind="log",
            name=held.name,
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
        # Of a file in one piece, its hash is known; of the others, nobody reads them whole to have it.
        row.sha256 = new.file.stored.sha256 if new.keeps == 0 else ""
        row.cut = ""  # it goes on where it had ended early
    late = delete(SegmentRow).where(col(SegmentRow.file_id) == file_id, col(SegmentRow.position) >= new.keeps)
    session.execute(late)
    session.add(
        SegmentRow(file_id=file_id, position=new.keeps, size_bytes=new.file.stored.size_bytes, object_key=new.key)
    )
    return file_id


def _news(
    session: Session,
    run_id: int,
    piece: Piece,
    held: HeldLog,
    *,
    new_bytes: int,
    says_more: bool = False,
) -> tuple[Appended, bool]:
    """Note what came on the run, and have it read when it changed."""
    row = session.get_one(RunRow, run_id, with_for_update=True)
    before = row.reception
    if piece.complete is not None:
        row.reception = "complete" if piece.complete else "receiving"
    elif before == "incomplete" and new_bytes:
        row.reception = "receiving"
    if new_bytes or row.reception != before or before == "receiving":  # repeated, it is no news
        row.heard_at = utc_now()
    if row.name == UNNAMED and not row.metadata_stated.get("name") and held.name:
        row.name = run_name(held.name)
    if before in _FINISHED and (new_bytes or row.reception == "receiving"):
        audit.record(
            session, who=piece.by or audit.SERVICE, subject="run", subject_id=run_id, action="appended",
            project_id=row.project_id, before={"reception": before, "bytes": held.size_bytes},
            after={"reception": row.reception, "bytes": held.size_bytes + new_bytes}, note=held.name,
        )  # fmt: skip
    rings = False
    if new_bytes or says_more or row.reception != before:
        due = utc_now() if row.reception == "complete" else rested_at(row)
        rings = row.work == "" and due <= utc_now()
        session.flush()
        run_queue.request(session, col(RunRow.id) == run_id, due_at=due)
    size_bytes = held.size_bytes + new_bytes
    return Appended(run_id, row.status, held.name, size_bytes, row.reception == "receiving"), rings
