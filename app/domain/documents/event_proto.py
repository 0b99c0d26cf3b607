"""Decodes the few fields of TensorBoard's Event messages that hold scalars and arguments.

`tensorflow/core/util/event.proto`, `framework/summary.proto`, `framework/tensor.proto`; protobuf's wire format:
https://protobuf.dev/programming-guides/encoding/
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

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
    """Field number, wire type and raw value of each field of a message. Raises ValueError or IndexError when broken."""
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
    """The scalars and texts of one Event record; other events give none. Raises ValueError when it is no Event."""
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
    """A tensor's single float, double or text; None for any other tensor."""
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
