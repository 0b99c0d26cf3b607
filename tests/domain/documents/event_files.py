"""Writes TensorBoard event files byte by byte, so that the reader is tested against the format, not itself."""

import struct
from functools import cache

DT_FLOAT, DT_STRING = 1, 7


@cache
def _of_byte(byte: int) -> int:
    """Bit by bit, straight from the polynomial."""
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _of_byte(crc & 0xFF ^ byte)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _bytes_field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(step: int, value: bytes) -> bytes:
    """One Event with one summary value (see `simple`, `tensor` and `text`)."""
    wall_time = b"\x09" + struct.pack("<d", 1_780_000_000.5)
    return frame(wall_time + b"\x10" + varint(step) + _bytes_field(5, _bytes_field(1, value)))


def simple(tag: str, value: float) -> bytes:
    return _bytes_field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, value: float) -> bytes:
    """The output of `add_scalar(..., new_style=True)`: metadata of the scalars plugin, and a float tensor."""
    metadata = _bytes_field(9, _bytes_field(1, _bytes_field(1, b"scalars")))
    content = b"\x08" + varint(DT_FLOAT) + _bytes_field(2, b"") + _bytes_field(5, struct.pack("<f", value))
    return _bytes_field(1, tag.encode()) + metadata + _bytes_field(8, content)


def text(tag: str, value: str) -> bytes:
    """The output of `add_text`."""
    content = b"\x08" + varint(DT_STRING) + _bytes_field(8, value.encode())
    return _bytes_field(1, f"{tag}/text_summary".encode()) + _bytes_field(8, content)


def header() -> bytes:
    """The first record of every file."""
    return frame(b"\x09" + struct.pack("<d", 1_780_000_000.0) + _bytes_field(3, b"brain.Event:2"))


def event_file(*events: bytes) -> bytes:
    return header() + b"".join(events)
