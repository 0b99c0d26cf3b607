"""Which step times can be one: what a log prints may be negative, zero, missing or absurd, and none of it may count."""

import numpy as np
import numpy.typing as npt

from app.domain.run import FloatArray, ParsedLog

MIN_STEP_MS = 1e-3
"""A microsecond: launching a single kernel takes longer, so no optimizer step is faster."""
MAX_STEP_MS = 1e9
"""Eleven days: no scheduler lets a job hang so long in one step, and a larger number is damage."""


def usable(step_times_ms: FloatArray) -> npt.NDArray[np.bool_]:
    """True where a step time is finite and within what a step can take."""
    # NaN compares as False
    return np.asarray((step_times_ms >= MIN_STEP_MS) & (step_times_ms <= MAX_STEP_MS))


def left_out(log: ParsedLog) -> list[str]:
    """Sentences on the iterations whose step time counts for nothing; the log's reader tells of artefacts itself."""
    if not log.n:
        return []
    printed, true = log.columns["step_time_ms"], log.columns["step_time_true_ms"]
    absurd = ~np.isnan(printed) & ~usable(printed)
    damaged = absurd | (~np.isnan(true) & ~usable(true))
    told = []
    if damaged.any():
        row = int(np.argmax(damaged))
        value = printed[row] if absurd[row] else true[row]
        told.append(
            f"{_share(damaged)} a step time that none can have (under {MIN_STEP_MS:g} ms or over {MAX_STEP_MS:g} ms); "
            f"{_they(damaged)} left out. The first is {value:g} ms in iteration {_iteration(log, row)}."
        )
    missing = np.isnan(printed)
    if missing.any() and not missing.all():
        told.append(
            f"{_share(missing)} no step time; {_they(missing)} left out. The first is iteration "
            f"{_iteration(log, int(np.argmax(missing)))}."
        )
    return told


def _share(rows: npt.NDArray[np.bool_]) -> str:
    count = int(rows.sum())
    return f"{count} of {len(rows)} iterations {'has' if count == 1 else 'have'}"


def _they(rows: npt.NDArray[np.bool_]) -> str:
    return "it is" if int(rows.sum()) == 1 else "they are"


def _iteration(log: ParsedLog, row: int) -> str:
    return f"{log.columns['iteration'][row]:.0f}"
