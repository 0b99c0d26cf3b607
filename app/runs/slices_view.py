"""The process starts of a run: what each one added, and whether it was a resume, a retry or part of a crash loop."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.domain.run import FloatArray, Slice
from app.web.numbers import counted


@dataclass(frozen=True, slots=True)
class SliceRow:
    """`word` is start, resume, retry or crash loop; `line` of log file `file_index` is its first iteration.

    `file_index` is None when the run has no such log.
    """

    number: int
    file: str
    file_index: int | None
    line: int
    first: int
    last: int
    kept: int
    word: str


def slice_rows(slices: Sequence[Slice], names: Sequence[str], log_lines: FloatArray) -> tuple[SliceRow, ...]:
    """In the order of the run. `names` are those of the log files, `log_lines` of each iteration.

    One start that went through is nothing to show.
    """
    if len(slices) < 2 and not any(piece.crash_loop for piece in slices):
        return ()
    return tuple(
        SliceRow(
            number=number,
            file=piece.file,
            file_index=names.index(piece.file) if piece.file in names else None,
            line=int(np.nan_to_num(log_lines[piece.first_row])) or 1 if piece.first_row < len(log_lines) else 1,
            first=piece.first_iteration,
            last=piece.last_iteration,
            kept=piece.iterations_kept,
            word="crash loop" if piece.crash_loop else piece.kind,
        )
        for number, piece in enumerate(slices, 1)
    )


def told(slices: Sequence[Slice]) -> str:
    """`Started 4 times: 2 resumes, 1 retry.`, and what a crash loop means."""
    kinds = Counter(str(piece.kind) for piece in slices)
    again = [
        counted(kinds[kind], kind, plural)
        for kind, plural in (("resume", "resumes"), ("retry", "retries"))
        if kinds[kind]
    ]
    text = f"Started {counted(len(slices), 'time')}" + (f": {', '.join(again)}." if again else ".")
    if loops := sum(piece.crash_loop for piece in slices):
        text += (
            f" {counted(loops, 'start')} of them {'is' if loops == 1 else 'are'} a crash loop: each began at the same "
            "point and got no further. Look at the failure above before it is started again."
        )
    return text
