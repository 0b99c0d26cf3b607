"""Which configurations stand for the dispatchers of one stretch of a stack's code, and which stretch a board is of."""

from collections.abc import Iterable, Mapping, Sequence

from app.domain.ranking.duels import duel
from app.domain.ranking.pooling import Pool, Pools
from app.domain.ranking.ranked_run import LEVELS, RankedRun, reaches
from app.domain.ranking.result_level import Contracts, result_level
from app.domain.ranking.stretches import Stretches

ENOUGH_RUNS = 5
"""Of results with so many runs none is better evidenced than another: then the faster one stands."""

Candidates = Mapping[str, Sequence[Pool]]
"""Dispatcher -> its configurations of one stretch; the one that stands for it first."""


class Results:
    """The results of one class of runs at one floor of evidence, by stretch; each stretch is made once."""

    def __init__(
        self, runs: Iterable[RankedRun], stretches: Stretches, pools: Pools, contracts: Contracts, *, floor: str
    ) -> None:
        """`runs`: oldest first. Those that are older than the stretches reach are left out."""
        by_number: dict[int, list[RankedRun]] = {}
        for run in runs:
            number = stretches.number(run)
            if number is not None:
                by_number.setdefault(number, []).append(run)
        self._runs = {number: by_number[number] for number in sorted(by_number, reverse=True)}
        self._made: dict[int, Candidates] = {}
        self._pools, self._contracts, self._floor = pools, contracts, floor
        self.stretches = stretches

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of the stretches that have runs, newest first."""
        return tuple(self._runs)

    def on(self, number: int) -> Candidates:
        if number not in self._made:
            self._made[number] = candidates(self._runs[number], self._pools, self._contracts, self._floor)
        return self._made[number]

    def dispatchers(self, number: int) -> set[str | None]:
        """Who ran on it, with a result or without."""
        return {run.dispatcher for run in self._runs[number]}

    def compared(self) -> int | None:
        """The newest stretch on which two dispatchers have results of full runs, else of short ones, else the newest
        one with a result; None without any.
        """
        several = [number for number in self.numbers if len(self.dispatchers(number)) > 1]
        for only_full in (True, False):
            for number in several:
                if sum(not (only_full and own[0].directional) for own in self.on(number).values()) > 1:
                    return number
        return next((number for number in self.numbers if self.on(number)), None)


def candidates(runs: Sequence[RankedRun], pools: Pools, contracts: Contracts, floor: str) -> dict[str, list[Pool]]:
    """Of `runs` of one stretch, oldest first: the fastest dispatcher first, without those that do not reach the floor:
    what two runs make together counts, too.
    """
    by_key: dict[tuple[str, str], list[RankedRun]] = {}
    for run in runs:
        by_key.setdefault((run.dispatcher or "", run.facts.config_key), []).append(run)
    found: dict[str, list[Pool]] = {}
    for one in sorted((pools.pool(group) for group in by_key.values()), key=_fastest_first):
        found.setdefault(one.dispatcher, []).append(one)
    chosen = {name: _best_first(own) for name, own in found.items()}
    ordered = dict(sorted(chosen.items(), key=lambda item: _fastest_first(item[1][0])))
    levels = {name: result_level(own[0], others_of(name, ordered), contracts) for name, own in ordered.items()}
    return {name: own for name, own in ordered.items() if reaches(levels[name], floor)}


def others_of(name: str, offered: Candidates) -> list[Pool]:
    return [one for other, pools in offered.items() if other != name for one in pools]


def _fastest_first(one: Pool) -> tuple[float, str, str]:
    return one.log_step_time, one.dispatcher, one.config_key


def _best_first(pools: Sequence[Pool]) -> list[Pool]:
    """Of one dispatcher, fastest first. Among those that tie with the fastest the better evidenced one stands: the
    fastest of many that were tried once was lucky. However fast it looks, no short one stands before a full one.
    """
    ordered = sorted(pools, key=lambda one: one.directional)
    fastest = ordered[0]
    tied = [one for one in ordered if one is fastest or (one.directional == fastest.directional and _tie(one, fastest))]
    best = max(tied, key=_evidence)
    return [best, *(one for one in ordered if one is not best)]


def _tie(one: Pool, fastest: Pool) -> bool:
    return duel(one, fastest, (one.config_key, fastest.config_key)).tie


def _evidence(one: Pool) -> tuple[int, int]:
    """Of those alike the first one is taken, which is the fastest."""
    strength = next((place for place, level in enumerate(LEVELS) if level == one.level), 0)
    return strength, min(len(one.runs), ENOUGH_RUNS)
