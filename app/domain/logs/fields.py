"""Reads ` name: value | name: value |` lines: slowly the first time, by a pattern made from that line afterwards.

The lines of one log all have the same fields, so the first one becomes a template: a pattern whose only freedom is what
stands between two bars. It cannot backtrack, and one call reads a line.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from app.domain.logs.rows import Table

MAX_NAME = 100
"""Bytes of a field's name; a longer one is not a name."""

RUNNING_AVERAGE = "_running_avg"
"""Ends the column of the second number of a pair current/average."""

_NO_FIGURES = frozenset({b"eta"})
"""Names of fields whose text nobody misses."""

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
class Field:
    """One part of a line: the pattern of it, whose groups are the columns; none when its value is no number.

    `name` is as printed, "" for a part that has none; `example` is the part. `left_out`: it has a number that is not
    read, because the log has too many names.
    """

    pattern: bytes
    columns: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    name: bytes = b""
    example: bytes = b""
    left_out: bool = False


@dataclass(slots=True)
class Template(Table):
    """Lines that have the same fields in the same order. `unread`: those that have a name but no number.

    `left_out`: how many of them have a number that is not read.
    """

    pattern: re.Pattern[bytes] = re.compile(b"")
    unread: tuple[Field, ...] = ()
    left_out: int = 0


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


def read_field(part: bytes, names: Mapping[bytes, tuple[str, float]]) -> tuple[Field, tuple[float, ...]]:
    """One part of a line and its numbers; of a pair current/average both count, of longer lists the first."""
    label, colon, rest = part.partition(b":")
    name = _RANK_NAME.sub(b"", label.strip())
    if not colon or not name or len(name) > MAX_NAME:
        return Field(_ANYTHING), ()
    column, scale = names.get(name) or (word(name.decode("utf-8", "replace")), 1.0)
    before = rb"rank-\d{1,7} ".join(map(re.escape, _RANK_NAME.split(label))) + b":"
    shape = _shape(rest, column)
    if shape is None or not column:
        return Field(_ANYTHING, name=name, example=part[:MAX_NAME]), ()
    pattern, columns, factors, values = shape
    return Field(before + pattern, columns, tuple(scale * one for one in factors), name), values


def any_but(names: Collection[bytes]) -> Field:
    """A part whose number is left out: any part that has none of these names."""
    known = b"|".join(re.escape(name) for name in sorted(names))
    return Field(rb"(?! *(?:" + known + rb") *:)" + _ANYTHING, left_out=True)


def _shape(rest: bytes, column: str) -> tuple[bytes, tuple[str, ...], tuple[float, ...], tuple[float, ...]] | None:
    """How the value of a field is written: the pattern of it, its columns, their factors, and their numbers here."""
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
        known = column.endswith("_bytes")
        name = column if known else f"{column}_{size[2].decode().lower()}b"
        return rb" *([.0-9]+) ?" + size[2] + _ANYTHING, (name,), (_BYTES[size[2]] if known else 1.0,), (value,)
    if (count := _COUNT.match(rest)) and (value := number(count[1])) is not None:
        return rb" *([.0-9]+)" + count[2] + b" *", (column,), (_THOUSANDS[count[2]],), (value,)
    return None


def make_template(
    trainer: str, head: bytes, columns: Sequence[str], fields: Sequence[Field], *, closed: bool
) -> Template:
    """The template of lines that start with the pattern `head`, whose groups are the first `columns`."""
    parts = [head]
    names = list(columns)
    scales = [1.0] * len(names)
    for one in fields:
        if any(column in names for column in one.columns):
            parts.append(_ANYTHING)
            continue
        parts.append(one.pattern)
        names.extend(one.columns)
        scales.extend(one.scales)
    pattern = rb"\|".join(parts) + (rb"\|" if closed else rb"\r*\Z")
    unread = tuple(one for one in fields if one.name and not one.columns and one.name not in _NO_FIGURES)
    left_out = sum(one.left_out for one in fields)
    return Template(trainer, tuple(names), tuple(scales), pattern=re.compile(pattern), unread=unread, left_out=left_out)
