"""Build one board: the dispatchers of one stack, routing mode and semantic class with their places.

All figures of a board come from one segment of the stack's history, so that a change of the code is never mistaken for
a difference between dispatchers.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.numbers import plural
from app.domain.ranking.pairwise import (
    DISPATCHER_AXIS,
    Knobs,
    LossGuard,
    PairwiseComparison,
    PositionRange,
    at_equal_knobs,
    best_first,
    compare_pair,
    compare_pair_by_memory,
    knobs_without,
    position_ranges,
)
from app.domain.ranking.pools import Pool, Pools, Segments, log_work
from app.domain.ranking.runs import RankedRun, Refusal, headroom_pct, reaches
from app.domain.ranking.standings import (
    REFERENCE,
    Board,
    BoardSegment,
    DispatcherConfiguration,
    Entry,
    Gain,
    GainKind,
    Interval,
    MissingDispatcher,
    Reading,
    UncomparedResult,
    UnrankedResult,
    gain_sentence,
    reading_sentence,
)
from app.domain.run import EVIDENCE_LEVELS, Stated
from app.domain.verdict.comparability import compare_contracts
from app.domain.verdict.decide import SAME_WORK
from app.domain.verdict.step_time import DroppedRun

# --- Comparability of two configurations of a stack, and the evidence level of a result.

Contracts = Mapping[str, Mapping[str, Stated]]
"""Config key -> contract of any of its runs; the knobs of missing keys are unknown."""
DISPATCHER = "dispatcher"


@dataclass(frozen=True, slots=True)
class _Configuration:
    """Input of contract matching. Stack, project and class are equal for all configurations of a board."""

    contract: Mapping[str, Stated]
    project: str = ""
    commit: str = ""
    semantic_class: str = ""
    job: str = ""


def comparison(first: Pool, second: Pool, contracts: Contracts) -> tuple[GainKind, tuple[str, ...]]:
    """Return whether only the dispatcher differs between two configurations, and the other knobs that differ."""
    a, b = contracts.get(first.config_key), contracts.get(second.config_key)
    if a is None or b is None:
        return "unknown", ()
    comparability = compare_contracts(_Configuration(a), _Configuration(b))
    if comparability.kind == "matched_ab" and comparability.attributed_to == DISPATCHER:
        return "matched_ab", ()
    knobs = (knob.field for knob in (*comparability.stack, *comparability.knobs) if knob.follows != DISPATCHER)
    return "side_by_side", tuple(field for field in knobs if field != DISPATCHER)


def result_level(best: Pool, others: Sequence[Pool], contracts: Contracts) -> str:
    """Return the evidence level of a dispatcher's result: that of its runs, or `matched_ab` as side of a matched A/B.

    A matched A/B takes two configurations that differ only in the dispatcher, both at least `screen` and not short.
    `others`: pools of the other dispatchers.
    """
    level = best.level
    if reaches(level, "matched_ab") or not _may_match(best):
        return level
    matched = any(_may_match(other) and comparison(best, other, contracts)[0] == "matched_ab" for other in others)
    return "matched_ab" if matched else level


def _may_match(pool: Pool) -> bool:
    return not pool.directional and reaches(pool.level, "screen")


# --- The configurations that represent the dispatchers of a segment, and the segment that a board is about.

Candidates = Mapping[str, Sequence[Pool]]
"""Dispatcher -> its configurations in one segment, starting with the one that represents it."""


class Results:
    """The results of one class of runs at one evidence floor, by segment; each segment is computed once."""

    def __init__(
        self, runs: Iterable[RankedRun], segments: Segments, pools: Pools, contracts: Contracts, *, floor: str
    ) -> None:
        """Group `runs` (oldest first) by segment, leaving out runs older than the segments reach."""
        self._runs = dict(sorted(segments.grouped(runs).items(), reverse=True))
        self._candidates: dict[int, Candidates] = {}
        self._pools, self._contracts, self._floor = pools, contracts, floor
        self.segments = segments

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the segments that have runs, newest first."""
        return tuple(self._runs)

    def on(self, number: int) -> Candidates:
        if number not in self._candidates:
            self._candidates[number] = candidates(self._runs[number], self._pools, self._contracts, self._floor)
        return self._candidates[number]

    def dispatchers(self, number: int) -> set[str | None]:
        """Return the dispatchers that ran in the segment, with or without a result."""
        return {run.dispatcher for run in self._runs[number]}

    def compared(self) -> int | None:
        """Return the segment of the board, None without any result.

        The newest one in which two dispatchers have results of full runs, else of short runs, else the newest one with
        a result.
        """
        several = [number for number in self.numbers if len(self.dispatchers(number)) > 1]
        for only_full in (True, False):
            for number in several:
                if sum(not (only_full and own[0].directional) for own in self.on(number).values()) > 1:
                    return number
        return next((number for number in self.numbers if self.on(number)), None)


