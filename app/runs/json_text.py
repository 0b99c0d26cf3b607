"""JSON that every database and every reader takes: no NaN, no lone surrogates, no NUL."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from app.errors import FieldError, InvalidMetadata

_MAX_DEPTH = 32


def read_json(text: bytes) -> Any:
    """The document in `text`. Raises InvalidMetadata naming the place that is not JSON, or cannot be stored."""
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
        raise _invalid("meta", f"is not JSON: {error}") from error
    _check(document, "meta", 0)
    return document


def sorted_json(document: Any) -> bytes:
    """One spelling for equal documents, to be hashed."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def storable(value: Any) -> Any:
    """`value` in the types of JSON: arrays as lists, numbers that are not finite as None, text without NUL."""
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
            raise TypeError(f"{type(value).__name__} is no JSON value")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number; leave the field out, or write null")


def _check(value: Any, path: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise _invalid(path, f"is nested more than {_MAX_DEPTH} deep")
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
        raise _invalid(path, "holds a character that is no text (NUL, or half of a surrogate pair)")


def _invalid(field: str, message: str) -> InvalidMetadata:
    return InvalidMetadata(f"{field} {message}. Nothing was kept.", (FieldError(field, message),))
