"""Reads the iteration line of Megatron-LM, which Megatron-Bridge and all forks print too.

` [2026-05-11 02:59:22.912300] iteration  1/  20 | consumed samples: 896 | elapsed time per iteration (ms): 782.5 | ...`
Fields are known by their names, never by their place: forks put theirs in between, and losses come in any order.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.domain.logs.fields import Field, Template, make_template, read_field, split_fields
from app.domain.logs.notes import Notes
from app.domain.logs.prefixes import without_colours

MAX_RECORD = 1 << 14
"""Bytes of one iteration line, its prefix not counted. Real ones have up to 1,200."""

MAX_ROWS = 1_000_000
"""Iteration lines kept: twice what the longest runs print, and a bound on memory (about 150 MB)."""

MAX_TEMPLATES = 100
"""Kinds of lines kept apart. Real logs have up to five: first line, skipped steps, pairs, NaN, the usual."""

TRIED = 4
"""Templates tried before a line is taken apart: logs that alternate between kinds stay fast."""

ELAPSED = b"elapsed time per iteration ("
_REACH = 600
"""Bytes in front of a key in which its record starts: before the step time stand only a few fields."""

NAMES: dict[bytes, tuple[str, float]] = {
    ELAPSED + b"ms)": ("step_time_ms", 1.0),
    ELAPSED + b"s)": ("step_time_ms", 1000.0),
    b"throughput per GPU (TFLOP/s/GPU)": ("tflops_per_gpu", 1.0),
    b"TFLOPs": ("tflops_per_gpu", 1.0),
    b"energy per GPU (J/iter/GPU)": ("energy_j_per_gpu", 1.0),
    b"power per GPU (W/GPU)": ("power_w_per_gpu", 1.0),
    b"number of skipped iterations": ("skipped_iterations", 1.0),
    b"number of nan iterations": ("nan_iterations", 1.0),
    b"tokens per GPU (tokens/s/GPU)": ("tokens_per_s_per_gpu", 1.0),
    b"tokens/sec/gpu": ("tokens_per_s_per_gpu", 1.0),
    b"tokens per gpu per second (tgs)": ("tokens_per_s_per_gpu", 1.0),
    b"tokens per gpu per second(tgs)": ("tokens_per_s_per_gpu", 1.0),
}
"""Printed names whose column is not simply the name made a word, with the factor to the column's unit."""

_HEAD_PATTERN = rb"iteration +(\d{1,12})/ *(\d{1,12}) *"
_HEAD = re.compile(_HEAD_PATTERN)
_HEAD_COLUMNS = ("iteration", "total_iterations")
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d (\d\d):(\d\d):(\d\d\.\d{1,6})\] ?\Z")
_STAMP_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Start:
    """A process began: `after` is the iteration of the checkpoint that it loaded, None when none is named."""

    after: int | None = None


@dataclass(slots=True)
class Rows:
    """The iteration lines in the order of the log; their numbers are in the templates."""

    templates: list[Template] = field(default_factory=list)
    lines: "array[int]" = field(default_factory=lambda: array("q"))
    starts: dict[int, Start] = field(default_factory=dict)
    """The rows before which the log says that a process started."""
    stamps: dict[int, float] = field(default_factory=dict)
    """Seconds of the day of rows near the start of a process, where stamps have microseconds."""
    has_microseconds: bool = False


