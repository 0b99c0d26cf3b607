"""Reads the iteration lines of trainers that print ` iteration 5/ 100 | name: value | ...` with any fields.

Fields are identified by name, never by position: forks insert their own, and losses come in any order.
"""

import re
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.logs.lines import Notes, without_colours

# --- The iteration lines of all trainer families, in the order of the log.

MAX_ROWS = 1_000_000
"""Iteration lines kept: twice as many as the longest runs print. Bounds memory to about 150 MB."""

STAMP_LENGTH = 32
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d (\d\d):(\d\d):(\d\d\.\d{1,6})\] ?\Z")


@dataclass(slots=True)
class Table:
    """Holds the numbers of all lines of one kind, row by row. The first column is the iteration."""

    trainer: str
    columns: tuple[str, ...]
    scales: tuple[float, ...]
    values: "array[float]" = field(default_factory=lambda: array("d"))
    rows: "array[int]" = field(default_factory=lambda: array("q"))
    """Index of each row among all iteration lines of the log, from 0."""

    def add(self, values: Iterable[float]) -> bool:
        """Append a row. Return False and keep nothing when one of the values is not a number."""
        stored = self.values
        before = len(stored)
        try:
            stored.extend(values)
        except ValueError:
            del stored[before:]
            return False
        return True

    def drop_last(self) -> None:
        """Remove the last row."""
        del self.values[-len(self.columns) :]


@dataclass(frozen=True, slots=True)
class Start:
    """Marks a process start. `after`: iteration of the checkpoint that it loaded; None when the log names none."""

    after: int | None = None


class IterationRows:
    """Holds the iteration lines in the order of the log. Their numbers are in the tables."""

    def __init__(self, notes: Notes) -> None:
        self.tables: list[Table] = []
        self.lines: array[int] = array("q")
        self.starts: dict[int, Start] = {}
        """Process starts that the log announces, by the row that follows them."""
        self.stamps: dict[int, float] = {}
        """Seconds of the day of rows near a process start, when timestamps have microseconds."""
        self.has_microseconds = False
        self._notes = notes
        self._start: Start | None = None
        self._near_start = 2
        self._last_iteration = -1.0

    def process_started(self, after: int | None = None) -> None:
        """Record that a process starts, or that it resumes `after` an iteration."""
        if self._start is None or after is not None:
            self._start = Start(after)

    def place(self, table: Table, data: bytes, begin: int, line: int) -> None:
        """Assign the table's last row to its line of the log. Its timestamp precedes `begin`."""
        lines = self.lines
        row = len(lines)
        if row >= MAX_ROWS:
            table.drop_last()
            self._notes.problem("too many iterations", f"Only the first {MAX_ROWS} iteration lines were read.", line)
            return
        table.rows.append(row)
        lines.append(line)
        iteration = table.values[-len(table.columns)]
        if self._start is not None or self._near_start or iteration <= self._last_iteration:
            self._note_start(row, data, begin, goes_on=iteration > self._last_iteration)
        self._last_iteration = iteration

    def _note_start(self, row: int, data: bytes, begin: int, *, goes_on: bool) -> None:
        """Record where a process starts, and the timestamps of its first two lines."""
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


# --- Reads ` name: value | name: value |` lines: slowly the first time, then with a pattern made from that line.
#
# All lines of a log have the same fields, so the first one becomes a template: a pattern that varies only between
# bars. It cannot backtrack, and one call reads a line.

MAX_NAME = 100
"""Bytes. Longer text is not a field name."""

RUNNING_AVERAGE = "_running_avg"
"""Suffix of the column for the second number of a current/average pair."""

_NO_FIGURES = frozenset({b"eta"})
"""Fields whose values are text by design and are not reported as unread."""

_NUMBER = rb" *([-+.0-9A-Za-z]+) *"
_ANYTHING = rb"[^|\r]*"
_NO_WORD = re.compile(r"[^0-9a-z]+")
_RANK_NAME = re.compile(rb"rank-\d{1,7} ")

_PLAIN = re.compile(rb" *([-+.0-9A-Za-z]{1,60}) *\Z")
_PAIR = re.compile(rb" *([-+.0-9A-Za-z]{1,60}) */ *([-+.0-9A-Za-z]{1,60}) *\Z")
_AVERAGE = re.compile(rb" *([-+.0-9A-Za-z]{1,60}) *\(avg ([-+.0-9A-Za-z]{1,60})\) *\Z")
_FIRST = re.compile(rb" *([-+.0-9A-Za-z]{1,60}) */")
_SIZE = re.compile(rb" *([.0-9]{1,40}) ?([KMGT])i?B(?=[/ ]|\Z)")
_COUNT = re.compile(rb" *([.0-9]{1,40})([KMBT]) *\Z")
_BYTES = {b"K": 2.0**10, b"M": 2.0**20, b"G": 2.0**30, b"T": 2.0**40}
_THOUSANDS = {b"K": 1e3, b"M": 1e6, b"B": 1e9, b"T": 1e12}


