"""A page of an uploaded log: its lines, and which of them were read as iterations or as contract fields."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.domain.run import FloatArray, Stated
from app.storage.log_files import LogFiles, ObjectKeys
from app.storage.run_records import RunFile

LINES = 200
LEAD = 3
"""Lines shown before the line that was asked for: a line is read in its company."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*(?:\x07|$)|[@-Z\\-_])")
_CONTROL = dict.fromkeys([*range(9), *range(10, 32), *range(127, 160)], "\ufffd")
_STATED_AT = re.compile(r"^line (\d+)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """`iteration` when the line was read as one, else None; `fields` are the contract fields that it states.

    `ending`: it says how the job ended.
    """

    number: int
    text: str
    iteration: int | None
    fields: tuple[str, ...]
    ending: bool


@dataclass(frozen=True, slots=True)
class LogPart:
    """One log file of a run. Its lines are numbered on from those of the file before, as they were read."""

    name: str
    keys: ObjectKeys
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LogPage:
    """`chosen` is the line that was asked for, 0 for none; `first` to `last` are shown of `total`, all in `part`."""

    parts: tuple[LogPart, ...]
    part: LogPart
    lines: tuple[LogLine, ...]
    first: int
    last: int
    total: int
    chosen: int
    read: int

    @property
    def previous_start(self) -> int | None:
        return max(1, self.first - LINES) if self.first > 1 else None

    @property
    def next_start(self) -> int | None:
        return self.last + 1 if self.last < self.total else None

    @property
    def last_start(self) -> int:
        return max(1, self.total - LINES + 1)


@dataclass(frozen=True, slots=True)
class LogMarks:
    """Which line is which iteration (both sorted by line), which states which fields, which tells how the job ended."""

    lines: FloatArray
    iterations: FloatArray
    fields: Mapping[int, tuple[str, ...]]
    ending: int | None


def marks(columns: Mapping[str, FloatArray], contract: Mapping[str, Stated], health: Mapping[str, Any]) -> LogMarks:
    lines = columns.get("log_line", np.empty(0))
    iterations = columns.get("iteration", np.empty(0))
    known = np.isfinite(lines) & (lines > 0)
    order = np.argsort(lines[known], kind="stable")
    stated: dict[int, tuple[str, ...]] = {}
    for name, entry in contract.items():
        if line := stated_line(entry):
            stated[line] = (*stated.get(line, ()), name)
    return LogMarks(lines[known][order], iterations[known][order], stated, health.get("evidence_line"))


def stated_line(entry: Stated) -> int | None:
    """The log line that a contract value comes from, when its detail names one."""
    found = _STATED_AT.match(entry.detail)
    return int(found.group(1)) if found else None


def log_parts(log_files: LogFiles, files: Sequence[RunFile]) -> tuple[LogPart, ...]:
    """The log files in the order in which they were read. Raises Unavailable."""
    parts: list[LogPart] = []
    for file in files:
        before = parts[-1].last if parts else 0
        lines = log_files.line_count(file.keys)
        parts.append(LogPart(file.name, file.keys, before + 1, before + lines))
    return tuple(parts)


def log_page(
    log_files: LogFiles, parts: tuple[LogPart, ...], marked: LogMarks, line: int, *, seek_ending: bool = False
) -> LogPage:
    """The lines around `line` (from 1) in the file that holds it. Raises Unavailable.

    When `line` is 0: the first lines, or with `seek_ending` those that say how the job ended, else the last ones.
    """
    total = parts[-1].last
    chosen = min(line, total)
    sought = chosen or (marked.ending or total if seek_ending else 1)
    part = next((part for part in parts if sought <= part.last), parts[-1])
    lead = LEAD if chosen else LINES - LEAD
    first = max(part.first, sought - lead)
    offset = part.first - 1
    texts = log_files.lines(part.keys, first - offset, min(first + LINES - 1, part.last) - offset)
    return LogPage(
        parts=parts,
        part=part,
        lines=tuple(_line(first + k, text, marked) for k, text in enumerate(texts)),
        first=first,
        last=first + len(texts) - 1,
        total=total,
        chosen=chosen,
        read=len(marked.lines),
    )


def visible(text: str) -> str:
    """A line without colours; other control characters become U+FFFD. The tab stays."""
    return _ANSI.sub("", text).translate(_CONTROL)


def _line(number: int, text: str, marked: LogMarks) -> LogLine:
    at = int(np.searchsorted(marked.lines, number))
    found = at < len(marked.lines) and marked.lines[at] == number
    return LogLine(
        number=number,
        text=visible(text),
        iteration=int(marked.iterations[at]) if found else None,
        fields=marked.fields.get(number, ()),
        ending=number == marked.ending,
    )
