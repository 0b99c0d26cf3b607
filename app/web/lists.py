"""Checks of a query string for the API: what it does not know is refused by name, and never read as "any"."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastapi import Depends, Request
from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.errors import FieldError, InvalidQuery


def only_these(*names: str) -> Any:
    """A dependency of a route: a parameter by any other name is InvalidQuery that names those there are."""

    def check(request: Request) -> None:
        unknown = sorted({name for name in request.query_params if name not in names})
        if unknown:
            known = f"is no parameter of this call. Those are: {', '.join(names)}"
            raise InvalidQuery(
                f"There is no {' and no '.join(name[:40] for name in unknown[:5])}.",
                tuple(FieldError(name[:40], known) for name in unknown[:5]),
            )

    return Depends(check)


def one_of(names: Sequence[str]) -> tuple[AfterValidator, WithJsonSchema]:
    """Of a text: empty, or one of `names`, which the refusal and the schema list."""
    return AfterValidator(_check_of(names)), WithJsonSchema({"type": "string", "enum": ["", *names]})


def _check_of(names: Sequence[str]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value and value not in names:
            told = {"names": ", ".join(names), "value": repr(value[:40])}
            raise PydanticCustomError("choice", "must be one of {names}, not {value}", told)
        return value

    return check


# --- Rows as CSV, in which no text can become a spreadsheet's formula.

_BEGIN_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Spreadsheets pass over control characters at the beginning, and East Asian ones read full-width signs, too."""


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return the rows as lines. None is an empty cell, and a text that would be a formula begins with an apostrophe."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([_guarded(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _guarded(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = f"'{cell}" if cell.startswith(_BEGIN_FORMULAS) else cell
    # Python 3.11 quotes a line feed but not a carriage return, after which a spreadsheet begins a new row.
    return text.replace("\r\n", "\n").replace("\r", "\n")
