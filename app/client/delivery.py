"""Sends an upload in one request, long logs in pieces that resume where they stopped, growing logs until they end."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from app.client import spool
from app.client.errors import NotThreewalls, Refused, Unreachable
from app.client.service import Service
from app.client.terminal import plain
from app.client.upload import PIECE_BYTES, LogText, SentFile, Upload, plain_name, read_upload, upload_key
from app.errors import ThreewallsError
from threewalls.transport import LONGEST_SECONDS, Response

RUNS = "/api/v1/runs"
_BEYOND_EVERY_LOG = 2**53
"""An offset that no log reaches. The service refuses it and returns the length of the stored log."""

_UPLOAD_SECONDS = 300.0
OnProgress = Callable[[int, int], None]
"""Called after each part with the bytes sent so far and the total."""


@dataclass(frozen=True)
class DeliveredRun:
    """The run of an upload. `created` is False if the service already had the upload."""

    id: int
    url: str
    status: str
    created: bool
    warnings: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return f"run {self.id}: {self.url}" + ("" if self.created else " (already uploaded)")


def deliver(service: Service, upload: Upload, on_progress: OnProgress = lambda *_: None) -> DeliveredRun:
    """Send what the service does not have yet; another call resumes. Raises Refused or Unreachable."""
    if not upload.pieced:
        return _begin(service, upload, on_progress, is_whole=True)
    run = _begin(service, upload, on_progress, is_whole=False)
    total, before = sum(file.size_bytes for file in upload.pieced), 0

    def report(sent_of_file: int) -> None:
        on_progress(before + sent_of_file, total)

    for file in upload.pieced:
        send_rest(service, run.id, file, stored_bytes(service, run.id, file.name), report)
        before += file.size_bytes
    for file in upload.pieced:
        if file.cut:
            _append(service, run.id, file.name, cut=file.cut)
    close(service, run.id, upload.pieced[-1].name)
    return run


def open_run(service: Service, upload: Upload) -> DeliveredRun:
    """Create the run of an upload whose logs follow, or find the existing one."""
    return _begin(service, upload, lambda *_: None, is_whole=False)


def stored_bytes(service: Service, run_id: int, name: str) -> int:
    """Return how many bytes of a log the service has. Works with the scope `upload` alone."""
    try:
        _append(service, run_id, name, offset=_BEYOND_EVERY_LOG)
    except Refused as error:
        if error.offset is not None:
            return error.offset
        raise
    raise NotThreewalls(service.settings.url, "it accepted a piece beyond the end of the log")


def send_rest(service: Service, run_id: int, file: SentFile, offset: int, on_offset: Callable[[int], None]) -> int:
    """Send the text from byte `offset` up to the file's size in pieces. Return the stored length."""
    for piece in _pieces(file.path, offset, file.size_bytes):
        on_offset(offset)
        stored = send_piece(service, run_id, file.name, offset, piece)
        offset += len(piece)
        if stored < offset:
            raise NotThreewalls(service.settings.url, f"it has {stored:,} of {offset:,} bytes sent of {file.name}")
    on_offset(offset)
    return offset


def close(service: Service, run_id: int, name: str) -> None:
    """Mark the run as complete."""
    _append(service, run_id, name, complete=True)


def send_piece(service: Service, run_id: int, name: str, offset: int, text: bytes, *, opens: bool = False) -> int:
    """Send one piece and return the next offset. `opens` reopens a closed run if the token permits it."""
    answer = _append(service, run_id, name, offset=offset, text=text, complete=False if opens else None)
    return _number(service, answer, "offset")


def check(service: Service, upload: Upload) -> int | None:
    """Return the run that the service has of an upload, None without one. Raises Refused, as the upload would."""
    run: int | None = _send_form(service, "/api/v1/uploads/check", upload, upload.files).get("run")
    return run


