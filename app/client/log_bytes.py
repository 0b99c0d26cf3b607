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


class UnreadableLogError(ThreewallsError):
    title = "This file cannot be read"


def plain_name(name: str) -> str:
    """The name of the text in a compressed file."""
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4).startswith((GZIP, ZSTD))


def text_chunks(path: Path, begin: int = 0) -> Iterator[bytes]:
    """From byte `begin` of the text on. A compressed file that ends early, as of a killed job, is read up to there.

    Raises UnreadableLogError when it is damaged.
    """
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(0)
        if not head.startswith((GZIP, ZSTD)):
            file.seek(begin)
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")
            return
        skip = begin
        for chunk in _gunzip(file, path) if head.startswith(GZIP) else _unzstd(file, path):
            if skip < len(chunk):
                yield chunk[skip:] if skip else chunk
            skip = max(0, skip - len(chunk))


def _gunzip(file: BinaryIO, path: Path) -> Iterator[bytes]:
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
                raise _damaged(path, str(error)) from error
            if chunk:
                yield chunk
            data = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    if tail := decoder.flush():
        yield tail


def _unzstd(file: BinaryIO, path: Path) -> Iterator[bytes]:
    import zstandard  # noqa: PLC0415  only for such a file, so that other commands start sooner

    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(file, read_across_frames=True)
    while True:
        try:
            chunk = reader.read(CHUNK_BYTES)
        except zstandard.ZstdError as error:
            raise _damaged(path, str(error)) from error
        if not chunk:
            return
        yield chunk


def _damaged(path: Path, why: str) -> UnreadableLogError:
    return UnreadableLogError(f"{path} is compressed, but damaged ({why}). Compress the log again.")
