"""Decompress, check and name an uploaded file.

This module imports no database, because `threewalls analyze` uses it for local files.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np
import zstandard

from app.domain.documents.document import DocumentKind
from app.domain.documents.read import read_document, recognise, recognise_long
from app.domain.logs import parse_text
from app.domain.numbers import size
from app.errors import BrokenCompression, EmptyUpload, InvalidUpload, NotALog, TooLarge
from app.settings import Settings

if TYPE_CHECKING:  # `threewalls analyze` needs no object store
    from app.storage.log_files import StagedFile

#
# A killed job leaves a compressed log that ends early. The text up to there is kept, and `cut` names the format. A file
# with damage in the middle is refused, because the text after it cannot be trusted.

CHUNK_BYTES = 1 << 20
_BOMB_CHECK_BYTES = 64 << 20
"""Up to this size any compression ratio is allowed, because a few MB of one repeated line are not an attack."""

_GZIP_INPUT_BYTES = 16 * 1024
"""Small, because zlib copies the unread rest after each member: millions of tiny members would take quadratic time."""

_ZSTD_INPUT_BYTES = 1024
"""Small, because 4 bytes of zstd can become 128 KiB, and the decoder has no output limit."""

_ZSTD_MAX_WINDOW = 128 << 20
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one file in bytes. `ratio`: decompressed per compressed byte, checked above 64 MiB."""

    decompressed_bytes: int
    ratio: int

    @classmethod
    def from_settings(cls, settings: Settings) -> "Limits":
        return cls(settings.max_log_bytes, settings.max_compression_ratio)


class Decompressed:
    """Iterates over the decompressed chunks of a file. `name`: for messages. `cut` is valid after the last chunk.

    Raises TooLarge, and BrokenCompression if the file is damaged or ends before any text.
    """

    def __init__(self, file: BinaryIO, name: str, limits: Limits) -> None:
        self.cut = ""
        self.size_bytes = 0
        self._file, self._name, self._limits = file, name, limits

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        head = self._file.read(8)
        self._file.seek(0)
        if head.startswith(GZIP):
            chunks = self._gunzip()
        elif head.startswith(ZSTD) or _is_skippable_frame(head):
            chunks = self._unzstd()
        else:
            chunks = iter(lambda: self._file.read(CHUNK_BYTES), b"")
        for chunk in chunks:
            self.size_bytes += len(chunk)
            self._check_size()
            yield chunk

    def _check_size(self) -> None:
        if self.size_bytes > self._limits.decompressed_bytes:
            raise TooLarge.of_file(
                f"{self._name} is larger than {size(self._limits.decompressed_bytes)} when decompressed.",
                "Upload the log of one rank, or the iteration lines only.",
            )
        if self.size_bytes > _BOMB_CHECK_BYTES and self.size_bytes > self._limits.ratio * self._file.tell():
            raise TooLarge.of_file(
                f"{self._name} decompresses to more than {self._limits.ratio} times its size, which no log does.",
                "If it is a log, upload it without compression.",
            )

    def _gunzip(self) -> Iterator[bytes]:
        """Yield the text of all members of a gzip file. Zero bytes after the last member are padding, as in gzip."""
        decoder = zlib.decompressobj(wbits=31)
        data = self._file.read(_GZIP_INPUT_BYTES)
        while data:
            try:
                chunk = decoder.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise self._damaged("gzip", str(error)) from error
            if chunk:
                yield chunk
            if decoder.eof:
                data = (decoder.unused_data or self._file.read(_GZIP_INPUT_BYTES)).lstrip(b"\0")
                while not data and (more := self._file.read(_GZIP_INPUT_BYTES)):
                    data = more.lstrip(b"\0")
                if not data:
                    return
                decoder = zlib.decompressobj(wbits=31)
            else:
                data = decoder.unconsumed_tail or self._file.read(_GZIP_INPUT_BYTES)
        if tail := decoder.flush():
            yield tail
        if not decoder.eof:
            self._end_early("gzip")

    def _unzstd(self) -> Iterator[bytes]:
        context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
        decoder, begun = context.decompressobj(), False
        data = self._file.read(_ZSTD_INPUT_BYTES)
        while data:
            try:
                chunk = decoder.decompress(data)
            except zstandard.ZstdError as error:
                raise self._damaged("zstd", str(error)) from error
            begun = True
            if chunk:
                yield chunk
            if decoder.eof:
                data = decoder.unused_data or self._file.read(_ZSTD_INPUT_BYTES)
                decoder, begun = context.decompressobj(), False
            else:
                data = self._file.read(_ZSTD_INPUT_BYTES)
        if begun:
            self._end_early("zstd")

    def _end_early(self, kind: str) -> None:
        if self.size_bytes == 0:
            raise BrokenCompression.of_file(
                f"{self._name} is {kind}, but ends before any text could be read.", "Upload the complete file."
            )
        self.cut = kind

    def _damaged(self, kind: str, reason: str) -> InvalidUpload:
        return BrokenCompression.of_file(
            f"{self._name} is {kind}, but damaged after {size(self.size_bytes)} of text ({reason}).",
            "Compress the log again and upload it.",
        )


def _is_skippable_frame(head: bytes) -> bool:
    return len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50


Kind = Literal["log", "config", "events"]

_CHECKED_BYTES = 1 << 20
_MAX_STRANGE_SHARE = 0.30
"""A file is binary if more than this share of the bytes in its first megabyte do not occur in text. Binary data have
half or more; Latin-1 logs, and logs that begin with garbage of a crashed writer, have less. Holes do not count."""
_HOLE = re.compile(rb"\0{8,}")
"""Pattern of a hole: network file systems and crashed writers leave runs of NULs. Single NULs come from UTF-16."""

