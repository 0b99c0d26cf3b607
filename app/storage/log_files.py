"""Uploaded files, stored by the hash of their content in a local folder or an S3-compatible store.

Files are stored decompressed, in zstd frames, so that a log is one object for any compression of the upload, and the
log viewer reads a few lines of a 4 GB log in milliseconds. Objects never change. A growing log consists of several
objects, so reading takes a sequence of keys. An object is on disk (fsync) before `keep` returns; an S3 store guarantees
the same with its answer.
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
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self
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
    from obstore.store import S3Config  # type only: obstore has no such name at run time


# --- The file format: independent zstd frames with an index at the end, so that any lines can be read alone. A frame
# holds about 1 MiB of text and ends at a line end if possible. The index is a skippable zstd frame, so that the object
# is also an ordinary `.zst` file: `zstd -d` restores the text. Its payload is one entry per frame (compressed size,
# size, number of newlines; little-endian u32 each), the number of entries, and a magic number.

FRAME_BYTES = 1 << 20
_LEVEL = 3
_SKIPPABLE = 0x184D2A5D
_HEADER = struct.Struct("<II")
_FOOTER = struct.Struct("<I4s")
_MARK = b"3WIX"
_ENTRY_BYTES = 12


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """The start of each frame: in the object, in the text, and the number of preceding newlines.

    Each list has one entry more than there are frames: the totals.
    """

    offsets: tuple[int, ...]
    text_offsets: tuple[int, ...]
    newlines: tuple[int, ...]

    @property
    def frames(self) -> int:
        return len(self.offsets) - 1

    @property
    def size_bytes(self) -> int:
        """Return the length of the text in bytes."""
        return self.text_offsets[-1]


def write_frames(chunks: Iterable[bytes], out: BinaryIO) -> FrameIndex:
    """Write the text of `chunks` to `out`, using a few MiB of memory for any length."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    entries: list[tuple[int, int, int]] = []
    parts: list[bytes] = []
    size = 0

    def emit(text: bytes) -> None:
        frame = compressor.compress(text)
        out.write(frame)
        entries.append((len(frame), len(text), text.count(b"\n")))

    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= FRAME_BYTES:
            text, start = b"".join(parts), 0
            while len(text) - start >= FRAME_BYTES:
                end = text.rfind(b"\n", start, start + FRAME_BYTES) + 1 or start + FRAME_BYTES
                emit(text[start:end])
                start = end
            parts, size = [text[start:]], len(text) - start
    if size:
        emit(b"".join(parts))
    payload = np.asarray(entries, dtype="<u4").tobytes() + _FOOTER.pack(len(entries), _MARK)
    out.write(_HEADER.pack(_SKIPPABLE, len(payload)) + payload)
    return _index(entries)


def index_bytes(tail: bytes) -> int:
    """Return the size of an object's index from its last 8 bytes. Raises ValueError."""
    count, mark = _FOOTER.unpack(tail[-_FOOTER.size :])
    if mark != _MARK:
        raise ValueError("the object has no frame index")
    return int(count) * _ENTRY_BYTES + _FOOTER.size


def read_index(tail: bytes) -> FrameIndex:
    """Return the index from the last `index_bytes` bytes of an object. Raises ValueError."""
    table = np.frombuffer(tail[-index_bytes(tail) : -_FOOTER.size], dtype="<u4").reshape(-1, 3)
    return _index([(row[0], row[1], row[2]) for row in table.tolist()])


def _index(entries: list[tuple[int, int, int]]) -> FrameIndex:
    totals = np.zeros((len(entries) + 1, 3), dtype=np.int64)
    if entries:
        np.cumsum(np.asarray(entries, dtype=np.int64), axis=0, out=totals[1:])
    offsets, text_offsets, newlines = (tuple(column.tolist()) for column in totals.T)
    return FrameIndex(offsets, text_offsets, newlines)


def read_frames(index: FrameIndex, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text of an object, frame by frame, from chunks of any size.

    Raises ValueError if it is truncated, and ZstdError if a frame is damaged.
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
        raise ValueError("the object is truncated")


# --- Reading a text that spans several objects.


@dataclass(frozen=True, slots=True)
class Frame:
    """Location of a frame's compressed bytes."""

    key: str
    start: int
    end: int


class StoredText:
    """The frames of all objects in order. `text_offsets` and `newlines` are as in FrameIndex, for the whole text."""

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
        """Return the frame in which `line` (from 1) begins, or the one before if it begins with a frame."""
        if line <= 1:
            return 0
        # The newline that ends the previous line is number line - 1: find where the count first reaches it.
        return int(np.searchsorted(self.newlines[1:], line - 1, side="left"))

    def frame_of_byte(self, offset: int) -> int:
        """Return the frame that holds the byte at `offset`, from 0."""
        return int(np.searchsorted(self.text_offsets, offset, side="right")) - 1


def _joined(totals: Sequence[Sequence[int]]) -> IntArray:
    """Concatenate running totals that each begin at 0."""
    steps = [np.diff(np.asarray(total, dtype=np.int64)) for total in totals]
    return np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *steps]))


