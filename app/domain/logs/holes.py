"""NUL bytes in front of lines, as network file systems and crashed writers leave them: skipped and counted."""

import codecs
import re
from collections.abc import Iterable, Iterator

_BEFORE_A_LINE = re.compile(rb"\n\0+")
_HEAD_BYTES = 64 * 1024
_DECODER = codecs.getincrementaldecoder("utf-8")


class WithoutHoles:
    """The chunks of a log without the NUL bytes in front of its lines.

    NULs inside a line stay: they tell that it is torn. `skipped` counts them once all chunks were read.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.skipped = 0
        self._head = b""
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        at_line_start, chunk = True, b""
        for chunk in self._chunks:
            text = chunk
            if b"\0" in chunk:
                text = _BEFORE_A_LINE.sub(b"\n", chunk.lstrip(b"\0") if at_line_start else chunk)
                self.skipped += len(chunk) - len(text)
            if len(self._head) < _HEAD_BYTES:
                self._head += text[: _HEAD_BYTES - len(self._head)]
            if text:
                at_line_start = text.endswith(b"\n")
                yield text
        if at_line_start and chunk.endswith(b"\0"):
            yield b"\0"  # the line that the hole is, so that lines are counted as they stand in the file

    @property
    def invalid(self) -> int:
        """Places in the first 64 KiB that are no UTF-8; a last character that is cut is none."""
        text = _DECODER("replace").decode(self._head)
        return text.count("\ufffd") - self._head.count("\ufffd".encode())
