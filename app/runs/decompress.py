"""A file as it was sent becomes the bytes it stands for: gzip, zstd or plain, by its first bytes, within limits.

A compressed log that ends early is what a job that was killed leaves: what came before the cut is kept, and `cut` says
so. Damage in the middle is refused: what follows it cannot be trusted.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import zstandard

from app.errors import BrokenCompression, TooLarge
from app.runs.sizes import size
from app.settings import Settings

CHUNK_BYTES = 1 << 20
_BOMB_CHECK_BYTES = 64 << 20
"""Below this a log may compress as well as it likes: a few MB of one repeated line are no attack."""

_GZIP_INPUT_BYTES = 16 * 1024
"""What is left after a member is copied: with larger reads, millions of tiny members would take quadratic time."""

_ZSTD_INPUT_BYTES = 1024
"""A zstd block of 4 bytes can become 128 KiB, and the decoder has no output limit: so it is fed sparingly."""

_ZSTD_MAX_WINDOW = 128 << 20
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Limits:
    """In bytes; `ratio` is decompressed bytes a compressed byte, past 64 MiB."""

    decompressed_bytes: int
    ratio: int

    @classmethod
    def from_settings(cls, settings: Settings) -> "Limits":
        return cls(settings.max_log_bytes, settings.max_compression_ratio)


class Decompressed:
    """The chunks of one file; `name` is repeated in messages. `cut` is known when they were all read.

    Raises TooLarge, and BrokenCompression when it is damaged or nothing of it could be read.
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
            raise TooLarge(
                f"{self._name} is larger than {size(self._limits.decompressed_bytes)} when decompressed. "
                "Nothing was kept. Upload the log of one rank, or the iteration lines only."
            )
        if self.size_bytes > _BOMB_CHECK_BYTES and self.size_bytes > self._limits.ratio * self._file.tell():
            raise TooLarge(
                f"{self._name} decompresses to more than {self._limits.ratio} times its size, which no log does. "
                "Nothing was kept."
            )

    def _gunzip(self) -> Iterator[bytes]:
        """All members of a gzip file. Zero bytes after the last one are padding, as gzip itself has it."""
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
            raise BrokenCompression(
                f"{self._name} is {kind}, but ends before anything of it could be read. Nothing was kept. "
                "Upload it again whole."
            )
        self.cut = kind

    def _damaged(self, kind: str, reason: str) -> BrokenCompression:
        return BrokenCompression(
            f"{self._name} is {kind}, but damaged after {size(self.size_bytes)} of text ({reason}). Nothing was kept. "
            "Compress the log again and upload it."
        )


def _is_skippable_frame(head: bytes) -> bool:
    return len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50
