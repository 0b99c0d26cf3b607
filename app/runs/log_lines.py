"""The logs of a run as one text, its lines counted through all files."""

from collections.abc import Sequence

from app.storage.log_files import LogFiles
from app.storage.run_records import RunFile


def lines_of(log_files: LogFiles, files: Sequence[RunFile], first: int, last: int) -> tuple[list[str], int]:
    """Lines first..last of the files one after another, counted from 1, and how many there are. Raises Unavailable."""
    found: list[str] = []
    before = 0
    for file in files:
        count = log_files.line_count(file.keys)
        if first <= before + count and last > before:
            found += log_files.lines(file.keys, max(1, first - before), min(count, last - before))
        before += count
    return found, before
