"""`upload --follow`: sends a log while it grows, and closes the run when it ends.

The file is the memory: as long as the service is away nothing is lost, and what it holds is asked from itself.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path

from app.client.delivery import Delivered, deliver, held, open_run, send_piece
from app.client.errors import Refused, Unreachable
from app.client.service import LONGEST_SECONDS, Service
from app.client.upload import PIECE_BYTES, Upload, made_key, read_upload
from app.errors import ThreewallsError

# --- A file that somebody else writes: what is new in it, also when it is replaced or begins anew.

_REMEMBERED_BYTES = 64 * 1024
"""Of what stands before `offset`: a file that was written anew, and is longer already, differs there."""


class Tail:
    """`offset` is where `read` goes on in the file that is being read now, the `number`-th under this path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 1
        self.offset = 0
        self._file: FileIO | None = None
        self._before: tuple[int, bytes] | None = None

    def read(self, most: int) -> bytes:
        """The next bytes, none while there are none. Never of two files: see `is_over`."""
        if self._file is None:
            try:
                self._file = self.path.open("rb", buffering=0)  # what was read once is to be seen as it is now
            except FileNotFoundError:
                return b""
        known = self._remembered()
        self._file.seek(self.offset - len(known))
        found = self._file.read(len(known) + most)
        if not found.startswith(known):
            return b""
        self._before = self.offset + len(found) - len(known), found
        return found[len(known) :]

    def _remembered(self) -> bytes:
        """The end of what was read before `offset`, which a service that is away has not moved on."""
        if self._before is None:
            return b""
        end, found = self._before
        behind = end - self.offset
        return found[: len(found) - behind][-_REMEMBERED_BYTES:] if 0 <= behind <= len(found) else b""

    def is_over(self) -> bool:
        """Whether this file will not go on: another one has its name, or it was cut and written anew."""
        if self._file is None:
            return False
        now = os.fstat(self._file.fileno())
        if now.st_size < self.offset or self._is_written_anew():
            return True
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False  # moved away, and its writer may still hold it
        return now.st_size == self.offset and not os.path.samestat(now, named)

    def _is_written_anew(self) -> bool:
        known = self._remembered()
        if self._file is None or not known:
            return False
        self._file.seek(self.offset - len(known))
        return self._file.read(len(known)) != known

    def next_file(self) -> None:
        self.close()
        self.offset, self._before = 0, None
        self.number += 1

    @property
    def name(self) -> str:
        """Of this file in the run: another one is another log."""
        return self.path.name if self.number == 1 else f"{self.path.name}.{self.number}"

    @property
    def identity(self) -> str:
        """The same for the same file, whoever looks; empty while there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return ""
        return f"{found.st_dev}:{found.st_ino}"

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_COMPARED_BYTES = 64 * 1024
"""Of the beginning of a log, to see whether a run that is open already is of the same file."""


@dataclass(frozen=True, slots=True)
class Until:
    """What ends it besides a signal. `pid`: that process is gone; `idle`: seconds without news; `marker`: a text."""

    pid: int | None = None
    idle: float | None = None
    marker: bytes = b""


@dataclass(slots=True)
class Follower:
    """`quick` makes one attempt a request, `patient` all of them; `stopped` is set by signals."""

    quick: Service
    patient: Service
    path: Path
    meta: Mapping[str, object]
    documents: Upload
    until: Until
    interval: float
    job_key: str
    told: Callable[[str], None]
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    stopped: bool = False
    run: Delivered | None = None
    _upload: Upload | None = None
    _tail: Tail = field(init=False)
    _end_of_last: bytes = b""
    _goes_on: bool = False
    _away_since: float | None = None
    _heard: float = 0.0

    def __post_init__(self) -> None:
        self._tail = Tail(self.path)

    def follow(self) -> None:
        """Until it ends. Raises Refused for what will never be taken; for all else the end of the log is waited for."""
        self._heard = self.clock()
        while True:
            ends = self._ends()  # asked first: what was written before the end is still sent
            try:
                news = self._send_news()
                self._away_since = None
            except (Unreachable, Refused) as error:
                if isinstance(error, Refused) and not error.may_pass:
                    raise
                news = False
                if self._away_since is None:
                    self.told(f"{error.detail} What is written meanwhile is sent later.")
                    self._away_since = self.clock()
            if ends or self._saw_marker:
                return
            if not news:
                away = 0.0 if self._away_since is None else self.clock() - self._away_since
                self.sleep(min(LONGEST_SECONDS, max(self.interval, away / 4)))

    def rest(self) -> Upload:
        """What is to be delivered to close the run: the log as it is now."""
        upload = self._known_upload()
        if self._tail.is_over():
            self._tail.next_file()
        logs = read_upload(logs=[self.path], meta={}).files
        last = tuple(replace(file, name=self._tail.name, in_pieces=True) for file in logs)
        return replace(upload, files=(*upload.files, *last))

    def finish(self) -> Delivered:
        """Send the rest and close the run. Raises Refused or Unreachable."""
        run = deliver(self.patient, self.rest())
        return replace(run, created=self.run.created) if self.run is not None and self.run.id == run.id else run

    @property
    def _saw_marker(self) -> bool:
        return bool(self.until.marker) and self.until.marker in self._end_of_last

    def _send_news(self) -> bool:
        """Whether there was any. Bytes count as sent when the service says so."""
        if self.run is None:
            if not self.path.exists():
                return False
            self._open()
        assert self.run is not None  # noqa: S101  `_open` made it, or raised
        if self._tail.is_over():
            self._tail.next_file()
        piece = self._tail.read(PIECE_BYTES)
        if not piece:
            return False
        try:
            # An earlier call may have closed it.
            now_at = send_piece(
                self.quick, self.run.id, self._tail.name, self._tail.offset, piece, opens=self._goes_on
            )  # fmt: skip
        except Refused as error:
            if error.status == 403 and self._goes_on:
                raise self._closed(error) from None
            raise
        self._goes_on = False
        self._tail.offset = max(self._tail.offset + len(piece), now_at)
        self._note(piece)
        return True

    def _open(self) -> None:
        """The run of this file: a new one, or the one that an earlier call began."""
        run = open_run(self.quick, self._known_upload())
        at = 0 if run.created else held(self.quick, run.id, self._tail.name)
        if at and not self._is_of_this_file(run.id, at):
            self.told(f"run {run.id} is of an earlier file {self.path}; this one becomes a run of its own.")
            self._upload = replace(self._known_upload(), key=made_key(self.meta, self.job_key, time.time_ns()))
            run, at = open_run(self.quick, self._upload), 0
        self.run, self._tail.offset, self._goes_on = run, at, not run.created
        self.told(f"run {run.id}: {run.url}" + (f" (going on at byte {at:,})" if at else ""))

    def _closed(self, error: Refused) -> ThreewallsError:
        run = self.run.id if self.run else 0
        return ThreewallsError(
            f"{self.quick.settings.url} {error.detail}\nrun {run} was begun for this file and closed since (at Ctrl-C, "
            "SIGTERM or its end), and this token may not go on with it. The file holds everything: give the command "
            "another --key, with any new word, and all of it becomes a run of its own."
        )

    def _is_of_this_file(self, run_id: int, at: int) -> bool:
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < at:
                return False
            file.seek(0)
            head = file.read(min(at, _COMPARED_BYTES))
        try:
            send_piece(self.quick, run_id, self._tail.name, 0, head)
        except Refused as error:
            if error.offset is None:
                raise
            return False
        return True

    def _known_upload(self) -> Upload:
        """The upload without the log, that is told by the job and the file and not by what is not written yet."""
        if self._upload is None:
            parts = [(file.field, file.name, file.sha256) for file in self.documents.files]
            key = made_key(self.meta, self.job_key, str(self.path.absolute()), self._tail.identity, *parts)
            self._upload = Upload(key, self.meta, self.documents.files, self.documents.strict)
        return self._upload

    def _note(self, piece: bytes) -> None:
        self._heard = self.clock()
        keep = max(0, len(self.until.marker) - 1)
        self._end_of_last = self._end_of_last[-keep:] + piece if keep else piece

    def _ends(self) -> bool:
        if self.stopped or (self.until.pid is not None and not _is_alive(self.until.pid)):
            return True
        return self.until.idle is not None and self.clock() - self._heard >= self.until.idle


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """It has ended, and only its parent was not told yet."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
