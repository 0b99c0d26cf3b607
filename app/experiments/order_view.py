"""The interleaved order of an experiment's runs as places: which are filled, and which comes next."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.experiments.values import Side
from app.experiments.words import LETTERS
from app.storage.experiments import Experiment, ExperimentRun


@dataclass(frozen=True, slots=True)
class Slot:
    """`number` counts from 1; `run` is None while it is empty. `next`: the first empty one."""

    number: int
    side: Side
    letter: str
    run: ExperimentRun | None
    next: bool


def slots(experiment: Experiment) -> tuple[Slot, ...]:
    """The runs that count fill the places of their side in the order in which they came; more than places stay out."""
    left = {side: [run for run in experiment.side(side) if _fills(run)] for side in LETTERS}
    filled = [(side, left[side].pop(0) if left[side] else None) for side in experiment.sequence]
    first = next((number for number, (_, run) in enumerate(filled) if run is None), -1)
    return tuple(
        Slot(number + 1, side, LETTERS[side], run, number == first) for number, (side, run) in enumerate(filled)
    )


def next_side(places: Sequence[Slot]) -> Side | None:
    """Whose run comes next; None when every place is filled."""
    return next((slot.side for slot in places if slot.next), None)


def missing(places: Sequence[Slot], side: Side) -> int:
    return sum(slot.run is None and slot.side == side for slot in places)


def _fills(run: ExperimentRun) -> bool:
    return run.counts and run.status not in ("failed", "unread")
