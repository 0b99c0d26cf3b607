"""Dispatchers that were measured, but on no stretch of the stack's code that the board is of: not compared there."""

import math
from collections.abc import Iterable, Mapping

from app.domain.numbers import counted
from app.domain.ranking.candidates import Candidates, Results
from app.domain.ranking.duels import duel
from app.domain.ranking.pooling import Pool
from app.domain.ranking.standings import Interval, Outside
from app.domain.ranking.stretches import Stretches

_DAY = 86_400.0


def outside(results: Results, here: int) -> tuple[Outside, ...]:
    """In the order of their names. `here`: the stretch of the board."""
    ranked = results.on(here)
    if set().union(*(results.dispatchers(number) for number in results.numbers)) <= ranked.keys():
        return ()
    elsewhere = {number: results.on(number) for number in results.numbers if number != here}
    names = sorted({name for found in elsewhere.values() for name in found}.difference(ranked))
    return tuple(_outside(name, elsewhere, here, ranked, results.stretches) for name in names)


def _outside(
    name: str, elsewhere: Mapping[int, Candidates], here: int, ranked: Candidates, stretches: Stretches
) -> Outside:
    mine = {number: found[name][0] for number, found in elsewhere.items() if name in found}
    # Newest first, and one of full runs before all that are only a direction.
    number = min(mine, key=lambda one: (mine[one].directional, -one))
    best, last = mine[number], mine[number].runs[-1]
    nearest = max((run for own in ranked.values() for run in own[0].runs), key=lambda run: run.place_in_time)
    days = abs((last.ordered_at - nearest.ordered_at).total_seconds()) / _DAY
    changes = stretches.changes_between(number, here)
    met = {other: _met(name, other, elsewhere) for other in ranked}
    return Outside(
        dispatcher=name,
        runs=tuple(run.name for run in best.runs),
        step_time_ms=interval(best),
        directional=best.directional,
        last_at=last.ordered_at,
        days=days,
        changes=changes,
        before=number < here,
        beaten_by=tuple(other for other, winner in met.items() if winner == other),
        never_met=tuple(other for other, winner in met.items() if winner is None),
        sentence=_sentence(name, days, changes, nearest.dispatcher or "", before=number < here),
        ep=last.ep,
    )


def _met(name: str, other: str, elsewhere: Mapping[int, Candidates]) -> str | None:
    """Who won when both were measured on one stretch last; "" for a tie, None when that never was."""
    together = [found for found in elsewhere.values() if name in found and other in found]
    return duel(together[0][name][0], together[0][other][0]).winner if together else None


def interval(one: Pool) -> Interval:
    """The step time of a result, with its 95 % interval over launches."""
    middle, half = one.log_step_time, one.half_width
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _sentence(name: str, days: float, changes: int, other: str, *, before: bool) -> str:
    """`alltoall was last measured 8 days and one change of the stack's speed before hybridep, ...`."""
    apart = [counted(round(days), "day")] if round(days) else []
    apart.append("one change" if changes == 1 else counted(changes, "change"))
    when = f"{' and '.join(apart)} of the stack's speed {'before' if before else 'after'} {other}"
    return f"{name} was last measured {when}: on other code, so nothing is said of which is faster."


def unbeaten_by(leader: str, others: Iterable[Outside]) -> tuple[str, ...]:
    """Those that the leader never showed itself faster than. A direction is no result."""
    return tuple(one.dispatcher for one in others if not one.directional and leader not in one.beaten_by)


def newest_elsewhere(name: str, results: Results, here: int) -> Pool | None:
    """The result of a dispatcher on the newest stretch after `here`, None where it has none."""
    found = (results.on(number) for number in results.numbers if number > here)
    return next((one[name][0] for one in found if name in one), None)
