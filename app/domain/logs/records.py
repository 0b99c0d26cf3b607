"""Reads the iteration lines of trainers that print ` iteration 5/ 100 | name: value | ...`, whatever the fields are.

Fields are known by their names, never by their place: forks put theirs in between, and losses come in any order.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.logs.fields import Field, Template, any_but, make_template, read_field, split_fields
from app.domain.logs.notes import Notes
from app.domain.logs.prefixes import without_colours
from app.domain.logs.rows import STAMP_LENGTH, Rows

MAX_RECORD = 1 << 14
"""Bytes of one iteration line, its prefix not counted. Real ones have up to 1,200."""

MAX_TEMPLATES = 100
"""Kinds of lines kept apart. Real logs have up to five: first line, skipped steps, pairs, NaN, the usual."""

MAX_NAMES = 56
"""Names of fields whose numbers are read, those that every log of the shape may have not counted. Real logs have about
30. A log with new ones on every line would need a pattern for each line."""

TRIED = 4
"""Templates tried before a line is taken apart: logs that alternate between kinds stay fast."""

_REACH = 600
"""Bytes in front of a key in which its record starts: before the step time stand only a few fields."""

_KEY = 20
"""Bytes: no key is shorter, and the record starts before it."""


@dataclass(frozen=True, slots=True)
class _Head:
    """How a record starts, and the columns of its groups."""

    pattern: re.Pattern[bytes]
    columns: tuple[str, ...]


_HEADS = (
    _Head(re.compile(rb"iteration +(\d{1,12}) ?/ *(\d{1,12}) *"), ("iteration", "total_iterations")),
    _Head(re.compile(rb"iteration: *(\d{1,12}) *"), ("iteration",)),
)
_HEAD = re.compile(_HEADS[0].pattern.pattern + rb"\|")


@dataclass(frozen=True, slots=True)
class Shape:
    """What tells one trainer's iteration lines. `keys` end right before the step time, or before its unit.

    `first_keys`, if any, stand in front of the step time in each of its lines, so that a line torn before it is seen.
    `names`: printed names whose column is not simply the name made a word, with the factor to the column's unit.
    `trainer` names the family of a line from its prefix and its printed names.
    """

    keys: tuple[bytes, ...]
    first_keys: tuple[bytes, ...]
    names: Mapping[bytes, tuple[str, float]]
    trainer: Callable[[bytes, Sequence[bytes]], str]


class RecordReader:
    """Collects the iteration lines of one shape."""

    def __init__(self, shape: Shape, rows: Rows, notes: Notes) -> None:
        self.keys: Sequence[bytes] = (*shape.keys, *shape.first_keys)
        self._shape = shape
        self._rows = rows
        self._notes = notes
        self._recent: list[Template] = []
        self._known: dict[tuple[bytes, ...], Template] = {}
        self._names = set(shape.names)
        self._most_names = len(shape.names) + MAX_NAMES
        self._left_out: Field | None = None

    def block(self, data: bytes) -> None: ...

    def ended_in(self, text: bytes, line: int) -> None:
        """The log ended with `text`, which has no line break: it may be an iteration line cut before its step time."""
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
            # Another bar behind the match: more fields than the template has, or a second record on the same line
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
        """Where the record that has a step time begins; the half of a line that was torn in front of it is noted."""
        stop = min(end, hit + _REACH)
        key = min((at for one in self._shape.keys if (at := data.find(one, hit, stop)) >= 0), default=-1)
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
        """Read a line whose fields were not seen before, or one that is broken."""
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
        fields, values = [], [float(one) for one in head.groups()]
        seen = set(kind.columns)
        for part in parts:
            one, numbers = read_field(part, self._shape.names)
            if one.columns and (other := self._beyond_names(one.name)):
                fields.append(other)
                continue
            fields.append(one)
            if seen.isdisjoint(one.columns):
                seen.update(one.columns)
                values.extend(numbers)
        if "step_time_ms" not in seen:
            return end if cut else self._refuse(data, start, end, stop, line)
        prefix = without_colours(data[max(start, begin - 200) : begin])
        template, values = self._template(prefix, kind, fields, values, closed=closed)
        template.add(values)
        self._rows.place(template, data, begin, line)
        return stop

    def _beyond_names(self, name: bytes) -> Field | None:
        """What stands for a field whose name comes after too many others; None for one that is read."""
        if name in self._names:
            return None
        if len(self._names) < self._most_names:
            self._names.add(name)
            return None
        if self._left_out is None:
            self._left_out = any_but(self._names)
        return self._left_out

    def _template(
        self, prefix: bytes, head: _Head, fields: list[Field], values: list[float], *, closed: bool
    ) -> tuple[Template, list[float]]:
        """The template of lines with these fields, most recent first in the list of those that are tried."""
        key = (b"|" if closed else b"", head.pattern.pattern, *(one.pattern for one in fields))
        template = self._known.get(key)
        if template is None:
            if len(self._known) >= MAX_TEMPLATES:
                # Hostile or very odd: keep what every line has
                values = [*values[: len(head.columns)], _step_time(head.columns, fields, values)]
                fields = [Field(rb"[^|\r]*"), next(one for one in fields if "step_time_ms" in one.columns)]
                key = (b"only", head.pattern.pattern, fields[1].pattern)
                values = values if len(fields[1].columns) == 1 else [*values, float("nan")]
                self._notes.problem("many kinds of lines", "Of some iteration lines only the step time was kept.")
                template = self._known.get(key)
            if template is None:
                trainer = self._shape.trainer(prefix, [one.name for one in fields])
                template = make_template(trainer, head.pattern.pattern, head.columns, fields, closed=closed)
                self._known[key] = template
                self._rows.tables.append(template)
        self._recent = [template, *(one for one in self._recent if one is not template)][:TRIED]
        return template, values

    def _record_end(self, data: bytes, begin: int, end: int) -> int:
        """Where the record at `begin` ends: at the line's end, a carriage return, or the next record glued to it."""
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
    """The bytes of a record without wrapping and colours, and whether it was cut off."""
    raw = data[begin:stop]
    if data.startswith(b'{"', start):  # Docker's JSON: the line break is part of the text
        raw, closed, _ = raw.partition(b'\\n"')
        cut = cut and not closed
    return without_colours(raw), cut


def _step_time(columns: Sequence[str], fields: Sequence[Field], values: Sequence[float]) -> float:
    """The step time among the values of a line."""
    names = list(columns)
    for one in fields:
        if not any(column in names for column in one.columns):
            names.extend(one.columns)
    return values[names.index("step_time_ms")]
