"""Turns the iteration lines of a log into columns without duplicate lines and with restarts resolved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.domain.logs.iterations import IterationRows, Start, Table
from app.domain.logs.lines import Notes
from app.domain.logs.trainers import BridgeSteps
from app.domain.run import FloatArray, IntArray

# --- Corrects an artefact of Megatron Core 0.16 and later: the second printed time includes the first iteration.
#
# These versions also print a line after the first iteration of a process without resetting the interval timer, so the
# next line averages over the first iteration too: with a line for every iteration it prints (t1 + t2) / 2. Their
# timestamps have microseconds. Megatron-LM `megatron/training/training.py`, `training_log()`.

STAMP_SLACK = 1.005
STAMP_SLACK_MS = 5.0
"""Tolerance of a step time against the time between its stamps: printing takes a moment on both sides."""

_DAY_MS = 86_400_000.0


def true_step_times(
    columns: Mapping[str, FloatArray],
    starts: Mapping[int, Start | None],
    stamps: Mapping[int, float] | None,
    lines: IntArray,
    notes: Notes,
) -> FloatArray:
    """Return the printed times without the artefact, NaN where the true time is unknown.

    `starts`: rows at which a process starts. `stamps`: seconds of the day of rows near them; None when the timestamps
    have no microseconds, which means that the trainer has no artefact. `lines`: line numbers for the notes.
    """
    iteration, printed = columns["iteration"], columns["step_time_ms"]
    true = printed.copy()
    if stamps is None:
        return true
    gaps = np.diff(iteration)
    interval = float(np.median(gaps)) if len(gaps) else 1.0
    for row, start in starts.items():
        begins = _begins_process(float(iteration[row]), start, interval, is_first_row=row == 0)
        following = row + 1
        if begins is False:
            true[row] = np.nan
            notes.problem(
                "unknown step time",
                f"The time printed for iteration {iteration[row]:.0f} includes the first iteration of the process, "
                "whose line is not in the log. The true time is unknown.",
                int(lines[row]),
            )
        elif begins and following < len(true) and following not in starts:
            passed = _milliseconds_between(stamps, row, following)
            count = float(iteration[following] - iteration[row] + 1)
            true[following] = _without_first(float(printed[row]), float(printed[following]), count, passed)
            if np.isnan(true[following]):
                notes.problem(
                    "unknown step time",
                    f"The time printed for iteration {iteration[following]:.0f} should include the first iteration "
                    "of the process but is too short for that. The true time is unknown.",
                    int(lines[following]),
                )
    return true


def _begins_process(iteration: float, start: Start | None, interval: float, *, is_first_row: bool) -> bool | None:
    """Return True for the line of a process's first iteration, False for the next line, None in the middle of a run."""
    if iteration == 1:
        return True
    if start is not None and start.after is not None:
        return iteration == start.after + 1
    if iteration <= max(2.0, interval):
        return False  # a fresh start whose line for iteration 1 is missing
    return None if is_first_row and start is None else True


def _without_first(first: float, mean: float, count: float, passed: float | None) -> float:
    """Return the mean time of `count` - 1 iterations from a `mean` that includes the `first`; NaN if impossible.

    `passed`: ms between the two lines. When the result exceeds it but the printed mean does not, the trainer resets its
    timer and the printed mean is the true time.
    """
    rest = count * mean - first
    if passed is not None and rest > passed * STAMP_SLACK + STAMP_SLACK_MS >= mean * (count - 1):
        return mean
    return rest / (count - 1) if rest > 0 else float("nan")


def _milliseconds_between(stamps: Mapping[int, float], row: int, following: int) -> float | None:
    """Return the time between two lines, also across midnight; None when one of them has no stamp."""
    if row not in stamps or following not in stamps:
        return None
    return (stamps[following] - stamps[row]) * 1000 % _DAY_MS


BoolArray = npt.NDArray[np.bool_]

MAX_COLUMNS = 64
"""Columns kept, in order of appearance. Trainers print about 30 with every option on."""

