"""The logs of a run as they are stored: found by name, read by line."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlmodel import Session, col

from app.errors import InvalidUpload, NotFound
from app.pipeline.uploaded_file import file_name
from app.storage.log_files import LogFiles
from app.storage.runs import RunFile
from app.storage.tables import RunFileRow, RunRow, SegmentRow

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


# --- The logs of a run as one text, its lines counted through all files.


def lines_of(log_files: LogFiles, files: Sequence[RunFile], first: int, last: int) -> tuple[list[str], int]:
    """Lines first..last of the files one after another, counted from 1, and how many there are. Raises Unavailable."""
    found: list[str] = []
    before = 0
    for file in files:
        count = log_files.line_count(file.keys)
        if first <= before + count and last > before:
            found += log_files.lines(file.keys, max(1, first - before), min(count, last - before))
        before += count
    return found, before
