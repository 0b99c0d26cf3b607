"""Iteration lines for the tests, as Megatron-LM prints them."""

import numpy as np

from app.domain.run import ParsedLog


def iteration(number: int, time_ms: float, *, stamp: str = "", tail: str = "loss scale: 1.0") -> str:
    """One iteration line; `stamp` is the text between the brackets in front of it."""
    head = f" [{stamp}]" if stamp else ""
    return (
        f"{head} iteration {number:8d}/     100 | consumed samples: {number * 8:12d} | "
        f"elapsed time per iteration (ms): {time_ms:.1f} | global batch size:     8 | {tail} |\n"
    )


def column(log: ParsedLog, name: str) -> list[float | None]:
    """A column as a list, None where nothing was printed."""
    return [None if np.isnan(value) else float(value) for value in log.columns[name]]


STARTED = "[before the start of training step] datetime: 2026-05-11 02:58:04.653576 \n"