@dataclass(frozen=True, slots=True)
class IterationField:
    """One part of a line: its pattern, whose groups are the columns (none when the value is not a number).

    `name`: as printed, "" for a part without a name. `example`: the text of the part. `left_out`: it has a number that
    is not read because the log has too many names.
    """

    pattern: bytes
    columns: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    name: bytes = b""
    example: bytes = b""
    left_out: bool = False


@dataclass(slots=True)
class Template(Table):
    """Lines with the same fields in the same order.

    `unread`: fields with a name but no number. `left_out`: number of fields whose number is not read.
    """

    pattern: re.Pattern[bytes] = re.compile(b"")
    unread: tuple[IterationField, ...] = ()
    left_out: int = 0


def word(name: str) -> str:
    """Return a printed name as a column name: `max attention logit` -> `max_attention_logit`."""
    return _NO_WORD.sub("_", name.lower()).strip("_")


def number(text: bytes) -> float | None:
    """Return the number in `text`, including NaN and infinity; None for other text."""
    try:
        return None if b"_" in text else float(text)
    except ValueError:
        return None


def split_fields(body: bytes, *, cut: bool) -> tuple[list[bytes], bool]:
    """Return the parts between the bars of `body`, and whether a bar closes the last one.

    Text that another process printed directly after the closing bar is not a field: it lacks the leading space. With
    `cut` the log ends inside the last part, which is dropped.
    """
    parts = body.split(b"|")
    last = parts.pop()
    if cut or not last.startswith(b" ") or b": " not in last:
        return parts, True
    return [*parts, last], False


def read_field(part: bytes, names: Mapping[bytes, tuple[str, float]]) -> tuple[IterationField, tuple[float, ...]]:
    """Return one part of a line and its numbers: both of a current/average pair, the first of a longer list."""
    label, colon, rest = part.partition(b":")
    name = _RANK_NAME.sub(b"", label.strip())
    if not colon or not name or len(name) > MAX_NAME:
        return IterationField(_ANYTHING), ()
    column, scale = names.get(name) or (word(name.decode("utf-8", "replace")), 1.0)
    before = rb"rank-\d{1,7} ".join(map(re.escape, _RANK_NAME.split(label))) + b":"
    shape = _shape(rest, column)
    if shape is None or not column:
        return IterationField(_ANYTHING, name=name, example=part[:MAX_NAME]), ()
    pattern, columns, factors, values = shape
    return IterationField(before + pattern, columns, tuple(scale * factor for factor in factors), name), values


def any_but(names: Collection[bytes]) -> IterationField:
    """Return a part that matches every name except `names` and whose number is not read."""
    excluded = b"|".join(re.escape(name) for name in sorted(names))
    return IterationField(rb"(?! *(?:" + excluded + rb") *:)" + _ANYTHING, left_out=True)


def _shape(rest: bytes, column: str) -> tuple[bytes, tuple[str, ...], tuple[float, ...], tuple[float, ...]] | None:
    """Return how a field's value is written: pattern, columns, factors, and the numbers in this line."""
    if (plain := _PLAIN.match(rest)) and (value := number(plain[1])) is not None:
        return _NUMBER, (column,), (1.0,), (value,)
    for pattern, between, behind in ((_PAIR, b"/", b""), (_AVERAGE, rb"\(avg ", rb"\) *")):
        pair = pattern.match(rest)
        first, second = (number(pair[1]), number(pair[2])) if pair else (None, None)
        if first is not None and second is not None:
            both = (column, column + RUNNING_AVERAGE)
            return _NUMBER + between + _NUMBER + behind, both, (1.0, 1.0), (first, second)
    if (head := _FIRST.match(rest)) and (value := number(head[1])) is not None:
        return _NUMBER + b"/" + _ANYTHING, (column,), (1.0,), (value,)
    if (size := _SIZE.match(rest)) and (value := number(size[1])) is not None:
        # A gigabyte of an unknown field may be 10^9 or 2^30 bytes: its unit stays in the name
        is_bytes = column.endswith("_bytes")
        name = column if is_bytes else f"{column}_{size[2].decode().lower()}b"
        return rb" *([.0-9]+) ?" + size[2] + _ANYTHING, (name,), (_BYTES[size[2]] if is_bytes else 1.0,), (value,)
    if (count := _COUNT.match(rest)) and (value := number(count[1])) is not None:
        return rb" *([.0-9]+)" + count[2] + b" *", (column,), (_THOUSANDS[count[2]],), (value,)
    return None


