"""Makes one board: eligible runs of one stack, routing mode and semantic class in, dispatchers with places out.

All figures of a board are of one stretch of the stack's code, so that no change of the code passes for a difference
between dispatchers.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from app.domain.detection.metric_changes import SAME_WORK
from app.domain.ranking.candidates import Results
from app.domain.ranking.duels import Duel, duel, duel_by_memory
from app.domain.ranking.eligibility import Refusal
from app.domain.ranking.entries import Field, entry_of
from app.domain.ranking.loss_guard import LossGuard
from app.domain.ranking.outside import newest_elsewhere, outside, unbeaten_by
from app.domain.ranking.places import Place, places
from app.domain.ranking.pooling import Pool, Pools, log_work
from app.domain.ranking.ranked_run import RankedRun, reaches
from app.domain.ranking.result_level import Contracts
from app.domain.ranking.sentences import reading_sentence
from app.domain.ranking.standings import (
    Board,
    Entry,
    Glimpse,
    MissingDispatcher,
    Outside,
    Reading,
    Stretch,
)
from app.domain.ranking.stretches import Stretches


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one stack and class: the eligible `runs`, oldest first, and what their results are made with.

    `made`: boards by what they are of: most floors of evidence leave the same.
    """

    routing_mode: str
    semantic_class: str
    runs: Sequence[RankedRun]
    stretches: Stretches
    pools: Pools
    contracts: Contracts
    losses: LossGuard
    made: dict[Hashable, Board] = field(default_factory=dict)


def board(
    measured: Measured,
    glimpses: Sequence[Glimpse],
    missing: Sequence[MissingDispatcher],
    floor: str,
    refused: Sequence[Refusal] = (),
) -> Board | None:
    """None when there is nothing to show. `refused`: runs of the same class that may be ranked nowhere, oldest first;
    `glimpses`: those of them with a figure.
    """
    wanted = "screen" if floor == "matched_ab" else floor
    strong = [run for run in measured.runs if reaches(run.evidence_level, wanted)]
    results = Results(strong, measured.stretches, measured.pools, measured.contracts, floor=floor)
    here = results.compared()
    found = {} if here is None else results.on(here)
    others = () if here is None else outside(results, here)
    seen = _seen({*found, *(one.dispatcher for one in others)}, measured.runs, glimpses, floor)
    if not found and not seen:
        return None
    newer = {name: None if here is None else newest_elsewhere(name, results, here) for name in found}
    pools = tuple(id(one) for own in (*found.values(), newer.values()) for one in own)
    apart = [one.dispatcher for one in others] + [one.dispatcher for one in seen]
    unranked = _unranked(refused, {*found, *apart})
    basis = (len(strong), here, pools, others, seen)
    if basis in measured.made:
        return replace(measured.made[basis], floor=floor)
    best = [own[0] for own in found.values()]
    duels = _duels(best, measured.losses)
    ranking = places(tuple(found), duels) if len(found) > 1 else ()
    rows = Field(found, ranking, duels, measured.contracts, strong)
    entries = tuple(entry_of(name, rows, newer[name]) for name in found)
    reading = _reading(entries, seen, ranking, others)
    gone = tuple(one for one in missing if one.dispatcher not in found)
    measured.made[basis] = Board(
        floor=floor,
        routing_mode=measured.routing_mode,
        semantic_class=measured.semantic_class,
        reading=reading,
        sentence=reading_sentence(reading, entries, duels, seen, missing=gone, others=others, unranked=unranked),
        leaders=tuple(place.name for place in ranking if not place.beaten_by),
        entries=entries,
        duels=duels,
        by_memory=_by_memory(best),
        glimpses=seen,
        flops_differ=_flops_differ(best),
        below_floor=len(measured.runs) - len(strong),
        stretch=None if here is None else _stretch(best, here, measured.stretches),
        outside=others,
        unranked=unranked,
    )
    return measured.made[basis]


def empty_board(routing_mode: str, semantic_class: str, floor: str, why: str) -> Board:
    """Of a stack whose runs show nothing, not even in a glimpse: it is one all the same. `why` of its newest run."""
    sentence = f"No run of this stack may be ranked. Of its newest one: {why}."
    return Board(floor, routing_mode, semantic_class, "nothing_ranked", sentence, (), (), (), (), (), False, 0)


def _unranked(refused: Sequence[Refusal], told: set[str]) -> tuple[Refusal, ...]:
    """In the order of their names. A run says what it was, unless it only fell back from it."""
    newest = {one.dispatcher: one for one in refused if one.dispatcher and one.dispatcher not in told}
    return tuple(newest[name] for name in sorted(newest))


def _duels(best: Sequence[Pool], losses: LossGuard) -> tuple[Duel, ...]:
    if len(best) > 1:
        losses.read(best)
    return tuple(duel(a, b, worse_loss=losses.worse(a, b)) for a, b in combinations(best, 2))


def _stretch(best: Sequence[Pool], here: int, stretches: Stretches) -> Stretch:
    """Of the runs that stand on the board."""
    times = [run.ordered_at for one in best for run in one.runs]
    change = stretches.changed_after(here)
    return Stretch(
        first_at=min(times),
        last_at=max(times),
        runs=len(times),
        changes_since=stretches.changes_between(here, stretches.newest),
        changed_at=None if change is None else change.at,
    )


def _flops_differ(pools: Sequence[Pool]) -> bool:
    works = [log_work(one, [run.tflops_per_gpu for run in one.runs]) for one in pools]
    known = [work for work in works if work is not None]
    return bool(known) and max(known) - min(known) > SAME_WORK


def _by_memory(pools: Sequence[Pool]) -> tuple[Place, ...]:
    """Least first; () when the memory of one is unknown, or there is nothing to order."""
    known = [(memory, one.dispatcher, one) for one in pools if (memory := one.peak_memory_gib) is not None]
    if len(known) != len(pools) or len(pools) < 2:
        return ()
    ordered = [one for _, _, one in sorted(known, key=lambda item: item[:2])]
    duels = [met for a, b in combinations(ordered, 2) if (met := duel_by_memory(a, b)) is not None]
    return places([one.dispatcher for one in ordered], duels)


def _seen(told: set[str], runs: Sequence[RankedRun], glimpses: Sequence[Glimpse], floor: str) -> tuple[Glimpse, ...]:
    """Of each dispatcher without a result: its newest run below the floor, else one that may be ranked nowhere."""
    why = f"below the evidence level asked for ({floor})"
    found: Mapping[str, Glimpse] = {one.dispatcher: one for one in glimpses} | {
        run.dispatcher or "": Glimpse(run.dispatcher or "", run.name, math.exp(run.facts.estimate.log_step_time), why)
        for run in runs
        if run.dispatcher not in told
    }
    return tuple(found[name] for name in sorted(found) if name not in told)


def _reading(
    entries: Sequence[Entry], glimpses: Sequence[Glimpse], ranking: Sequence[Place], others: Sequence[Outside]
) -> Reading:
    if len(entries) == 1 and others:
        return "not_compared"
    if len(entries) == 1 or (not entries and len({one.dispatcher for one in glimpses}) == 1):
        return "only_measurement"
    if not entries:
        return "nothing_ranked"
    leaders = {place.name for place in ranking if not place.beaten_by}
    short = {entry.dispatcher for entry in entries if entry.directional}
    if leaders & short or len(entries) - len(short) < 2:
        return "directional"
    if len(ranking[0].beats) < len(entries) - 1:
        return "tie"
    return "not_compared" if unbeaten_by(ranking[0].name, others) else "leader"
