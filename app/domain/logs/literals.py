"""Reads the Python values that trainers print with `str()` or `repr()`: `None`, `1e-05`, `['attn', 'moe']`, enums."""

import ast
import math
import re

from app.domain.run import Scalar, Value
from app.domain.text import clean

MAX_TEXT = 2000
"""Characters kept of one value."""

MAX_ITEMS = 2000
"""Items of a list; a longer one is kept as text. Lists with an item for each layer have up to 130."""

_CONSTANTS = {"None": None, "True": True, "False": False}
_WHOLE = re.compile(r"[-+]?\d{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(?:\d{1,30}\.\d{0,30}|\.\d{1,30}|\d{1,30}(?=[eE]))(?:[eE][-+]?\d{1,3})?\Z")
_ENUM = re.compile(r"<\w{1,60}\.(\w{1,60})(?:: [^<>]{0,60})?>\Z")
_WORDS = re.compile(r"\[[\w ,]+\]\Z")
_MEMBER = re.compile(r"\w{1,60}\.(\w{1,60})\Z")


def read_literal(text: str) -> Value:
    """The value that `text` spells; lists become tuples, enums the name of their member, the rest stays text."""
    if text in _CONSTANTS:  # most of what an arguments block has
        return _CONSTANTS[text]
    text = text.strip()[:MAX_TEXT]
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[:1].isdigit() or text[:1] in ("-", "+", "."):
        return _read_number(text)
    if text[:1] in ("[", "(", "{"):
        return _read_items(text)
    if text[:1] in ("'", '"'):
        return _read_quoted(text)
    enum = _ENUM.match(text)
    return enum[1] if enum else clean(text)


def _read_number(text: str) -> Value:
    if _WHOLE.match(text):
        return int(text)
    if _FLOAT.match(text):
        value = float(text)
        return value if math.isfinite(value) else text
    return clean(text)


def _read_items(text: str) -> Value:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return _bare_words(text)
    if isinstance(value, list | tuple | set) and len(value) <= MAX_ITEMS:
        items = [_scalar(item) for item in value]
        if None not in items:
            return tuple(item for item in items if item is not None)
    return clean(text)


def _bare_words(text: str) -> Value:
    """A list without quotes: `[<CudaGraphModule.attn: 1>]`, `[CudaGraphModule.attn]`, or a shell's `[attn moe]`."""
    if _WORDS.match(text):
        return tuple(text[1:-1].replace(",", " ").split())
    members = [_ENUM.match(item.strip()) or _MEMBER.match(item.strip()) for item in text[1:-1].split(",")]
    return tuple(member[1] for member in members if member) if all(members) else clean(text)


def _read_quoted(text: str) -> Value:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError):
        value = text
    return clean(value if isinstance(value, str) else text)


def _scalar(value: object) -> Scalar | None:
    """`value` when a contract value can hold it. Integers beyond 64 bits cannot be stored."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else None
