"""Reads the timers of a step: Megatron's blocks, and the one-line forms of old versions and of DeepSpeed.

`(min, max) time across ranks (ms):` and a line for each timer below it; `max time across ranks (ms):` with one number;
`times across ranks (ms):` with a line for each rank. Before 2022 `time (ms) | forward-compute: 53.79 | ...`. Timers
belong to the iteration that they follow, but DeepSpeed prints its line before the iteration. Timers at levels 1 and 2
add barriers to the step and slow it down. Megatron-LM `megatron/core/timers.py`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.domain.logs.iterations import IterationRows, Table, number, word
from app.domain.logs.lines import Notes
from app.domain.run import Value

MAX_TIMERS = 60
"""Timers kept per log. Megatron-LM has about 30 at its highest level."""

MAX_VALUES = 8_000_000
"""Values kept of all timers: 64 MB."""

_ACROSS = b" across ranks (ms):"
_ONE_LINE = b"time (ms) |"

_REGION, _REGION_OF_RANKS = 1 << 14, 1 << 16
"""Bytes after the header that may belong to a block; one that lists all ranks is larger."""

_MAX_LINE = 500
_MISSES = 16
"""Lines of other processes that a block may contain."""

_MAX_ENTRIES = 400

_ENTRY = re.compile(rb"([A-Za-z][\w/-]{0,90}) \.{0,60}: (?:\((\d[.0-9]{0,20}), (\d[.0-9]{0,20})\)|(\d[.0-9]{0,20}))")
_OF_RANKS = re.compile(rb"  ([A-Za-z][\w/-]{0,90}):(?:\s|\\n|\Z)")
_RANK = re.compile(rb"     rank {1,8}\d{1,7}: (\d[.0-9]{0,20})")
_PART = re.compile(rb" *([A-Za-z][\w/ -]{0,90}): *(\d[.0-9]{0,20})")


@dataclass(slots=True)
class _Block(Table):
    """Holds blocks with the same timers. `pattern`: matches the first such block with any numbers."""

    pattern: re.Pattern[bytes] | None = None


@dataclass(slots=True)
class _OpenBlock:
    """A header whose block continues in the next bytes of the log."""

    row: int
    line: int
    header: bytes
    size: int
    text: bytearray = field(default_factory=bytearray)


class TimerReader:
    keys: Sequence[bytes] = (_ACROSS, _ONE_LINE)

    def __init__(self, rows: IterationRows, notes: Notes) -> None:
        self.tables: list[Table] = []
        self.facts: dict[str, Value] = {}
        """Timers of the start-up, before the first iteration."""
        self._rows = rows
        self._notes = notes
        self._blocks: dict[tuple[str, ...], _Block] = {}
        self._names: dict[str, None] = {}
        self._recent: _Block | None = None
        self._stored = 0
        self._open: _OpenBlock | None = None
        self._at = 0

    def block(self, data: bytes) -> None:
        self._take(data, len(data))
        self._at = 0

    def finish(self) -> None:
        """Read the open block at the end of the log."""
        now, self._open = self._open, None
        if now is not None:
            self._read_block(bytes(now.text), 0, len(now.text), now)

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        row = len(self._rows.lines) - 1
        if data.startswith(_ONE_LINE, hit - len(_ONE_LINE)):
            deepspeed = data.find(b"log_dist", max(start, hit - 120), hit) >= 0
            self._read_line(data[hit : min(end, hit + 4000)], row + deepspeed, cut=end == len(data))
            return end
        header = data[max(start, hit - len(_ACROSS) - 16) : hit - len(_ACROSS)]
        self._take(data, hit - len(_ACROSS))
        self.finish()
        size = _REGION_OF_RANKS if header.endswith(b"times") else _REGION
        if hit + _REGION <= len(data) and self._is_like_recent(data, hit, hit + _REGION, row):
            return hit  # before the search for the next header, which takes longer than all else
        now = _OpenBlock(row, line, header, size)
        following = data.find(_ACROSS, hit, hit + size)
        stop = following if following >= 0 else hit + size
        if stop <= len(data):
            self._read_block(data, hit, stop, now)
        else:
            self._open, self._at = now, hit
        return hit

    def _take(self, data: bytes, stop: int) -> None:
        """Append `data` up to `stop` to the open block."""
        now = self._open
        if now is None or stop <= self._at:
            return
        now.text += data[self._at : min(stop, self._at + now.size - len(now.text))]
        self._at = stop
        if len(now.text) >= now.size:
            self.finish()

    def _read_block(self, data: bytes, begin: int, stop: int, now: _OpenBlock) -> None:
        if self._is_like_recent(data, begin, stop, now.row):
            return
        if now.header.endswith(b"times"):
            timers = {name: (max(values), min(values)) for name, values in _values_of_ranks(data[begin:stop]).items()}
            self._keep({name: times for name, times in timers.items() if times}, now.row)
            return
        self._read_slowly(data[begin:stop], now)

    def _is_like_recent(self, data: bytes, begin: int, stop: int, row: int) -> bool:
        """Store the block at `begin` and return True when it differs from the recent one only in its numbers."""
        recent = self._recent
        match = recent.pattern.match(data, begin, stop) if recent is not None and recent.pattern is not None else None
        if recent is None or match is None or _goes_on(data, match.end(), stop):
            return False
        self._add(recent, [float(value) for value in match.groups()], row)
        return True

    def _read_slowly(self, text: bytes, now: _OpenBlock) -> None:
        """Read a block line by line when it is new or other processes printed into it."""
        alone = not now.header.endswith(b"(min, max) time")
        timers: dict[str, tuple[float, ...]] = {}
        spans: list[tuple[int, int]] = []
        for place, line in _lines(text):
            entry = _ENTRY.search(line)
            if entry is None or (entry[4] is not None) is not alone:
                continue
            groups = (4,) if alone else (3, 2)
            values = tuple(number(entry[group]) for group in groups)
            name = word(entry[1].decode("ascii", "replace"))
            if name and name not in timers and None not in values:
                timers[name] = tuple(value for value in values if value is not None)
                spans += [(place + entry.start(group), place + entry.end(group)) for group in sorted(groups)]
        if not timers:
            return
        table = self._keep(timers, now.row)
        if table is not None and table.pattern is None and len(spans) == len(table.columns):
            table.pattern = _pattern(text, spans)
        self._recent = table

    def _read_line(self, text: bytes, row: int, *, cut: bool) -> None:
        parts = text.split(b"|")
        if cut:
            parts.pop()
        timers = {word(part[1].decode("ascii", "replace")): number(part[2]) for part in map(_PART.match, parts) if part}
        self._keep({name: (value,) for name, value in timers.items() if name and value is not None}, row)

    def _keep(self, timers: dict[str, tuple[float, ...]], row: int) -> _Block | None:
        """Store timers: name -> (slowest rank's ms, fastest rank's ms), or only one number."""
        if row < 0:
            self.facts.update({f"start-up timer: {name} (ms)": values[0] for name, values in timers.items()})
            return None
        for name in list(timers):
            if name not in self._names and len(self._names) >= MAX_TIMERS:
                del timers[name]
                self._notes.problem("many timers", f"Only the first {MAX_TIMERS} timers were read.")
            else:
                self._names[name] = None
        if not timers:
            return None
        # In the order in which a block prints them: the fastest rank's first, before the slowest rank's
        columns = [
            column
            for name, values in timers.items()
            for column in (f"timer_{name}_ms", f"timer_{name}_min_ms")[: len(values)][::-1]
        ]
        key = tuple(columns)
        table = self._blocks.get(key)
        if table is None:
            table = self._blocks[key] = _Block("", key, (1.0,) * len(key))
            self.tables.append(table)
        self._add(table, [value for values in timers.values() for value in values[::-1]], row)
        return table

    def _add(self, table: _Block, values: list[float], row: int) -> None:
        if self._stored + len(values) > MAX_VALUES:
            self._notes.problem("many timers", "Timers were read for the first iterations only.")
            return
        self._stored += len(values)
        table.values.extend(values)
        table.rows.append(row)


def _goes_on(data: bytes, end: int, stop: int) -> bool:
    """Return True when the next line holds another timer: later blocks of a log can have more timers."""
    following = data.find(b"\n", end, stop) + 1
    line = data[following : min(stop, following + _MAX_LINE)].partition(b"\n")[0] if following else b""
    return b".: " in line or b" : (" in line


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield offset and text of lines that may hold a timer, until too many hold none."""
    place, misses, count = 0, 0, 0
    while place < len(text) and misses <= _MISSES and count < _MAX_ENTRIES:
        stop = text.find(b"\n", place)
        stop = stop if stop >= 0 else len(text)
        line = text[place : min(stop, place + _MAX_LINE)]
        if b"elapsed time per iteration" in line:
            return
        misses += b": " not in line or b"." not in line
        count += 1
        yield place, line
        place = stop + 1


def _values_of_ranks(text: bytes) -> dict[str, list[float]]:
    """Read `  name:` followed by `     rank  0: 12.34` lines, as the option `all` prints them."""
    timers: dict[str, list[float]] = {}
    values: list[float] = []
    misses = 0
    for line in text.split(b"\n"):
        rank, name = _RANK.search(line[:_MAX_LINE]), _OF_RANKS.search(line[:_MAX_LINE])
        if rank and (value := number(rank[1])) is not None:
            values.append(value)
        elif name:
            values = timers.setdefault(word(name[1].decode("ascii", "replace")), [])
        elif (misses := misses + 1) > _MISSES:
            break
    return {name: values for name, values in timers.items() if name and values}


def _pattern(text: bytes, spans: Sequence[tuple[int, int]]) -> re.Pattern[bytes]:
    """Return a pattern of the text up to the last number that matches any numbers."""
    parts, done = [], 0
    for start, end in spans:
        parts += [re.escape(text[done:start]), rb"(\d+\.\d+)"]
        done = end
    return re.compile(b"".join(parts) + rb"(?![.\d])")
