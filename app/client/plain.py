"""Text of others on a terminal: names and messages must not move its cursor."""

_KEPT = "\n\t"


def plain(text: str) -> str:
    """Without what no terminal should be sent: control characters and escape sequences become spaces."""
    return "".join(c if c.isprintable() or c in _KEPT else " " for c in text)


def one_line(text: str) -> str:
    return " ".join(plain(text).split())


def out(text: str, end: str = "\n") -> None:
    """A result, on standard output at once. What becomes of it there is the matter of `streams.py`."""
    print(text, end=end, flush=True)
