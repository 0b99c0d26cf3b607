"""Standard output and error of a command. Write errors never change the exit code of a verdict.

A reader may stop (`| head`), a disk may be full, a terminal may not support our characters. The command still finishes
with its own exit code and reports lost output.
"""

from __future__ import annotations

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
class OutputState:
    """`error` is the reason for lost output. A reader that stopped reading is not an error."""

    error: OSError | None = None

    @property
    def lost_because(self) -> str:
        return "" if self.error is None else self.error.strerror or str(self.error)


@contextlib.contextmanager
def fault_tolerant_output() -> Iterator[OutputState]:
    """Make both standard streams accept all output without raising."""
    state = OutputState()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _fault_tolerant(before[0], state), _fault_tolerant(before[1], state)
    try:
        yield state
    finally:
        for stream, original in zip((sys.stdout, sys.stderr), before):
            with contextlib.suppress(OSError, ValueError):
                stream.flush() if original is not None else stream.close()
        sys.stdout, sys.stderr = before


class _DiscardingWriter(io.RawIOBase):
    """Discards output that cannot be written, and records the first error."""

    def __init__(self, target: io.RawIOBase, state: OutputState) -> None:
        self._target, self._state = target, state

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._target.fileno()

    def isatty(self) -> bool:
        return self._target.isatty()

    def write(self, data: Any) -> int | None:
        try:
            return self._target.write(data)
        except OSError as error:
            if error.errno != errno.EPIPE and not (os.name == "nt" and error.errno == errno.EINVAL):
                self._state.error = self._state.error or error
            return memoryview(data).nbytes


def _fault_tolerant(stream: TextIO | None, state: OutputState) -> TextIO:
    if stream is None:  # closed before the command started
        return Path(os.devnull).open("w", encoding="utf-8")
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(raw, io.FileIO):  # replaced by the calling program or a test
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_DiscardingWriter(raw, state)), encoding=stream.encoding, errors="threewalls",
        line_buffering=True,
    )  # fmt: skip


def _plain_replacement(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace characters that the encoding lacks: by ASCII equivalents, else by escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_BLANKS).translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("threewalls", _plain_replacement)


def describe_unexpected(error: Exception) -> str:
    """Describe an unexpected error in one line, with its position in the code."""
    message = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror or message}."
    traceback, last = error.__traceback__, None
    while traceback is not None:
        last, traceback = traceback, traceback.tb_next
    where = f" ({Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno})" if last is not None else ""
    return f"unexpected error: {type(error).__name__}: {message}{where}. Please report it with this line."


# --- Text from the service or a log, made safe to print on a terminal.


def plain(text: str) -> str:
    """Replace control characters and escape sequences, which could move the cursor, by spaces."""
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def one_line(text: str) -> str:
    """Return the text without control characters and line breaks."""
    return " ".join(plain(text).split())


def out(text: str, end: str = "\n") -> None:
    """Print a result on standard output, unbuffered."""
    print(text, end=end, flush=True)


def say(text: str) -> None:
    """Print a remark on standard error, unbuffered."""
    print(f"threewalls: {text}", file=sys.stderr, flush=True)
