"""Reads a TensorBoard event file of Megatron-LM or Megatron-Bridge: series, and arguments that are stored as texts."""

import struct
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from app.domain.documents.document import Document
from app.domain.documents.scalars import column_of, columns_from_points
from app.domain.logs.arguments import contract_fields
from app.domain.logs.settings import Setting, read_literal
from app.domain.run import Stated

# --- Decodes the few fields of TensorBoard's Event messages that hold scalars and arguments.
#
# `tensorflow/core/util/event.proto`, `framework/summary.proto`, `framework/tensor.proto`; protobuf's wire format:
# https://protobuf.dev/programming-guides/encoding/.
# The package `tensorboard` is not used: it installs gRPC, protobuf and a web server for these few fields.

MAX_TAG = 200
MAX_TEXT = 4000
MAX_VALUES = 10_000
"""Values in one event; Megatron writes one."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EVENT_STEP, _EVENT_SUMMARY = 2, 5
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR = 1, 2, 8
_TENSOR_DTYPE, _TENSOR_CONTENT = 1, 4
_TENSOR_FLOATS, _TENSOR_DOUBLES, _TENSOR_STRINGS = 5, 6, 8
_DT_FLOAT, _DT_DOUBLE = 1, 2


@dataclass(frozen=True, slots=True)
class ScalarEvent:
    """One scalar (a float) or one text (an argument) of one step."""

    step: int
    tag: str
    value: float | str


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint is longer than 10 bytes")


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and raw value of each field of a message. Raises ValueError or IndexError when broken."""
    at, size = 0, len(data)
    while at < size:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, wire, value
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} is not known")
        if at + length > size:
            raise ValueError("a field is longer than its message")
        yield key >> 3, wire, data[at : at + length]
        at += length


def read_event(record: bytes) -> list[ScalarEvent]:
    """Return the scalars and texts of one Event record; empty for other events. Raises ValueError if invalid."""
    try:
        step = 0
        summaries: list[bytes] = []
        for number, wire, raw in _fields(record):
            if number == _EVENT_STEP and wire == _VARINT and isinstance(raw, int):
                step = raw - (1 << 64) if raw >> 63 else raw
            elif number == _EVENT_SUMMARY and isinstance(raw, bytes):
                summaries.append(raw)
        return [event for summary in summaries for event in _values(step, summary)]
    except (IndexError, struct.error) as error:
        raise ValueError("an event is cut") from error


def _values(step: int, summary: bytes) -> Iterator[ScalarEvent]:
    for count, (number, _, raw) in enumerate(_fields(summary)):
        if count >= MAX_VALUES:
            return
        if number == 1 and isinstance(raw, bytes):
            event = _value(step, raw)
            if event is not None:
                yield event


def _value(step: int, data: bytes) -> ScalarEvent | None:
    tag = ""
    value: float | str | None = None
    for number, wire, raw in _fields(data):
        if not isinstance(raw, bytes):
            continue
        if number == _VALUE_TAG and len(raw) <= MAX_TAG:
            tag = raw.decode("utf-8", "replace")
        elif number == _VALUE_SIMPLE and wire == _FIXED32:
            value = float(struct.unpack("<f", raw)[0])
        elif number == _VALUE_TENSOR and wire == _BYTES:
            value = _tensor(raw)
    return ScalarEvent(step, tag, value) if tag and value is not None else None


def _tensor(data: bytes) -> float | str | None:
    """Return a tensor's single float, double or text; None for any other tensor."""
    dtype = 0
    for number, wire, raw in _fields(data):
        if number == _TENSOR_DTYPE and isinstance(raw, int):
            dtype = raw
        elif not isinstance(raw, bytes):
            continue
        elif number == _TENSOR_STRINGS and wire == _BYTES:
            return raw[:MAX_TEXT].decode("utf-8", "replace")
        # a repeated number arrives packed (length-delimited) or as a single fixed-width field: the same bytes
        elif len(raw) == 4 and (number == _TENSOR_FLOATS or (number == _TENSOR_CONTENT and dtype == _DT_FLOAT)):
            return float(struct.unpack("<f", raw)[0])
        elif len(raw) == 8 and (number == _TENSOR_DOUBLES or (number == _TENSOR_CONTENT and dtype == _DT_DOUBLE)):
            return float(struct.unpack("<d", raw)[0])
    return None


# --- Reads the frames of a TFRecord file: length, its checksum, data, its checksum. Checksums are masked CRC32C.
#
# https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details

HEADER_BYTES = 12
FOOTER_BYTES = 4
MAX_RECORD_BYTES = 1 << 16
"""Scalars and arguments are far shorter; images, histograms and graphs are longer and are not read."""
BATCH_BYTES = 1 << 20
MAX_DAMAGED_PLACES = 100
"""Limit of damaged places. Each one requires a search for the next frame."""
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
    """Return the checksum that TFRecord stores for `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE_LIST[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return `masked_crc32c` of each row. One numpy operation per column makes many short rows cheap."""
    crc: npt.NDArray[np.uint32] = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in range(rows.shape[1]):
        low = (crc ^ rows[:, column]).astype(np.uint8)
        crc = np.bitwise_xor(_TABLE[low], np.right_shift(crc, _SHIFT_8))
    crc = np.invert(crc)
    rotated = np.bitwise_or(np.right_shift(crc, _SHIFT_15), np.left_shift(crc, _SHIFT_17))
    return np.add(rotated, _MASK_DELTA)


