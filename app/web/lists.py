"""Queries of lists for pages, API calls and exports; CSV and Parquet."""

import csv
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, BinaryIO, ClassVar, Literal, Self, get_args
from urllib.parse import urlencode

from fastapi import Depends, HTTPException, Request
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from starlette.responses import Response, StreamingResponse

from app.errors import FieldError, InvalidQuery

_REFUSAL = "Invalid filter."


def invalid_filter(name: str, message: str) -> InvalidQuery:
    return InvalidQuery(_REFUSAL, (FieldError(name, message),))


_ALSO_CALLED = {
    "limit": "page_size", "per_page": "page_size", "size": "page_size", "count": "page_size", "badge": "verdict",
}  # fmt: skip
"""Names of other APIs, and of earlier versions, for our parameters."""


def meant_name(name: str, names: Iterable[str]) -> str:
    """Return the valid name that is meant or most similar; empty without one."""
    valid = [*names]
    meant = _ALSO_CALLED.get(name.lower(), "")
    close = [meant] if meant in valid else get_close_matches(name.lower(), valid, n=1, cutoff=0.6)
    return close[0] if close else ""


def did_you_mean(meant: str) -> str:
    """Return ` (did you mean page_size?)`; empty without a name."""
    return f" (did you mean {meant}?)" if meant else ""


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotation of a filter that accepts only these values."""

    values: Sequence[str]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "enum": ["", *self.values]}

    def problem(self, value: str) -> str:
        return "" if value in self.values else f"must be one of {', '.join(self.values)}; {value[:40]!r} is not"


@dataclass(frozen=True, slots=True)
class Passes:
    """Annotation of a filter with a custom check. `problem` returns the error of a value; empty if it is valid."""

    problem: Callable[[str], str]


class FilterQuery(BaseModel):
    """Filters of a page or an API call, each a text. Empty means the default, which usually is any value.

    Subclasses declare the filters, with `OneOf` or `Passes` for those that do not accept any text. Creating an instance
    raises InvalidQuery with an error for each invalid filter.
    """

    model_config = ConfigDict(frozen=True)

    max_text: ClassVar[int] = 300
    not_narrowing: ClassVar[tuple[str, ...]] = ("sort",)
    """Names of filters that only sort the list or select a tab. They come last in addresses."""
    refuses_unknown: ClassVar[bool] = False
    """Whether unknown filter names are errors, which suggest the most similar name."""
    further_names: ClassVar[tuple[str, ...]] = ()
    """Names of other query parameters that are accepted."""
    page_defaults: ClassVar[Mapping[str, str]] = {}
    """Defaults of the page, if they differ from those of the API."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(name for name in cls.model_fields if name not in ListQuery.model_fields)

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Return the query of a page's address, ignoring other parameters. Raises InvalidQuery."""
        cls.check_names(params)
        values = {name: value for name in cls.names() if (value := params.get(name, "").strip())}
        return cls(**{**cls.page_defaults, **values})

    @classmethod
    def check_names(cls, params: Iterable[str]) -> None:
        """Raise InvalidQuery for unknown filter names, each with the most similar name."""
        filters = (*cls.model_fields, *cls.further_names)
        unknown = [name for name in params if name not in filters] if cls.refuses_unknown else []
        if unknown:
            meant = [(name[:40], meant_name(name, filters)) for name in unknown[:5]]
            raise InvalidQuery(
                _REFUSAL,
                tuple(FieldError(name, f"is not a filter{did_you_mean(valid)}", valid) for name, valid in meant),
            )

    @property
    def active(self) -> dict[str, str]:
        """Return the filters that narrow the list, by name."""
        return {name: value for name, value in self._changed().items() if name not in self.not_narrowing}

    def query(self, page: int = 1, **changes: str) -> str:
        """Return the query string with `changes` applied, without defaults."""
        pairs = self.model_copy(update=changes)._changed()
        last = {name: pairs.pop(name) for name in self.not_narrowing if name in pairs}
        return urlencode({**pairs, **last} | ({"page": str(page)} if page > 1 else {}))

    def dropping(self, name: str) -> Self:
        """Return the first page of the list without one filter."""
        return self.model_copy(update={name: self._default(name), "page": 1})

    def without(self, name: str) -> str:
        """Return the query string without one filter."""
        return self.dropping(name).query()

    def sorted_by(self, name: str, descending_first: bool = True) -> str:
        """Return the value of `sort` after a click on the column `name`."""
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
            raise InvalidQuery(_REFUSAL, tuple(errors))
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
        # PostgreSQL rejects NUL in texts, and no name contains control characters.
        return "contains a control character" if any(ord(c) < 32 for c in value) else ""


class ListQuery(FilterQuery):
    """The query of a list with pages, counted from 1. Addresses of web pages never have `page_size`."""

    page: int = Field(1, ge=1, le=1_000_000)
    page_size: int = Field(50, ge=1, le=200)

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        text = params.get("page", "").strip() or "1"
        query = super().from_params(params)
        if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
            raise invalid_filter("page", f"must be a whole number from 1, not {text[:40]!r}")
        return query.model_copy(update={"page": int(text)})

    def address(self, path: str) -> str:
        query = self.query(self.page)
        return f"{path}?{query}" if query else path