class IterationReader:
    """Collects iteration lines. The step time's name is in every period of the format, and in no other line."""

    keys: Sequence[bytes] = (ELAPSED,)

    def __init__(self, notes: Notes) -> None:
        self.rows = Rows()
        self._notes = notes
        self._recent: list[Template] = []
        self._known: dict[tuple[bytes, ...], Template] = {}
        self._start: Start | None = None
        self._near_start = 2
        self._last_iteration = 0.0

    def process_started(self, after: int | None = None) -> None:
        """The log says that a process starts, or that it goes on `after` an iteration."""
        if self._start is None or after is not None:
            self._start = Start(after)

    def block(self, data: bytes) -> None: ...

    def ended_in(self, text: bytes, line: int) -> None:
        """The log ended with `text`, which has no line break: it may be an iteration line cut before its step time."""
        if ELAPSED not in text and (head := _HEAD.search(text)) and text[head.end() : head.end() + 1] in (b"|", b""):
            self._notes.cut_off(line, text[head.start() :])

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        begin = data.rfind(b"iteration ", max(start, hit - _REACH), hit - len(ELAPSED))
        if begin < 0:
            return self._refuse(data, start, end, hit, line)
        for template in self._recent:
            match = template.pattern.match(data, begin, end)
            # Another bar behind the match: more fields than the template has, or a second record on the same line
            if match and data.find(b"|", match.end(), end) < 0:
                if not template.add(map(float, match.groups())):
                    break
                self._place(template, data, begin, line)
                return end
        return self._read_slowly(data, start, end, begin, line)

    def _read_slowly(self, data: bytes, start: int, end: int, begin: int, line: int) -> int:
        """Read a line whose fields were not seen before, or one that is broken."""
        stop = _record_end(data, begin, end)
        raw, cut = _record(data, start, begin, stop, cut=stop == len(data))
        head = _HEAD.match(raw)
        if not head or raw[head.end() : head.end() + 1] != b"|":
            return self._refuse(data, start, end, stop, line)
        body = raw[head.end() + 1 :]
        parts, closed = split_fields(body, cut=cut)
        if cut and body.rpartition(b"|")[2].strip():
            self._notes.cut_off(line, raw)
        fields, values = [], [float(head[1]), float(head[2])]
        seen = set(_HEAD_COLUMNS)
        for one, value in (read_field(part, NAMES) for part in parts):
            fields.append(one)
            if one.column and one.column not in seen:
                seen.add(one.column)
                values.append(value)
        if "step_time_ms" not in seen:
            return end if cut else self._refuse(data, start, end, stop, line)
        template, values = self._template(fields, values, closed=closed)
        template.add(values)
        self._place(template, data, begin, line)
        return stop

    def _template(self, fields: list[Field], values: list[float], *, closed: bool) -> tuple[Template, list[float]]:
        """The template of lines with these fields, most recent first in the list of those that are tried."""
        key = (b"|" if closed else b"", *(one.label + (b"/" if one.pair else b"") for one in fields))
        template = self._known.get(key)
        if template is None:
            if len(self._known) >= MAX_TEMPLATES:
                # Hostile or very odd: keep what every line has
                fields, values, key = _only_step_time(fields, values)
                self._notes.problem("many kinds of lines", "Of some iteration lines only the step time was kept.")
                template = self._known.get(key)
            if template is None:
                template = make_template(_HEAD_PATTERN, _HEAD_COLUMNS, fields, closed=closed)
                self._known[key] = template
                self.rows.templates.append(template)
        self._recent = [template, *(one for one in self._recent if one is not template)][:TRIED]
        return template, values

    def _place(self, template: Template, data: bytes, begin: int, line: int) -> None:
        """Give the row that the template took last its place in the log; its time stamp stands before `begin`."""
        lines = self.rows.lines
        row = len(lines)
        if row >= MAX_ROWS:
            template.drop_last()
            self._notes.problem("too many iterations", f"Only the first {MAX_ROWS} iteration lines were kept.", line)
            return
        template.rows.append(row)
        lines.append(line)
        iteration = template.values[-len(template.columns)]
        if self._start is not None or self._near_start or iteration <= self._last_iteration:
            self._note_start(row, data, begin, goes_on=iteration > self._last_iteration)
        self._last_iteration = iteration

    def _note_start(self, row: int, data: bytes, begin: int, *, goes_on: bool) -> None:
        """Remember where a process starts, and the stamps of its first two lines."""
        if self._start is not None:
            self.rows.starts[row] = self._start
            self._start = None
            self._near_start = 2
        elif not goes_on:
            self._near_start = 2
        self._near_start -= 1
        stamp = _STAMP.search(data, max(0, begin - _STAMP_LENGTH), begin)
        if stamp:
            self.rows.has_microseconds = True
            self.rows.stamps[row] = int(stamp[1]) * 3600 + int(stamp[2]) * 60 + float(stamp[3])

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


def _record_end(data: bytes, begin: int, end: int) -> int:
    """Where the record at `begin` ends: at the line's end, a carriage return, or the next record glued to it."""
    end = min(end, begin + MAX_RECORD)
    own = data.find(ELAPSED, begin, end)
    following = data.find(ELAPSED, own + len(ELAPSED), end) if own >= 0 else -1
    if following >= 0:
        again = data.rfind(b"iteration ", own + len(ELAPSED), following)
        if again >= 0:
            stamp = data.rfind(b"[", max(own, again - _STAMP_LENGTH), again)
            end = stamp if stamp >= 0 else again
    back = data.find(b"\r", begin, end)
    return back if back >= 0 else end


def _only_step_time(fields: list[Field], values: list[float]) -> tuple[list[Field], list[float], tuple[bytes, ...]]:
    """What is left of a line when too many kinds of lines were seen."""
    seen = list(_HEAD_COLUMNS)
    for one in fields:
        if one.column and one.column not in seen:
            seen.append(one.column)
    at = seen.index("step_time_ms")
    kept = next(one for one in fields if one.column == "step_time_ms")
    return [Field(), kept], [*values[:2], values[at]], (b"only", kept.label)
