"""The code of a stack in stretches: between two changes of its speed, dispatchers may be compared, across one never.

A change that any configuration of the stack shows is taken for a change of the code that all of them run. It lies
somewhere between the last run of the old level and the first of the new one; runs of others in between are of neither.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from app.domain.detection import Prior
from app.domain.matching import RunFacts
from app.domain.matching.levels import level_starts
from app.domain.ranking.ranked_run import RankedRun

LOOK_BACK = 400
"""The newest runs of a configuration in which its levels are looked for, as for a verdict."""

Place = tuple[float, int, str]


@dataclass(frozen=True, slots=True)
class Change:
    """After the run at `last` of the old level, and not later than at `first`, the first one of the new level, which
    stands in the history at `at`.
    """

    last: Place
    first: Place
    at: datetime

    def passed(self, place: Place) -> int:
        """0 before it, 2 after it, 1 in between: runs of one commit are on one side, whichever came in first."""
        by_commit = self.last[0] < self.first[0]
        before = place[0] <= self.last[0] if by_commit else place <= self.last
        after = place[0] >= self.first[0] if by_commit else place >= self.first
        return 0 if before else 2 if after else 1


class Stretches:
    """Numbers the stretches of a stack from `runs`, oldest first, of one class, that may be ranked."""

    def __init__(self, runs: Sequence[RankedRun], prior: Prior) -> None:
        self.changes = merged(_changes(runs, prior))
        self._numbers = {run.name: number_of(run.place_in_time, self.changes) for run in _recent(runs)}
        self.newest = max(self._numbers.values(), default=0)

    def number(self, run: RankedRun) -> int | None:
        """Even, ascending with time; odd within a change; None for a run that is older than was looked at."""
        return self._numbers.get(run.name)

    def changes_between(self, one: int, other: int) -> int:
        """How many changes lie between runs of two stretches, or may."""
        return len(between(self.changes, one, other))

    def changed_after(self, number: int) -> Change | None:
        """The first change after a stretch."""
        place = (number + 1) // 2
        return self.changes[place] if place < len(self.changes) else None


def number_of(place: Place, changes: Iterable[Change]) -> int:
    """Even, ascending with time; odd within a change."""
    return sum(change.passed(place) for change in changes)


def between(changes: Sequence[Change], one: int, other: int) -> Sequence[Change]:
    """Those that lie between runs of two stretches, or may."""
    first, last = sorted((one, other))
    return changes[first // 2 : (last + 1) // 2]


def _recent(runs: Sequence[RankedRun]) -> list[RankedRun]:
    return [run for group in _by_configuration(runs).values() for run in group[-LOOK_BACK:]]


def _by_configuration(runs: Sequence[RankedRun]) -> dict[str, list[RankedRun]]:
    groups: dict[str, list[RankedRun]] = {}
    for run in runs:
        groups.setdefault(run.facts.config_key, []).append(run)
    return groups


def _changes(runs: Sequence[RankedRun], prior: Prior) -> list[Change]:
    """Of every configuration by itself. Short runs tell no level, unless they are declared to count in full."""
    found = []
    for group in _by_configuration([run for run in runs if not run.directional]).values():
        recent = group[-LOOK_BACK:]
        starts = level_starts([_in_full(run.facts) for run in recent], prior)
        pairs = ((recent[at - 1], recent[at]) for at in starts)
        found += [Change(old.place_in_time, new.place_in_time, new.ordered_at) for old, new in pairs]
    return found


def _in_full(facts: RunFacts) -> RunFacts:
    """As one that a level may be made of: a verdict's baseline would leave out each short run."""
    return replace(facts, estimate=replace(facts.estimate, short=False)) if facts.estimate.short else facts


def merged(changes: Iterable[Change]) -> tuple[Change, ...]:
    """In the order of time. Those that may be one, since they overlap, are one: where all of them allow it."""
    found: list[Change] = []
    for change in sorted(changes, key=lambda one: (one.first, one.last)):
        if found and change.last < found[-1].first:
            found[-1] = replace(found[-1], last=max(found[-1].last, change.last))
        else:
            found.append(change)
    return tuple(found)