def candidates(runs: Sequence[RankedRun], pools: Pools, contracts: Contracts, floor: str) -> dict[str, list[Pool]]:
    """Pool `runs` of one segment (oldest first) by dispatcher, the fastest first.

    Dispatchers below the evidence floor are left out; the level of a matched A/B counts for both of its sides.
    """
    by_key: dict[tuple[str, str], list[RankedRun]] = {}
    for run in runs:
        by_key.setdefault((run.dispatcher or "", run.facts.config_key), []).append(run)
    by_dispatcher: dict[str, list[Pool]] = {}
    for pool in sorted((pools.pool(group) for group in by_key.values()), key=_fastest_first):
        by_dispatcher.setdefault(pool.dispatcher, []).append(pool)
    chosen = {name: best_first(own, _level) for name, own in by_dispatcher.items()}
    ordered = dict(sorted(chosen.items(), key=lambda item: _fastest_first(item[1][0])))
    levels = {name: result_level(own[0], others_of(name, ordered), contracts) for name, own in ordered.items()}
    return {name: own for name, own in ordered.items() if reaches(levels[name], floor)}


def others_of(name: str, offered: Candidates) -> list[Pool]:
    return [pool for other, pools in offered.items() if other != name for pool in pools]


def _fastest_first(pool: Pool) -> tuple[float, str, str]:
    return pool.log_step_time, pool.dispatcher, pool.config_key


def _level(pool: Pool) -> int:
    return next((place for place, level in enumerate(EVIDENCE_LEVELS) if level == pool.level), 0)


# --- Dispatchers that were measured only in other segments than the board's.

_DAY = 86_400.0


def outside(results: Results, here: int) -> tuple[UncomparedResult, ...]:
    """Return them ordered by name. `here`: number of the board's segment."""
    ranked = results.on(here)
    if set().union(*(results.dispatchers(number) for number in results.numbers)) <= ranked.keys():
        return ()
    elsewhere = {number: results.on(number) for number in results.numbers if number != here}
    names = sorted({name for candidates in elsewhere.values() for name in candidates}.difference(ranked))
    return tuple(_outside(name, elsewhere, here, ranked, results.segments) for name in names)


