"""The overlaid series as a table: a row an iteration since the windows began, of a set of runs the median."""

from dataclasses import dataclass
from statistics import median

from app.compare.aligned import Line, Overlay
from app.domain.numbers import significant

ROWS = 100


@dataclass(frozen=True, slots=True)
class AlignedRow:
    """`a` and `b`: values as text, empty where no run of the side has one there."""

    offset: int
    a: str
    b: str
    in_window: bool


@dataclass(frozen=True, slots=True)
class AlignedTable:
    items: tuple[AlignedRow, ...]
    page: int
    pages: int
    first: int
    last: int
    total: int


def aligned_table(overlay: Overlay, page: int) -> AlignedTable:
    offsets = sorted({int(offset) for line in overlay.lines for offset in line.offsets})
    pages = max(1, -(-len(offsets) // ROWS))
    page = min(page, pages)
    start = (page - 1) * ROWS
    shown = offsets[start : start + ROWS]
    by_line = [(line, _at(line, shown)) for line in overlay.lines]
    rows = tuple(
        AlignedRow(offset, _typical(by_line, "a", offset), _typical(by_line, "b", offset), in_window=offset >= 0)
        for offset in shown
    )
    return AlignedTable(rows, page, pages, start + 1 if rows else 0, start + len(rows), len(offsets))


def _at(line: Line, offsets: list[int]) -> dict[int, float]:
    """Values of a line at `offsets`; of an iteration that was printed twice the later one."""
    wanted = set(offsets)
    pairs = zip(line.offsets.tolist(), line.values.tolist(), strict=True)
    return {offset: value for offset, value in pairs if offset in wanted}


def _typical(by_line: list[tuple[Line, dict[int, float]]], side: str, offset: int) -> str:
    values = [found[offset] for line, found in by_line if line.side == side and offset in found]
    return significant(median(values)) if values else ""
