"""The iterations of a run as a table: the same data as the chart, a page at a time."""

from dataclasses import dataclass

from app.runs.chart_data import Points
from app.web.numbers import significant

TABLE_ROWS = 100


@dataclass(frozen=True, slots=True)
class TableRow:
    """One iteration; `values` in the order of the columns, as text."""

    iteration: int
    role: str
    file: int
    line: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[str, ...]
    items: tuple[TableRow, ...]
    page: int
    pages: int
    first: int
    last: int
    total: int


def table_of(whole: Points, page: int) -> Table:
    """Page `page`, from 1; past the end the last one."""
    pages = max(1, -(-len(whole.iterations) // TABLE_ROWS))
    start = (min(page, pages) - 1) * TABLE_ROWS
    rows = tuple(
        TableRow(
            iteration=int(whole.iterations[row]),
            role=whole.roles[row],
            file=int(whole.log_files[row]),
            line=int(whole.log_lines[row]),
            values=(significant(float(whole.values[row])),),
        )
        for row in range(*slice(start, start + TABLE_ROWS).indices(len(whole.iterations)))
    )
    return Table(
        columns=(whole.title,),
        items=rows,
        page=start // TABLE_ROWS + 1,
        pages=pages,
        first=start + 1 if rows else 0,
        last=start + len(rows),
        total=len(whole.iterations),
    )
