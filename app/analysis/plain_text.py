"""Aligned text for a terminal or a CI log. Figures are written as on the pages, but with plain blanks."""

from collections.abc import Sequence

from app.domain.numbers import THIN


def plain(text: str) -> str:
    """Without the thin blanks of the pages, which terminals draw in any width."""
    return text.replace(THIN, " ")


def table(rows: Sequence[Sequence[str]], indent: int = 0) -> list[str]:
    """Rows as lines, the cells of each column one below the other. All rows have as many cells."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        (" " * indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def listed(title: str, items: Sequence[str]) -> list[str]:
    """A titled list behind an empty line; nothing when there are no items."""
    return ["", title, *(f"  - {item}" for item in items)] if items else []


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
