"""Uploaded files, kept by the hash of what they say: in a local folder or in an S3-compatible store.

What is stored is the decompressed file, in frames (`frames.py`), so that the same log is one object however it was
compressed, and the log viewer reads a few lines of a 4 GB log in milliseconds.

Objects never change. A log that grows is several of them, one after another (`segments.py`), so reading takes keys.
An object is on the disk (fsync) before `keep` returns; an S3 store promises as much by its answer.
"""

import hashlib
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self
from urllib.parse import urlsplit

import numpy as np
import obstore
import structlog
import zstandard
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, S3Store

from app.domain.run import IntArray
from app.errors import DamagedObject, DiskFull, Unavailable
from app.settings import Settings

if TYPE_CHECKING:
    from obstore.store import S3Config  # a type only: obstore has no such name at run time


# --- A text kept so that any of its lines can be read without the rest: independent zstd frames, and an index at the
# end.
#
# A frame holds about 1 MiB of text and ends at a line's end where it can. The index is a skippable zstd frame, so
# that the object is also an ordinary `.zst` file: `zstd -d` gives the text. Its payload is one entry a frame
# (compressed size, size, number of newlines; little-endian u32 each), then the number of entries and a mark.

FRAME_BYTES = 1 << 20
_LEVEL = 3
_SKIPPABLE = 0x184D2A5D
_HEADER = struct.Struct("<II")
_FOOTER = struct.Struct("<I4s")
_MARK = b"3WIX"
_ENTRY_BYTES = 12


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """Where each frame begins: in the object, in the text, and how many newlines come before it.

    Each holds one entry more than there are frames: the totals.
    """

    offsets: tuple[int, ...]
    text_offsets: tuple[int, ...]
    newlines: tuple[int, ...]

    @property
    def frames(self) -> int:
        return len(self.offsets) - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the text."""
        return self.text_offsets[-1]


def write_frames(chunks: Iterable[bytes], out: BinaryIO) -> FrameIndex:
    """Write the text of `chunks` to `out`, in memory of a few MiB however long it is."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    entries: list[tuple[int, int, int]] = []
    pending = bytearray()

    def emit(size: int) -> None:
        text = bytes(memoryview(pending)[:size])
        del pending[:size]
        frame = compressor.compress(text)
        out.write(frame)
        entries.append((len(frame), len(text), text.count(b"\n")))

    for chunk in chunks:
        pending += chunk
        while len(pending) >= FRAME_BYTES:
            emit(pending.rfind(b"\n", 0, FRAME_BYTES) + 1 or FRAME_BYTES)
    if pending:
        emit(len(pending))
    payload = np.asarray(entries, dtype="<u4").tobytes() + _FOOTER.pack(len(entries), _MARK)
    out.write(_HEADER.pack(_SKIPPABLE, len(payload)) + payload)
    return _index(entries)


def index_bytes(tail: bytes) -> int:
    """How many bytes at the end of an object hold its index, from the last 8 of them. Raises ValueError."""
    count, mark = _FOOTER.unpack(tail[-_FOOTER.size :])
    if mark != _MARK:
        raise ValueError("the object has no frame index")
    return int(count) * _ENTRY_BYTES + _FOOTER.size


def read_index(tail: bytes) -> FrameIndex:
    """The index from the object's last bytes, as many as `index_bytes` says. Raises ValueError."""
    table = np.frombuffer(tail[-index_bytes(tail) : -_FOOTER.size], dtype="<u4").reshape(-1, 3)
    return _index([(row[0], row[1], row[2]) for row in table.tolist()])


def _index(entries: list[tuple[int, int, int]]) -> FrameIndex:
    totals = np.zeros((len(entries) + 1, 3), dtype=np.int64)
    if entries:
        np.cumsum(np.asarray(entries, dtype=np.int64), axis=0, out=totals[1:])
    offsets, text_offsets, newlines = (tuple(column.tolist()) for column in totals.T)
    return FrameIndex(offsets, text_offsets, newlines)


