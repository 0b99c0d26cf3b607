"""Collects the steps of trainers whose lines have nothing in common with Megatron-LM's.

Their libraries also print under other trainers: DeepSpeed's engine under Megatron-DeepSpeed, progress bars everywhere.
So each reader collects apart from the others, and `choose` takes the first one with steps when a log has no iteration
line of the Megatron family.
"""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from app.domain.logs.iterations import IterationRows, Table, number, word
from app.domain.logs.lines import Notes, without_colours
from app.domain.logs.scanner import LineReader

Names = Mapping[str, tuple[str, float]]
"""Columns by printed name, each with the factor to its unit."""

MAX_TABLES = 50
"""Maximum number of sets of fields. Real logs have up to five."""

RUNNING_MEANS = "running means"
"""Kind of the problem of a log whose step times are means over earlier steps too, so that they are not fair samples."""

STATE_NO_END = frozenset(
    {"torchtitan", "MaxText", "veRL", "slime", "DeepSpeed", "Lightning", "NeMo 1", "described lines"}
)
"""Trainers whose lines state neither the number of planned iterations nor the end of training."""


class StepReader(LineReader, Protocol):
    """Reads the steps of one trainer."""

    def collect(self) -> IterationRows:
        """Return the steps at the end of the log. Records remarks on them."""
        ...


class Steps:
    """Holds the steps of one trainer in the order of the log. Lines may differ in their fields."""

    def __init__(self, trainer: str, notes: Notes) -> None:
        self.trainer = trainer
        self.notes = notes
        self.rows = IterationRows(notes)
        self._tables: dict[tuple[str, ...], Table] = {}

    def add(self, values: Mapping[str, float], line: int) -> None:
        """Store one step. Its first value is the iteration; columns and units as in `ParsedLog`."""
        names = tuple(values)
        table = self._tables.get(names)
        if table is None:
            if len(self._tables) >= MAX_TABLES:
                self.notes.problem("many kinds of lines", f"The fields of {self.trainer}'s steps vary too much.", line)
                return
            table = self._tables[names] = Table(self.trainer, names, (1.0,) * len(names))
            self.rows.tables.append(table)
        table.add(values.values())
        self.rows.place(table, b"", 0, line)


def choose(readers: Sequence[StepReader], default: IterationRows) -> IterationRows:
    """Return the rows of the first reader with steps; `default` without one."""
    return next((rows for reader in readers if (rows := reader.collect()).lines), default)


def text_around(data: bytes, start: int, end: int, hit: int, *, before: int, after: int) -> bytes:
    """Return the part of a line around a key, without colours, from its last carriage return on."""
    begin = max(start, hit - before)
    text = data[begin : min(end, hit + after)]
    overwritten = text.rfind(b"\r", 0, hit - begin)
    following = text.find(b"\r", hit - begin)
    return without_colours(text[overwritten + 1 : following if following >= 0 else len(text)])


# --- Times between the stamps of Python's logging, for trainers that print none: `2026-02-24 19:46:17,508`.

_STAMP = re.compile(rb"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)[,.](\d{3})")
_RANK = re.compile(rb"\[rank(\d{1,7})\]:|\[default(\d{1,7})\]:|\A {0,6}(\d{1,7}): ")
_DAY_MS = 86_400_000


