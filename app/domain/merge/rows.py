"""Joins the iteration lines of the slices of a run: later values win, restarts are marked, joints are not."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from app.domain.merge.order import Part, starts_between
from app.domain.merge.stamps import has_microseconds
from app.domain.run import FloatArray, IntArray, Problem, Slice

BoolArray = npt.NDArray[np.bool_]
_ALWAYS = ("iteration", "step_time_ms", "step_time_true_ms")


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns as in ParsedLog, the slices, and the lines (file, line) whose true step time a joint made known."""

    columns: dict[str, FloatArray]
    line_numbers: IntArray
    segment_starts: tuple[int, ...]
    slices: tuple[Slice, ...]
    problems: tuple[Problem, ...]
    resolved: frozenset[tuple[int, int]]


def join_rows(slices: Sequence[Part], beside: Sequence[Part]) -> Rows:
    """All iteration lines of `slices`, which are in the order of the run. `beside` may tell of loaded checkpoints."""
    lengths = [part.log.n for part in slices]
    offsets = [0, *np.cumsum(lengths).tolist()]
    columns = _concatenate(slices, offsets)
    lines = np.concatenate([part.log.line_numbers for part in slices]) if slices else np.empty(0, np.int64)
    first = np.zeros(offsets[-1], bool)
    resolved = set()
    loaded = {event.iteration for part in (*slices, *beside) for event in part.log.events if _is_load(event.kind)}
    for place, part in enumerate(slices):
        first[[offsets[place] + start for start in part.log.segment_starts if start > 0]] = True
        before = slices[place - 1] if place else None
        if before is None or _begins_process(before, part, loaded):
            first[offsets[place]] = True
        elif _undo_first_iteration(columns, first, offsets[place], part):
            resolved.add((part.file, int(part.log.line_numbers[0])))
        elif before.log.n == 1 and has_microseconds(before.log):
            _forget_mean_of_start(columns, first, offsets[place] - 1)
    kept = ~_superseded(columns["iteration"], first)
    places: IntArray = np.unique(np.cumsum(kept)[first] - kept[first])
    n = int(kept.sum())
    found = _slices(slices, offsets, columns["iteration"], first, kept)
    return Rows(
        columns={name: column[kept] for name, column in columns.items()},
        line_numbers=lines[kept],
        segment_starts=tuple(int(place) for place in places if place < n),
        slices=found,
        problems=tuple(_dropped(slices, offsets, columns["iteration"], kept)),
        resolved=frozenset(resolved),
    )


def _is_load(kind: str) -> bool:
    return kind == "checkpoint_loaded"


def _concatenate(slices: Sequence[Part], offsets: Sequence[int]) -> dict[str, FloatArray]:
    names = dict.fromkeys(name for part in slices for name in part.log.columns)
    columns = {name: np.full(offsets[-1], np.nan) for name in names or _ALWAYS}
    for offset, part in zip(offsets, slices, strict=False):
        for name, column in part.log.columns.items():
            columns[name][offset : offset + part.log.n] = column
    columns["log_file"] = np.repeat([float(part.file) for part in slices], np.diff(offsets))
    return columns


def _begins_process(before: Part, part: Part, loaded: Container[float | None]) -> bool:
    """Whether a file begins with a new process; False where it goes on in the middle of the one before."""
    iteration = float(part.log.columns["iteration"][0])
    if iteration <= before.log.columns["iteration"][-1] or iteration - 1 in loaded:
        return True
    return starts_between(before, part)


def _undo_first_iteration(columns: dict[str, FloatArray], first: BoolArray, row: int, part: Part) -> bool:
    """Megatron Core 0.16 prints a mean over the first iteration, too: known when that one ends the file before.

    The log's reader left the true time out, because it saw the second line only (`logs/true_step_time.py`).
    """
    line = int(part.log.line_numbers[0])
    unknown = any(problem.kind == "unknown step time" and problem.line == line for problem in part.log.problems)
    if not unknown or not first[row - 1] or not np.isnan(columns["step_time_true_ms"][row]):
        return False
    iteration, printed = columns["iteration"], columns["step_time_ms"]
    count = iteration[row] - iteration[row - 1] + 1
    rest = count * printed[row] - printed[row - 1]
    if rest > 0:
        columns["step_time_true_ms"][row] = rest / (count - 1)
    return bool(rest > 0)


def _forget_mean_of_start(columns: dict[str, FloatArray], first: BoolArray, row: int) -> None:
    """A first line that is not that of iteration 1 is a mean over a line that is missing: its interval tells."""
    iteration = columns["iteration"]
    if first[row] and 1 < iteration[row] <= iteration[row + 1] - iteration[row]:
        columns["step_time_true_ms"][row] = np.nan


def _superseded(iteration: FloatArray, first: BoolArray) -> BoolArray:
    """Lines whose iteration a later process repeats: training went back to before them."""
    if len(iteration) == 0:
        return np.zeros(0, bool)
    restart = np.where(first, iteration, np.inf)
    lowest_from_here = np.minimum.accumulate(restart[::-1])[::-1]
    return np.append(iteration[:-1] >= lowest_from_here[1:], False)


def _slices(
    parts: Sequence[Part], offsets: Sequence[int], iteration: FloatArray, first: BoolArray, kept: BoolArray
) -> tuple[Slice, ...]:
    """One a process start, with what it printed and how much of that a later one did not repeat."""
    starts = [int(row) for row in np.flatnonzero(first)]
    places: IntArray = np.cumsum(kept) - kept
    found: list[Slice] = []
    begun: set[float] = set()
    for start, stop in pairwise([*starts, len(iteration)]):
        part = parts[int(np.searchsorted(offsets, start, side="right")) - 1]
        begins = float(iteration[start])
        resumed = found or any(_is_load(e.kind) and e.iteration == begins - 1 for e in part.log.events)
        found.append(
            Slice(
                file=part.name,
                kind="retry" if begins in begun or (found and begins == 1) else "resume" if resumed else "start",
                first_iteration=int(begins),
                last_iteration=int(iteration[stop - 1]),
                first_row=int(places[start]),
                iterations_kept=int(kept[start:stop].sum()),
            )
        )
        begun.add(begins)
    return tuple(found)


def _dropped(
    parts: Sequence[Part], offsets: Sequence[int], iteration: FloatArray, kept: BoolArray
) -> Iterable[Problem]:
    """Iterations that no later file repeats, but that training forgot when it went back."""
    shown = set(iteration[kept].tolist())
    for place, part in enumerate(parts):
        rows = slice(offsets[place], offsets[place + 1])
        lost = [value for value in iteration[rows][~kept[rows]].tolist() if value not in shown]
        if lost:
            yield Problem(
                "went back",
                f"Iterations {int(lost[0])} to {int(lost[-1])} of {part.name} are left out: a later start went back to "
                "before them and did not reach them again.",
                file=part.file,
            )
