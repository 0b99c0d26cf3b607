"""Domain values and external text as JSON that both databases and all readers accept."""

import dataclasses
import json
import math
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from app.errors import FieldError, InvalidMetadata

T = TypeVar("T")
Reader = Callable[[Any], Any]
_PLAIN = frozenset((str, int, float, bool))


def to_json(value: Any) -> Any:
    """Return dataclasses as objects, tuples as lists, times as ISO 8601. NaN is left to the column: it stores null.

    Fields with `SPARSE` metadata are omitted when they have their default.
    """
    kind: Any = type(value)
    if value is None or kind in _PLAIN:
        return value
    if (names := _names(kind)) is not None:
        entries = {name: to_json(getattr(value, name)) for name in names[0]}
        for name, default in names[1]:
            if (entry := getattr(value, name)) != default:
                entries[name] = to_json(entry)
        return entries
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, datetime):
        return value.isoformat()
    return [to_json(entry) for entry in value] if isinstance(value, list | tuple) else value


@cache
def _names(kind: Any) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]] | None:
    """Return the fields of a dataclass that are always stored, and the sparse ones with their defaults; None for
    others."""
    if not dataclasses.is_dataclass(kind):
        return None
    fields = dataclasses.fields(kind)
    sparse = tuple((field.name, field.default) for field in fields if "sparse" in field.metadata)
    return tuple(field.name for field in fields if "sparse" not in field.metadata), sparse


def from_json(kind: type[T], stored: Any) -> T:
    """Return a value of the dataclass `kind`. Raises TypeError if a field without a default is missing."""
    read: Reader = _reader(kind)  # type: ignore[arg-type]  # types are hashable
    value: T = read(stored)
    return value


@cache
def _reader(kind: Any) -> Reader:
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin in (Union, types.UnionType):
        return _union_reader(args)
    if origin is tuple:
        entry = _reader(args[0])
        return lambda stored: tuple(entry(item) for item in stored)
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        entry = _reader(args[1])
        return lambda stored: {key: entry(item) for key, item in stored.items()}
    if kind is float:
        return lambda stored: math.nan if stored is None else float(stored)
    return datetime.fromisoformat if kind is datetime else frozen


def _dataclass_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = [(field.name, _reader(hints[field.name])) for field in dataclasses.fields(kind)]
    return lambda stored: kind(**{name: read(stored[name]) for name, read in readers if name in stored})


def _union_reader(args: tuple[Any, ...]) -> Reader:
    """Return the reader of `X | None` for one non-plain X. A union of plain values is used as stored."""
    inner = [arg for arg in args if arg is not type(None)]
    if len(inner) > 1:
        return frozen
    read = _reader(inner[0])
    return lambda stored: None if stored is None else read(stored)


def frozen(stored: Any) -> Any:
    return tuple(stored) if isinstance(stored, list) else stored


# --- JSON columns: numbers that JSON lacks are stored as null.
#
# SQLite stores a NaN and then cannot query the document; PostgreSQL refuses to store it.


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def column_text(value: Any) -> str:
    """Return a value as the text of a JSON column, with null for NaN and the infinities."""
    try:
        return _encode(value).decode()
    except (TypeError, ValueError):  # a numpy number, a key that is not text, an unpaired surrogate
        return dumps(value)


def column_value(text: str | bytes) -> Any:
    try:
        return _decode(text)
    except msgspec.MsgspecError:  # what `dumps` wrote, and a NaN of an earlier version
        return json.loads(text)


def dumps(value: Any) -> str:
    """Serialise like `json.dumps`, with null for NaN and infinity."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


# --- JSON for all databases and readers: no NaN, no lone surrogates, no NUL.

_MAX_DEPTH = 32


def read_json(text: bytes) -> Any:
    """Return the document in `text`. Raises InvalidMetadata naming the invalid place."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _invalid("meta", "is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _invalid("meta", f"is not JSON: {error.msg} at {where}") from error
    except RecursionError as error:
        raise _invalid("meta", "is nested too deeply") from error
    except ValueError as error:
        # Python refuses to convert an integer of thousands of digits, and its message advises to change Python.
        reason = "an integer has too many digits" if "set_int_max_str_digits" in str(error) else str(error)
        raise _invalid("meta", f"is not JSON: {reason}") from error
    _check(document, "meta", 0)
    return document


def sorted_json(document: Any) -> bytes:
    """Return the canonical spelling of a document, for hashing."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def storable(value: Any) -> Any:
    """Return `value` in JSON types: arrays as lists, non-finite numbers as None, text without NUL."""
    match value:
        case None | bool() | int():
            return value
        case float() | np.floating():
            return float(value) if math.isfinite(value) else None
        case np.bool_() | np.integer():
            return value.item()
        case str():
            return value.replace("\0", "�").encode("utf-8", "replace").decode("utf-8")
        case Mapping():
            return {storable(str(key)): storable(entry) for key, entry in value.items()}
        case list() | tuple() | set() | frozenset() | np.ndarray():
            return [storable(entry) for entry in value]
        case _:
            raise TypeError(f"{type(value).__name__} is not a JSON value")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number; omit the field, or send null")


def _check(value: Any, path: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise _invalid(path, f"is nested more than {_MAX_DEPTH} levels deep")
    match value:
        case str():
            _check_text(value, path)
        case float() if not math.isfinite(value):
            raise _invalid(path, "is too large a number")
        case dict():
            for name, entry in value.items():
                _check_text(name, path)
                _check(entry, f"{path}.{name}", depth + 1)
        case list():
            for position, entry in enumerate(value):
                _check(entry, f"{path}[{position}]", depth + 1)


def _check_text(value: str, path: str) -> None:
    if "\0" in value or (not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value)):
        raise _invalid(path, "contains a character that is not text (NUL or an unpaired surrogate)")


def _invalid(field: str, message: str) -> InvalidMetadata:
    return InvalidMetadata(f"{field} {message}. Nothing was saved.", (FieldError(field, message),))
