"""Sends an upload: in one request, or, where it has long logs, in pieces that go on where they stopped."""

import json
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import httpx2

from app.client import spool
from app.client.errors import Refused, Strange
from app.client.service import Service
from app.client.terminal import plain
from app.client.upload import PIECE_BYTES, LogText, SentFile, Upload, plain_name
from app.errors import ThreewallsError

RUNS = "/api/v1/runs"
_BEHIND_EVERYTHING = 2**53
"""An offset that no log reaches: the service refuses it, and says where what it holds ends."""

_UPLOAD_TIMEOUT = httpx2.Timeout(300, connect=10)
Advanced = Callable[[int, int], None]
"""Told after each part: bytes that are there now, of how many."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """`created` is False when the service had the upload already."""

    id: int
    url: str
    status: str
    created: bool
    warnings: tuple[str, ...] = ()


def deliver(service: Service, upload: Upload, advanced: Advanced = lambda *_: None) -> Delivered:
    """Send what the service does not have yet. Raises Refused, or Unreachable; sent again, it goes on from there."""
    if not upload.pieced:
        return _begin(service, upload, advanced, is_whole=True)
    run = _begin(service, upload, advanced, is_whole=False)
    total, before = sum(file.size_bytes for file in upload.pieced), 0
    for file in upload.pieced:
        at = held(service, run.id, file.name)
        send_rest(service, run.id, file, at, lambda now, before=before: advanced(before + now, total))  # type: ignore[misc]
        before += file.size_bytes
    for file in upload.pieced:
        if file.cut:
            _append(service, run.id, file.name, cut=file.cut)
    close(service, run.id, upload.pieced[-1].name)
    return run


def open_run(service: Service, upload: Upload) -> Delivered:
    """The run of an upload whose logs come later, made or found."""
    return _begin(service, upload, lambda *_: None, is_whole=False)


def held(service: Service, run_id: int, name: str) -> int:
    """Bytes that the service has of a log, also for a token that may only upload."""
    try:
        _append(service, run_id, name, offset=_BEHIND_EVERYTHING)
    except Refused as error:
        if error.offset is not None:
            return error.offset
        raise
    raise Strange(service.settings.url, "it took a piece from behind the end of the log")


def send_rest(service: Service, run_id: int, file: SentFile, at: int, now_at: Callable[[int], None]) -> int:
    """Send the text from byte `at` up to the file's size in pieces. Returns what is held then."""
    for piece in _pieces(file.path, at, file.size_bytes):
        now_at(at)
        held_now = send_piece(service, run_id, file.name, at, piece)
        at += len(piece)
        if held_now < at:
            raise Strange(service.settings.url, f"it holds {held_now:,} bytes of {file.name} after {at:,} were sent")
    now_at(at)
    return at


def close(service: Service, run_id: int, name: str) -> None:
    """No more of its logs is to come."""
    _append(service, run_id, name, complete=True)


def send_piece(service: Service, run_id: int, name: str, offset: int, text: bytes, *, opens: bool = False) -> int:
    """Returns the offset of what comes next. `opens`: also a run that was closed, as far as the token may."""
    answer = _append(service, run_id, name, offset=offset, text=text, complete=False if opens else None)
    return _number(service, answer, "offset")


def _begin(service: Service, upload: Upload, advanced: Advanced, *, is_whole: bool) -> Delivered:
    expects = sum(file.size_bytes for file in upload.pieced)

    def attempt() -> httpx2.Response:
        with ExitStack() as opened:
            sending = _Counted(upload.whole, advanced if is_whole else lambda *_: None, opened)
            return service.request(
                "POST",
                RUNS,
                params=({} if is_whole else {"complete": "false", "expects": expects})
                | ({"strict": ",".join(upload.strict)} if upload.strict else {}),
                headers={"Idempotency-Key": upload.key},
                files=[("meta", (None, json.dumps(upload.meta))), *sending.parts()],
                timeout=_UPLOAD_TIMEOUT,
            )

    answer: Mapping[str, Any] = service.send(attempt).json()
    warnings = answer.get("warnings")
    return Delivered(
        _number(service, answer, "id"),
        str(answer.get("url", "")),
        str(answer.get("status", "")),
        answer.get("created") is True,
        tuple(str(one) for one in warnings) if isinstance(warnings, list) else (),
    )


