"""Reads iterations from any tool: JSON, JSON lines or CSV with a row or a list for each column, and Bencher's JSON.

Shapes of JSON: `{"columns": {"iteration": [1, 2], "step_time_ms": [...]}, "units": {...}}`, as our API returns series;
`[{"iteration": 1, "step_time_ms": 812.5}, ...]`, also under a key such as `iterations` or `log_history`; and Bencher
Metric Format, `{"benchmark": {"step_time_ms": {"value": 812.5}}}`. Column names as in `logs/line_template.py`.
`docs/iterations.schema.json` describes them.
"""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal

import numpy as np

from app.domain.documents.document import MAX_JSON_BYTES, Document, read_json
from app.domain.logs.line_template import KNOWN, Column, column_of
from app.domain.numbers import plural
from app.domain.run import FloatArray

MAX_ROWS = 1_000_000
MAX_COLUMNS = 200
MAX_CELLS = 8_000_000
"""Values of all columns together: 64 MB."""
_SHOWN = 5
"""Problems that are listed; the rest are counted."""
_MAX_LINE = 1 << 20

_ROW_KEYS = ("iterations", "series", "rows", "data", "history", "log_history", "steps")
_WITHOUT_VALUES = ("", "null", "none", "nan", "-", "n/a")

Table = tuple[list[str], Sequence[Mapping[str, object]], Mapping[str, str]]
"""Column names in order, rows with any values, and stated units."""


def read_iteration_table(text: str | bytes) -> Document:
    """Read the rows of a JSON, JSON-lines or CSV document. Raises ValueError with a sentence for anything else."""
    data = text.encode() if isinstance(text, str) else text
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"The document is larger than {MAX_JSON_BYTES // 1024**2} MB. Send fewer columns, or a log.")
    first = data.lstrip()[:1]
    problems = _Problems()
    if first in (b"{", b"["):
        names, rows, units = _json_rows(data, problems)
    else:
        names, rows, units = _csv_rows(data.decode("utf-8-sig", "replace"), problems)
    return _document(names, rows, units, problems)


class _Problems:
    """Collects sentences about rows and columns, a few in full."""

    def __init__(self) -> None:
        self._listed: list[str] = []
        self._more = 0

    def add(self, sentence: str) -> None:
        if len(self._listed) < _SHOWN:
            self._listed.append(sentence)
        else:
            self._more += 1

    def sentences(self) -> tuple[str, ...]:
        more = [f"{self._more:,} more problems of this kind are not listed."] if self._more else []
        return (*self._listed, *more)


# --- Rows of each shape: column names in order, rows with any values, units.


def _json_rows(data: bytes, problems: _Problems) -> Table:
    try:
        document = read_json(data)
    except ValueError:
        return _json_lines(data, problems)
    units: Mapping[str, str] = {}
    if isinstance(document, Mapping):
        stated = document.get("units")
        units = {str(name): str(unit) for name, unit in stated.items()} if isinstance(stated, Mapping) else {}
        columns = document.get("columns")
        if isinstance(columns, Mapping):
            return _from_columns(columns, units)
        if (
            rows := next((document[key] for key in _ROW_KEYS if isinstance(document.get(key), list)), None)
        ) is not None:
            document = rows
        else:
            document = [document]
    if not isinstance(document, list):
        raise ValueError('The JSON is neither rows nor columns. Send [{"iteration": 1, "step_time_ms": 812.5}, ...].')
    return _from_rows(document, units, problems)


def _json_lines(data: bytes, problems: _Problems) -> Table:
    rows: list[object] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line[:_MAX_LINE]))
        except (ValueError, RecursionError):
            problems.add(f"Line {number} is not JSON and was skipped.")
    return _from_rows(rows, {}, problems)


def _from_columns(columns: Mapping[object, object], units: Mapping[str, str]) -> Table:
    lists = {str(name): values for name, values in columns.items() if isinstance(values, list)}
    lengths = {len(values) for values in lists.values()}
    if len(lengths) != 1:
        raise ValueError("The lists under `columns` must have one value for each iteration; their lengths differ.")
    names = [name for name in lists if name not in ("log_line", "log_file", "step_time_true_ms")]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*(lists[name] for name in names), strict=True)]
    return names, rows, units


