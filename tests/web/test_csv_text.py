"""Text in a table for a spreadsheet: no cell is a formula."""

import csv
import io

from app.web.lists import csv_text

FORMULAS = ("=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1+1", "＋1", "－1", "＠SUM(1)")
HARMLESS = ("", "a=1", "1-2", " =1", "run 7", "two\r=lines")


def test_what_a_spreadsheet_would_take_for_a_formula_begins_with_an_apostrophe() -> None:
    written = csv_text([[*FORMULAS, *HARMLESS, -1.5, None]])
    (read,) = csv.reader(io.StringIO(written, newline=""))
    assert read == [*(f"'{text}".replace("\r", "\n") for text in FORMULAS), *HARMLESS[:-1], "two\n=lines", "-1.5", ""]