_UTF16_BYTES = 64
"""English text in UTF-16 has a NUL within this many bytes. Without a NUL, the byte order mark is garbage."""

_MAX_DOCUMENT_IN_LOG = 1 << 20
"""A larger file that was sent as a log is a log, because no script or configuration is that long."""

_ITERATION = re.compile(rb"\biteration +\d+/ *\d+ \|[^\n]{0,80}\| elapsed time per iteration \(ms\): \d")
"""Megatron-LM's iteration line: most logs have it, and no document does."""

_MAGICS = (
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x7fELF", "an ELF program"),
    (b"%PDF-", "a PDF document"),
    (b"\x89PNG\r\n", "a PNG image"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x93NUMPY", "a NumPy array"),
)
_TAR_MAGIC_AT = 257
_TEXT_CONTROLS = frozenset(b"\t\n\v\f\r\b\x1b")
_SPACE, _DELETE = 32, b"\x7f"
_STRANGE = bytes(c for c in range(_SPACE) if c not in _TEXT_CONTROLS) + _DELETE


def checked(chunks: Iterable[bytes], kind: Kind, name: str) -> Iterator[bytes]:
    """Yield the chunks. Raises EmptyUpload or NotALog if the file can be neither a log nor a document."""
    chunks, head = iter(chunks), b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _CHECKED_BYTES:
            break
    if not head:
        raise EmptyUpload(f"{name} is empty. Nothing was saved. Check that the job wrote it.")
    if kind != "events":
        try:
            _check_is_text(head, name)
        except NotALog:
            if recognise(name, head) != "tensorboard":
                raise
    yield from chain((head,), chunks)


def document_kind(kind: Kind, name: str, staged: "StagedFile") -> str:
    """Return the document kind of a staged file; empty for a log and for a file that is stored but not read.

    A log may begin with the environment or the command of its job. So a file that was sent as a log is a document only
    if it has no lines of a log.
    """
    if kind != "log":
        return recognise(name, staged.head) or ""
    if _ITERATION.search(staged.head):
        return ""
    is_longer = staged.stored.size_bytes > len(staged.head)
    document = recognise_long(staged.head) if is_longer else recognise(name, staged.head)
    if document is None or document == "tensorboard":
        return document or ""
    read = parse_text(staged.head)
    if read.n or read.events or staged.stored.size_bytes > _MAX_DOCUMENT_IN_LOG:
        return "" if document not in ("golden values", "iterations") or read.n else document
    return document


FORMATS: dict[str, DocumentKind | None] = {"log": None, "iterations": "iterations", "bencher": "bencher metrics"}
"""Formats that an upload may state for its logs (`format` in the metadata) -> kind of document."""


def stated_document(stated: str, name: str, staged: "StagedFile") -> str:
    """Return the document kind of a file whose format the upload states. Raises NotALog if it has another format."""
    kind = FORMATS[stated]
    if kind is None:
        return ""
    try:
        read_document(kind, staged.chunks())
    except ValueError as problem:
        raise NotALog(f"{name} cannot be read as {stated}: {problem} Nothing was saved.") from None
    return kind


def _check_is_text(head: bytes, name: str) -> None:
    text = head[:_CHECKED_BYTES]
    text = _HOLE.sub(b"", text) if b"\0" in text else text
    if text.isspace() or not text:
        raise EmptyUpload(f"{name} contains no text. Nothing was saved. Check that the job wrote to it.")
    for magic, what in _MAGICS:
        if head.startswith(magic):
            raise _not_a_log(name, what)
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar":
        raise _not_a_log(name, "a tar archive")
    if head.startswith((GZIP, ZSTD)):
        raise _not_a_log(name, "compressed twice")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in head[2:_UTF16_BYTES]:
        raise NotALog(f"{name} is UTF-16 text. Nothing was saved. Save it as UTF-8: `iconv -f UTF-16 -t UTF-8`.")
    if _is_binary(text):
        raise _not_a_log(name, "binary data")


def _is_binary(head: bytes) -> bool:
    # First a quick count that includes line breaks and tabs; the exact count takes 20 times as long.
    controls = int(np.count_nonzero(np.frombuffer(head, np.uint8) < _SPACE)) + head.count(_DELETE)
    if head.isascii() and controls <= _MAX_STRANGE_SHARE * len(head):
        return False
    controls = len(head) - len(head.translate(None, _STRANGE))
    # (The end of the block may split the last character.)
    undecodable = 0 if head.isascii() else head.decode("utf-8", "replace").count("�")
    return (controls + undecodable) / len(head) > _MAX_STRANGE_SHARE


def _not_a_log(name: str, what: str) -> NotALog:
    return NotALog(f"{name} is {what}, not text. Nothing was saved. Upload the file as text, .gz or .zst.")


# --- Names of files and runs.

UNNAMED = "run"
"""Name of a run without a file, until its first log arrives."""
_MAX_FILE_NAME = 200
_SUFFIXES = (".gz", ".zst", ".log", ".txt")


def file_name(sent: str, kind: Kind = "log") -> str:
    """Return the last part of a path without characters that are unsafe in file systems and headers."""
    name = PurePosixPath(sent.replace("\\", "/")).name
    name = "".join(c for c in name if c.isprintable()).strip()
    return name[-_MAX_FILE_NAME:] or f"{kind}.txt"


def run_name(file_name: str) -> str:
    """Return the name of a run: the name of its first log without suffixes."""
    name = file_name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name or UNNAMED
