"""A text kept so that any of its lines can be read without the rest: independent zstd frames, and an index at the end.

A frame holds about 1 MiB of text and ends at a line's end where it can. The index is a skippable zstd frame, so that
the object is also an ordinary `.zst` file: `zstd -d` gives the text. Its payload is one entry a frame (compressed
size, size, number of newlines; little-endian u32 each), then the number of entries and a mark.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import zstandard

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
