"""`upload --follow`: sends a log while it grows, and closes the run when the job ends.

There is no local state. The file keeps the data while the service is unreachable, and the service knows how many bytes
it has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path

from app.client.delivery import DeliveredRun, deliver, open_run, send_piece, stored_bytes
from app.client.errors import Refused, Unreachable
from app.client.service import Service
from app.client.upload import PIECE_BYTES, Upload, read_upload, upload_key
from app.errors import ThreewallsError
from threewalls.transport import LONGEST_SECONDS

# --- A file that another process writes, replaces or truncates.

_REMEMBERED_BYTES = 64 * 1024
"""Bytes before `offset` that are compared to detect a rewritten file that is already longer."""


class Tail:
    """Reads new bytes of a growing file. `number` counts the files under this path, `offset` is the next byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 1
        self.offset = 0
        self._file: FileIO | None = None
        self._before: tuple[int, bytes] | None = None

    def read(self, most: int) -> bytes:
        """Return the next bytes of the current file, empty if there are none. See `is_over` for the next file."""
        if self._file is None:
            try:
                self._file = self.path.open("rb", buffering=0)  # unbuffered, to notice rewritten bytes
            except FileNotFoundError:
                return b""
        before = self._remembered()
        self._file.seek(self.offset - len(before))
        data = self._file.read(len(before) + most)
        if not data.startswith(before):
            return b""
        self._before = self.offset + len(data) - len(before), data
        return data[len(before) :]

    def _remembered(self) -> bytes:
        """Return the bytes read directly before `offset`, which stays behind while the service is unreachable."""
        if self._before is None:
            return b""
        end, data = self._before
        unsent = end - self.offset
        return data[: len(data) - unsent][-_REMEMBERED_BYTES:] if 0 <= unsent <= len(data) else b""

    def is_over(self) -> bool:
        """Return whether this file has ended: another file has its name, or it was truncated or rewritten."""
        if self._file is None:
            return False
        opened = os.fstat(self._file.fileno())
        if opened.st_size < self.offset or self._is_rewritten():
            return True
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False  # renamed, and its writer may still append
        return opened.st_size == self.offset and not os.path.samestat(opened, named)

    def _is_rewritten(self) -> bool:
        before = self._remembered()
        if self._file is None or not before:
            return False
        self._file.seek(self.offset - len(before))
        return self._file.read(len(before)) != before

    def next_file(self) -> None:
        self.close()
        self.offset, self._before = 0, None
        self.number += 1

    @property
    def name(self) -> str:
        """Return the log name of this file in the run. Each further file is another log."""
        return self.path.name if self.number == 1 else f"{self.path.name}.{self.number}"

    @property
    def identity(self) -> str:
        """Return device and inode of the file, empty if it does not exist."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return ""
        return f"{status.st_dev}:{status.st_ino}"

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_COMPARED_BYTES = 64 * 1024
"""Bytes at the start of a log that show whether an open run belongs to the same file."""


@dataclass(frozen=True)
class StopCondition:
    """When to stop, apart from a signal: process `pid` has ended, no growth for `idle` seconds, or `marker` in the
    log."""

    pid: int | None = None
    idle: float | None = None
    marker: bytes = b""


@dataclass
class Follower:
    """Sends a growing log. `quick` makes one attempt per request, `patient` retries; signal handlers set `stopped`."""

    quick: Service
    patient: Service
    path: Path
    meta: Mapping[str, object]
    documents: Upload
    until: StopCondition
    interval: float
    job_key: str
    say: Callable[[str], None]
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    stopped: bool = False
    run: DeliveredRun | None = None
    _upload: Upload | None = None
    _tail: Tail = field(init=False)
    _last_bytes: bytes = b""
    _resumes: bool = False
    _away_since: float | None = None
    _last_growth: float = 0.0

    def __post_init__(self) -> None:
        self._tail = Tail(self.path)

    def follow(self) -> None:
        """Send the log until a stop condition holds. Raises Refused if the service will never accept it."""
        self._last_growth = self.clock()
        while True:
            ends = self._ends()  # checked first, so that everything written before the end is sent
            try:
                has_grown = self._send_new_bytes()
                self._away_since = None
            except (Unreachable, Refused) as error:
                if isinstance(error, Refused) and not error.may_pass:
                    raise
                has_grown = False
                if self._away_since is None:
                    self.say(f"{error.detail} The rest of the log is sent later.")
                    self._away_since = self.clock()
            if ends or self._marker_seen:
                return
            if not has_grown:
                away = 0.0 if self._away_since is None else self.clock() - self._away_since
                self.sleep(min(LONGEST_SECONDS, max(self.interval, away / 4)))

    def rest(self) -> Upload:
        """Return the upload that completes the run: the log as it is now."""
        upload = self._upload_without_log()
        if self._tail.is_over():
            self._tail.next_file()
        logs = read_upload(logs=[self.path], meta={}).files
        last = tuple(replace(file, name=self._tail.name, in_pieces=True) for file in logs)
        return replace(upload, files=(*upload.files, *last))

    def finish(self) -> DeliveredRun:
        """Send the rest and close the run. Raises Refused or Unreachable."""
        run = deliver(self.patient, self.rest())
        return replace(run, created=self.run.created) if self.run is not None and self.run.id == run.id else run

    @property
    def _marker_seen(self) -> bool:
        return bool(self.until.marker) and self.until.marker in self._last_bytes

    def _send_new_bytes(self) -> bool:
        """Send the next piece, and return whether there was one. Only acknowledged bytes count as sent."""
        if self.run is None:
            if not self.path.exists():
                return False
            self._open()
        assert self.run is not None  # noqa: S101  `_open` set it or raised
        if self._tail.is_over():
            self._tail.next_file()
        piece = self._tail.read(PIECE_BYTES)
        if not piece:
            return False
        try:
            # An earlier command may have closed the run.
            offset = send_piece(
                self.quick, self.run.id, self._tail.name, self._tail.offset, piece, opens=self._resumes
            )  # fmt: skip
        except Refused as error:
            if error.status == 403 and self._resumes:
                raise self._closed(error) from None
            raise
        self._resumes = False
        self._tail.offset = max(self._tail.offset + len(piece), offset)
        self._last_growth = self.clock()
        overlap = max(0, len(self.until.marker) - 1)
        self._last_bytes = self._last_bytes[-overlap:] + piece if overlap else piece
        return True

    def _open(self) -> None:
        """Create the run of this file, or resume the run of an earlier command."""
        run = open_run(self.quick, self._upload_without_log())
        offset = 0 if run.created else stored_bytes(self.quick, run.id, self._tail.name)
        if offset and not self._is_of_this_file(run.id, offset):
            self.say(f"run {run.id} belongs to an earlier file {self.path}; this file becomes a new run.")
            self._upload = replace(self._upload_without_log(), key=upload_key(self.meta, self.job_key, time.time_ns()))
            run, offset = open_run(self.quick, self._upload), 0
        self.run, self._tail.offset, self._resumes = run, offset, not run.created
        self.say(f"run {run.id}: {run.url}" + (f" (resuming at byte {offset:,})" if offset else ""))

    def _closed(self, error: Refused) -> ThreewallsError:
        run = self.run.id if self.run else 0
        return ThreewallsError(
            f"{self.quick.settings.url} {error.detail}\nAn earlier command started run {run} for this file. It has "
            "since been closed (Ctrl-C, SIGTERM or the end of the job), and this token may not reopen it. To upload "
            "the "
            "whole file as a new run, repeat the command with another --key."
        )

    def _is_of_this_file(self, run_id: int, stored: int) -> bool:
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < stored:
                return False
            file.seek(0)
            head = file.read(min(stored, _COMPARED_BYTES))
        try:
            send_piece(self.quick, run_id, self._tail.name, 0, head)
        except Refused as error:
            if error.offset is None:
                raise
            return False
        return True

    def _upload_without_log(self) -> Upload:
        """Return the upload without the log. Its key identifies the job and the file, not the growing content."""
        if self._upload is None:
            parts = [(file.field, file.name, file.sha256) for file in self.documents.files]
            key = upload_key(self.meta, self.job_key, str(self.path.absolute()), self._tail.identity, *parts)
            self._upload = Upload(key, self.meta, self.documents.files, self.documents.strict)
        return self._upload

    def _ends(self) -> bool:
        if self.stopped or (self.until.pid is not None and not _is_alive(self.until.pid)):
            return True
        return self.until.idle is not None and self.clock() - self._last_growth >= self.until.idle


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Return whether the process has ended and its parent has not collected it yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
