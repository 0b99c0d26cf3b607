"""A page of an uploaded log: its lines, and which of them were read as iterations or as contract fields."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.domain.run import FloatArray
from app.storage.log_files import LogFiles
from app.storage.runs import RunDetail, RunFile

LINES = 200
MOST_SEARCHED = 200_000
"""Lines of a log that one search reads."""
_BATCH = 5_000
LEAD = 3
"""Context lines before the requested line."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*(?:\x07|$)|[@-Z\\-_])")
_CONTROL = dict.fromkeys([*range(9), *range(10, 32), *range(127, 160)], "\ufffd")


@dataclass(frozen=True, slots=True)
class LogLine:
    """`iteration`: that of a parsed iteration line, else None; `fields`: the contract fields that the line states.

    `shows`: the anchor of what the line is evidence of (how the job ended, a failure); empty for none.
    """

    number: int
    text: str
    iteration: int | None
    fields: tuple[str, ...]
    shows: str


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines of one log file, counted from 1. `chosen` is the requested line, 0 for none."""

    files: tuple[RunFile, ...]
    file: int
    lines: tuple[LogLine, ...]
    first: int
    last: int
    total: int
    chosen: int
    read: int
    first_iteration: int | None

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
    """For one log file: lines of iterations (both sorted by line), lines that state fields, lines that are evidence."""

    lines: FloatArray
    iterations: FloatArray
    fields: Mapping[int, tuple[str, ...]]
    shows: Mapping[int, str]
    ending: int | None


def marks(columns: Mapping[str, FloatArray], run: RunDetail, file: int) -> LogMarks:
    lines = columns.get("log_line", np.empty(0))
    iterations = columns.get("iteration", np.empty(0))
    files = columns.get("log_file", np.zeros(len(lines)))
    in_file = np.isfinite(lines) & (lines > 0) & (files == file)
    order = np.argsort(lines[in_file], kind="stable")
    stated: dict[int, tuple[str, ...]] = {}
    for name, entry in run.contract.items():
        if entry.line and entry.file == file:
            stated[entry.line] = (*stated.get(entry.line, ()), name)
    ends_here = (run.health.get("evidence_file") or 0) == file
    ending = run.health.get("evidence_line") if ends_here else None
    shows = {ending: "health"} if ending else {}
    for number, failure in enumerate(run.failures, 1):
        shows |= {line.line: f"failure-{number}" for line in failure.evidence if line.file == file and line.line}
    return LogMarks(lines[in_file][order], iterations[in_file][order], stated, shows, ending)


def log_page(
    log_files: LogFiles, files: Sequence[RunFile], marked: LogMarks, file: int, line: int, *, seek_ending: bool
) -> LogPage:
    """Return the lines around `line` (from 1) of `files[file]`. Raises Unavailable.

    With `line` 0: those around the first iteration; with `seek_ending` those that show how the job ended, else the
    last ones.
    """
    keys = files[file].readable_keys
    total = log_files.line_count(keys)
    chosen = min(line, total)
    first_iteration = int(marked.lines[0]) if len(marked.lines) else None
    if chosen:
        first = max(1, chosen - LEAD)
    elif seek_ending:
        first = max(1, min(marked.ending or total, total) - LINES + LEAD)
    else:
        first = max(1, (first_iteration or 1) - LINES // 2)
    texts = log_files.lines(keys, first, min(first + LINES - 1, total))
    return LogPage(
        files=tuple(files),
        file=file,
        lines=tuple(_line(first + k, text, marked) for k, text in enumerate(texts)),
        first=first,
        last=first + len(texts) - 1,
        total=total,
        chosen=chosen,
        read=len(marked.lines),
        first_iteration=first_iteration,
    )


def find_text(log_files: LogFiles, file: RunFile, text: str, *, after: int) -> int | None:
    """Return the first line after line `after` with this text, ignoring case; after the end it continues at the start.

    None if no line has it, or none of the next `MOST_SEARCHED`. Raises Unavailable.
    """
    keys, wanted = file.readable_keys, text.casefold()
    total = log_files.line_count(keys)
    start = after % max(total, 1)
    for first, last in ((start + 1, min(total, start + MOST_SEARCHED)), (1, min(start, MOST_SEARCHED))):
        for batch in range(first, last + 1, _BATCH):
            lines = log_files.lines(keys, batch, min(batch + _BATCH - 1, last))
            match = next((k for k, line in enumerate(lines) if wanted in line.casefold()), None)
            if match is not None:
                return batch + match
    return None


def visible(text: str) -> str:
    """Return the line without colours. Other control characters become U+FFFD; tabs stay."""
    return _ANSI.sub("", text).translate(_CONTROL)


def _line(number: int, text: str, marked: LogMarks) -> LogLine:
    at = int(np.searchsorted(marked.lines, number))
    is_marked = at < len(marked.lines) and marked.lines[at] == number
    return LogLine(
        number=number,
        text=visible(text),
        iteration=int(marked.iterations[at]) if is_marked else None,
        fields=marked.fields.get(number, ()),
        shows=marked.shows.get(number, ""),
    )
