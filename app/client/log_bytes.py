"""The text of a log file, plain or compressed, in chunks: what the service counts bytes of."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from app.errors import ThreewallsError

CHUNK_BYTES = 1 << 20
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
COMPRESSED_SUFFIXES = (".gz", ".zst")
_MAX_WINDOW = 128 << 20
_ZSTD_INPUT_BYTES = 1024
"""A block of 4 bytes can become 128 KiB, and the decoder has no output limit: so it is fed sparingly."""


class UnreadableLogError(ThreewallsError):
    title = "This file cannot be read"


def plain_name(name: str) -> str:
    """The name of the text in a compressed file."""
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        return _is_packed(file.read(4))


def _is_packed(head: bytes) -> bool:
    """Also by a skippable frame, with which pzstd begins."""
    skippable = head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50
    return skippable or head.startswith((GZIP, ZSTD))


class LogText:
    """The chunks of a log's text, from byte `begin` on. A compressed file that ends early, as of a killed job, is read
    up to there: `cut` is then the kind of its compression, once all of it was read.

    Iterating raises UnreadableLogError when the file is damaged or cannot be read.
    """

    def __init__(self, path: Path, begin: int = 0) -> None:
        self.path, self.begin, self.cut = path, begin, ""

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                yield from self._chunks(file)
        except OSError as error:
            raise UnreadableLogError(f"{self.path} cannot be read: {error.strerror or error}.") from error

    def _chunks(self, file: BinaryIO) -> Iterator[bytes]:
        head = file.read(4)
        file.seek(0)
        if not _is_packed(head):
            file.seek(self.begin)
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")
            return
        skip = self.begin
        for chunk in self._gunzip(file) if head.startswith(GZIP) else self._unzstd(file):
            if skip < len(chunk):
                yield chunk[skip:] if skip else chunk
            skip = max(0, skip - len(chunk))

    def _gunzip(self, file: BinaryIO) -> Iterator[bytes]:
        """All members; zero bytes behind the last one are padding."""
        decoder = zlib.decompressobj(wbits=31)
        while data := file.read(64 * 1024):
            while data:
                if decoder.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    decoder = zlib.decompressobj(wbits=31)
                try:
                    chunk = decoder.decompress(data, CHUNK_BYTES)
                except zlib.error as error:
                    raise _damaged(self.path, str(error)) from error
                if chunk:
                    yield chunk
                data = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
        if tail := decoder.flush():
            yield tail
        if not decoder.eof:
            self.cut = "gzip"

    def _unzstd(self, file: BinaryIO) -> Iterator[bytes]:
        import zstandard  # noqa: PLC0415  only for such a file, so that other commands start sooner

        context = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        decoder, begun = context.decompressobj(), False
        data = file.read(_ZSTD_INPUT_BYTES)
        while data:
            try:
                chunk = decoder.decompress(data)
            except zstandard.ZstdError as error:
                raise _damaged(self.path, str(error)) from error
            begun = not decoder.eof
            if chunk:
                yield chunk
            data = (decoder.unused_data if decoder.eof else b"") or file.read(_ZSTD_INPUT_BYTES)
            if decoder.eof:
                decoder = context.decompressobj()
        if begun:
            self.cut = "zstd"


def _damaged(path: Path, why: str) -> UnreadableLogError:
    return UnreadableLogError(f"{path} is compressed, but damaged ({why}). Compress the log again.")
