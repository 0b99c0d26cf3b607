"""Rows as CSV, in which no text can become a spreadsheet's formula."""

import csv
import io
from collections.abc import Iterable, Sequence

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