def _outside(
    name: str, elsewhere: Mapping[int, Candidates], here: int, ranked: Candidates, segments: Segments
) -> UncomparedResult:
    mine = {number: candidates[name][0] for number, candidates in elsewhere.items() if name in candidates}
    # The newest segment with full runs, else the newest one.
    number = min(mine, key=lambda segment_number: (mine[segment_number].directional, -segment_number))
    best, last = mine[number], mine[number].runs[-1]
    nearest = max((run for own in ranked.values() for run in own[0].runs), key=lambda run: run.history_position)
    days = abs((last.ordered_at - nearest.ordered_at).total_seconds()) / _DAY
    changes = segments.changes_between(number, here)
    met = {other: _met(name, other, elsewhere) for other in ranked}
    return UncomparedResult(
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
    """Return the winner the last time both were measured in one segment; "" for a tie, None when they never were."""
    together = [candidates for candidates in elsewhere.values() if name in candidates and other in candidates]
    return compare_pair(together[0][name][0], together[0][other][0]).winner if together else None


def interval(pool: Pool) -> Interval:
    """Return the step time of a result in ms, with its 95 % interval over launches."""
    return Interval.of_logarithms(pool.log_step_time, pool.half_width)


def _sentence(name: str, days: float, changes: int, other: str, *, before: bool) -> str:
    """State `alltoall was last measured 8 days and one change of the stack's speed before hybridep, ...`."""
    apart = [plural(round(days), "day")] if round(days) else []
    apart.append("one change" if changes == 1 else plural(changes, "change"))
    when = f"{' and '.join(apart)} of the stack's speed {'before' if before else 'after'} {other}"
    return f"{name} was last measured {when}, on different code, so the two are not compared."


def unbeaten_by(leader: str, others: Iterable[UncomparedResult]) -> tuple[str, ...]:
    """Return dispatchers that the leader never beat in a full comparison."""
    return tuple(other.dispatcher for other in others if not other.directional and leader not in other.beaten_by)


def newest_elsewhere(name: str, results: Results, here: int) -> Pool | None:
    """Return the result of a dispatcher in the newest segment after `here`, None without one."""
    newer = (results.on(number) for number in results.numbers if number > here)
    return next((candidates[name][0] for candidates in newer if name in candidates), None)


# --- One row of a board: a dispatcher with its best configuration and its gain over alltoall.

MOST_LEFT_OUT = 20
OTHER_CODE = "in another segment: the speed of the stack changed in between"


@dataclass(frozen=True, slots=True)
class Field:
    """The inputs of a board's rows. `runs`: runs of its class and floor in any segment, oldest first."""

    candidates: Candidates
    ranking: Sequence[PositionRange]
    comparisons: Sequence[PairwiseComparison]
    contracts: Contracts
    runs: Sequence[RankedRun]


def entry_of(name: str, field: Field, newest_elsewhere: Pool | None) -> Entry:
    """Build the row of a dispatcher. `newest_elsewhere`: its result in a newer segment than the board's."""
    best = field.candidates[name][0]
    newest = best.runs[-1]
    own = [
        item if item.first == name else item.turned() for item in field.comparisons if name in (item.first, item.second)
    ]
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
        configurations=tuple(_configuration(item, best) for item in field.candidates[name]),
        left_out=_left_out(best, field.runs),
        inferred=all(run.inferred for run in best.runs),
        from_prior=len(best.runs) == 1,
        last_at=newest.ordered_at,
        newest=None if newest_elsewhere is None else interval(newest_elsewhere),
        worse_loss_than=tuple(item.second for item in own if item.worse_loss == name),
    )


def _configuration(pool: Pool, best: Pool) -> DispatcherConfiguration:
    against = None if pool is best else compare_pair(pool, best, (pool.config_key, best.config_key))
    return DispatcherConfiguration(pool.config_key, len(pool.runs), interval(pool), pool.directional, against)


def _left_out(best: Pool, runs: Sequence[RankedRun]) -> tuple[DroppedRun, ...]:
    """Return the newest runs of the configuration that do not count, oldest first."""
    why = {run.run: run.why for run in best.dropped}
    taken = {run.name for run in best.runs}
    mine = [run.name for run in runs if run.facts.config_key == best.config_key and run.dispatcher == best.dispatcher]
    return tuple(DroppedRun(name, why.get(name, OTHER_CODE)) for name in mine if name not in taken)[-MOST_LEFT_OUT:]


def _gain(name: str, field: Field) -> Gain | None:
    if name == REFERENCE or REFERENCE not in field.candidates:
        return None
    best, reference = field.candidates[name][0], field.candidates[REFERENCE][0]
    met = next(pair for pair in field.comparisons if {pair.first, pair.second} == {name, REFERENCE})
    seen = met if met.first == name else met.turned()
    kind, differs_in = comparison(best, reference, field.contracts)
    memory = compare_pair_by_memory(best, reference)
    mine, theirs = best.peak_memory_gib, reference.peak_memory_gib
    more = None if memory is None or mine is None or theirs is None else 100 * (mine / theirs - 1)
    clear = memory is not None and not memory.tie
    gain = Gain(REFERENCE, seen, kind, differs_in, more, gain_sentence(name, seen, more, clear))
    if differs_in and (pair := _equal_knobs(name, field, best.runs[-1].ep)):
        gain = replace(gain, equal_knobs=compare_pair(*pair), equal_runs=tuple(run.name for run in pair[0].runs))
    if "ep" in differs_in and (pair := _equal_knobs(name, field, reference.runs[-1].ep)):
        gain = replace(gain, at_other_ep=compare_pair(*pair), other_ep_runs=tuple(run.name for run in pair[0].runs))
    return gain


