"""Frames of a TFRecord file: length, checksum of the length, data, checksum of the data. Checksums are masked CRC32C.

https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

HEADER_BYTES = 12
FOOTER_BYTES = 4
MAX_RECORD_BYTES = 1 << 16
"""A scalar or an argument is far shorter; images, histograms and graphs are longer and not read."""
BATCH_BYTES = 1 << 20
MAX_DAMAGED_PLACES = 100
"""Each costs a search for the next frame; a file with more is not worth it."""
_SEARCH_BYTES = 1 << 16

_POLYNOMIAL = 0x82F63B78
_SHIFT_8, _SHIFT_15, _SHIFT_17 = np.uint32(8), np.uint32(15), np.uint32(17)
_MASK_DELTA = np.uint32(0xA282EAD8)


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE_LIST = [_table_entry(byte) for byte in range(256)]
_TABLE: npt.NDArray[np.uint32] = np.array(_TABLE_LIST, np.uint32)


def masked_crc32c(data: bytes) -> int:
    """The checksum that TFRecord stores for `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE_LIST[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """`masked_crc32c` of each row; one step of numpy per column, so many short rows cost little."""
    crc: npt.NDArray[np.uint32] = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in range(rows.shape[1]):
        low = (crc ^ rows[:, column]).astype(np.uint8)
        crc = np.bitwise_xor(_TABLE[low], np.right_shift(crc, _SHIFT_8))
    crc = np.invert(crc)
    rotated = np.bitwise_or(np.right_shift(crc, _SHIFT_15), np.left_shift(crc, _SHIFT_17))
    return np.add(rotated, _MASK_DELTA)


@dataclass(slots=True)
class Damage:
    """What was skipped while reading one file."""

    corrupt_records: int = 0
    damaged_places: int = 0
    long_records: int = 0
    gave_up: bool = False


@dataclass(slots=True)
class _Frames:
    """Complete frames of one batch: the data's start and length in the buffer, then where the next frame starts."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0
    skip: int = 0


def read_records(chunks: Iterable[bytes], damage: Damage) -> Iterator[bytes]:
    """The data of each sound record, in order. Counts in `damage` what was skipped.

    An unfinished record at the end is normal (the file was copied while it was written) and not counted.
    """
    buffer = bytearray()
    skip = 0
    for piece in _pieces(chunks):
        if skip >= len(piece):
            skip -= len(piece)
            continue
        buffer += piece[skip:]
        frames = _find_frames(buffer, damage)
        yield from _sound_records(buffer, frames.spans, damage)
        if damage.gave_up:
            return
        skip = frames.skip
        del buffer[: frames.end]


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """`chunks` regrouped into pieces of about BATCH_BYTES, so that checksums are computed for many records at once."""
    gathered = bytearray()
    for chunk in chunks:
        for start in range(0, len(chunk), BATCH_BYTES):
            gathered += chunk[start : start + BATCH_BYTES]
            if len(gathered) >= BATCH_BYTES:
                yield bytes(gathered)
                gathered.clear()
    if gathered:
        yield bytes(gathered)


def _find_frames(buffer: bytearray, damage: Damage) -> _Frames:
    frames = _Frames()
    size = len(buffer)
    while size - frames.end >= HEADER_BYTES:
        header = bytes(buffer[frames.end : frames.end + HEADER_BYTES])
        length, checksum = struct.unpack("<QI", header)
        if masked_crc32c(header[:8]) != checksum:
            damage.damaged_places += 1
            damage.gave_up = damage.damaged_places > MAX_DAMAGED_PLACES
            frames.end = _next_header(buffer, frames.end + 1)
            if damage.gave_up:
                return frames
            continue
        whole = HEADER_BYTES + length + FOOTER_BYTES
        if length > MAX_RECORD_BYTES:
            damage.long_records += 1
            frames.skip = max(frames.end + whole - size, 0)
            frames.end = min(frames.end + whole, size)
            if frames.skip:
                return frames
            continue
        if frames.end + whole > size:
            return frames
        frames.spans.append((frames.end + HEADER_BYTES, length))
        frames.end += whole
    return frames


def _next_header(buffer: bytearray, start: int) -> int:
    """Where the next sound header starts at or after `start`; else near the buffer's end, where one may be cut."""
    last = len(buffer) - HEADER_BYTES
    while start <= last:
        stop = min(start + _SEARCH_BYTES, last + 1)
        window = np.frombuffer(bytes(buffer[start : stop + HEADER_BYTES - 1]), np.uint8)
        rows = np.lib.stride_tricks.sliding_window_view(window, HEADER_BYTES)
        stored = np.ascontiguousarray(rows[:, 8:]).view("<u4")[:, 0]
        found = np.flatnonzero(masked_crc32c_rows(rows[:, :8]) == stored)
        if len(found):
            return start + int(found[0])
        start = stop
    return start


def _sound_records(buffer: bytearray, spans: list[tuple[int, int]], damage: Damage) -> Iterator[bytes]:
    """The records whose data fit their checksum, checked together with the others of the same length."""
    by_length: dict[int, list[int]] = {}
    for index, (_, length) in enumerate(spans):
        by_length.setdefault(length, []).append(index)
    sound = np.zeros(len(spans), bool)
    view = np.frombuffer(bytes(buffer), np.uint8)
    for length, indexes in by_length.items():
        starts = np.array([spans[index][0] for index in indexes])
        rows = view[starts[:, None] + np.arange(length + FOOTER_BYTES)]
        stored = np.ascontiguousarray(rows[:, length:]).view("<u4")[:, 0]
        sound[indexes] = masked_crc32c_rows(rows[:, :length]) == stored
    damage.corrupt_records += len(spans) - int(sound.sum())
    for index, (start, length) in enumerate(spans):
        if sound[index]:
            yield bytes(buffer[start : start + length])
