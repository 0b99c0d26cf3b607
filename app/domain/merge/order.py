"""Decides the part that each file plays in a run: which ones have the iterations, in which order, which are copies."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from app.domain.merge.stamps import first_stamp, last_stamp
from app.domain.run import LogPart, ParsedLog

_SAME = ("iteration", "step_time_ms", "lm_loss", "grad_norm")
"""Lines that agree in these are the same line, printed or uploaded twice."""


_STARTS = ("training_started", "checkpoint_loaded")


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the run. `file`: its index as given; `first` and `last`: seconds since 1970, None when unknown."""

    file: int
    name: str
    log: ParsedLog
    first: float | None
    last: float | None


@dataclass(frozen=True, slots=True)
class Roles:
    """`slices` have the iterations, in the order of the run; `beside` were printed at the same time by other ranks,
    or are copies of slices (whose indexes are in `copies`)."""

    slices: tuple[Part, ...]
    beside: tuple[Part, ...]
    copies: frozenset[int]


def assign(parts: Sequence[LogPart]) -> Roles:
    """The role of every file."""
    files = [
        Part(index, part.name, part.log, first_stamp(part.log), last_stamp(part.log))
        for index, part in enumerate(parts)
    ]
    counted = [file for file in files if file.log.n and not _only_steps(file.log)]
    with_rows = counted or [file for file in files if file.log.n]
    copies = _copies(with_rows)
    slices = [file for file in with_rows if file.file not in copies]
    kept = {file.file for file in slices}
    beside = [file for file in files if file.file not in kept]
    ordered = in_order(slices)
    ordered[1:] = [_without_repeated(before, part) for before, part in pairwise(ordered)]
    return Roles(tuple(ordered), tuple(in_order(beside)), frozenset(copies))


def in_order(files: Sequence[Part]) -> list[Part]:
    """By time where every file tells it, else by iterations: of two that begin together the longer one came later."""
    timed = all(file.last is not None for file in files)
    return sorted(files, key=lambda file: ((file.last or 0.0) if timed else 0.0, *_extent(file.log), _identity(file)))


def _only_steps(log: ParsedLog) -> bool:
    """True for the log of a rank that prints no iteration lines: its steps have no numbers of their own."""
    return any(problem.kind == "no iteration lines" for problem in log.problems)


def _extent(log: ParsedLog) -> tuple[float, float]:
    if log.n == 0:
        return (float("inf"), 0.0)
    return float(log.columns["iteration"][0]), float(log.columns["iteration"][-1])


def _identity(file: Part) -> str:
    """Tells two files apart that nothing else orders, whatever order they came in."""
    digest = hashlib.sha256("\n".join((file.name, *file.log.first_lines, *file.log.last_lines)).encode())
    for name in sorted(file.log.columns):
        digest.update(file.log.columns[name].tobytes())
    return digest.hexdigest()


def _copies(files: Sequence[Part]) -> set[int]:
    """Files whose iteration lines are all in another file, too. Of equal ones the one that says more is kept."""
    by_size = sorted(
        files, key=lambda file: (file.log.n, len(file.log.arguments), file.log.line_count, _identity(file))
    )
    copies = set()
    for place, small in enumerate(by_size):
        if any(_contains(large.log, small.log) for large in by_size[place + 1 :]):
            copies.add(small.file)
    return copies


def _contains(large: ParsedLog, small: ParsedLog) -> bool:
    if not np.isin(small.columns["iteration"], large.columns["iteration"]).all():
        return False
    names = [name for name in _SAME if name in large.columns and name in small.columns]
    return _rows(small, names) <= _rows(large, names)


def _rows(log: ParsedLog, names: Sequence[str]) -> set[tuple[float, ...]]:
    return set(zip(*(np.nan_to_num(log.columns[name], nan=-1.0).tolist() for name in names), strict=True))


def starts_between(before: Part, part: Part) -> bool:
    """True when one of two files tells of a start between the last iteration of one and the first of the other."""
    head, tail = int(part.log.line_numbers[0]), int(before.log.line_numbers[-1])
    return any(event.kind in _STARTS and event.line < head for event in part.log.events) or any(
        event.kind in _STARTS and event.line > tail for event in before.log.events
    )


def _without_repeated(before: Part, part: Part) -> Part:
    """`part` without the lines at its start that `before` ends with: a log cut in two with some lines in both."""
    names = [name for name in _SAME if name in before.log.columns and name in part.log.columns]
    old, new = (
        np.column_stack([np.nan_to_num(log.columns[name], nan=-1.0) for name in names])
        for log in (before.log, part.log)
    )
    same = np.flatnonzero((old == new[0]).all(axis=1))
    repeated = len(old) - int(same[-1]) if len(same) and not starts_between(before, part) else 0
    if not repeated or not np.array_equal(old[-repeated:], new[:repeated]):
        return part
    log = part.log
    starts = tuple(start - repeated for start in log.segment_starts if start >= repeated)
    columns = {name: column[repeated:] for name, column in log.columns.items()}
    cut = replace(log, columns=columns, line_numbers=log.line_numbers[repeated:], segment_starts=starts)
    return replace(part, log=cut)
