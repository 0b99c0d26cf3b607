"""Lists as tables: CSV and Parquet, streamed in batches so that a long list needs little memory.

Parquet needs the extra `parquet` (pyarrow), which takes 165 MB.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal, get_args

from fastapi import HTTPException, Request
from starlette.responses import Response, StreamingResponse

from app.errors import FieldError, InvalidQuery
from app.web.lists import csv_text

PARQUET = "application/vnd.apache.parquet"
Format = Literal["json", "csv", "parquet"]
CellKind = Literal["int", "float", "text", "time", "flag"]
Batches = Iterable[Sequence[Sequence[Any]]]
_FORMATS: tuple[Format, ...] = get_args(Format)
_PIECE = 1 << 18


def table_format(request: Request, *, strict: bool = False) -> Format:
    """Return the format that `format=` or `Accept` requests; JSON for others, or HTTPException 406 if `strict`.

    Raises InvalidQuery for an unknown `format`.
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
    """Return rows as a download. `columns`: names with the kinds of their values; `name`: without a suffix.

    CSV is sent while it is read. Parquet is written to a temporary file first, because its index comes last.
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