MAX_TIMER_CELLS = 8_000_000
"""Values in the timer columns: 64 MB."""

ROUNDING_MS = 6.0
CLOCKS = 0.01
"""Tolerance between a step line and its iteration line: seconds have two decimals, and rank 0 has its own clock."""


@dataclass(frozen=True, slots=True)
class Series:
    """Holds the columns as in `ParsedLog`."""

    columns: dict[str, FloatArray]
    line_numbers: IntArray
    segment_starts: tuple[int, ...]
    total_iterations: int | None
    log_interval: int | None


def build(rows: IterationRows, timers: Sequence[Table], steps: BridgeSteps, notes: Notes) -> Series:
    """Return all columns of a log. Without iteration lines, step lines are counted from 1."""
    if not rows.lines:
        return _from_steps(steps, notes)
    printed = _scatter(rows, notes)
    total = _total(printed.pop("total_iterations", None))
    lines = np.frombuffer(rows.lines, np.int64)
    if steps.lines:
        printed["tflops_per_gpu"] = _with_step_lines(printed, lines, steps)
    fresh = ~_doubled(printed, rows)
    printed |= _scatter_timers(timers, fresh, notes)
    first = _first_of_process(printed["iteration"], rows, fresh)
    current = fresh & ~_superseded(printed["iteration"], first, fresh)
    starts = _starts(first, current, rows)
    columns = {name: column[current] for name, column in printed.items()}
    columns["step_time_true_ms"] = true_step_times(columns, starts, _stamps(rows, current), lines[current], notes)
    return Series(columns, lines[current], tuple(starts), total, log_interval(columns["iteration"]))


def log_interval(iteration: FloatArray) -> int | None:
    """Return the most frequent number of iterations between two lines; None without a pair of lines."""
    steps = np.diff(iteration)
    values, counts = np.unique(steps[steps > 0], return_counts=True)
    return int(values[counts.argmax()]) if len(values) else None


def _total(totals: FloatArray | None) -> int | None:
    """Return the planned iterations as last printed; None when no line has them."""
    named = totals[np.isfinite(totals)] if totals is not None else np.empty(0)
    return int(named[-1]) if len(named) else None


def _scatter(rows: IterationRows, notes: Notes) -> dict[str, FloatArray]:
    """Return the numbers of all tables as columns in their units, NaN where nothing was printed."""
    n = len(rows.lines)
    columns: dict[str, FloatArray] = {}
    left_out: set[str] = set()
    for table in rows.tables:
        if not table.rows:
            continue
        values = np.frombuffer(table.values).reshape(-1, len(table.columns))
        at = np.frombuffer(table.rows, np.int64)
        for place, (name, scale) in enumerate(zip(table.columns, table.scales, strict=True)):
            if name not in columns:
                if len(columns) >= MAX_COLUMNS:
                    left_out.add(name)
                    continue
                columns[name] = np.full(n, np.nan)
            with np.errstate(over="ignore"):  # a damaged number that is too large for its unit becomes infinite
                columns[name][at] = values[:, place] * scale
    if left_out:
        notes.problem(
            "many columns", f"Only the first {MAX_COLUMNS} columns were stored; {len(left_out)} were left out."
        )
    return columns


def _scatter_timers(timers: Sequence[Table], fresh: BoolArray, notes: Notes) -> dict[str, FloatArray]:
    """Return the timers as columns. Timers after a duplicate line belong to the original line."""
    n = len(fresh)
    columns: dict[str, FloatArray] = {}
    origin = np.maximum.accumulate(np.where(fresh, np.arange(n), 0))
    for table in timers:
        at = np.frombuffer(table.rows, np.int64)
        inside = at < n
        values = np.frombuffer(table.values).reshape(-1, len(table.columns))
        for place, name in enumerate(table.columns):
            if name not in columns:
                if (len(columns) + 1) * n > MAX_TIMER_CELLS:
                    notes.problem("many timers", "The log has too many iterations to keep all of its timers.")
                    continue
                columns[name] = np.full(n, np.nan)
            columns[name][origin[at[inside]]] = values[inside, place]
    return columns


