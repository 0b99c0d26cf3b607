"""Finds the few relevant lines of a log with one Hyperscan pass over its bytes for all keys of all readers.

A log of hundreds of ranks is mostly NCCL notes and warnings, so lines are neither split nor decoded. A reader is called
for the lines that contain one of its literal keys and gets the bytes around them.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Protocol

import hyperscan
import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]

MAX_LINE = 1 << 20
"""Bytes. A longer line is read in pieces of this size, so that a file without line breaks needs no extra memory.
Pieces are counted from the start of the line: the result does not depend on how the bytes arrive."""

BLOCK = 1 << 18
"""Bytes scanned at a time: small enough to stay in the processor's cache between the passes over them."""


class LineReader(Protocol):
    """Reads one kind of line.

    `keys` are literals that identify its lines, as few as possible. They should end in bytes that are rare in ordinary
    logs (`MODEL_TF` rather than `GPU`), because Hyperscan checks the ends first and each check has a cost.
    """

    @property
    def keys(self) -> Sequence[bytes]: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        """Read the line `data[start:end]` (without its break), whose key ends at `hit`.

        Returns the offset up to which this reader has handled its keys. `end == len(data)` means that there was no line
        break: the log ends here, or a very long line continues.
        """
        ...

    def block(self, data: bytes) -> None:
        """Finish a block after all its keys; readers of multi-line records collect the text after their key here."""
        ...


def blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes in blocks that end at a line break, except for the last block and pieces of very long lines."""
    carry = b""
    for joined in _joined(chunks):
        data = joined
        first = data.find(b"\n")
        # Only the carried line can be too long: all others arrived within one or two blocks
        pieces = (len(carry) + (first if first >= 0 else len(data))) // MAX_LINE
        if pieces:
            carry, data = b"", carry + data
            yield from (data[at * MAX_LINE : (at + 1) * MAX_LINE] for at in range(pieces))
            data = data[pieces * MAX_LINE :]
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join((carry, memoryview(data)[:cut]))
            carry = data[cut:]
        else:
            carry += data
    if carry:
        yield carry


def _joined(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes in pieces of one to two blocks for chunks of any size."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        for at in range(0, len(chunk), BLOCK):
            part = chunk[at : at + BLOCK]
            parts.append(part)
            size += len(part)
            if size >= BLOCK:
                yield b"".join(parts)
                parts, size = [], 0
    yield b"".join(parts)


@lru_cache(maxsize=8)
def _database(keys: tuple[bytes, ...]) -> hyperscan.Database:
    """Compile a set of keys, once per process. Literal patterns need time and memory only for their length."""
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=list(keys), ids=list(range(len(keys))), elements=len(keys), literal=True)
    return database


class Scanner:
    """Passes the blocks of one log to the readers and counts lines."""

    def __init__(self, readers: Sequence[LineReader]) -> None:
        self._readers = readers
        self._owners = [owner for owner, reader in enumerate(readers) for _ in reader.keys]
        self._database = _database(tuple(key for reader in readers for key in reader.keys))
        self._scratch = hyperscan.Scratch(self._database)
        self._hits: list[tuple[int, int]] = []
        self._is_break = np.empty(0, np.bool_)
        self._line = 1
        """Line number at which the next block starts."""

    def scan(self, data: bytes) -> None:
        """Read one block of `blocks()`."""
        hits = self._hits
        hits.clear()
        self._database.scan(data, match_event_handler=self._on_match, scratch=self._scratch)
        if len(data) > len(self._is_break):
            self._is_break = np.empty(len(data), np.bool_)  # reused: allocation would cost more than the comparison
        is_break = np.equal(np.frombuffer(data, np.uint8), 10, out=self._is_break[: len(data)])
        counted = 0
        if hits:
            hits.sort()
            counted = self._read_hits(data, hits, is_break)
        for reader in self._readers:
            reader.block(data)
        self._line += int(np.count_nonzero(is_break[counted:]))

    def _on_match(self, key: int, _start: int, end: int, _flags: int, _context: object) -> None:
        self._hits.append((end, key))

    def _read_hits(self, data: bytes, hits: list[tuple[int, int]], is_break: BoolArray) -> int:
        """Call the readers. Return the offset up to which line breaks were added to `_line`."""
        done = [0] * len(self._readers)
        start, end = 0, -1
        for hit, key in hits:
            owner = self._owners[key]
            if hit <= done[owner]:
                continue
            if hit > end:
                line_start = data.rfind(b"\n", start, hit) + 1
                if line_start > start:
                    self._line += int(np.count_nonzero(is_break[start:line_start]))
                    start = line_start
                end = data.find(b"\n", hit)
                if end < 0:
                    end = len(data)
            done[owner] = self._readers[owner].read(data, start, end, hit, self._line)
        return start

    @property
    def line_breaks(self) -> int:
        """Number of line breaks so far."""
        return self._line - 1