# --- Check of API parameters: unknown ones are errors, not ignored.


def only_parameters(*names: str) -> Any:
    """Return a dependency that raises InvalidQuery for query parameters with other names."""

    def check(request: Request) -> None:
        unknown = sorted({name for name in request.query_params if name not in names})[:5]
        if unknown:
            raise InvalidQuery(
                f"Unknown parameter: {', '.join(name[:40] for name in unknown)}.",
                tuple(
                    FieldError(
                        name[:40],
                        f"is not a parameter of this call{did_you_mean(meant_name(name, names)) or '.'} "
                        f"Its parameters are {', '.join(names)}",
                    )
                    for name in unknown
                ),
            )

    return Depends(check)


# --- CSV. No text can become a formula in a spreadsheet.

_BEGIN_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Spreadsheets skip leading control characters, and some also accept the full-width signs of East Asian scripts."""


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return the rows as CSV. None is an empty cell; an apostrophe precedes texts that would be formulas.

    Times are in ISO 8601.
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([_guarded(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def csv_download(rows: str | Iterable[str], filename: str) -> Response:
    """Return CSV text as a download. Streamed if `rows` is an iterable of pieces."""
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    if isinstance(rows, str):
        return Response(rows, media_type="text/csv", headers=headers)
    return StreamingResponse(rows, media_type="text/csv", headers=headers)


def _guarded(cell: object) -> object:
    if isinstance(cell, datetime):
        return cell.isoformat()
    if not isinstance(cell, str):
        return cell
    text = f"'{cell}" if cell.startswith(_BEGIN_FORMULAS) else cell
    # Python 3.11 quotes line feeds but not carriage returns, at which spreadsheets also begin a new row.
    return text.replace("\r\n", "\n").replace("\r", "\n")


# --- Downloads of lists as CSV or Parquet, streamed in batches, so that a long list needs little memory. Parquet needs
# the extra `parquet` (pyarrow), which takes 165 MB.

PARQUET = "application/vnd.apache.parquet"
Format = Literal["json", "csv", "parquet"]
CellKind = Literal["int", "float", "text", "time", "flag"]
Batches = Iterable[Sequence[Sequence[Any]]]
_FORMATS: tuple[Format, ...] = get_args(Format)
_PIECE = 1 << 18


def table_format(request: Request, *, strict: bool = False) -> Format:
    """Return the format that `format=` or `Accept` requests; JSON if none matches.

    Raises InvalidQuery for an unknown `format`. `strict`: raise HTTPException 406 for an `Accept` that does not match.
    """
    if stated := request.query_params.get("format"):
        if stated not in _FORMATS:
            raise InvalidQuery(
                f"Unknown format {stated[:50]!r}. Formats are {', '.join(_FORMATS)}.",
                (FieldError("format", f"must be one of {', '.join(_FORMATS)}"),),
            )
        return stated
    accept = request.headers.get("accept", "*/*")
    if "text/csv" in accept:
        return "csv"
    if PARQUET in accept:
        return "parquet"
    if not strict or any(accepted in accept for accepted in ("application/json", "application/*", "*/*")):
        return "json"
    raise HTTPException(406, f"This list is available as application/json, text/csv or {PARQUET}.")


def table_answer(
    chosen: Literal["csv", "parquet"], columns: Mapping[str, CellKind], batches: Batches, name: str
) -> Response:
    """Return rows as a download. `columns`: name -> kind of its values. `name`: of the file, without a suffix.

    CSV is sent while rows are read. Parquet is written to a temporary file first, because its index comes last.
    """
    headers = {"Content-Disposition": f'attachment; filename="{name}.{chosen}"', "Vary": "Accept"}
    if chosen == "csv":
        return StreamingResponse(_csv(columns, batches), media_type="text/csv", headers=headers)
    file = tempfile.TemporaryFile()  # noqa: SIM115  the answer closes it
    try:
        _write_parquet(file, columns, batches)
    except BaseException:
        file.close()
        raise
    headers["Content-Length"] = str(file.tell())
    file.seek(0)
    return StreamingResponse(_read(file), media_type=PARQUET, headers=headers)


def _csv(columns: Mapping[str, CellKind], batches: Batches) -> Iterator[str]:
    yield csv_text([list(columns)])
    for batch in batches:
        if batch:
            yield csv_text(batch)


def _write_parquet(file: BinaryIO, columns: Mapping[str, CellKind], batches: Batches) -> None:
    try:
        import pyarrow  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415
    except ModuleNotFoundError:
        detail = "This service has no pyarrow, so it offers no Parquet. Ask its administrator to install the extra "
        raise HTTPException(406, f"{detail}`parquet`, or request text/csv.") from None
    types = {
        "int": pyarrow.int64(), "float": pyarrow.float64(), "text": pyarrow.string(), "flag": pyarrow.bool_(),
        "time": pyarrow.timestamp("us", tz="UTC"),
    }  # fmt: skip
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            values = list(zip(*batch, strict=True)) if batch else [() for _ in columns]
            arrays = [pyarrow.array(column, type=field.type) for column, field in zip(values, schema, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _read(file: BinaryIO) -> Iterator[bytes]:
    with file:
        yield from iter(lambda: file.read(_PIECE), b"")
