"""The logs of a run as the parser read them: one text, its lines counted through all files."""

from collections.abc import Iterator, Sequence

from app.storage.log_files import LogFiles


def whole_text(log_files: LogFiles, keys: Sequence[str]) -> Iterator[bytes]:
    """Slices of a resumed job, or the files of several ranks, one after another; no line goes across two files."""
    for key in keys:
        last = b""
        for chunk in log_files.stream(key):
            last = chunk
            yield chunk
        if not last.endswith(b"\n"):
            yield b"\n"


def lines_of(log_files: LogFiles, keys: Sequence[str], first: int, last: int) -> tuple[list[str], int]:
    """Lines first..last of that text, counted from 1, and how many there are. Raises Unavailable."""
    found: list[str] = []
    before = 0
    for key in keys:
        count = log_files.line_count(key)
        if first <= before + count and last > before:
            found += log_files.lines(key, max(1, first - before), min(count, last - before))
        before += count
    return found, before