def read_frames(index: FrameIndex, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The text, a frame at a time, of an object that arrives in chunks of any size.

    Raises ValueError when it ends early, and ZstdError when a frame is damaged.
    """
    decompressor = zstandard.ZstdDecompressor()
    pending, frame = bytearray(), 0
    for chunk in chunks:
        pending += chunk
        while frame < index.frames and len(pending) >= (size := index.offsets[frame + 1] - index.offsets[frame]):
            compressed = bytes(memoryview(pending)[:size])
            del pending[:size]
            frame += 1
            yield decompressor.decompress(compressed)
    if frame < index.frames:
        raise ValueError("the object ends early")


# --- A text that several stored objects hold, one after another, read as one: where each of its frames lies.


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a frame's compressed bytes are."""

    key: str
    start: int
    end: int


class StoredText:
    """The frames of all objects in order. `text_offsets` and `newlines` are those of FrameIndex, for the whole text."""

    def __init__(self, keys: Sequence[str], indexes: Sequence[FrameIndex]) -> None:
        self._frames = [
            Frame(key, start, end)
            for key, index in zip(keys, indexes, strict=True)
            for start, end in zip(index.offsets, index.offsets[1:], strict=False)
        ]
        self.text_offsets = _joined([index.text_offsets for index in indexes])
        self.newlines = _joined([index.newlines for index in indexes])

    @property
    def frames(self) -> int:
        return len(self._frames)

    @property
    def size_bytes(self) -> int:
        return int(self.text_offsets[-1])

    def __getitem__(self, frame: int) -> Frame:
        return self._frames[frame]

    def frame_of_line(self, line: int) -> int:
        """The frame in which `line` (from 1) begins, or the one before when it begins with a frame."""
        if line <= 1:
            return 0
        # The newline that ends the line before is number line - 1, and lies where the count first reaches it.
        return int(np.searchsorted(self.newlines[1:], line - 1, side="left"))

    def frame_of_byte(self, offset: int) -> int:
        """The frame that holds the byte at `offset`, from 0."""
        return int(np.searchsorted(self.text_offsets, offset, side="right")) - 1


def _joined(totals: Sequence[Sequence[int]]) -> IntArray:
    """Running totals that each begin at 0, as one."""
    steps = [np.diff(np.asarray(total, dtype=np.int64)) for total in totals]
    return np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *steps]))


log = structlog.get_logger(__name__)

MAX_LINE_BYTES = 16 * 1024
"""A longer line is shown cut: some trainers print their whole configuration as one."""

_TAIL_BYTES = 64 * 1024
"""Read at once to find the index: enough for a 5 GB log."""

_ONE_REQUEST_BYTES = 32 * 1024 * 1024
"""Up to this an object is put in one conditional request; beyond it in parts, so that memory stays bounded."""

_INDEXES_KEPT = 512
"""Indexes of objects in memory: a log that grew holds some dozens, and its page asks for them again and again."""

HEAD_BYTES = 64 * 1024
"""Of a staged file, kept in memory to see what it is."""

ObjectKeys = Sequence[str]
"""The objects that hold a text, in their order."""

_PROBE = "readiness/probe"
_PROBED_SECONDS = 60
"""A store that could be written is not tried again for so long; one that could not is, each time."""

_STORE_ERRORS = (BaseError, OSError)
_DAMAGE = (zstandard.ZstdError, ValueError, struct.error, MemoryError)
"""What decoding raises; a damaged length asks for more memory than there is."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`size_bytes` and `sha256` are those of the decompressed file, `key` is where it is kept."""

    key: str
    sha256: str
    size_bytes: int