@dataclass(slots=True)
class Damage:
    """Counts of records skipped while reading one file."""

    corrupt_records: int = 0
    damaged_places: int = 0
    gave_up: bool = False


@dataclass(slots=True)
class _Frames:
    """Complete frames of one batch: the data's start and length in the buffer, then where the next frame starts."""

    spans: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0
    skip: int = 0


def read_records(chunks: Iterable[bytes], damage: Damage) -> Iterator[bytes]:
    """Yield the data of each valid record in order, and count skipped ones in `damage`.

    An incomplete record at the end is normal (the file was copied while it was written) and is not counted.
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
    """Regroup `chunks` into pieces of about BATCH_BYTES, so that checksums are computed for many records together."""
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
    """Return where the next valid header starts from `start` on, else a position near the end that may hold a part."""
    last = len(buffer) - HEADER_BYTES
    while start <= last:
        stop = min(start + _SEARCH_BYTES, last + 1)
        window = np.frombuffer(bytes(buffer[start : stop + HEADER_BYTES - 1]), np.uint8)
        rows = np.lib.stride_tricks.sliding_window_view(window, HEADER_BYTES)
        stored = np.ascontiguousarray(rows[:, 8:]).view("<u4")[:, 0]
        matches = np.flatnonzero(masked_crc32c_rows(rows[:, :8]) == stored)
        if len(matches):
            return start + int(matches[0])
        start = stop
    return start


def _sound_records(buffer: bytearray, spans: list[tuple[int, int]], damage: Damage) -> Iterator[bytes]:
    """Yield the records with a correct checksum. Records of the same length are checked together."""
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


MAX_TAGS = 500
"""Four MoE metrics of 61 layers each are 244 tags."""
MAX_POINTS = 4_000_000
"""64 MB of steps and values."""
MAX_ARGUMENTS = 3000
_TEXT_SUFFIX = "/text_summary"
"""`SummaryWriter.add_text` appends it to the tag; Megatron-LM writes each argument so (`write_args_to_tensorboard`)."""
_WORLD_SIZE = "world-size"


@dataclass(slots=True)
class _Collected:
    points: "dict[str, tuple[array[int], array[float]]]" = field(default_factory=dict)
    arguments: dict[str, Setting] = field(default_factory=dict)
    count: int = 0
    dropped_tags: set[str] = field(default_factory=set)
    broken: int = 0


def read_tensorboard(chunks: Iterable[bytes]) -> Document:
    """Read the series and arguments of one event file, given in pieces of any size, in bounded memory.

    A truncated record at the end is normal (the file was copied during the run); a damaged one is skipped.
    """
    damage = Damage()
    collected = _Collected()
    for record in read_records(chunks, damage):
        try:
            events = read_event(record)
        except ValueError:
            collected.broken += 1
            continue
        for event in events:
            _collect(collected, event)
        if collected.count >= MAX_POINTS:
            break
    gpus = collected.points.pop(_WORLD_SIZE, None)
    columns, left_out = columns_from_points(collected.points)
    fields, refused = contract_fields(collected.arguments)
    stated = {name: replace(fact, detail=f"TensorBoard text: {fact.detail}", line=0) for name, fact in fields.items()}
    if gpus and gpus[1][-1] >= 1:
        detail = f"TensorBoard scalar {_WORLD_SIZE} = {int(gpus[1][-1])}"
        stated.setdefault("gpus", Stated(int(gpus[1][-1]), "arguments", detail))
    problems = (*_problems(collected, damage), *left_out, *refused.values())
    return Document("tensorboard", stated, columns, problems=problems)


def _collect(collected: _Collected, event: ScalarEvent) -> None:
    if isinstance(event.value, str):
        name, suffix, rest = event.tag.partition(_TEXT_SUFFIX)
        if suffix and not rest and len(collected.arguments) < MAX_ARGUMENTS:
            collected.arguments[name] = Setting(name, read_literal(event.value), "arguments")
        return
    if column_of(event.tag) is None:
        return
    if event.tag not in collected.points:
        if len(collected.points) >= MAX_TAGS:
            if len(collected.dropped_tags) < MAX_TAGS:
                collected.dropped_tags.add(event.tag)
            return
        collected.points[event.tag] = (array("q"), array("d"))
    steps, values = collected.points[event.tag]
    steps.append(event.step)
    values.append(event.value)
    collected.count += 1


def _problems(collected: _Collected, damage: Damage) -> list[str]:
    problems = []
    if damage.corrupt_records:
        problems.append(f"{damage.corrupt_records} records were skipped: their checksum is wrong.")
    if damage.damaged_places:
        problems.append(f"The file is damaged in {damage.damaged_places} places; reading continued after them.")
    if damage.gave_up:
        problems.append("Reading stopped early: the file is damaged in too many places.")
    if collected.broken:
        problems.append(f"{collected.broken} records were skipped: they are not TensorBoard events.")
    if collected.dropped_tags:
        problems.append(f"Only the first {MAX_TAGS} scalar names were read.")
    if collected.count >= MAX_POINTS:
        problems.append(f"Reading stopped after {MAX_POINTS} values.")
    if not collected.points and not problems:
        problems.append("The event file has no scalars.")
    return problems
