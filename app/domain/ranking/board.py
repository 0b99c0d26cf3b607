"""Makes one board: eligible runs of one stack, routing mode and semantic class in, dispatchers with places out."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from app.domain.detection.metric_changes import SAME_WORK
from app.domain.ranking.duels import Duel, duel, duel_by_memory
from app.domain.ranking.memory_sizes import headroom_pct
from app.domain.ranking.places import Place, places
from app.domain.ranking.pooling import Pool, Pools, log_work
from app.domain.ranking.ranked_run import RankedRun, reaches
from app.domain.ranking.result_level import Contracts, comparison, result_level
from app.domain.ranking.sentences import gain_sentence, reading_sentence
from app.domain.ranking.standings import (
    REFERENCE,
    Board,
    Configuration,
    Entry,
    Gain,
    Glimpse,
    Interval,
    MissingDispatcher,
    Reading,
)

MOST_LEFT_OUT = 20
Candidates = Mapping[str, Sequence[Pool]]
"""Dispatcher -> its configurations, best first."""


def board(
    runs: Sequence[RankedRun],
    glimpses: Sequence[Glimpse],
    missing: Sequence[MissingDispatcher],
    wanted: tuple[str, str],
    *,
    floor: str,
    pools: Pools,
    contracts: Contracts,
) -> Board | None:
    """The board of eligible `runs` (oldest first), all of one stack, routing mode and semantic class (`wanted`).

    None when there is nothing to show. `glimpses`: runs of the same class that may be ranked nowhere.
    """
    strong = [run for run in runs if reaches(run.evidence_level, "screen" if floor == "matched_ab" else floor)]
    candidates = _at_least(floor, _candidates(strong, pools), contracts)
    best = {name: pools[0] for name, pools in candidates.items()}
    seen = _seen(best, runs, glimpses, floor)
    if not best and not seen:
        return None
    duels = tuple(duel(a, b) for a, b in combinations(best.values(), 2))
    ranking = places(tuple(best), duels) if len(best) > 1 else ()
    entries = tuple(_entry(name, candidates, ranking, duels, contracts) for name in best)
    leaders = tuple(place.name for place in ranking if not place.beaten_by)
    reading = _reading(entries, seen, ranking)
    gone = tuple(one for one in missing if one.dispatcher not in best)
    return Board(
        floor=floor,
        routing_mode=wanted[0],
        semantic_class=wanted[1],
        reading=reading,
        sentence=reading_sentence(reading, entries, duels, seen, gone),
        leaders=leaders,
        entries=entries,
        duels=duels,
        by_memory=_by_memory(list(best.values())),
        glimpses=seen,
        flops_differ=_flops_differ(list(best.values())),
        below_floor=len(runs) - len(strong),
    )


def _candidates(runs: Sequence[RankedRun], made: Pools) -> dict[str, list[Pool]]:
    """Fastest first, both the dispatchers and the configurations of each."""
    by_key: dict[tuple[str, str], list[RankedRun]] = {}
    for run in runs:
        by_key.setdefault((run.dispatcher or "", run.facts.config_key), []).append(run)
    found: dict[str, list[Pool]] = {}
    for one in sorted((made.pool(group) for group in by_key.values()), key=_fastest_first):
        found.setdefault(one.dispatcher, []).append(one)
    # A result of full runs stands for its dispatcher before one that is directional only, however fast that looks.
    chosen = {name: sorted(pools, key=lambda one: one.directional) for name, pools in found.items()}
    return dict(sorted(chosen.items(), key=lambda item: _fastest_first(item[1][0])))


def _fastest_first(one: Pool) -> tuple[float, str, str]:
    return one.log_step_time, one.dispatcher, one.config_key


def _at_least(floor: str, candidates: dict[str, list[Pool]], contracts: Contracts) -> dict[str, list[Pool]]:
    """Without the dispatchers whose result does not reach the floor: what two runs make together counts, too."""
    kept = {}
    for name, pools in candidates.items():
        others = _others(name, candidates)
        if reaches(result_level(pools[0], others, contracts), floor):
            kept[name] = pools
    return kept


def _others(name: str, candidates: Candidates) -> list[Pool]:
    return [one for other, pools in candidates.items() if other != name for one in pools]


def _entry(
    name: str, candidates: Candidates, ranking: Sequence[Place], duels: Sequence[Duel], contracts: Contracts
) -> Entry:
    best, newest = candidates[name][0], candidates[name][0].runs[-1]
    return Entry(
        dispatcher=name,
        place=next((place for place in ranking if place.name == name), None),
        config_key=best.config_key,
        runs=tuple(run.name for run in best.runs),
        validated_runs=best.runs_at("validated"),
        step_time_ms=_step_time(best),
        tokens_per_s_per_gpu=_throughput(best, [run.tokens_per_s_per_gpu for run in best.runs]),
        tflops_per_gpu=_throughput(best, [run.tflops_per_gpu for run in best.runs]),
        peak_memory_gib=best.peak_memory_gib,
        memory_headroom_pct=headroom_pct(newest.hardware, best.peak_memory_gib),
        level=result_level(best, _others(name, candidates), contracts),
        directional=best.directional,
        unproven=all(run.active is None for run in best.runs),
        ep=newest.ep,
        gain=_gain(name, candidates, duels, contracts),
        configurations=tuple(_configuration(one, best) for one in candidates[name]),
        left_out=best.dropped[-MOST_LEFT_OUT:],
    )


def _configuration(one: Pool, best: Pool) -> Configuration:
    against = None if one is best else duel(one, best, (one.config_key, best.config_key))
    return Configuration(one.config_key, len(one.runs), _step_time(one), one.directional, against)


def _gain(name: str, candidates: Candidates, duels: Sequence[Duel], contracts: Contracts) -> Gain | None:
    if name == REFERENCE or REFERENCE not in candidates:
        return None
    best, reference = candidates[name][0], candidates[REFERENCE][0]
    met = next(one for one in duels if {one.first, one.second} == {name, REFERENCE})
    seen = met if met.first == name else met.turned()
    kind, differs_in = comparison(best, reference, contracts)
    memory = duel_by_memory(best, reference)
    mine, theirs = best.peak_memory_gib, reference.peak_memory_gib
    more = None if memory is None or mine is None or theirs is None else 100 * (mine / theirs - 1)
    clear = memory is not None and not memory.tie
    return Gain(REFERENCE, seen, kind, differs_in, more, gain_sentence(name, seen, more, clear))


def _step_time(one: Pool) -> Interval:
    middle, half = one.log_step_time, one.half_width
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _throughput(one: Pool, figures: Sequence[float | None]) -> Interval | None:
    """A constant over the step time, so its interval is that of the step time; never a mean of ratios."""
    work = log_work(one, figures)
    if work is None:
        return None
    middle, half = work - one.log_step_time, one.half_width
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


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


def _seen(
    best: Mapping[str, Pool], runs: Sequence[RankedRun], glimpses: Sequence[Glimpse], floor: str
) -> tuple[Glimpse, ...]:
    """Of each dispatcher without a result: its newest run below the floor, else one that may be ranked nowhere."""
    why = f"below the evidence level asked for ({floor})"
    found = {one.dispatcher: one for one in glimpses}
    for run in runs:
        name = run.dispatcher or ""
        found[name] = Glimpse(name, run.name, math.exp(run.facts.estimate.log_step_time), why)
    return tuple(found[name] for name in sorted(found) if name not in best)


def _reading(entries: Sequence[Entry], glimpses: Sequence[Glimpse], ranking: Sequence[Place]) -> Reading:
    if len(entries) == 1 or (not entries and len({one.dispatcher for one in glimpses}) == 1):
        return "only_measurement"
    if not entries:
        return "nothing_ranked"
    leaders = {place.name for place in ranking if not place.beaten_by}
    short = {entry.dispatcher for entry in entries if entry.directional}
    if leaders & short or len(entries) - len(short) < 2:
        return "directional"
    return "leader" if len(ranking[0].beats) == len(entries) - 1 else "tie"