def _equal_knobs(name: str, field: Field, ep: int | None) -> tuple[Pool, Pool] | None:
    """Return full results of the dispatcher and the reference at an EP degree, alike in all other knobs."""
    sides = (
        [(_knobs(pool, field.contracts), pool) for pool in field.candidates[side] if not pool.directional]
        for side in (name, REFERENCE)
    )
    own, against = sides
    return at_equal_knobs([(knobs, pool) for knobs, pool in own if pool.runs[-1].ep == ep], against)


def _knobs(pool: Pool, contracts: Contracts) -> Knobs:
    contract = contracts.get(pool.config_key, {})
    fields = (name for name in (*STACK_FIELDS, *CONFIG_FIELDS) if name in contract)
    return knobs_without(DISPATCHER_AXIS, {name: contract[name].value for name in fields})


def _throughput(pool: Pool, figures: Sequence[float | None]) -> Interval | None:
    """Return a throughput with its interval: a constant over the step time, never a mean of ratios."""
    work = log_work(pool, figures)
    if work is None:
        return None
    return Interval.of_logarithms(work - pool.log_step_time, pool.half_width)


@dataclass(frozen=True, slots=True)
class BoardInputs:
    """Inputs of the boards of one stack and class. `runs`: the eligible runs, oldest first.

    `boards`: cache of boards by content, because most evidence floors leave the same runs.
    """

    routing_mode: str
    semantic_class: str
    runs: Sequence[RankedRun]
    segments: Segments
    pools: Pools
    contracts: Contracts
    losses: LossGuard
    boards: dict[Hashable, Board] = field(default_factory=dict)


def board(
    measured: BoardInputs,
    unranked_results: Sequence[UnrankedResult],
    missing: Sequence[MissingDispatcher],
    floor: str,
    refused: Sequence[Refusal] = (),
) -> Board | None:
    """Build the board at one evidence floor; None when there is nothing to show.

    `refused`: ineligible runs of the same class, oldest first; `unranked_results`: those of them with a step time.
    """
    wanted = "screen" if floor == "matched_ab" else floor
    strong = [run for run in measured.runs if reaches(run.evidence_level, wanted)]
    results = Results(strong, measured.segments, measured.pools, measured.contracts, floor=floor)
    here = results.compared()
    candidates = {} if here is None else results.on(here)
    others = () if here is None else outside(results, here)
    seen = _seen({*candidates, *(result.dispatcher for result in others)}, measured.runs, unranked_results, floor)
    if not candidates and not seen:
        return None
    newer = {name: None if here is None else newest_elsewhere(name, results, here) for name in candidates}
    pools = tuple(id(result) for own in (*candidates.values(), newer.values()) for result in own)
    apart = [result.dispatcher for result in others] + [result.dispatcher for result in seen]
    unranked = _unranked(refused, {*candidates, *apart})
    basis = (len(strong), here, pools, others, seen)
    if basis in measured.boards:
        return replace(measured.boards[basis], floor=floor)
    best = [own[0] for own in candidates.values()]
    comparisons = _comparisons(best, measured.losses)
    ranking = position_ranges(tuple(candidates), comparisons) if len(candidates) > 1 else ()
    rows = Field(candidates, ranking, comparisons, measured.contracts, strong)
    entries = tuple(entry_of(name, rows, newer[name]) for name in candidates)
    reading = _reading(entries, seen, ranking, others)
    gone = tuple(result for result in missing if result.dispatcher not in candidates)
    measured.boards[basis] = Board(
        floor=floor,
        routing_mode=measured.routing_mode,
        semantic_class=measured.semantic_class,
        reading=reading,
        sentence=reading_sentence(reading, entries, comparisons, seen, missing=gone, others=others, unranked=unranked),
        leaders=tuple(place.name for place in ranking if not place.beaten_by),
        entries=entries,
        comparisons=comparisons,
        by_memory=_by_memory(best),
        unranked_results=seen,
        flops_differ=_flops_differ(best),
        below_floor=len(measured.runs) - len(strong),
        stretch=None if here is None else _board_segment(best, here, measured.segments),
        outside=others,
        unranked=unranked,
    )
    return measured.boards[basis]


