"""Uploaded files, kept by the hash of what they say: in a local folder or in an S3-compatible store.

What is stored is the decompressed file, in frames (`frames.py`), so that the same log is one object however it was
compressed, and the log viewer reads a few lines of a 4 GB log in milliseconds.

Objects never change. A log that grows is several of them, one after another (`segments.py`), so reading takes keys.
An object is on the disk (fsync) before `keep` returns; an S3 store promises as much by its answer.
"""

import hashlib
import os
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

import obstore
import structlog
import zstandard
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, S3Store

from app.errors import DamagedObject, Unavailable
from app.settings import Settings
from app.storage.frames import FrameIndex, index_bytes, read_frames, read_index, write_frames
from app.storage.stored_text import StoredText

if TYPE_CHECKING:
    from obstore.store import S3Config  # a type only: obstore has no such name at run time

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