def _with_step_lines(columns: dict[str, FloatArray], lines: IntArray, steps: BridgeSteps) -> FloatArray:
    """Return TFLOP/s, filled from Megatron-Bridge's step lines, which are paired with iteration lines by their time.

    Either line may come first or be missing, but both are in order, so one pass over both finds the pairs.
    """
    tflops = columns.get("tflops_per_gpu", np.full(len(lines), np.nan))
    times = columns["step_time_ms"]
    row = step = 0
    while row < len(lines) and step < len(steps.lines):
        if abs(steps.seconds[step] * 1000 - times[row]) <= ROUNDING_MS + CLOCKS * times[row]:
            if np.isnan(tflops[row]):
                tflops[row] = steps.tflops[step]
            row, step = row + 1, step + 1
        elif steps.lines[step] < lines[row]:
            step += 1
        else:
            row += 1
    return tflops


def _doubled(columns: dict[str, FloatArray], rows: IterationRows) -> BoolArray:
    """Return a mask of lines that repeat the previous line in every value, as two sinks of one logger write them."""
    same = np.ones(len(rows.lines), bool)
    same[0] = False
    for column in columns.values():
        before, after = column[:-1], column[1:]
        same[1:] &= (before == after) | (np.isnan(before) & np.isnan(after))
    same[list(rows.starts)] = False
    return same


def _first_of_process(iteration: FloatArray, rows: IterationRows, fresh: BoolArray) -> BoolArray:
    """Return a mask of the first lines of processes: the log announces a start, or the iteration goes back."""
    first = np.zeros(len(iteration), bool)
    first[1:] = (np.diff(iteration) < 0) & fresh[1:]
    first[[0, *rows.starts]] = True
    return first


def _superseded(iteration: FloatArray, first: BoolArray, fresh: BoolArray) -> BoolArray:
    """Return a mask of lines whose iteration appears again: training went back, or several ranks print."""
    again = first.copy()
    again[1:] |= (np.diff(iteration) == 0) & fresh[1:]
    lowest_from_here = np.minimum.accumulate(np.where(again, iteration, np.inf)[::-1])[::-1]
    return np.append(iteration[:-1] >= lowest_from_here[1:], False)


def _starts(first: BoolArray, current: BoolArray, rows: IterationRows) -> dict[int, Start | None]:
    """Return the current rows at which processes start, with the log's announcement (None without one).

    A start at a superseded row moves to the next current row.
    """
    place: IntArray = np.cumsum(current) - current
    n = int(current.sum())
    return {int(place[row]): rows.starts.get(int(row)) for row in np.flatnonzero(first) if place[row] < n}


def _stamps(rows: IterationRows, current: BoolArray) -> dict[int, float] | None:
    """Return the timestamps of current rows; None when stamps have no microseconds."""
    if not rows.has_microseconds:
        return None
    place: IntArray = np.cumsum(current) - current
    return {int(place[row]): stamp for row, stamp in rows.stamps.items() if current[row]}


def _from_steps(steps: BridgeSteps, notes: Notes) -> Series:
    """Return the columns of a log without iteration lines. Times have a precision of 10 ms."""
    n = len(steps.lines)
    if n:
        notes.problem(
            "no iteration lines",
            "The log has only step lines, which have no iteration number, so they are counted from 1. "
            "Their times are rounded to 10 ms.",
            int(steps.lines[0]),
        )
    times = np.round(np.frombuffer(steps.seconds) * 1000, 3) if n else np.empty(0)
    columns = {"iteration": np.arange(1.0, n + 1), "step_time_ms": times, "step_time_true_ms": times.copy()}
    if n:
        columns["tflops_per_gpu"] = np.frombuffer(steps.tflops)
    lines = np.frombuffer(steps.lines, np.int64) if n else np.empty(0, np.int64)
    return Series(columns, lines, (0,) if n else (), None, None)