def make_template(
    trainer: str, head: bytes, columns: Sequence[str], fields: Sequence[IterationField], *, closed: bool
) -> Template:
    """Return the template of lines that start with the pattern `head`, whose groups are the first `columns`."""
    parts = [head]
    names = list(columns)
    scales = [1.0] * len(names)
    for part in fields:
        if any(column in names for column in part.columns):
            parts.append(_ANYTHING)
            continue
        parts.append(part.pattern)
        names.extend(part.columns)
        scales.extend(part.scales)
    pattern = rb"\|".join(parts) + (rb"\|" if closed else rb"\r*\Z")
    unread = tuple(part for part in fields if part.name and not part.columns and part.name not in _NO_FIGURES)
    left_out = sum(part.left_out for part in fields)
    return Template(trainer, tuple(names), tuple(scales), pattern=re.compile(pattern), unread=unread, left_out=left_out)


MAX_RECORD = 1 << 14
"""Bytes of one iteration line without its prefix. Real ones have up to 1,200."""

MAX_TEMPLATES = 100
"""Maximum number of kinds of lines. Real logs have up to five: first line, skipped steps, pairs, NaN, regular."""

MAX_NAMES = 56
"""Field names whose numbers are read, in addition to those of the shape. Real logs have about 30. A log with new names
on every line would need a pattern for each line."""

TRIED = 4
"""Templates tried before a line is parsed field by field, so that logs that alternate between kinds stay fast."""

_REACH = 600
"""Bytes before a key within which its record starts: only a few fields precede the step time."""

_KEY = 20
"""Bytes. No key is shorter, and the record starts before it."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The pattern of a record's start, and the columns of its groups."""

    pattern: re.Pattern[bytes]
    columns: tuple[str, ...]


_HEADS = (
    _Head(re.compile(rb"iteration +(\d{1,12}) ?/ *(\d{1,12}) *"), ("iteration", "total_iterations")),
    _Head(re.compile(rb"iteration: *(\d{1,12}) *"), ("iteration",)),
)
_HEAD = re.compile(_HEADS[0].pattern.pattern + rb"\|")


@dataclass(frozen=True, slots=True)
class Shape:
    """Describes the iteration lines of a trainer. `keys` end directly before the step time or its unit.

    `first_keys`: texts that precede the step time in every line, so that a line torn before the step time is noticed.
    `names`: printed names with a column name of their own, with the factor to the column's unit. `trainer` returns the
    family of a line from its prefix and its printed names.
    """

    keys: tuple[bytes, ...]
    first_keys: tuple[bytes, ...]
    names: Mapping[bytes, tuple[str, float]]
    trainer: Callable[[bytes, Sequence[bytes]], str]