def _begin(service: Service, upload: Upload, on_progress: OnProgress, *, is_whole: bool) -> DeliveredRun:
    expects = sum(file.size_bytes for file in upload.pieced)
    params: dict[str, str | int] = {} if is_whole else {"complete": "false", "expects": expects}
    params |= {"strict": ",".join(upload.strict)} if upload.strict else {}
    progress = on_progress if is_whole else lambda *_: None
    key = {"Idempotency-Key": upload.key}
    answer = _send_form(service, RUNS, upload, upload.whole, progress, params=params, headers=key)
    warnings = answer.get("warnings")
    return DeliveredRun(
        _number(service, answer, "id"),
        str(answer.get("url", "")),
        str(answer.get("status", "")),
        answer.get("created") is True,
        tuple(str(warning) for warning in warnings) if isinstance(warnings, list) else (),
    )


def _send_form(
    service: Service,
    path: str,
    upload: Upload,
    files: tuple[SentFile, ...],
    on_progress: OnProgress = lambda *_: None,
    **request: Any,
) -> Mapping[str, Any]:
    """Send the metadata of an upload with some of its files, and return the answer."""

    def attempt() -> Response:
        with ExitStack() as opened:
            parts = [("meta", (None, json.dumps(upload.meta))), *_FormFiles(files, on_progress, opened).parts()]
            return service.request("POST", path, files=parts, seconds=_UPLOAD_SECONDS, **request)

    answer: Mapping[str, Any] = service.send(attempt).json()
    return answer


def attach_profile(service: Service, run_id: int, paths: Sequence[Path]) -> str:
    """Attach GPU traces to a run as one profile and return its address. Raises Refused, Unreachable or OSError."""

    def attempt() -> Response:
        with ExitStack() as opened:
            files = [
                ("profile", (path.name, opened.enter_context(path.open("rb")), "application/octet-stream"))
                for path in paths
            ]
            return service.request("POST", f"{RUNS}/{run_id}/profiles", files=files, seconds=_UPLOAD_SECONDS)

    return str(service.send(attempt).json().get("url", ""))


def _number(service: Service, answer: Mapping[str, Any], name: str) -> int:
    value = answer.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotThreewalls(service.settings.url, f"its answer to an upload has no {name}")
    return value


def _append(
    service: Service,
    run_id: int,
    name: str,
    *,
    offset: int = 0,
    text: bytes = b"",
    complete: bool | None = None,
    cut: str = "",
) -> Mapping[str, Any]:
    params: dict[str, str | int] = {"name": plain_name(name)}
    if not complete:
        params["offset"] = offset
    if complete is not None:
        params["complete"] = "true" if complete else "false"
    if cut:
        params = {"name": plain_name(name), "cut": cut}
    body = _gzipped(text) if text else b""
    headers = {"Content-Type": "application/octet-stream"}
    answer: Mapping[str, Any] = service.post(
        f"{RUNS}/{run_id}/logs", params=params, content=body, headers=headers, seconds=_UPLOAD_SECONDS
    ).json()
    return answer


def _pieces(path: Path, begin: int, end: int) -> Iterator[bytes]:
    """Yield the text in pieces of PIECE_BYTES, up to byte `end`: the file may have grown since it was read."""
    piece, left = bytearray(), end - begin
    if left <= 0:
        return
    for chunk in LogText(path, begin):
        piece += chunk[:left]
        left -= len(chunk[:left])
        while len(piece) >= PIECE_BYTES:
            yield bytes(piece[:PIECE_BYTES])
            del piece[:PIECE_BYTES]
        if left <= 0:
            break
    if piece:
        yield bytes(piece)


def _gzipped(text: bytes) -> bytes:
    packer = zlib.compressobj(level=1, wbits=31)  # five times smaller, and faster than the network
    return packer.compress(text) + packer.flush()


