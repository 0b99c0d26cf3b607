"""The runs of an experiment as rows: their figures, their places on one axis, and why some do not count."""

from dataclasses import dataclass

from app.domain.experiments.values import Side
from app.experiments.words import LETTERS
from app.storage.experiments import Experiment, ExperimentRun

_ROOM = 0.08
"""Free share of the axis at each end: a dot has a radius."""
_LEAST_SPAN = 0.02
"""Of the middle, so that noise of a tenth of a per cent does not look like a difference."""
JOINED = {
    "plan": "planned from",
    "tag": "by its tag",
    "config": "by its configuration",
}


@dataclass(frozen=True, slots=True)
class RunLine:
    """`at`: its place on the axis of step times, in percent as text, empty where there is none."""

    run: ExperimentRun
    letter: str
    at: str
    joined: str


def run_lines(experiment: Experiment) -> tuple[RunLine, ...]:
    """Side A first, each side in the order in which its runs came."""
    times = [run.step_time_ms for run in experiment.runs if run.step_time_ms is not None]
    low, high = _axis(times)
    return tuple(
        RunLine(run, LETTERS[side], _place(run.step_time_ms, low, high), JOINED.get(run.joined_by, run.joined_by))
        for side in LETTERS
        for run in experiment.side(side)
    )


def left_out(experiment: Experiment, side: Side) -> int:
    """Runs of a side that are read and do not count."""
    return sum(not run.counts for run in experiment.side(side))


def _axis(times: list[float]) -> tuple[float, float]:
    if not times:
        return 0.0, 1.0
    low, high = min(times), max(times)
    middle = (low + high) / 2
    half = max(high - low, _LEAST_SPAN * middle) / 2 / (1 - 2 * _ROOM)
    return middle - half, middle + half


def _place(value: float | None, low: float, high: float) -> str:
    return "" if value is None else f"{100 * (value - low) / (high - low):.2f}"
