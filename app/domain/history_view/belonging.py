"""Which regression and which verdict a change point belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.history_view.configurations import LevelChange

AROUND = 2
"""A change point may be found this many runs beside the run that its verdict called."""


@dataclass(frozen=True, slots=True)
class PlacedAlarm:
    """A regression of the configuration: places of its slow run and, where it ended, of the run that ended it."""

    regression_id: int
    slow_run: int
    fixed_by: int | None = None


def alarm_of(change: LevelChange, end: int, alarms: Sequence[PlacedAlarm]) -> int | None:
    """The regression that the change opened, or that it ended. `end`: place of the last run of the new level."""
    slower = change.delta_pct > 0
    places = [(one.slow_run if slower else one.fixed_by, one.regression_id) for one in alarms]
    near = [
        (abs(place - change.run), number)
        for place, number in places
        if place is not None and change.before - AROUND < place <= end
    ]
    return min(near)[1] if near else None


def called_at(change: LevelChange, verdicts: Sequence[tuple[int, str]]) -> int | None:
    """Place of the first run whose verdict said it. `verdicts`: (place, decision) of the configuration, in order."""
    decision = "regression" if change.delta_pct > 0 else "improvement"
    near = range(change.before + 1 - AROUND, change.run + AROUND + 1)
    return next((place for place, verdict in verdicts if verdict == decision and place in near), None)