log = structlog.get_logger(__name__)

MAX_LINE_BYTES = 16 * 1024
"""Longer lines are shown truncated: some trainers print their whole configuration as one line."""

_TAIL_BYTES = 64 * 1024
"""Bytes read at once to find the index; enough for a 5 GB log."""

_ONE_REQUEST_BYTES = 32 * 1024 * 1024
"""Objects up to this size are stored with one conditional request; larger ones in parts, to bound memory."""

_AT_ONCE_BYTES = 1 << 20
"""Objects up to this size are read with one request, which has their index."""

_INDEXES_KEPT = 512
"""Indexes cached in memory. A growing log has dozens of objects, and its page reads their indexes often."""

HEAD_BYTES = 64 * 1024
"""Bytes of a staged file kept in memory to detect its format."""

ObjectKeys = Sequence[str]
"""The objects of a text, in order."""

_PROBE = "readiness/probe"
_PROBED_SECONDS = 60
"""Seconds before a writable store is probed again. A store that failed is probed each time."""

_STORE_ERRORS = (BaseError, OSError)
_DAMAGE = (zstandard.ZstdError, ValueError, struct.error, MemoryError)
"""Exceptions of decoding. A corrupted length may request more memory than exists."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored file. `size_bytes` and `sha256` describe the decompressed content; `key` is its location."""

    key: str
    sha256: str
    size_bytes: int


