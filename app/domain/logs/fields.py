"""Reads ` name: value | name: value |` lines: slowly the first time, by a pattern made from that line afterwards.

The lines of one log all have the same fields, so the first one becomes a template: a pattern whose only freedom is what
stands between two bars. It cannot backtrack, and one call reads a line.
"""

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MAX_NAME = 100
"""Bytes of a field's name; a longer one is not a name."""

_NUMBER = rb" *([-+.0-9A-Za-z]+) *"
_ANYTHING = rb"[^|\r]*"
_NO_WORD = re.compile(r"[^0-9a-z]+")


@dataclass(frozen=True, slots=True)
class Field:
    """One part of a line. `label` is the text before the value; `column` is None when the value is no number."""

    label: bytes = b""
    column: str | None = None
    scale: float = 1.0
    pair: bool = False


@dataclass(slots=True)
class Template:
    """Lines that have the same fields in the same order, and the numbers read from them, row after row."""

    pattern: re.Pattern[bytes]
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


def word(name: str) -> str:
    """A printed name as a column name: `max attention logit` -> `max_attention_logit`."""
    return _NO_WORD.sub("_", name.lower()).strip("_")


def number(text: bytes) -> float | None:
    """The number that `text` spells, NaN and infinity included; None for anything else."""
    try:
        return None if b"_" in text else float(text)
    except ValueError:
        return None


def split_fields(body: bytes, *, cut: bool) -> tuple[list[bytes], bool]:
    """The parts between the bars of `body`, and whether the last of them was closed by a bar.

    Text that another process printed straight behind the closing bar is no field: it lacks the space of one. With
    `cut` the log ended in the middle of the last part, which is then worth nothing.
    """
    parts = body.split(b"|")
    last = parts.pop()
    if cut or not last.startswith(b" ") or b": " not in last:
        return parts, True
    return [*parts, last], False


def read_field(part: bytes, names: Mapping[bytes, tuple[str, float]]) -> tuple[Field, float]:
    """One part and its value (0 where the part has none). Of a pair `current/average` the first number counts."""
    label, colon, rest = part.partition(b":")
    name = label.strip()
    first, slash, _ = rest.strip().partition(b"/")
    value = number(first.strip())
    if not colon or not name or len(name) > MAX_NAME or value is None:
        return Field(), 0.0
    column, scale = names.get(name) or (word(name.decode("utf-8", "replace")), 1.0)
    return Field(label + b":", column or None, scale, pair=bool(slash)), value


def make_template(head: bytes, columns: Sequence[str], fields: Sequence[Field], *, closed: bool) -> Template:
    """The template of lines that start with the pattern `head`, whose groups are the first `columns`."""
    parts = [head]
    names = list(columns)
    scales = [1.0] * len(names)
    for one in fields:
        if one.column is None or one.column in names:
            parts.append(_ANYTHING)
            continue
        parts.append(re.escape(one.label) + _NUMBER + (b"/" + _ANYTHING if one.pair else b""))
        names.append(one.column)
        scales.append(one.scale)
    pattern = rb"\|".join(parts) + (rb"\|" if closed else rb"\r*\Z")
    return Template(re.compile(pattern), tuple(names), tuple(scales))
