"""Standard output and error of a command: what becomes of them never decides how the command ends.

Whoever reads may stop (`| head`), a disk may be full, a terminal may not know our characters. The work is done all the
same, and its exit code is kept; only what could not be written is said.
"""

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

_PLAIN = str.maketrans({"−": "-", "–": "-", "…": "...", "±": "+-", "×": "x", "≤": "<=", "≥": ">=", "→": "->"})
_BLANKS = str.maketrans(dict.fromkeys("\u00a0\u2009\u202f", " "))


@dataclass
class Written:
    """`error`: why output was lost, where somebody wanted it; a reader that stopped had enough."""

    error: OSError | None = None

    @property
    def lost_because(self) -> str:
        return "" if self.error is None else self.error.strerror or str(self.error)


@contextlib.contextmanager
def lasting() -> Iterator[Written]:
    """Both streams, from here on, take everything and raise nothing."""
    written = Written()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _lasting(before[0], written), _lasting(before[1], written)
    try:
        yield written
    finally:
        for stream, was in zip((sys.stdout, sys.stderr), before, strict=True):
            with contextlib.suppress(OSError, ValueError):
                stream.flush() if was is not None else stream.close()
        sys.stdout, sys.stderr = before


class _Raw(io.RawIOBase):
    """What was not written is lost, and noted."""

    def __init__(self, onward: io.RawIOBase, written: Written) -> None:
        self._onward, self._written = onward, written

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._onward.fileno()

    def isatty(self) -> bool:
        return self._onward.isatty()

    def write(self, data: Any) -> int | None:
        try:
            return self._onward.write(data)
        except OSError as error:
            if error.errno != errno.EPIPE and not (os.name == "nt" and error.errno == errno.EINVAL):
                self._written.error = self._written.error or error
            return memoryview(data).nbytes


def _lasting(stream: TextIO | None, written: Written) -> TextIO:
    if stream is None:  # it was closed before we began
        return Path(os.devnull).open("w", encoding="utf-8")
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(raw, io.FileIO):  # of a program that calls us, or of a test
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Raw(raw, written)), encoding=stream.encoding, errors="threewalls",
        line_buffering=True,
    )  # fmt: skip


def _in_other_words(error: UnicodeError) -> tuple[str | bytes, int]:
    """Signs by their plain forms, blanks by blanks, and what has none by its number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    said = error.object[error.start : error.end].translate(_BLANKS).translate(_PLAIN)
    return said.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("threewalls", _in_other_words)


def surprise(error: Exception) -> str:
    """Describe an unexpected error in one line, with its place in the code."""
    said = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror or said}."
    at, last = error.__traceback__, None
    while at is not None:
        last, at = at, at.tb_next
    where = f" ({Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno})" if last is not None else ""
    return f"unexpected error: {type(error).__name__}: {said}{where}. Please report it with this line."


# --- Text of others on a terminal: names and messages must not move its cursor.

_KEPT = "\n\t"


def plain(text: str) -> str:
    """Without what no terminal should be sent: control characters and escape sequences become spaces."""
    return "".join(c if c.isprintable() or c in _KEPT else " " for c in text)


def one_line(text: str) -> str:
    return " ".join(plain(text).split())


def out(text: str, end: str = "\n") -> None:
    """A result, on standard output at once. What becomes of it there is the matter of `streams.py`."""
    print(text, end=end, flush=True)
