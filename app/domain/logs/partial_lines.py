"""Joins the lines that a container's runtime broke in two: it does so after 16 kB.

Kubernetes (CRI) marks a part with `P` and the last one with `F`: `2026-04-14T17:50:00.281177123Z stdout P text`. In
Docker's JSON the text of a part has no line break at its end. The joined line stands where its last part stood, and
the others are left blank, so that line numbers stay what they are in the file.
"""

import re
from collections.abc import Callable, Iterable, Iterator

MAX_JOINED = 1 << 20
"""Bytes of one joined line."""

_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) (std(?:out|err)) )([FP]) ?([^\n]*)")
_JSON = re.compile(rb'(\{"log": ?")([^\n]*)(", ?"stream": ?"(std(?:out|err))"[^\n]*)')


def whole_lines(blocks: Iterable[bytes], on_lost: Callable[[bytes], None]) -> Iterator[bytes]:
    """The same blocks with broken lines joined. Which runtime wrote the log is told by its first line.

    `on_lost` gets a part whose end never came although other lines follow it.
    """
    rest = iter(blocks)
    first = next(rest, b"")
    line = first[: first.find(b"\n")].lstrip()
    joiner = _Cri() if _CRI.match(line) else _Json() if _JSON.match(line) else None
    if joiner is None:
        yield first
        yield from rest
        return
    yield joiner.join(first)
    yield from map(joiner.join, rest)
    parts = list(joiner.parts.values())
    if parts and joiner.ends_in_part:
        yield parts.pop() + (b"\n" if joiner.owes_break else b"")
    for part in parts:
        on_lost(part)


class _Joiner:
    """Parts of lines that wait for their end, by stream."""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}
        """In the order in which they were met last."""
        self.ends_in_part = False
        self.owes_break = False
        """Whether the line break of the last line is held back: that line is a part, and may be the log's last."""

    def join(self, block: bytes) -> bytes:
        """`block` with the lines joined that end in it."""
        before = b"\n" if self.owes_break else b""
        self.ends_in_part = self.owes_break = False
        if not self.parts and not self.has_parts(block):
            return before + block
        lines = [self.line(line) for line in block.split(b"\n")]
        has_break = block.endswith(b"\n")
        self.ends_in_part = bool(self.parts) and not any(lines[-2:] if has_break else lines[-1:])
        if self.ends_in_part and has_break:
            self.owes_break = True
            lines.pop()
        return before + b"\n".join(lines)

    def has_parts(self, block: bytes) -> bool:
        raise NotImplementedError

    def line(self, line: bytes) -> bytes:
        raise NotImplementedError

    def _add(self, stream: bytes, text: bytes, *, ends: bool) -> bytes | None:
        """The whole text when it ends here, or when it becomes too long; None for a part."""
        text = self.parts.pop(stream, b"") + text
        if ends or len(text) > MAX_JOINED:
            return text
        self.parts[stream] = text
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
