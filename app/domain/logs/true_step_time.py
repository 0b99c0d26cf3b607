"""Undoes an artefact of Megatron Core 0.16 and later: the time printed second holds the first iteration as well.

Since then a line is also printed after the first iteration of a process, without a reset of the interval timer, so
the next line averages over the first iteration too: with a line for every iteration it prints (t1 + t2) / 2. These are
the versions whose time stamps have microseconds. Megatron-LM `megatron/training/training.py`, `training_log()`.
"""

import numpy as np
import numpy.typing as npt

from app.domain.logs.megatron_lm import Rows
from app.domain.logs.notes import Notes
from app.domain.run import FloatArray

STAMP_SLACK = 1.005
STAMP_SLACK_MS = 5.0
"""How much longer than the time between its stamps a step may be: printing takes a moment on both sides."""

_DAY_MS = 86_400_000.0


def true_step_times(
    iteration: FloatArray,
    printed: FloatArray,
    *,
    fresh: npt.NDArray[np.bool_],
    first: npt.NDArray[np.bool_],
    rows: Rows,
    notes: Notes,
) -> FloatArray:
    """The printed times with the artefact undone, NaN where that is not possible.

    `fresh`: lines that are not doubled; `first`: lines that are the first of their process.
    """
    true = printed.copy()
    if not rows.has_microseconds:
        return true
    order = np.flatnonzero(fresh)
    gaps = np.diff(iteration[order])
    interval = float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0
    for place in np.flatnonzero(first[order]):
        row = int(order[place])
        begins = _begins_process(iteration[row], row, rows, interval)
        if begins is None:
            continue
        if not begins:
            true[row] = np.nan
            notes.problem(
                "unknown step time",
                f"The time printed for iteration {iteration[row]:.0f} also holds the first iteration of the process, "
                "whose line is not in the log; its true time is unknown.",
                rows.lines[row],
            )
        elif place + 1 < len(order) and not first[order[place + 1]]:
            following = int(order[place + 1])
            true[following] = _without_first(iteration, printed, (row, following), rows=rows, notes=notes)
    return true


def _begins_process(iteration: float, row: int, rows: Rows, interval: float) -> bool | None:
    """Whether this line is that of the first iteration of its process; None when it is a line in the middle of one."""
    start = rows.starts.get(row)
    if start is not None and start.after is not None:
        return iteration == start.after + 1
    if iteration == 1:
        return True
    if iteration <= max(2.0, interval):
        return False  # a fresh start whose line for iteration 1 is missing
    if row == 0 and start is None:
        return None  # an excerpt
    return True


def _without_first(
    iteration: FloatArray, printed: FloatArray, pair: tuple[int, int], *, rows: Rows, notes: Notes
) -> float:
    """The mean time of the iterations after the first row of `pair` up to the second, whose printed mean has it too."""
    row, following = pair
    count = iteration[following] - iteration[row] + 1
    rest = count * printed[following] - printed[row]
    passed = _between_stamps(row, following, rows)
    if passed is not None:
        limit = passed * STAMP_SLACK + STAMP_SLACK_MS
        if rest > limit >= printed[following] * (count - 1):
            return float(printed[following])  # more time than there was: this trainer resets its timer
    if rest <= 0:
        notes.problem(
            "unknown step time",
            f"The time printed for iteration {iteration[following]:.0f} should also hold the first iteration of the "
            "process, but is shorter than that allows; its true time is unknown.",
            rows.lines[following],
        )
        return float("nan")
    return float(rest / (count - 1))


def _between_stamps(row: int, following: int, rows: Rows) -> float | None:
    """Milliseconds between the stamps of two lines, None when one of them has no microseconds."""
    if row not in rows.stamps or following not in rows.stamps:
        return None
    return (rows.stamps[following] - rows.stamps[row]) * 1000 % _DAY_MS