def empty_board(routing_mode: str, semantic_class: str, floor: str, why: str) -> Board:
    """Build the board of a stack without any step time. `why`: the reason of its newest run."""
    sentence = f"No run of this stack is eligible for ranking. Newest run: {why}."
    return Board(floor, routing_mode, semantic_class, "nothing_ranked", sentence, (), (), (), (), (), False, 0)


def _unranked(refused: Sequence[Refusal], shown: set[str]) -> tuple[Refusal, ...]:
    """Return the newest refusal of each dispatcher that the board does not show, ordered by name."""
    newest = {
        refusal.dispatcher: refusal for refusal in refused if refusal.dispatcher and refusal.dispatcher not in shown
    }
    return tuple(newest[name] for name in sorted(newest))


def _comparisons(best: Sequence[Pool], losses: LossGuard) -> tuple[PairwiseComparison, ...]:
    if len(best) > 1:
        losses.read(best)
    return tuple(compare_pair(a, b, worse_loss=losses.worse(a, b)) for a, b in combinations(best, 2))


def _board_segment(best: Sequence[Pool], here: int, segments: Segments) -> BoardSegment:
    """Describe the segment by the runs of the board."""
    times = [run.ordered_at for pool in best for run in pool.runs]
    change = segments.changed_after(here)
    return BoardSegment(
        first_at=min(times),
        last_at=max(times),
        runs=len(times),
        changes_since=segments.changes_between(here, segments.newest),
        changed_at=None if change is None else change.at,
    )


def _flops_differ(pools: Sequence[Pool]) -> bool:
    works = [log_work(pool, [run.tflops_per_gpu for run in pool.runs]) for pool in pools]
    values = [work for work in works if work is not None]
    return bool(values) and max(values) - min(values) > SAME_WORK


def _by_memory(pools: Sequence[Pool]) -> tuple[PositionRange, ...]:
    """Return places by peak memory, least first; () when one is unknown or there is nothing to order."""
    measured = [(memory, pool.dispatcher, pool) for pool in pools if (memory := pool.peak_memory_gib) is not None]
    if len(measured) != len(pools) or len(pools) < 2:
        return ()
    ordered = [pool for _, _, pool in sorted(measured, key=lambda item: item[:2])]
    comparisons = [met for a, b in combinations(ordered, 2) if (met := compare_pair_by_memory(a, b)) is not None]
    return position_ranges([pool.dispatcher for pool in ordered], comparisons)


def _seen(
    shown: set[str], runs: Sequence[RankedRun], unranked_results: Sequence[UnrankedResult], floor: str
) -> tuple[UnrankedResult, ...]:
    """Return for each dispatcher without a result its newest run below the floor, else its ineligible run."""
    why = f"below the requested evidence level ({floor})"
    results: Mapping[str, UnrankedResult] = {result.dispatcher: result for result in unranked_results} | {
        run.dispatcher or "": UnrankedResult(
            run.dispatcher or "", run.name, math.exp(run.facts.estimate.log_step_time), why
        )
        for run in runs
        if run.dispatcher not in shown
    }
    return tuple(results[name] for name in sorted(results) if name not in shown)


def _reading(
    entries: Sequence[Entry],
    unranked_results: Sequence[UnrankedResult],
    ranking: Sequence[PositionRange],
    others: Sequence[UncomparedResult],
) -> Reading:
    if len(entries) == 1 and others:
        return "not_compared"
    if len(entries) == 1 or (not entries and len({result.dispatcher for result in unranked_results}) == 1):
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
