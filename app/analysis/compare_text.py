"""What `compare` prints for people. Line 1: verdict, worst change, confidence. Line 2: baseline and what differs."""

from collections.abc import Iterator, Sequence

from app.analysis.comparison import Comparison
from app.analysis.plain_text import listed, plain, table
from app.domain.report.text import MOVED_COLUMNS, MovedRow, VerdictText, verdict_text


def text_of(comparison: Comparison) -> str:
    said = verdict_text(comparison.document, offered=len(comparison.earlier))
    lines = [said.headline, said.baseline, *_moved(said.moved)]
    lines += ["", said.still] if said.still else []
    lines += listed("Notes", said.notes)
    lines += ["", *said.contrast, *_moved(said.contrast_moved)] if said.contrast else []
    lines += listed("Nearest misses", said.misses)
    lines += listed("Suspects", [suspect for suspect, _ in said.suspects])
    lines += listed("Left out", said.left_out)
    return plain("\n".join([*lines, *_supply(said)]))


def _moved(rows: Sequence[MovedRow]) -> list[str]:
    return ["", *table([MOVED_COLUMNS, *(row.cells for row in rows)])] if rows else []


def _supply(said: VerdictText) -> Iterator[str]:
    if said.supply:
        yield ""
        names = ", ".join(said.supply)
        yield f"{said.supply_why} {names}. Supply each with --set NAME=VALUE (or --baseline-set, --candidate-set)."