def _from_rows(rows: Sequence[object], units: Mapping[str, str], problems: _Problems) -> Table:
    records: list[Mapping[str, object]] = []
    names: dict[str, None] = {}
    for number, row in enumerate(rows, 1):
        if isinstance(row, Mapping):
            records.append(row)
            names.update(dict.fromkeys(map(str, islice(row, MAX_COLUMNS))))
        else:
            problems.add(f"Row {number} is not an object and was skipped.")
        if len(names) > 10 * MAX_COLUMNS:
            raise ValueError(f"The rows have more than {10 * MAX_COLUMNS:,} different names. Send iterations only.")
    return list(names), records, units


def _csv_rows(text: str, problems: _Problems) -> Table:
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    head = next(lines, "")
    separator = max(",;\t", key=head.count)
    try:
        reader = csv.reader(io.StringIO("\n".join([head, *lines])), delimiter=separator)
        names = [name.strip() for name in next(reader, [])]
        rows = []
        for number, cells in enumerate(islice(reader, MAX_ROWS + 1), 2):
            if len(cells) != len(names):
                problems.add(f"Row {number} has {plural(len(cells), 'cell')} instead of {len(names)}.")
            rows.append(dict(zip(names, cells, strict=False)))
    except csv.Error as error:
        raise ValueError(f"This is not CSV: {error}.") from None
    return names, rows, {}


# --- From named values to columns in our units.


def _document(
    names: Sequence[str], rows: Sequence[Mapping[str, object]], units: Mapping[str, str], problems: _Problems
) -> Document:
    columns = _columns(names, units, problems)
    if not any(column.name == "step_time_ms" for column in columns.values()):
        if not names:
            raise ValueError("There are no columns: this is neither CSV with a header nor JSON with names.")
        raise ValueError(
            f"No column is a step time with its unit, such as `step_time_ms` or `step_time_s`. Columns are "
            f"{', '.join(names[:10])}. Rename one, or state `units` (an import: `--column NAME=step_time_s`)."
        )
    if len(rows) > MAX_ROWS or len(rows) * len(columns) > MAX_CELLS:
        raise ValueError(f"There are {len(rows):,} rows of {len(columns)} columns; at most {MAX_ROWS:,} rows are read.")
    values = {printed: _numbers(rows, printed, column, problems) for printed, column in columns.items()}
    by_name: dict[str, FloatArray] = {}
    for printed, column in columns.items():
        if column.name in by_name:  # two names of one value: the first one counts, its gaps are filled
            by_name[column.name] = np.where(np.isnan(by_name[column.name]), values[printed], by_name[column.name])
        else:
            by_name[column.name] = values[printed]
    iterations = by_name.pop("iteration", np.arange(1.0, len(rows) + 1))
    usable = np.isfinite(iterations) & (np.abs(iterations) < 10**12)
    if skipped := int((~usable).sum()):
        problems.add(f"{skipped:,} rows without an iteration were left out.")
    # Of equal iterations, the later row counts; rows of one iteration with different columns complete each other.
    order, place = np.unique(iterations[usable], return_inverse=True)
    table: dict[str, FloatArray] = {"iteration": order}
    for name, stated in by_name.items():
        is_stated = ~np.isnan(stated[usable])
        table[name] = np.full(len(order), np.nan)
        table[name][place[is_stated]] = stated[usable][is_stated]
    table = {"iteration": table["iteration"], "step_time_ms": table.pop("step_time_ms"), **table}
    timed = np.isfinite(table["step_time_ms"])
    if not timed.any():
        raise ValueError("No row has both an iteration and a step time.")
    table["step_time_true_ms"] = table["step_time_ms"].copy()
    return Document("iterations", {}, table, {}, problems.sentences())