class _FormFiles:
    """The files of a form. Bytes read count as sent."""

    def __init__(self, files: tuple[SentFile, ...], on_progress: OnProgress, opened: ExitStack) -> None:
        self._files = [(file, opened.enter_context(file.path.open("rb"))) for file in files]
        self._total = sum(file.path.stat().st_size for file in files)
        self._read, self._advanced = 0, on_progress

    def parts(self) -> list[tuple[str, Any]]:
        return [
            (file.field, (file.name, _CountedFile(opened, self.count), "application/octet-stream"))
            for file, opened in self._files
        ]

    def count(self, length: int) -> None:
        self._read += length
        self._advanced(self._read, self._total)


class _CountedFile:
    """A file with the length that it had when it was opened, although a job may still append to it."""

    def __init__(self, file: BinaryIO, count: Callable[[int], None]) -> None:
        self._file, self._count = file, count
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)

    def read(self, length: int) -> bytes:
        data = self._file.read(min(length, self._size - self._file.tell()))
        self._count(len(data))
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(self._size if whence == os.SEEK_END else offset)

    def tell(self) -> int:
        return self._file.tell()


# --- Progress: a bar on a terminal, a line every 30 seconds in the log of a job.

_BAR = 30
_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 30.0


class ProgressLine:
    """Prints the progress of an upload. On a terminal it redraws its own line."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._began = self._printed = clock()
        self._is_terminal = out.isatty()
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        now, share = self._clock(), done / total if total else 1.0
        if now - self._printed < (_REDRAW_SECONDS if self._is_terminal else _LINE_SECONDS):
            return
        self._printed = now
        rate = done / (now - self._began) / 1e6
        text = f"{share:4.0%} of {total / 1e6:,.1f} MB, {rate:,.1f} MB/s"
        if self._is_terminal:
            full = round(_BAR * share)
            self._out.write(f"\r[{'#' * full}{'.' * (_BAR - full)}] {text}\x1b[K")
            self._drawn = True
        else:
            self._out.write(f"threewalls: {text}\n")
        self._out.flush()

    def line(self, text: str) -> None:
        """Print a line in place of the bar."""
        self.clear()
        self._out.write(f"threewalls: {text}\n")
        self._out.flush()

    def clear(self) -> None:
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._drawn = False


# --- `threewalls sync`


@dataclass
class SyncResult:
    """`busy` counts uploads that another sync is sending, `elsewhere` those for other services by address. `failed`
    holds a sentence for each failure."""

    sent: list[DeliveredRun] = field(default_factory=list)
    busy: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def sync(service: Service, folder: Path, *, everything: bool, say: Callable[[str], None]) -> SyncResult:
    """Send the uploads for this service, or all with `everything`. Raises Unreachable; unsent uploads stay."""
    spool.sweep(folder)
    uploads, unreadable = spool.waiting(folder)
    result = SyncResult(failed=unreadable)
    for waiting in uploads:
        if waiting.url != service.settings.url and not everything:
            result.elsewhere[waiting.url] = result.elsewhere.get(waiting.url, 0) + 1
            continue
        with spool.lock(waiting) as is_locked:
            if not is_locked:
                result.busy += 1
                continue
            try:
                run = deliver(service, waiting.upload)
            except Refused as error:
                advice = "Sync again after that." if error.may_pass else "Delete the folder if you do not need it."
                result.failed.append(
                    f"{waiting.folder} was refused: {plain(error.detail)} It stays in the spool. {advice}"
                )
                continue
            except (OSError, spool.SpoolError, ThreewallsError) as error:
                if not waiting.folder.exists():
                    result.busy += 1
                    continue
                if not isinstance(error, OSError):
                    raise
                result.failed.append(f"{waiting.folder} cannot be read: {error}.")
                continue
            spool.remove(waiting)
            result.sent.append(run)
            say(run.line)
    return result


# --- `upload --follow`: sends a log while it grows, and closes the run when the job ends. There is no local state.
# The file keeps the data while the service is unreachable, and the service knows how many bytes it has.

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