class StagedFile(AbstractContextManager["StagedFile"]):
    """A file that was read to its end, in a nameless temporary file: nothing is left if the process dies."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        digest = hashlib.sha256()
        self.head = b""
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  # __exit__ closes it

        def hashed() -> Iterator[bytes]:
            for chunk in chunks:
                digest.update(chunk)
                if len(self.head) < HEAD_BYTES:
                    self.head = (self.head + chunk)[:HEAD_BYTES]
                yield chunk

        try:
            self._frames = index = write_frames(hashed(), self._file)
        except BaseException:
            self._file.close()
            raise
        sha256 = digest.hexdigest()
        self.stored = StoredFile(f"{sha256[:2]}/{sha256}.zst", sha256, index.size_bytes)
        self.compressed_bytes = self._file.tell()

    def chunks(self) -> Iterator[bytes]:
        """What was staged, about 1 MiB at a time."""
        file = self.rewound()
        return read_frames(self._frames, iter(lambda: file.read(1 << 20), b""))

    def rewound(self) -> BinaryIO:
        self._file.seek(0)
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class LogFiles:
    """The artifact store. Every method raises Unavailable when the store does not answer.

    Those that read raise DamagedObject for an object that is missing, or is not what was stored.
    """

    def __init__(self, store: ObjectStore, folder: Path | None = None) -> None:
        """`folder` is that of a local store."""
        self._store = store
        self._folder = folder
        self._written_until = 0.0
        self._index = lru_cache(_INDEXES_KEPT)(self._read_index)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        url = urlsplit(settings.resolved_artifact_url)
        if url.scheme != "s3":
            folder = Path(settings.resolved_artifact_url)
            return cls(LocalStore(folder.resolve(), mkdir=True), folder.resolve())
        return cls(
            S3Store(
                url.netloc,
                prefix=url.path.strip("/") or None,
                config=_s3_config(settings),
                client_options={
                    "allow_http": settings.s3_endpoint.startswith("http://"),
                    "connect_timeout": "3s",
                    "timeout": "60s",
                },
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=20)},
            )
        )

    def put(self, chunks: Iterable[bytes]) -> StoredFile:
        """Keep a file that arrives in chunks. When `chunks` raises, nothing is kept."""
        with StagedFile(chunks) as staged:
            self.keep(staged)
            return staged.stored

    def keep(self, staged: StagedFile) -> bool:
        """Move a staged file to the store. False when the same content is there already, and undamaged."""
        key = staged.stored.key
        try:
            is_there = self._holds(key)
            if is_there and self._is_sound(key):
                self._sync(key)
                return False
            if is_there or staged.compressed_bytes > _ONE_REQUEST_BYTES:
                obstore.put(self._store, key, staged.rewound())
            else:
                with suppress(AlreadyExistsError):  # another upload of the same content was faster
                    obstore.put(self._store, key, staged.rewound(), mode="create", use_multipart=False)
            self._index.cache_clear()
            self._sync(key)
        except _STORE_ERRORS as error:
            raise _unavailable(error) from error
        return True

    def check_object(self, key: str) -> None:
        """Read an object whole. Raises DamagedObject when it is missing, or its content is not what its key says."""
        digest = hashlib.sha256()
        for part in self.stream([key]):
            digest.update(part)
        if digest.hexdigest() != PurePosixPath(key).stem:
            raise _damaged(key)

    def delete(self, key: str) -> None:
        """Forget an object that no run needs; one that is not there is fine."""
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            pass
        except _STORE_ERRORS as error:
            raise _unavailable(error) from error

    def stream(self, keys: ObjectKeys) -> Iterator[bytes]:
        """The whole text, about 1 MiB at a time."""
        for key in keys:
            with _reading(key):
                index = self._index(key)
                yield from read_frames(index, (bytes(part) for part in obstore.get(self._store, key).stream(1 << 20)))

    def stream_range(self, keys: ObjectKeys, start: int, end: int) -> Iterator[bytes]:
        """Bytes start..end of the text, counted from 0, without that at `end`."""
        text = self.text(keys)
        end = min(end, text.size_bytes)
        for frame in range(text.frame_of_byte(start), text.frames) if start < end else ():
            begin = int(text.text_offsets[frame])
            if begin >= end:
                return
            yield self._frame(text, frame)[max(0, start - begin) : end - begin]

    def text(self, keys: ObjectKeys) -> StoredText:
        return StoredText(keys, [self._index(key) for key in keys])

    def line_count(self, keys: ObjectKeys) -> int:
        """Lines of the text; what follows the last newline is one more."""
        text = self.text(keys)
        if text.size_bytes == 0:
            return 0
        return int(text.newlines[-1]) + (not self._frame(text, text.frames - 1).endswith(b"\n"))

    def lines(self, keys: ObjectKeys, first: int, last: int) -> list[str]:
        """Lines first..last, counted from 1, inclusive, without their ends; fewer where the text ends before.

        Lines are cut at MAX_LINE_BYTES, and bytes that are not UTF-8 become U+FFFD.
        """
        text = self.text(keys)
        if last < first or text.size_bytes == 0:
            return []
        start = text.frame_of_line(first)
        if start >= text.frames:
            return []
        frames = self._needed_frames(text, start, last)
        skip = first - int(text.newlines[start]) - 1
        return [_shown(line) for line in _cut_lines(frames, skip, last - first + 1)]

    def check(self) -> None:
        """Raise Unavailable when the store does not answer, is not there or cannot be written (tried once a minute)."""
        if self._folder is not None and not self._folder.is_dir():
            raise _unavailable(FileNotFoundError())
        try:
            for _ in obstore.list(self._store, prefix="readiness"):
                break
            if time.monotonic() >= self._written_until:
                obstore.put(self._store, _PROBE, b"Written and deleted to see whether uploads can be stored.\n")
                obstore.delete(self._store, _PROBE)
                self._written_until = time.monotonic() + _PROBED_SECONDS
        except _STORE_ERRORS as error:
            raise _unavailable(error) from error

    def _holds(self, key: str) -> bool:
        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        return True

    def _is_sound(self, key: str) -> bool:
        try:
            self.check_object(key)
        except DamagedObject as error:
            log.warning("damaged_object_replaced", key=key, error=error.detail)
            return False
        return True

    def _sync(self, key: str) -> None:
        """Let the object and its names in the folders survive a power cut."""
        if self._folder is None:
            return
        path = self._folder / key
        for place in (path, path.parent, self._folder):
            descriptor = os.open(place, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _read_index(self, key: str) -> FrameIndex:
        with _reading(key):
            tail = bytes(obstore.get(self._store, key, options={"range": {"suffix": _TAIL_BYTES}}).bytes())
            if (needed := index_bytes(tail)) > len(tail):
                tail = bytes(obstore.get(self._store, key, options={"range": {"suffix": needed}}).bytes())
            return read_index(tail)

    def _needed_frames(self, text: StoredText, start: int, last: int) -> Iterator[bytes]:
        of_one_line = 0
        for frame in range(start, text.frames):
            has_newline = text.newlines[frame] < text.newlines[frame + 1]
            # Deep inside a giant line, a frame without a newline adds nothing that would be shown.
            if of_one_line > MAX_LINE_BYTES and not has_newline and frame + 1 < text.frames:
                continue
            part = self._frame(text, frame)
            of_one_line = 0 if has_newline else of_one_line + len(part)
            yield part
            if text.newlines[frame + 1] >= last:
                return

    def _frame(self, text: StoredText, frame: int) -> bytes:
        place = text[frame]
        with _reading(place.key):
            part = obstore.get_range(self._store, place.key, start=place.start, end=place.end)
            return zstandard.ZstdDecompressor().decompress(bytes(part))


def _cut_lines(frames: Iterable[bytes], skip: int, count: int) -> Iterator[bytes]:
    """`count` lines after the first `skip`, each of at most MAX_LINE_BYTES + 1 bytes."""
    rest = b""
    for frame in frames:
        *whole, tail = frame.split(b"\n")
        for piece in whole:
            line, rest = rest + piece[: MAX_LINE_BYTES + 1], b""
            if skip > 0:
                skip -= 1
                continue
            yield line
            count -= 1
            if count == 0:
                return
        rest = (rest + tail[: MAX_LINE_BYTES + 1])[: MAX_LINE_BYTES + 1]
    if rest and skip == 0:
        yield rest


def _shown(line: bytes) -> str:
    text = line[:MAX_LINE_BYTES].rstrip(b"\r").decode("utf-8", "replace")
    return f"{text} …" if len(line) > MAX_LINE_BYTES else text


def _s3_config(settings: Settings) -> "S3Config":
    config: S3Config = {"region": settings.s3_region}
    if settings.s3_endpoint:
        config["endpoint"] = settings.s3_endpoint
    if settings.s3_access_key_id:  # else the store looks for credentials where AWS's own tools do
        config["access_key_id"] = settings.s3_access_key_id
        config["secret_access_key"] = settings.s3_secret_access_key
    return config


@contextmanager
def _reading(key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedObject(f"The stored log {key} is missing. Upload the same file again to restore it.") from error
    except _STORE_ERRORS as error:
        raise _unavailable(error) from error
    except _DAMAGE as error:
        raise _damaged(key) from error


def _damaged(key: str) -> DamagedObject:
    return DamagedObject(f"The stored log {key} is damaged. Upload the same file again to replace it.")


def _unavailable(error: Exception) -> Unavailable:
    # The store's own message may hold addresses and keys; the log has it, people need not.
    return Unavailable(f"The artifact store did not answer ({type(error).__name__}). Try again in a minute.")


# --- Room on the disks that uploads are written to: of the data, of the logs, and of temporary files.


def free_bytes(settings: Settings) -> int:
    """Of the fullest of these disks. Raises DiskFull for one that cannot be written."""
    return min(_free_bytes(folder) for folder in _folders(settings))


def require_room(settings: Settings, new_bytes: int) -> None:
    """Raise DiskFull where an upload of so many bytes would leave less than THREEWALLS_MIN_FREE_BYTES."""
    free = free_bytes(settings) if settings.min_free_bytes else 0
    if settings.min_free_bytes and free - new_bytes < settings.min_free_bytes:
        raise DiskFull(
            f"The disk of the service has {free:,} bytes left, and {settings.min_free_bytes:,} are kept free "
            "(THREEWALLS_MIN_FREE_BYTES). Nothing was saved. Tell the administrator, and upload again later."
        )


def _folders(settings: Settings) -> list[Path]:
    folders = [Path(tempfile.gettempdir())]
    if settings.embedded:
        folders.append(settings.data_dir)
    if urlsplit(settings.resolved_artifact_url).scheme != "s3":
        folders.append(Path(settings.resolved_artifact_url))
    return folders


def _free_bytes(folder: Path) -> int:
    while not folder.exists():  # it is made with the first file
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        raise DiskFull("A disk of the service is not writable. Tell the administrator, and upload again later.")
    return shutil.disk_usage(folder).free
