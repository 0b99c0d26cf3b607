"""Runs for tables: tests state only the values that they are about; all others are inconspicuous."""

import math
from collections.abc import Sequence

from app.domain.verdict.step_time import RunEstimate

USUAL_MS = 400.0


def make_run(run: str = "candidate", slower: float = 0.0, **other: object) -> RunEstimate:
    """A run `slower` (in ln) than 400 ms; the noise inside it is the smaller part."""
    fields: dict[str, object] = {"se": 0.001, "window_length": 50, **other}
    return RunEstimate(run=run, log_step_time=math.log(USUAL_MS) + slower, **fields)


def make_runs(slower: Sequence[float], **other: object) -> list[RunEstimate]:
    return [make_run(f"run {i}", shift, **other) for i, shift in enumerate(slower)]
