"""Series on their way out: JSON without NaN, and CSV."""

import csv
import io
from collections.abc import Iterator

import numpy as np

from app.domain.run import FloatArray
from app.storage.run_records import Series

_ROWS_AT_ONCE = 1000

Number = float | int | None


def json_columns(series: Series) -> dict[str, list[Number]]:
    """Lists with None for what was not printed."""
    return {name: _numbers(values) for name, values in series.columns.items()}


def csv_rows(series: Series) -> Iterator[str]:
    """A header of column names, then a row an iteration; empty where nothing was printed."""
    columns = list(json_columns(series).values())
    yield _written([list(series.columns)])
    for start in range(0, len(columns[0]) if columns else 0, _ROWS_AT_ONCE):
        yield _written(zip(*(column[start : start + _ROWS_AT_ONCE] for column in columns), strict=True))


def _numbers(values: FloatArray) -> list[Number]:
    finite = np.isfinite(values)
    # Iteration 7 is 7, not 7.0, to every reader; beyond 2^53 a float64 is no exact integer.
    if np.all(~finite | ((values == np.trunc(values)) & (np.abs(values) < 2**53))):
        return [int(value) if known else None for value, known in zip(values, finite, strict=True)]
    return [float(value) if known else None for value, known in zip(values, finite, strict=True)]


def _written(rows: object) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)  # type: ignore[arg-type]
    return buffer.getvalue()
