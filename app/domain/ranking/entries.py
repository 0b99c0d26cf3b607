"""One row of a board: a dispatcher by the configuration that stands for it, with its gain over alltoall."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.detection import DroppedRun
from app.domain.ranking.candidates import Candidates, others_of
from app.domain.ranking.duels import Duel, duel, duel_by_memory
from app.domain.ranking.memory_sizes import headroom_pct
from app.domain.ranking.outside import interval
from app.domain.ranking.places import Place
from app.domain.ranking.pooling import Pool, log_work
from app.domain.ranking.ranked_run import RankedRun
from app.domain.ranking.result_level import Contracts, comparison, result_level
from app.domain.ranking.sentences import gain_sentence
from app.domain.ranking.standings import REFERENCE, Configuration, Entry, Gain, Interval

MOST_LEFT_OUT = 20
OTHER_CODE = "of other code: the speed of the stack changed in between"


@dataclass(frozen=True, slots=True)
class Field:
    """All that a row of a board is made of. `runs`: those of its class and floor, on any stretch, oldest first."""

    candidates: Candidates
    ranking: Sequence[Place]
    duels: Sequence[Duel]
    contracts: Contracts
    runs: Sequence[RankedRun]


def entry_of(name: str, field: Field, newest_elsewhere: Pool | None) -> Entry:
    """`newest_elsewhere`: its result on a newer stretch than the board's."""
    best = field.candidates[name][0]
    newest = best.runs[-1]
    own = [one if one.first == name else one.turned() for one in field.duels if name in (one.first, one.second)]
    return Entry(
        dispatcher=name,
        place=next((place for place in field.ranking if place.name == name), None),
        config_key=best.config_key,
        runs=tuple(run.name for run in best.runs),
        validated_runs=best.runs_at("validated"),
        step_time_ms=interval(best),
        tokens_per_s_per_gpu=_throughput(best, [run.tokens_per_s_per_gpu for run in best.runs]),
        tflops_per_gpu=_throughput(best, [run.tflops_per_gpu for run in best.runs]),
        peak_memory_gib=best.peak_memory_gib,
        memory_headroom_pct=headroom_pct(newest.hardware, best.peak_memory_gib),
        level=result_level(best, others_of(name, field.candidates), field.contracts),
        directional=best.directional,
        unproven=all(run.active is None for run in best.runs),
        ep=newest.ep,
        gain=_gain(name, field),
        configurations=tuple(_configuration(one, best) for one in field.candidates[name]),
        left_out=_left_out(best, field.runs),
        inferred=all(run.inferred for run in best.runs),
        from_prior=len(best.runs) == 1,
        last_at=newest.ordered_at,
        newest=None if newest_elsewhere is None else interval(newest_elsewhere),
        worse_loss_than=tuple(one.second for one in own if one.worse_loss == name),
    )


def _configuration(one: Pool, best: Pool) -> Configuration:
    against = None if one is best else duel(one, best, (one.config_key, best.config_key))
    return Configuration(one.config_key, len(one.runs), interval(one), one.directional, against)


def _left_out(best: Pool, runs: Sequence[RankedRun]) -> tuple[DroppedRun, ...]:
    """The newest of its configuration that do not stand for it, oldest first."""
    why = {one.run: one.why for one in best.dropped}
    taken = {run.name for run in best.runs}
    mine = [run.name for run in runs if run.facts.config_key == best.config_key and run.dispatcher == best.dispatcher]
    return tuple(DroppedRun(name, why.get(name, OTHER_CODE)) for name in mine if name not in taken)[-MOST_LEFT_OUT:]


def _gain(name: str, field: Field) -> Gain | None:
    if name == REFERENCE or REFERENCE not in field.candidates:
        return None
    best, reference = field.candidates[name][0], field.candidates[REFERENCE][0]
    met = next(one for one in field.duels if {one.first, one.second} == {name, REFERENCE})
    seen = met if met.first == name else met.turned()
    kind, differs_in = comparison(best, reference, field.contracts)
    memory = duel_by_memory(best, reference)
    mine, theirs = best.peak_memory_gib, reference.peak_memory_gib
    more = None if memory is None or mine is None or theirs is None else 100 * (mine / theirs - 1)
    clear = memory is not None and not memory.tie
    return Gain(REFERENCE, seen, kind, differs_in, more, gain_sentence(name, seen, more, clear))


def _throughput(one: Pool, figures: Sequence[float | None]) -> Interval | None:
    """A constant over the step time, so its interval is that of the step time; never a mean of ratios."""
    work = log_work(one, figures)
    if work is None:
        return None
    middle, half = work - one.log_step_time, one.half_width
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