class StampedSteps:
    """Turns the stamps of step lines into step times.

    A time is that between two lines divided by the iterations between them; it includes evaluation and saving. The
    first line of a process has none. When all ranks print, the first rank that does counts.
    """

    def __init__(self) -> None:
        self._rank: bytes | None = None
        self._last: tuple[float, int] | None = None

    def is_copy(self, text: bytes, iteration: float) -> bool:
        """Return whether another rank printed this step already."""
        match = _RANK.search(text[:200])
        rank = b"" if match is None else match[match.lastindex or 0]
        if self._rank is None:
            self._rank = rank
        return rank != self._rank or (self._last is not None and self._last[0] == iteration)

    def time_ms(self, text: bytes, iteration: float) -> float:
        """Return the time of the iterations since the last line; NaN for the first line of a process."""
        stamp = _STAMP.search(text)
        if stamp is None:
            self._last = None
            return float("nan")
        hours, minutes, seconds, thousandths = (int(part) for part in stamp.groups()[3:])
        now = ((hours * 60 + minutes) * 60 + seconds) * 1000 + thousandths
        last, self._last = self._last, (iteration, now)
        if last is None or iteration <= last[0]:
            return float("nan")
        # Past midnight; no step takes a day.
        return (now - last[1]) % _DAY_MS / (iteration - last[0])


# --- Values of lines with `name: value` or `'name': value`.


def fields_of(text: bytes, pattern: re.Pattern[bytes], most: int) -> dict[str, float]:
    """Return the numbers of a line by printed name; `pattern` has the groups name and value. The first one counts."""
    values: dict[str, float] = {}
    for match in pattern.finditer(text):
        value = number(match[2].replace(b",", b""))
        name = match[1].decode("utf-8", "replace")
        if value is not None and name not in values:
            values[name] = value
            if len(values) >= most:
                break
    return values


def renamed(values: Mapping[str, float], names: Names, *, without: Sequence[str] = ()) -> dict[str, float]:
    """Return values by column: known names in their unit first, all others under their own name."""
    columns = {
        column: values[name] * scale
        for name, (column, scale) in names.items()
        if name in values and column not in without
    }
    for name, value in values.items():
        if name not in names and (column := word(name)) and column not in without:
            columns.setdefault(column, value)
    return columns


# --- Readers of trainers that print a step in one line.


class StepLineReader:
    """Reads the step lines of one trainer. `step` has the iteration as its group; the fields follow its match.

    `field` has the groups name and value. `before` and `after`: the bytes around a key that contain the line.
    """

    trainer: str
    keys: Sequence[bytes]
    step: re.Pattern[bytes]
    field: re.Pattern[bytes]
    names: ClassVar[Names]
    without: Sequence[str] = ()
    before: int
    after: int
    most_fields: int

    def __init__(self, notes: Notes) -> None:
        self.steps = Steps(self.trainer, notes)

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = text_around(data, start, end, hit, before=self.before, after=self.after)
        step = self.step.search(text)
        if step is None:
            return hit
        iteration = float(step[1])
        columns = self.columns(text, iteration, fields_of(text[step.end() :], self.field, self.most_fields))
        if "step_time_ms" in columns:
            self.steps.add({"iteration": iteration} | columns, line)
        return self.next_position(text, hit, end)

    def columns(self, _text: bytes, _iteration: float, values: Mapping[str, float]) -> dict[str, float]:
        """Return the columns of a step; without a step time, it is not stored."""
        return renamed(values, self.names, without=self.without)

    def next_position(self, _text: bytes, _hit: int, end: int) -> int:
        """Return where reading continues after a step."""
        return end

    def collect(self) -> IterationRows:
        return self.steps.rows


class StampedStepReader(StepLineReader):
    """Reads the steps of a trainer that prints no step times. `printer`: its name in sentences."""

    printer: str

    def __init__(self, notes: Notes) -> None:
        super().__init__(notes)
        self._stamps = StampedSteps()

    def columns(self, text: bytes, iteration: float, values: Mapping[str, float]) -> dict[str, float]:
        if self._stamps.is_copy(text, iteration):
            return {}
        return {"step_time_ms": self._stamps.time_ms(text, iteration)} | super().columns(text, iteration, values)

    def collect(self) -> IterationRows:
        if self.steps.rows.lines:
            self.steps.notes.problem(
                "times between lines",
                f"{self.printer} prints no step times. They are the times between its lines, which include saving and "
                "evaluation. The first line of a process has none.",
            )
        return self.steps.rows