class StagedFile(AbstractContextManager["StagedFile"]):
    """A file that was read to its end, in an unnamed temporary file, so that nothing is left if the process dies."""

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
        """Yield the staged content, about 1 MiB at a time."""
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
    """The artifact store.

    All methods raise Unavailable if the store does not answer. Those that read raise DamagedObject if an object is
    missing or differs from what was stored.
    """

    def __init__(self, store: ObjectStore, folder: Path | None = None) -> None:
        """Open the store. `folder`: of a local store."""
        self._store = store
        self._folder = folder
        self._written_until = 0.0
        self._index = lru_cache(_INDEXES_KEPT)(self._read_index)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        url = settings.resolved_artifact_url
        folder = None if urlsplit(url).scheme == "s3" else Path(url).resolve()
        return cls(open_store(settings, url), folder)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        return cls(LocalStore(folder), folder)

    def put(self, chunks: Iterable[bytes]) -> StoredFile:
        """Store a file that arrives in chunks. If `chunks` raises, nothing is stored."""
        with StagedFile(chunks) as staged:
            self.keep(staged)
            return staged.stored

    def keep(self, staged: StagedFile) -> bool:
        """Move a staged file to the store. Return False if the same content already exists undamaged."""
        key = staged.stored.key
        try:
            is_there = self._holds(key)
            if is_there and self._is_sound(key):
                self._sync(key)
                return False
            if is_there or staged.compressed_bytes > _ONE_REQUEST_BYTES:
                obstore.put(self._store, key, staged.rewound())
            else:
                with suppress(AlreadyExistsError):  # another upload stored the same content first
                    obstore.put(self._store, key, staged.rewound(), mode="create", use_multipart=False)
            self._index.cache_clear()
            self._sync(key)
        except _STORE_ERRORS as error:
            raise _unavailable(error) from error
        return True

    def check_object(self, key: str) -> None:
        """Read a whole object. Raises DamagedObject if it is missing or its content does not match its key."""
        digest = hashlib.sha256()
        for part in self.stream([key]):
            digest.update(part)
        if digest.hexdigest() != PurePosixPath(key).stem:
            raise _damaged(key)

    def delete(self, key: str) -> None:
        """Delete an unused object; a missing one is ignored."""
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            pass
        except _STORE_ERRORS as error:
            raise _unavailable(error) from error

    def stored(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Return size and bytes of an object as it is stored."""
        with _reading(key):
            answer = obstore.get(self._store, key)
        return answer.meta["size"], (bytes(piece) for piece in answer.stream(1 << 20))

    def put_stored(self, key: str, pieces: Iterable[bytes]) -> None:
        """Store an object that another store had. Raises DamagedObject if it does not match its key."""
        with checked_object(key, pieces) as file:
            try:
                obstore.put(self._store, key, file)
                self._sync(key)
            except _STORE_ERRORS as error:
                raise _unavailable(error) from error

    def stream(self, keys: ObjectKeys) -> Iterator[bytes]:
        """Yield the whole text, about 1 MiB at a time."""
        for key in keys:
            with _reading(key):
                answer = obstore.get(self._store, key)
                if answer.meta["size"] <= _AT_ONCE_BYTES:
                    whole = bytes(answer.bytes())
                    yield from read_frames(read_index(whole), (whole,))
                else:
                    yield from read_frames(self._index(key), (bytes(part) for part in answer.stream(1 << 20)))

    def stream_range(self, keys: ObjectKeys, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to but excluding `end`, counted from 0."""
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
        """Return the number of lines. Text after the last newline counts as a line."""
        text = self.text(keys)
        if text.size_bytes == 0:
            return 0
        return int(text.newlines[-1]) + (not self._frame(text, text.frames - 1).endswith(b"\n"))

    def lines(self, keys: ObjectKeys, first: int, last: int) -> list[str]:
        """Return lines first..last (from 1, inclusive) without line ends; fewer if the text ends earlier.

        Lines are truncated at MAX_LINE_BYTES; bytes that are not UTF-8 become U+FFFD.
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
        """Raise Unavailable if the store does not answer, is missing or not writable. Probed at most once a minute."""
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
        if self._folder is not None:
            return (self._folder / key).is_file()
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
        """Make an object and its directory entries survive a power failure."""
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
            # Inside a giant line, a frame without a newline adds nothing to the shown part.
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
    """Yield `count` lines after the first `skip`, each of at most MAX_LINE_BYTES + 1 bytes."""
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
    if settings.s3_access_key_id:  # otherwise the store reads the credentials of the AWS tools
        config["access_key_id"] = settings.s3_access_key_id
        config["secret_access_key"] = settings.s3_secret_access_key
    return config


def open_store(settings: Settings, url: str) -> ObjectStore:
    """Open a folder, which is created, or `s3://bucket/prefix` at the S3 endpoint of the settings."""
    parts = urlsplit(url)
    if parts.scheme != "s3":
        return LocalStore(Path(url).resolve(), mkdir=True)
    return S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        config=_s3_config(settings),
        client_options={
            "allow_http": settings.s3_endpoint.startswith("http://"),
            "connect_timeout": "3s",
            "timeout": "60s",
        },
        retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=20)},
    )


@contextmanager
def checked_object(key: str, pieces: Iterable[bytes]) -> Iterator[BinaryIO]:
    """Yield a temporary file with the pieces. Raises DamagedObject if its text does not match the key, its hash."""
    with tempfile.TemporaryDirectory(prefix="threewalls-object-") as folder:
        path = Path(folder) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(pieces)
        LogFiles.of_folder(Path(folder)).check_object(key)
        with path.open("rb") as file:
            yield file


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
    # The store's message may contain addresses and keys, so only the service log has it.
    return Unavailable(f"The artifact store did not answer ({type(error).__name__}). Try again in a minute.")


# --- Free space on the disks of the data, the logs and temporary files.


class DiskUsage(NamedTuple):
    """In bytes. `free` leaves out what is reserved for the system."""

    total: int
    free: int


def fullest_disk(settings: Settings) -> DiskUsage:
    """Return the size and the free space of the fullest disk of the service. Raises DiskFull if one is read-only."""
    return min((_disk_of(folder) for folder in _folders(settings)), key=lambda disk: disk.free)


def free_bytes(settings: Settings) -> int:
    return fullest_disk(settings).free


def require_room(settings: Settings, new_bytes: int) -> None:
    """Raise DiskFull if an upload of this size would leave less than THREEWALLS_MIN_FREE_BYTES."""
    free = free_bytes(settings) if settings.min_free_bytes else 0
    if settings.min_free_bytes and free - new_bytes < settings.min_free_bytes:
        raise DiskFull(
            f"The disk of the service has {free:,} bytes left, and {settings.min_free_bytes:,} must stay free "
            "(THREEWALLS_MIN_FREE_BYTES). Nothing was saved. Tell the administrator, and upload again later."
        )


def _folders(settings: Settings) -> list[Path]:
    folders = [Path(tempfile.gettempdir())]
    if settings.embedded:
        folders.append(settings.data_dir)
    if urlsplit(settings.resolved_artifact_url).scheme != "s3":
        folders.append(Path(settings.resolved_artifact_url))
    return folders


def _disk_of(folder: Path) -> DiskUsage:
    while not folder.exists():  # created with the first file
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        raise DiskFull("A disk of the service is not writable. Tell the administrator, and upload again later.")
    usage = shutil.disk_usage(folder)
    return DiskUsage(usage.total, usage.free)
