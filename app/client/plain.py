"""Text of others on a terminal: names and messages must not move its cursor."""

import os
import sys

_KEPT = "\n\t"


def plain(text: str) -> str:
    """Without what no terminal should be sent: control characters and escape sequences become spaces."""
    return "".join(c if c.isprintable() or c in _KEPT else " " for c in text)


def one_line(text: str) -> str:
    return " ".join(plain(text).split())


def out(text: str, end: str = "\n") -> None:
    """A result, on standard output. Whoever reads it may stop early: the exit code says the verdict all the same."""
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again at its end
        if not isinstance(error, BrokenPipeError):
            raise
