"""Describes the step lines of a trainer that no reader knows: text with placeholders for its values.

`global step {iteration}: loss = {loss} ({step_time_s} sec/step)`. A placeholder is the name of a column with its unit
(`column_names.py`); `{}` skips any text. Any number of blanks matches any other, and the text may begin anywhere in a
line.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.domain.logs.column_names import SECONDS, Column, column_of
from app.domain.logs.iterations import IterationRows, number, word
from app.domain.logs.lines import Notes
from app.domain.logs.steps import Steps, text_around
from app.domain.run import LineExample

TRAINER = "described lines"

MAX_TEMPLATE = 500
"""Characters."""
MAX_PLACEHOLDERS = 20
MAX_SKIPPED = 300
"""Bytes that `{}` may skip."""
MAX_LINE = 2000
"""Bytes of a line that are read on either side of the template's key."""
MOST_TRIES = 5
"""Places of a line at which a template is tried."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NUMBER = re.compile(
    rb" ?([-+]?(?:(?:\d{1,3}(?:,\d{3}){1,6}(?!\d)|\d{1,30})(?:\.\d{0,30})?(?:[eE][-+]?\d{1,4})?|\.\d{1,30}|nan|inf))"
)


@dataclass(frozen=True, slots=True)
class LineTemplate:
    """A template as parts in order: a text, a column whose number follows, or None for text to skip."""

    parts: tuple[bytes | Column | None, ...]

    @property
    def key(self) -> bytes:
        """Return the longest word of its texts, which every line contains."""
        words = (part for text in self.parts if isinstance(text, bytes) for part in text.split())
        return max(words, key=len)

    def read(self, line: bytes) -> dict[str, float] | None:
        """Return the values of a line by column; None for another line."""
        line = b" ".join(line.split())
        first = self.parts[0] if isinstance(self.parts[0], bytes) else b""
        begin = -1
        for _ in range(MOST_TRIES):
            begin = line.find(first, begin + 1)
            if begin < 0:
                return None
            if (values := self._read_from(line, begin)) is not None:
                return values
        return None

    def _read_from(self, line: bytes, at: int) -> dict[str, float] | None:
        values: dict[str, float] = {}
        skipped = 0
        for part in self.parts:
            if part is None:
                skipped = MAX_SKIPPED
                continue
            if isinstance(part, bytes):
                place = line.find(part, at, at + skipped + len(part))
                if place < 0:
                    return None
                at = place + len(part)
            else:
                match = _NUMBER.search(line, at, at + skipped) if skipped else _NUMBER.match(line, at)
                value = number(match[1].replace(b",", b"")) if match else None
                if match is None or value is None:
                    return None
                values.setdefault(part.name, part.value(value))
                at = match.end()
            skipped = 0
        return values


def read_template(text: str) -> LineTemplate:
    """Read a template. Raises ValueError with a sentence that says what to change."""
    text = " ".join(text.split())
    if not text:
        raise ValueError(
            "is empty: copy a step line and replace its numbers, as in `step {iteration}: {step_time_s} s`"
        )
    if len(text) > MAX_TEMPLATE:
        raise ValueError(f"must have at most {MAX_TEMPLATE} characters")
    texts, names = _PLACEHOLDER.split(text)[::2], _PLACEHOLDER.findall(text)
    if len(names) > MAX_PLACEHOLDERS:
        raise ValueError(f"must have at most {MAX_PLACEHOLDERS} placeholders")
    if any("{" in part or "}" in part for part in texts):
        raise ValueError("has a brace without its partner; placeholders look like {iteration}")
    columns = [column_of(name) if name.strip() else None for name in names]
    stated = [column.name for column in columns if column is not None]
    if twice := {name for name in stated if stated.count(name) > 1}:
        raise ValueError(f"states {', '.join(sorted(twice))} twice")
    if "step_time_ms" not in stated:
        raise ValueError("needs the step time as {step_time_ms} or {step_time_s}, or {iterations_per_s}")
    if "" in texts[1:-1]:
        raise ValueError("has two placeholders without text between them; keep the text of the line there")
    parts: list[bytes | Column | None] = []
    for index, literal in enumerate(texts):
        if literal and (index or literal.strip()):
            parts.append(literal.encode())
        if index < len(columns):
            parts.append(columns[index])
    while parts and parts[-1] is None:
        parts.pop()
    template = LineTemplate(tuple(parts))
    if not any(isinstance(part, bytes) and len(max(part.split(), key=len, default=b"")) >= 2 for part in parts):
        raise ValueError("needs a word of the line that only steps have, next to its placeholders")
    return template


class DescribedReader:
    """Reads the lines of a template. Lines without an iteration are counted from 1."""

    def __init__(self, template: LineTemplate, notes: Notes) -> None:
        self.keys: Sequence[bytes] = (template.key,)
        self._template = template
        self._steps = Steps(TRAINER, notes)
        self._notes = notes
        self._count = 0

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        text = text_around(data, start, end, hit, before=MAX_LINE, after=MAX_LINE)
        values = self._template.read(text)
        if values is None:  # keys that follow closely have nearly the same text around them
            limit = min(end, hit + MAX_LINE // 2)
            overwritten = data.find(b"\r", hit, limit)
            return limit if overwritten < 0 else overwritten
        self._count += 1
        iteration = values.pop("iteration", float(self._count))
        self._steps.add({"iteration": iteration} | values, line)
        return min(end, hit + MAX_LINE)

    def collect(self) -> IterationRows:
        rows = self._steps.rows
        if not rows.lines:
            self._notes.problem("no described line", "No line of the log matches the stated line template.")
        return rows


# --- Suggests a template for a line that looks like a step.

_ANY_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,30})(?:\.\d{1,30})?(?:[eE][-+]?\d{1,4})?(?![\d.]{0,3}\d)"
)
_COUNTER = re.compile(r"(?:^|[^a-z])(?:step|iter|iteration|update)s?['\"]?\W{0,4}\Z", re.IGNORECASE)
_LOSS = re.compile(r"(\w*loss)['\"]?\s{0,3}[:=]?\s{0,3}\Z", re.IGNORECASE)
_TIME = re.compile(r"(?:time|elapsed|duration|took|dt|latency|timing)\W{0,8}(\w{0,8}\W{0,4})\Z", re.IGNORECASE)
_UNIT = re.compile(r"\s?(ms|us|secs?|seconds?|s)(?:\s?/\s?(?:step|iter\w{0,8}|it))?(?![\w/])", re.IGNORECASE)
_RATE = re.compile(r"\s?(?:it|iter|steps?)s?\s?/\s?s(?:ec)?\b", re.IGNORECASE)
_BRACES = re.compile(r"[{}]+")
_FOLLOWING = re.compile(r" ?[A-Za-z/%]{1,12}")
_TIMES = {"iterations_per_s"} | {f"step_time_{unit}" for unit in SECONDS}


def draft_template(examples: Iterable[LineExample]) -> str:
    """Return the first draft of a template that lines which look like steps give; empty without one."""
    return next((draft for line in examples if (draft := suggest_template(line.example))), "")


def suggest_template(line: str) -> str:
    """Return a draft of a template for a line that looks like a step, with its numbers as placeholders.

    A number whose meaning the line does not show is `{}`: the user names it. Empty for a line without a counter.
    """
    line = " ".join(line.split())[:MAX_TEMPLATE]
    numbers = list(_ANY_NUMBER.finditer(line))
    names: dict[int, str] = {}
    for match in numbers:
        name = _meaning(line[: match.start()], line[match.end() :])
        is_time = name in _TIMES
        if name and name not in names.values() and not (is_time and _TIMES & {*names.values()}):
            names[match.start()] = name
    if "iteration" not in names.values():
        return ""
    first = min(names)
    last = max(names) if _TIMES & {*names.values()} else numbers[-1].start()
    at = max(line.rfind(" ", 0, max(line.rfind(" ", 0, first), 0)) + 1, 0)
    template = ""
    for match in numbers:
        if at <= match.start() <= last:
            template += _BRACES.sub("{}", line[at : match.start()]) + "{" + names.get(match.start(), "") + "}"
            at = match.end()
    following = _FOLLOWING.match(line[at:])
    return (template + (following[0] if following else ""))[:MAX_TEMPLATE]


def _meaning(before: str, after: str) -> str:
    if _COUNTER.search(before):
        return "iteration"
    if loss := _LOSS.search(before):
        return word(loss[1])
    if _RATE.match(after):
        return "iterations_per_s"
    unit = _UNIT.match(after)
    if unit:
        return f"step_time_{unit[1].lower()}"
    if time := _TIME.search(before):
        stated = word(time[1])
        return f"step_time_{stated}" if stated in SECONDS else ""
    return ""
