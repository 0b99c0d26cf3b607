"""From a file as it was sent to the text of a log: decompressed within limits, and refused when it is no text.

What a file is, its first bytes say; its name is only repeated in messages. Everything is streamed.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import zstandard

from app.errors import BrokenCompression, EmptyUpload, NotALog, TooLarge
from app.settings import Settings

CHUNK_BYTES = 1 << 20
_BOMB_CHECK_BYTES = 64 << 20
"""Below this a log may compress as well as it likes: a few MB of one repeated line are no attack."""

_GZIP_INPUT_BYTES = 16 * 1024
"""What is left after a member is copied: with larger reads, millions of tiny members would take quadratic time."""

_ZSTD_INPUT_BYTES = 1024
"""A zstd block of 4 bytes can become 128 KiB, and the decoder has no output limit: so it is fed sparingly."""

_ZSTD_MAX_WINDOW = 128 << 20
_SNIFF_BYTES = 64 * 1024
_MAX_STRANGE_SHARE = 0.10
"""Share of bytes that no text holds, above which a file is binary: crashed logs hold a few NULs, some are Latin-1."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
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
_STRANGE = bytes(c for c in range(32) if c not in _TEXT_CONTROLS) + b"\x7f"


@dataclass(frozen=True, slots=True)
class Limits:
    """In bytes; `ratio` is decompressed bytes a compressed byte, past 64 MiB."""

    decompressed_bytes: int
    ratio: int

    @classmethod
    def from_settings(cls, settings: Settings) -> "Limits":
        return cls(settings.max_log_bytes, settings.max_compression_ratio)


def text_chunks(file: BinaryIO, name: str, limits: Limits) -> Iterator[bytes]:
    """The log in `file`, decompressed. Raises an InvalidUpload that says what is wrong with `name`.

    The chunks before the error are good bytes, so whoever keeps them must drop them when this raises.
    """
    chunks = _decompressed(file, name, limits)
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _SNIFF_BYTES:
            break
    _refuse_what_is_no_text(head, name)
    yield head
    yield from chunks


def raw_chunks(file: BinaryIO, name: str, limits: Limits) -> Iterator[bytes]:
    """A file that is kept as it was sent, within the size limit."""
    total = 0
    while chunk := file.read(CHUNK_BYTES):
        total += len(chunk)
        if total > limits.decompressed_bytes:
            raise TooLarge(f"{name} is larger than {_size(limits.decompressed_bytes)}. Nothing was kept.")
        yield chunk
    if total == 0:
        raise EmptyUpload(f"{name} has no bytes at all. Nothing was kept. Check that the job wrote it.")


def _decompressed(file: BinaryIO, name: str, limits: Limits) -> Iterator[bytes]:
    file.seek(0)
    head = file.read(8)
    file.seek(0)
    if head.startswith(_GZIP):
        yield from _bounded(_gunzip(file, name), name, limits, file)
    elif head.startswith(_ZSTD) or _is_skippable_frame(head):
        yield from _bounded(_unzstd(file, name), name, limits, file)
    else:
        yield from _bounded(iter(lambda: file.read(CHUNK_BYTES), b""), name, limits, file)


def _bounded(chunks: Iterator[bytes], name: str, limits: Limits, file: BinaryIO) -> Iterator[bytes]:
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > limits.decompressed_bytes:
            raise TooLarge(
                f"{name} is larger than {_size(limits.decompressed_bytes)} when decompressed. Nothing was kept. "
                "Upload the log of one rank, or the iteration lines only."
            )
        if total > _BOMB_CHECK_BYTES and total > limits.ratio * file.tell():
            raise TooLarge(
                f"{name} decompresses to more than {limits.ratio} times its size, which no log does. Nothing was kept."
            )
        yield chunk


