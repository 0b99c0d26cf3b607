"""Rows as CSV, in which no text can become a spreadsheet's formula."""

import csv
import io
from collections.abc import Iterable, Sequence


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """None is an empty cell. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([_guarded(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _guarded(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
