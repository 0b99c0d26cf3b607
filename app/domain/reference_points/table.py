"""Reads the tables of published figures: a row a line, columns parted by spaces, `-` for what is not stated."""

from collections.abc import Iterator, Mapping

from app.domain.reference_points.point import FIGURES, ReferencePoint, read_reference

_NUMBERS = (*FIGURES, "gpus", "seq_len", "gbs", "mbs", "tp", "pp", "vpp", "cp", "ep", "etp", "mtp")
NOT_STATED = "-"
ABOUT = "~"


def read_rows(
    rows: str, columns: str, *, notes: Mapping[str, str] | None = None, **common: object
) -> Iterator[ReferencePoint]:
    """The points of a table whose columns are named by `columns`; `common` holds for all rows.

    A last column `note` may be missing in a row; its words name entries of `notes`. A figure after `~` is rounded.
    Raises ValueError, with the line, on a row that is not of this form or no valid point.
    """
    names = columns.split()
    for line in rows.strip().splitlines():
        cells = line.split()
        if not len(names) - ("note" in names) <= len(cells) <= len(names):
            raise ValueError(f"{len(cells)} cells, {len(names)} columns: {line}")
        stated: dict[str, object] = dict(common)
        try:
            for name, cell in zip(names, cells, strict=False):
                if cell != NOT_STATED:
                    _read_cell(stated, name, cell, notes or {})
            yield read_reference(stated)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{error}: {line}") from error


def _read_cell(stated: dict[str, object], name: str, cell: str, notes: Mapping[str, str]) -> None:
    if name == "note":
        stated["note"] = notes[cell]
    elif name in FIGURES:
        stated[name] = float(cell.removeprefix(ABOUT))
        stated["rounded"] = bool(stated.get("rounded")) or cell.startswith(ABOUT)
    else:
        stated[name] = int(cell) if name in _NUMBERS else cell
