"""Undoes an artefact of Megatron Core 0.16 and later: the time printed second holds the first iteration as well.

Since then a line is also printed after the first iteration of a process, without a reset of the interval timer, so
the next line averages over the first iteration too: with a line for every iteration it prints (t1 + t2) / 2. These are
the versions whose time stamps have microseconds. Megatron-LM `megatron/training/training.py`, `training_log()`.
"""

from collections.abc import Mapping

import numpy as np

from app.domain.logs.notes import Notes
from app.domain.logs.rows import Start
from app.domain.run import FloatArray, IntArray

STAMP_SLACK = 1.005
STAMP_SLACK_MS = 5.0
"""How much longer than the time between its stamps a step may be: printing takes a moment on both sides."""

_DAY_MS = 86_400_000.0


def true_step_times(
    columns: Mapping[str, FloatArray],
    starts: Mapping[int, Start | None],
    stamps: Mapping[int, float] | None,
    lines: IntArray,
    notes: Notes,
) -> FloatArray:
    """The printed times with the artefact undone, NaN where that is not possible.

    `starts`: rows at which a process starts. `stamps`: seconds of the day of rows near them; None when the time stamps
    have no microseconds, and so the trainer no artefact. `lines`: for the notes.
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
                f"The time printed for iteration {iteration[row]:.0f} also holds the first iteration of the process, "
                "whose line is not in the log; its true time is unknown.",
                int(lines[row]),
            )
        elif begins and following < len(true) and following not in starts:
            passed = _milliseconds_between(stamps, row, following)
            count = float(iteration[following] - iteration[row] + 1)
            true[following] = _without_first(float(printed[row]), float(printed[following]), count, passed)
            if np.isnan(true[following]):
                notes.problem(
                    "unknown step time",
                    f"The time printed for iteration {iteration[following]:.0f} should also hold the first iteration "
                    "of the process, but is shorter than that allows; its true time is unknown.",
                    int(lines[following]),
                )
    return true


def _begins_process(iteration: float, start: Start | None, interval: float, *, is_first_row: bool) -> bool | None:
    """Whether a line is that of its process's first iteration, or the next one; None for the middle of a run."""
    if iteration == 1:
        return True
    if start is not None and start.after is not None:
        return iteration == start.after + 1
    if iteration <= max(2.0, interval):
        return False  # a fresh start whose line for iteration 1 is missing
    return None if is_first_row and start is None else True


def _without_first(first: float, mean: float, count: float, passed: float | None) -> float:
    """The mean time of `count` - 1 iterations, from the `mean` that holds the `first` one too; NaN if there is none.

    `passed`: ms between the two lines. When the result needs more, but the printed mean does not, then this trainer
    resets its timer and the printed mean is true.
    """
    rest = count * mean - first
    if passed is not None and rest > passed * STAMP_SLACK + STAMP_SLACK_MS >= mean * (count - 1):
        return mean
    return rest / (count - 1) if rest > 0 else float("nan")


def _milliseconds_between(stamps: Mapping[int, float], row: int, following: int) -> float | None:
    """Time between two lines, past midnight too; None when one of them has no stamp."""
    if row not in stamps or following not in stamps:
        return None
    return (stamps[following] - stamps[row]) * 1000 % _DAY_MS