def _number(service: Service, answer: Mapping[str, Any], name: str) -> int:
    found = answer.get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise Strange(service.settings.url, f"its answer to an upload has no {name}")
    return found


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
        f"{RUNS}/{run_id}/logs", params=params, content=body, headers=headers, timeout=_UPLOAD_TIMEOUT
    ).json()
    return answer


def _pieces(path: Path, begin: int, end: int) -> Iterator[bytes]:
    """Of PIECE_BYTES each, as far as the file was when it was read; it may have grown since."""
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
    packer = zlib.compressobj(level=1, wbits=31)  # five times smaller already, and faster than any network here
    return packer.compress(text) + packer.flush()


class _Counted:
    """The files of a form, and how much of them was read: as good as sent."""

    def __init__(self, files: tuple[SentFile, ...], advanced: Advanced, opened: ExitStack) -> None:
        self._files = [(file, opened.enter_context(file.path.open("rb"))) for file in files]
        self._total = sum(file.path.stat().st_size for file in files)
        self._read, self._advanced = 0, advanced

    def parts(self) -> list[tuple[str, Any]]:
        return [
            (file.field, (file.name, _CountedFile(opened, self.count), "application/octet-stream"))
            for file, opened in self._files
        ]

    def count(self, length: int) -> None:
        self._read += length
        self._advanced(self._read, self._total)


class _CountedFile:
    """As long as it was when it was opened: a length that was announced must hold, though a job still writes."""

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


# --- How far an upload is: a bar on a terminal, now and then a line in the log of a job.

_BAR = 30
_REDRAW_SECONDS = 0.1
_LINE_SECONDS = 30.0


class Progress:
    """Called with bytes that are there and bytes in all. On a terminal it draws over its own line."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._began = self._said = clock()
        self._is_terminal = out.isatty()
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        now, share = self._clock(), done / total if total else 1.0
        if now - self._said < (_REDRAW_SECONDS if self._is_terminal else _LINE_SECONDS):
            return
        self._said = now
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
        """Say something, over the bar."""
        self.clear()
        self._out.write(f"threewalls: {text}\n")
        self._out.flush()

    def clear(self) -> None:
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._drawn = False


# --- `threewalls sync`: sends what waits in the spool, each upload once in effect.


@dataclass(slots=True)
class Synced:
    """`busy`: those that another sync has just now. `elsewhere`: those of other services. `failed`: what to tell."""

    sent: list[Delivered] = field(default_factory=list)
    busy: int = 0
    elsewhere: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def sync(service: Service, folder: Path, *, everything: bool, told: Callable[[str], None]) -> Synced:
    """Send what is for this service, or all with `everything`. Raises Unreachable; what was not sent stays."""
    spool.sweep(folder)
    uploads, strange = spool.waiting(folder)
    done = Synced(failed=strange)
    for one in uploads:
        if one.url != service.settings.url and not everything:
            done.elsewhere[one.url] = done.elsewhere.get(one.url, 0) + 1
            continue
        with spool.taken(one) as mine:
            if not mine:
                done.busy += 1
                continue
            try:
                run = deliver(service, one.upload)
            except Refused as error:
                again = "Send it again then." if error.may_pass else "Delete the folder when it is of no use."
                done.failed.append(f"{one.folder} was refused: {plain(error.detail)} It stays there. {again}")
                continue
            except (OSError, spool.SpoolError, ThreewallsError) as error:
                if not one.folder.exists():
                    done.busy += 1
                    continue
                if not isinstance(error, OSError):
                    raise
                done.failed.append(f"{one.folder} cannot be read: {error}.")
                continue
            spool.remove(one)
            done.sent.append(run)
            told(f"run {run.id}: {run.url}" + ("" if run.created else " (was there already)"))
    return done