def _columns(names: Sequence[str], units: Mapping[str, str], problems: _Problems) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for name in names[:MAX_COLUMNS]:
        try:
            columns[name] = column_of(name, units.get(name, ""))
        except ValueError as problem:
            problems.add(f"A column was ignored: {problem}.")
    if len(names) > MAX_COLUMNS:
        problems.add(f"Only the first {MAX_COLUMNS} of {len(names):,} columns were read.")
    return columns


def _numbers(rows: Sequence[Mapping[str, object]], name: str, column: Column, problems: _Problems) -> FloatArray:
    """Return the values of a column in our unit; NaN without one. Text is only counted: labels are valid."""
    values = np.full(len(rows), np.nan)
    wrong = 0
    example = ""
    for index, row in enumerate(rows):
        raw = row.get(name)
        number = _number(raw)
        if number is not None:
            values[index] = column.value(number)
        elif raw is not None and str(raw).strip().lower() not in _WITHOUT_VALUES:
            wrong += 1
            example = example or str(raw)[:40]
    if wrong and wrong < len(rows):
        problems.add(f"Column {name[:60]!r}: {wrong:,} values are not numbers, such as {example!r}.")
    return values


def _number(raw: object) -> float | None:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        number = float(raw)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


# --- Bencher Metric Format: measures of one benchmark, without iterations.


def read_bencher_metrics(text: str | bytes) -> Document:
    """Read the measures of one benchmark as one iteration. Raises ValueError for other documents.

    A single value has no interval, so such a run is shown and searched but not judged.
    """
    document = read_json(text)
    if not isinstance(document, Mapping) or not document:
        raise ValueError('This is not Bencher Metric Format: {"benchmark": {"step_time_ms": {"value": 812.5}}}.')
    if len(document) > 1:
        raise ValueError(
            f"The document has {len(document):,} benchmarks, and each run can have only one. Send each in a separate "
            "file."
        )
    ((benchmark, measures),) = document.items()
    if not isinstance(measures, Mapping):
        raise ValueError(f"The benchmark {str(benchmark)[:100]!r} has no measures.")
    row = {
        str(name): measure.get("value")
        for name, measure in islice(measures.items(), MAX_COLUMNS)
        if isinstance(measure, Mapping)
    }
    table = _document(list(row), [row], {}, _Problems())
    facts = {"job": str(benchmark)[:300]}
    return Document("bencher metrics", {}, table.columns, facts, table.problems)


# --- Recognises both kinds from the first bytes of a document.

_BENCHER = re.compile(
    rb'\A\s*\{\s*"[^"\\]{1,300}"\s*:\s*\{\s*"[^"\\]{1,100}"\s*:\s*\{\s*"(?:value|lower_value|upper_value)"\s*:'
)
_KEY = re.compile(rb'"([^"\\]{1,200})"\s*:')
_NAMES_REACH = 20_000
"""Bytes that hold all names: those of the first rows."""


def recognise_iterations(head: bytes) -> Literal["iterations", "bencher metrics"] | None:
    """Return the kind of a document whose first names include an iteration and a step time, or of Bencher's JSON.

    CSV whose header has an iteration and another known column is one without a step time, whose reader names that.
    """
    if _BENCHER.match(head[:2000]):
        return "bencher metrics"
    stripped = head.lstrip()[:_NAMES_REACH]
    is_json = stripped[:1] in (b"{", b"[")
    if is_json:
        names = [name.decode("utf-8", "replace") for name in dict.fromkeys(_KEY.findall(stripped))]
    else:
        first = next((line for line in stripped.split(b"\n")[:20] if not line.startswith(b"#")), b"")
        separator = max((b",", b";", b"\t"), key=first.count)
        names = [name.decode("utf-8", "replace").strip().strip('"') for name in first.split(separator)]
    names = names[:MAX_COLUMNS] if len(names) >= 2 else []
    columns = set()
    for name in names:
        try:
            columns.add(column_of(name).name)
        except ValueError:
            columns.add("step_time_ms")  # a step time whose unit is stated separately, or is missing
    is_table = "step_time_ms" in columns or (not is_json and not columns.isdisjoint(KNOWN))
    return "iterations" if "iteration" in columns and is_table else None