class RecordReader:
    """Collects the iteration lines of one shape."""

    def __init__(self, shape: Shape, rows: IterationRows, notes: Notes) -> None:
        self.keys: Sequence[bytes] = (*shape.keys, *shape.first_keys)
        self._shape = shape
        self._rows = rows
        self._notes = notes
        self._recent: list[Template] = []
        self._templates: dict[tuple[bytes, ...], Template] = {}
        self._names = set(shape.names)
        self._most_names = len(shape.names) + MAX_NAMES
        self._left_out: IterationField | None = None

    def block(self, data: bytes) -> None: ...

    def ended_in(self, text: bytes, line: int) -> None:
        """Handle a last line without a line break: it may be an iteration line that is cut before its step time."""
        if any(key in text for key in self._shape.keys):
            return
        head = _HEADS[0].pattern.search(text)
        if head and text[head.end() : head.end() + 1] in (b"|", b""):
            self._notes.cut_off(line, text[head.start() :])

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        begin = data.rfind(b"iteration", max(start, hit - _REACH), hit - _KEY)
        if begin < 0:
            return hit if self._is_first(data, hit) else self._refuse(data, start, end, hit, line)
        for template in self._recent:
            match = template.pattern.match(data, begin, end)
            # Another bar after the match: more fields than the template has, or a second record on the same line
            if match and data.find(b"|", match.end(), end) < 0:
                if not template.add(map(float, match.groups())):
                    break
                self._rows.place(template, data, begin, line)
                return end
        if self._is_first(data, hit):
            whole = self._whole(data, begin, hit, end, line)
            if whole is None:
                return hit
            begin = whole
        return self._read_slowly(data, start, end, begin, line)

    def _is_first(self, data: bytes, hit: int) -> bool:
        return any(data.startswith(key, hit - len(key)) for key in self._shape.first_keys)

    def _whole(self, data: bytes, begin: int, hit: int, end: int, line: int) -> int | None:
        """Return where the record with a step time begins. Notes the half of a torn line in front of it."""
        stop = min(end, hit + _REACH)
        key = min((at for literal in self._shape.keys if (at := data.find(literal, hit, stop)) >= 0), default=-1)
        if key < 0:
            if stop < len(data) and _HEAD.match(data, begin):
                self._notes.torn(line, data[begin:stop])
            return None
        last = data.rfind(b"iteration ", begin + 1, key)
        if last < 0 or not _HEAD.match(data, last):
            return begin
        self._notes.torn(line, data[begin:stop])
        return last

    def _read_slowly(self, data: bytes, start: int, end: int, begin: int, line: int) -> int:
        """Read a line with new fields, or a broken one."""
        stop = self._record_end(data, begin, end)
        raw, cut = _record(data, start, begin, stop, cut=stop == len(data))
        kind = _HEADS[raw.startswith(b"iteration:")]
        head = kind.pattern.match(raw)
        if not head or raw[head.end() : head.end() + 1] != b"|":
            return self._refuse(data, start, end, stop, line)
        body = raw[head.end() + 1 :]
        parts, closed = split_fields(body, cut=cut)
        if cut and body.rpartition(b"|")[2].strip():
            self._notes.cut_off(line, raw)
        fields, values = [], [float(group) for group in head.groups()]
        seen = set(kind.columns)
        for part in parts:
            parsed, numbers = read_field(part, self._shape.names)
            if parsed.columns and (substitute := self._beyond_names(parsed.name)):
                fields.append(substitute)
                continue
            fields.append(parsed)
            if seen.isdisjoint(parsed.columns):
                seen.update(parsed.columns)
                values.extend(numbers)
        if "step_time_ms" not in seen:
            return end if cut else self._refuse(data, start, end, stop, line)
        prefix = without_colours(data[max(start, begin - 200) : begin])
        template, values = self._template(prefix, kind, fields, values, closed=closed)
        template.add(values)
        self._rows.place(template, data, begin, line)
        return stop

    def _beyond_names(self, name: bytes) -> IterationField | None:
        """Return the substitute for a field beyond the limit of names; None for a field that is read."""
        if name in self._names:
            return None
        if len(self._names) < self._most_names:
            self._names.add(name)
            return None
        if self._left_out is None:
            self._left_out = any_but(self._names)
        return self._left_out

    def _template(
        self, prefix: bytes, head: _Head, fields: list[IterationField], values: list[float], *, closed: bool
    ) -> tuple[Template, list[float]]:
        """Return the template of lines with these fields and move it to the front of the templates that are tried."""
        key = (b"|" if closed else b"", head.pattern.pattern, *(part.pattern for part in fields))
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                # Hostile or very unusual input: keep only what every line has
                values = [*values[: len(head.columns)], _step_time(head.columns, fields, values)]
                fields = [IterationField(rb"[^|\r]*"), next(part for part in fields if "step_time_ms" in part.columns)]
                key = (b"only", head.pattern.pattern, fields[1].pattern)
                values = values if len(fields[1].columns) == 1 else [*values, float("nan")]
                self._notes.problem("many kinds of lines", "For some iteration lines, only the step time was read.")
                template = self._templates.get(key)
            if template is None:
                trainer = self._shape.trainer(prefix, [part.name for part in fields])
                template = make_template(trainer, head.pattern.pattern, head.columns, fields, closed=closed)
                self._templates[key] = template
                self._rows.tables.append(template)
        self._recent = [template, *(other for other in self._recent if other is not template)][:TRIED]
        return template, values

    def _record_end(self, data: bytes, begin: int, end: int) -> int:
        """Return where the record at `begin` ends: line end, carriage return, or the next record on the same line."""
        end = min(end, begin + MAX_RECORD)
        reach = min(end, begin + 2 * _REACH)
        own = min((at for key in self._shape.keys if (at := data.find(key, begin, reach)) >= 0), default=begin)
        following = _HEAD.search(data, max(own, begin + _KEY), end)
        if following:
            again = following.start()
            stamp = data.rfind(b"[", max(own, again - STAMP_LENGTH), again)
            end = stamp if stamp >= 0 else again
        back = data.find(b"\r", begin, end)
        return back if back >= 0 else end

    def _refuse(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        self._notes.unreadable("an iteration line", line, data[max(start, hit - 200) : min(end, hit + 200)])
        return hit


def _record(data: bytes, start: int, begin: int, stop: int, *, cut: bool) -> tuple[bytes, bool]:
    """Return a record without wrapping and colours, and whether it is cut off."""
    raw = data[begin:stop]
    if data.startswith(b'{"', start):  # Docker's JSON: the line break is part of the text
        raw, closed, _ = raw.partition(b'\\n"')
        cut = cut and not closed
    return without_colours(raw), cut


def _step_time(columns: Sequence[str], fields: Sequence[IterationField], values: Sequence[float]) -> float:
    names = list(columns)
    for part in fields:
        if not any(column in names for column in part.columns):
            names.extend(part.columns)
    return values[names.index("step_time_ms")]
