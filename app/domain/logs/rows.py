"""The iteration lines of a log, of all trainers' kinds together, in the order of the log."""

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.domain.logs.notes import Notes

MAX_ROWS = 1_000_000
"""Iteration lines kept: twice what the longest runs print, and a bound on memory (about 150 MB)."""

STAMP_LENGTH = 32
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d (\d\d):(\d\d):(\d\d\.\d{1,6})\] ?\Z")


@dataclass(slots=True)
class Table:
    """Lines of one kind, and the numbers read from them, row after row. The first column is the iteration."""

    trainer: str
    columns: tuple[str, ...]
    scales: tuple[float, ...]
    values: "array[float]" = field(default_factory=lambda: array("d"))
    rows: "array[int]" = field(default_factory=lambda: array("q"))
    """Which iteration line of the log each row is, counted from 0."""

    def add(self, values: Iterable[float]) -> bool:
        """Append a row; False, and nothing is kept, when one of the values turns out to be no number."""
        stored = self.values
        before = len(stored)
        try:
            stored.extend(values)
        except ValueError:
            del stored[before:]
            return False
        return True

    def drop_last(self) -> None:
        """Forget the row that was added last."""
        del self.values[-len(self.columns) :]


@dataclass(frozen=True, slots=True)
class Start:
    """A process began: `after` is the iteration of the checkpoint that it loaded, None when none is named."""

    after: int | None = None


class Rows:
    """The iteration lines in the order of the log; their numbers are in the tables."""

    def __init__(self, notes: Notes) -> None:
        self.tables: list[Table] = []
        self.lines: array[int] = array("q")
        self.starts: dict[int, Start] = {}
        """The rows before which the log says that a process started."""
        self.stamps: dict[int, float] = {}
        """Seconds of the day of rows near the start of a process, where stamps have microseconds."""
        self.has_microseconds = False
        self._notes = notes
        self._start: Start | None = None
        self._near_start = 2
        self._last_iteration = -1.0

    def process_started(self, after: int | None = None) -> None:
        """The log says that a process starts, or that it goes on `after` an iteration."""
        if self._start is None or after is not None:
            self._start = Start(after)

    def place(self, table: Table, data: bytes, begin: int, line: int) -> None:
        """Give the row that the table took last its place in the log; its time stamp stands before `begin`."""
        lines = self.lines
        row = len(lines)
        if row >= MAX_ROWS:
            table.drop_last()
            self._notes.problem("too many iterations", f"Only the first {MAX_ROWS} iteration lines were kept.", line)
            return
        table.rows.append(row)
        lines.append(line)
        iteration = table.values[-len(table.columns)]
        if self._start is not None or self._near_start or iteration <= self._last_iteration:
            self._note_start(row, data, begin, goes_on=iteration > self._last_iteration)
        self._last_iteration = iteration

    def _note_start(self, row: int, data: bytes, begin: int, *, goes_on: bool) -> None:
        """Remember where a process starts, and the stamps of its first two lines."""
        if self._start is not None:
            self.starts[row] = self._start
            self._start = None
            self._near_start = 2
        elif not goes_on:
            self._near_start = 2
        self._near_start -= 1
        stamp = _STAMP.search(data, max(0, begin - STAMP_LENGTH), begin)
        if stamp:
            self.has_microseconds = True
            self.stamps[row] = int(stamp[1]) * 3600 + int(stamp[2]) * 60 + float(stamp[3])
