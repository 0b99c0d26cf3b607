"""Lists: what their query string may say, and their rows as CSV. Pages, API and exports of a list share one query."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

from fastapi import Depends, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response, StreamingResponse

from app.errors import FieldError, InvalidQuery

# --- The query of a list. The query string is the whole state of its page, so it is checked as input.


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotates a filter that has only these values."""

    values: Sequence[str]

    def problem(self, value: str) -> str:
        return "" if value in self.values else f"must be one of {', '.join(self.values)}, not {value[:40]!r}"


@dataclass(frozen=True, slots=True)
class Passes:
    """Annotates a filter with a check of its own: `problem` returns what is wrong with a value, or an empty text."""

    problem: Callable[[str], str]


class FilterQuery(BaseModel):
    """Filters of a page or an API call, one text each; an empty one means its default, which usually means any.

    Subclasses declare the filters, with `OneOf` or `Passes` where not every text is allowed. Creating one raises
    InvalidQuery with an error for each bad filter.
    """

    model_config = ConfigDict(frozen=True)

    refusal: ClassVar[str] = "Invalid filter."
    max_text: ClassVar[int] = 300
    not_narrowing: ClassVar[tuple[str, ...]] = ("sort",)
    """Declared names that order the list or are shown as tabs; in addresses they come last."""
    page_defaults: ClassVar[Mapping[str, str]] = {}
    """Where the page means something else than the API by an address that does not name a filter."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(name for name in cls.model_fields if name not in ListQuery.model_fields)

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Return the query of a page's address, in which other names are left alone. Raises InvalidQuery."""
        given = {name: value for name in cls.names() if (value := params.get(name, "").strip())}
        return cls(**{**cls.page_defaults, **given})

    @property
    def active(self) -> dict[str, str]:
        """The filters that narrow the list, by name."""
        return {name: value for name, value in self._changed().items() if name not in self.not_narrowing}

    def query(self, page: int = 1, **changes: str) -> str:
        """Return the query string with `changes` applied; defaults are left out, so that addresses stay short."""
        pairs = self.model_copy(update=changes)._changed()
        last = {name: pairs.pop(name) for name in self.not_narrowing if name in pairs}
        return urlencode({**pairs, **last} | ({"page": str(page)} if page > 1 else {}))

    def without(self, name: str) -> str:
        """Return the query string with one filter taken away."""
        return self.model_copy(update={name: self._default(name)}).query()

    def sorted_by(self, name: str, descending_first: bool = True) -> str:
        """Return the value of `sort` that a click on the column `name` asks for."""
        first, second = (f"-{name}", name) if descending_first else (name, f"-{name}")
        return second if getattr(self, "sort", "") == first else first

    def _changed(self) -> dict[str, str]:
        values: dict[str, str] = {name: getattr(self, name) for name in self.names()}
        return {name: value for name, value in values.items() if value and value != self._default(name)}

    @classmethod
    def _default(cls, name: str) -> str:
        default: str = cls.page_defaults.get(name, cls.model_fields[name].default)
        return default

    @model_validator(mode="before")
    @classmethod
    def _strip(cls, values: dict[str, Any]) -> dict[str, Any]:
        texts = {name: values[name].strip() for name in cls.names() if isinstance(values.get(name), str)}
        others = {name: value for name, value in values.items() if name not in texts}
        return others | {name: text for name, text in texts.items() if text}

    @model_validator(mode="after")
    def _check(self) -> Self:
        errors = [FieldError(name, problem) for name in self.names() if (problem := self._problem(name))]
        if errors:
            raise InvalidQuery(self.refusal, tuple(errors))
        return self

    def _problem(self, name: str) -> str:
        value: str = getattr(self, name)
        if not value:
            return ""
        checks = [check for check in type(self).model_fields[name].metadata if isinstance(check, (OneOf, Passes))]
        for check in checks:
            if problem := check.problem(value):
                return problem
        if len(value) > self.max_text:
            return f"is longer than {self.max_text} characters"
        # PostgreSQL refuses NUL in a text; no name holds any control character.
        return "holds a control character" if any(ord(c) < 32 for c in value) else ""


class ListQuery(FilterQuery):
    """A query of a list in pages, which count from 1. The address of a page does not choose `page_size`."""

    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(50, ge=1, le=200)

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        text = params.get("page", "").strip() or "1"
        query = super().from_params(params)
        if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
            error = FieldError("page", f"must be a whole number from 1, not {text[:40]!r}")
            raise InvalidQuery(cls.refusal, (error,))
        return query.model_copy(update={"page": int(text)})

    def address(self, path: str) -> str:
        """Return the address of this page of the list at `path`."""
        query = self.query(self.page)
        return f"{path}?{query}" if query else path


# --- Checks of single parameters for the API: what it does not know is refused by name, and never read as "any".


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


def csv_download(rows: str | Iterable[str], filename: str) -> Response:
    """Return lines of CSV as a file to download, in pieces where `rows` are pieces."""
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    if isinstance(rows, str):
        return Response(rows, media_type="text/csv", headers=headers)
    return StreamingResponse(rows, media_type="text/csv", headers=headers)


def _guarded(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = f"'{cell}" if cell.startswith(_BEGIN_FORMULAS) else cell
    # Python 3.11 quotes a line feed but not a carriage return, after which a spreadsheet begins a new row.
    return text.replace("\r\n", "\n").replace("\r", "\n")
