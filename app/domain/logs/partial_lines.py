"""Joins the lines that a container's runtime broke in two: it does so after 16 kB.

Kubernetes (CRI) marks a part with `P` and the last one with `F`: `2026-04-14T17:50:00.281177123Z stdout P text`. In
Docker's JSON the text of a part has no line break at its end. The joined line stands where its last part stood, and
the others are left blank, so that line numbers stay what they are in the file.
"""

import re
from collections.abc import Iterable, Iterator

MAX_JOINED = 1 << 20
"""Bytes of one joined line."""

_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) (std(?:out|err)) )([FP]) ?([^\n]*)")
_JSON = re.compile(rb'(\{"log": ?")([^\n]*)(", ?"stream": ?"(std(?:out|err))"[^\n]*)')


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same blocks with broken lines joined. Which runtime wrote the log is told by its first line."""
    rest = iter(blocks)
    first = next(rest, b"")
    line = first[: first.find(b"\n")].lstrip()
    joiner = _Cri() if _CRI.match(line) else _Json() if _JSON.match(line) else None
    if joiner is not None:
        yield joiner.join(first)
        yield from (joiner.join(block) for block in rest)
        yield joiner.left()
    else:
        yield first
        yield from rest


class _Joiner:
    """Parts of lines that wait for their end, by stream."""

    def __init__(self) -> None:
        self._parts: dict[bytes, bytes] = {}

    def join(self, block: bytes) -> bytes:
        """`block` with the lines joined that end in it."""
        if not self._parts and not self.has_parts(block):
            return block
        return b"\n".join(map(self.line, block.split(b"\n")))

    def left(self) -> bytes:
        """Parts whose end never came: the log was cut."""
        parts, self._parts = self._parts, {}
        return b"\n".join(parts.values())

    def has_parts(self, block: bytes) -> bool:
        raise NotImplementedError

    def line(self, line: bytes) -> bytes:
        raise NotImplementedError

    def _add(self, stream: bytes, text: bytes, *, ends: bool) -> bytes | None:
        """The whole text when it ends here, or when it becomes too long; None for a part."""
        text = self._parts.pop(stream, b"") + text
        if ends or len(text) > MAX_JOINED:
            return text
        self._parts[stream] = text
        return None


class _Cri(_Joiner):
    def has_parts(self, block: bytes) -> bool:
        return b" stdout P " in block or b" stderr P " in block

    def line(self, line: bytes) -> bytes:
        found = _CRI.match(line)
        if found is None:
            return line
        text = self._add(found[2], found[4], ends=found[3] == b"F")
        return b"" if text is None else found[1] + b"F " + text


class _Json(_Joiner):
    def has_parts(self, block: bytes) -> bool:
        whole = block.count(b'\\n","stream":"') + block.count(b'\\n", "stream": "')
        return whole != block.count(b"\n")

    def line(self, line: bytes) -> bytes:
        found = _JSON.match(line)
        if found is None:
            return line
        text = self._add(found[4], found[2], ends=found[2].endswith(b"\\n"))
        return b"" if text is None else found[1] + text + found[3]