def _gunzip(file: BinaryIO, name: str) -> Iterator[bytes]:
    """All members of a gzip file. Zero bytes after the last one are padding, as gzip itself has it."""
    readable = 0
    decoder = zlib.decompressobj(wbits=31)
    data = file.read(_GZIP_INPUT_BYTES)
    while data:
        try:
            chunk = decoder.decompress(data, CHUNK_BYTES)
        except zlib.error as error:
            raise _damaged(name, "gzip", readable, str(error)) from error
        readable += len(chunk)
        if chunk:
            yield chunk
        if decoder.eof:
            data = (decoder.unused_data or file.read(_GZIP_INPUT_BYTES)).lstrip(b"\0")
            while not data and (more := file.read(_GZIP_INPUT_BYTES)):
                data = more.lstrip(b"\0")
            if not data:
                return
            decoder = zlib.decompressobj(wbits=31)
        else:
            data = decoder.unconsumed_tail or file.read(_GZIP_INPUT_BYTES)
    if tail := decoder.flush():
        readable += len(tail)
        yield tail
    if not decoder.eof:
        raise _cut_off(name, "gzip", readable)


def _unzstd(file: BinaryIO, name: str) -> Iterator[bytes]:
    readable = 0
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
    decoder, begun = context.decompressobj(), False
    data = file.read(_ZSTD_INPUT_BYTES)
    while data:
        try:
            chunk = decoder.decompress(data)
        except zstandard.ZstdError as error:
            raise _damaged(name, "zstd", readable, str(error)) from error
        begun = True
        readable += len(chunk)
        if chunk:
            yield chunk
        if decoder.eof:
            data = decoder.unused_data or file.read(_ZSTD_INPUT_BYTES)
            decoder, begun = context.decompressobj(), False
        else:
            data = file.read(_ZSTD_INPUT_BYTES)
    if begun:
        raise _cut_off(name, "zstd", readable)


def _refuse_what_is_no_text(head: bytes, name: str) -> None:
    if not head.strip():
        raise EmptyUpload(f"{name} holds no text. Nothing was kept. Check that the job wrote to it.")
    for magic, what in _MAGICS:
        if head.startswith(magic):
            raise _not_a_log(name, what)
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar":
        raise _not_a_log(name, "a tar archive")
    if head.startswith((_GZIP, _ZSTD)):
        raise _not_a_log(name, "compressed twice")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotALog(f"{name} is UTF-16 text. Nothing was kept. Save it as UTF-8: `iconv -f UTF-16 -t UTF-8`.")
    if _strange_share(head[:_SNIFF_BYTES]) > _MAX_STRANGE_SHARE:
        raise _not_a_log(name, "binary data")


def _strange_share(head: bytes) -> float:
    controls = len(head) - len(head.translate(None, _STRANGE))
    # The last character may be cut by the end of the block.
    undecodable = head.decode("utf-8", "replace").count("�")
    return (controls + undecodable) / len(head)


def _is_skippable_frame(head: bytes) -> bool:
    return len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50


def _not_a_log(name: str, what: str) -> NotALog:
    return NotALog(
        f"{name} is {what}, whatever its name says. Nothing was kept. "
        "Upload the log itself: text, or text as .gz or .zst."
    )


def _damaged(name: str, kind: str, readable: int, reason: str) -> BrokenCompression:
    return BrokenCompression(
        f"{name} is {kind}, but damaged after {_size(readable)} of text ({reason}). Nothing was kept. "
        "Compress the log again and upload it."
    )


def _cut_off(name: str, kind: str, readable: int) -> BrokenCompression:
    return BrokenCompression(
        f"{name} is {kind}, but ends early: {_size(readable)} of text could be read before the cut. "
        "Nothing was kept. Upload it again whole, or decompress what there is and upload that as text."
    )


def _size(count: int) -> str:
    if count < 10_000:
        return f"{count:,} bytes"
    for factor, unit in ((10**9, "GB"), (10**6, "MB")):
        if count >= factor:
            return f"{count / factor:,.1f} {unit} ({count:,} bytes)"
    return f"{count / 1000:,.1f} kB ({count:,} bytes)"
