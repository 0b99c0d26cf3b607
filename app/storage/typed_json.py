"""Frozen values of the domain to JSON and back, by their types: what is stored today can be read by tomorrow's code.

A field that a stored document does not have takes its default, and one that the type does not have is passed over.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Any], Any]
_PLAIN = frozenset((str, int, float, bool))


def to_json(value: Any) -> Any:
    """Dataclasses as objects, tuples as lists, times as ISO 8601. NaN is left to the column, which stores null."""
    if value is None or type(value) in _PLAIN:
        return value
    if (names := _names(type(value))) is not None:  # type: ignore[arg-type]  # types are hashable
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, datetime):
        return value.isoformat()
    return [to_json(entry) for entry in value] if isinstance(value, list | tuple) else value


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """Of the fields of a dataclass; None of anything else."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def from_json(kind: type[T], stored: Any) -> T:
    """A value of the dataclass `kind`. Raises TypeError when a field without a default is missing."""
    read: Reader = _reader(kind)  # type: ignore[arg-type]  # types are hashable
    made: T = read(stored)
    return made


@cache
def _reader(kind: Any) -> Reader:
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin in (Union, types.UnionType):
        return _union_reader(args)
    if origin is tuple:
        entry = _reader(args[0])
        return lambda stored: tuple(entry(one) for one in stored)
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        entry = _reader(args[1])
        return lambda stored: {key: entry(one) for key, one in stored.items()}
    if kind is float:
        return lambda stored: math.nan if stored is None else float(stored)
    return datetime.fromisoformat if kind is datetime else _frozen


def _dataclass_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = [(field.name, _reader(hints[field.name])) for field in dataclasses.fields(kind)]
    return lambda stored: kind(**{name: read(stored[name]) for name, read in readers if name in stored})


def _union_reader(args: tuple[Any, ...]) -> Reader:
    """`X | None` with one X that is not plain; a union of plain values is taken as it is stored."""
    inner = [arg for arg in args if arg is not type(None)]
    if len(inner) > 1:
        return _frozen
    read = _reader(inner[0])
    return lambda stored: None if stored is None else read(stored)


def _frozen(stored: Any) -> Any:
    return tuple(stored) if isinstance(stored, list) else stored
