"""Standings of a stack: one board of its dispatchers per class of runs and evidence floor, with its sentences.

The values are stored and served as they are; pages recompute nothing.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from app.domain.numbers import gain_change, percent, plural
from app.domain.ranking.pairwise import PairwiseComparison, PositionRange
from app.domain.ranking.runs import DID_NOT_RUN, NEED_A_PACKAGE, Refusal
from app.domain.verdict.step_time import DroppedRun

Reading = Literal["leader", "contested", "tie", "directional", "not_compared", "only_measurement", "nothing_ranked"]
"""leader            one dispatcher is clearly better than every other one
contested         such a leader by all runs, but the A/B of the first two did not find it faster; never stored
tie               no dispatcher is clearly better than all others
directional       a leader or tie that rests on runs that are too short
not_compared      a dispatcher was measured only in another segment of the history, so it was not compared
only_measurement  a single dispatcher was measured, so there is no ranking
nothing_ranked    several dispatchers ran, none with an eligible run"""

GainKind = Literal["matched_ab", "side_by_side", "unknown"]
REFERENCE = "alltoall"
"""The dispatcher that gains are measured against; every container has it."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval over launches; memory has no interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of_logarithms(cls, middle: float, half_width: float) -> "Interval":
        return cls(math.exp(middle), math.exp(middle - half_width), math.exp(middle + half_width))


@dataclass(frozen=True, slots=True)
class BoardSegment:
    """The segment of the stack's history that a board is about: no change of speed lies between its runs.

    `first_at`, `last_at`: history positions of the first and last of the board's `runs`. `changes_since`: number of
    later changes of the stack's speed; `changed_at`: position of the first run after the first of them, else None.
    """

    first_at: datetime
    last_at: datetime
    runs: int
    changes_since: int = 0
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class UncomparedResult:
    """A dispatcher whose results all lie outside the board's segment, so it has no position.

    Its figure is from its own newest segment. `days`, `changes`: distance of its last run from the runs of the board;
    `before`: whether it is older. `beaten_by`: dispatchers of the board that were clearly faster the last time both
    were measured in one segment; `never_met`: those that never were.
    """

    dispatcher: str
    runs: tuple[str, ...]
    step_time_ms: Interval
    directional: bool
    last_at: datetime
    days: float
    changes: int
    before: bool
    beaten_by: tuple[str, ...]
    never_met: tuple[str, ...]
    sentence: str
    ep: int | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain over the best configuration of `over`, in percent of throughput with the interval that decided.

    `kind`: matched_ab when only the dispatcher differs, else side_by_side with `differs_in`; unknown without contracts.
    `memory_more_pct`: None where it is unknown on a side. `equal_knobs`: for a pair that differs in other knobs, too,
    the gain of two configurations that differ only in the dispatcher, at the EP degree of this one; None without them.
    `equal_runs`: the runs of the dispatcher in that pair. `at_other_ep`, `other_ep_runs`: the same at the EP degree of
    `over`, if the pair differs in it.
    """

    over: str
    comparison: PairwiseComparison
    kind: GainKind
    differs_in: tuple[str, ...]
    memory_more_pct: float | None
    sentence: str
    equal_knobs: PairwiseComparison | None = None
    equal_runs: tuple[str, ...] = ()
    at_other_ep: PairwiseComparison | None = None
    other_ep_runs: tuple[str, ...] = ()

    @property
    def of_dispatcher(self) -> PairwiseComparison | None:
        """Return the comparison that only the dispatcher explains; None if no two results allow it."""
        return self.equal_knobs if self.differs_in else self.comparison


@dataclass(frozen=True, slots=True)
class DispatcherConfiguration:
    """One configuration of a dispatcher. `comparison`: comparison with the best one; None for the best itself."""

    config_key: str
    runs: int
    step_time_ms: Interval
    directional: bool
    comparison: PairwiseComparison | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A dispatcher, represented by its best configuration. `place` is None when there is no ranking.

    `runs`: names of its runs, oldest first, `validated_runs` of them validated. `level`: evidence level of the result.
    `unproven`: no log shows which dispatcher ran. `configurations`: all that were measured, best first. `left_out`: the
    newest eligible runs of the configuration that do not count. `inferred`: all its runs show the dispatcher only by
    completed iterations, not by a log line. `from_prior`: there is one run, so the interval is the family's run-to-run
    variation. `last_at`: history position of its newest run. `newest`: step time in a newer segment than the board's,
    None without one. `worse_loss_than`: dispatchers of the board whose loss is clearly better over shared iterations.
    """

    dispatcher: str
    place: PositionRange | None
    config_key: str
    runs: tuple[str, ...]
    validated_runs: int
    step_time_ms: Interval
    tokens_per_s_per_gpu: Interval | None
    tflops_per_gpu: Interval | None
    peak_memory_gib: float | None
    memory_headroom_pct: float | None
    level: str
    directional: bool
    unproven: bool
    ep: int | None
    gain: Gain | None
    configurations: tuple[DispatcherConfiguration, ...]
    left_out: tuple[DroppedRun, ...] = ()
    inferred: bool = False
    from_prior: bool = False
    last_at: datetime | None = None
    newest: Interval | None = None
    worse_loss_than: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnrankedResult:
    """A dispatcher that ran only in a run that is not eligible for ranking, with its step time."""

    dispatcher: str
    run: str
    step_time_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class MissingDispatcher:
    """A dispatcher whose package is missing in the container, with the runs that show it, newest first.

    `ep`: as stated by these runs, else by all other runs of the stack.
    """

    dispatcher: str
    runs: tuple[str, ...]
    ep: int | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """The ranking of one stack, routing mode and semantic class, from evidence of at least `floor`.

    `entries`: fastest first. `by_memory`: places by peak memory, least first; empty when one is unknown.
    `flops_differ`: the entries count different work per step, so TFLOP/s/GPU must not order them. `below_floor`: number
    of runs below the floor. `stretch`: the segment of all its figures, None without figures. `outside`: dispatchers
    measured only in other segments. `unranked`: for each further dispatcher that was requested or ran, the newest run
    with the reason why it is not ranked.
    """

    floor: str
    routing_mode: str
    semantic_class: str
    reading: Reading
    sentence: str
    leaders: tuple[str, ...]
    entries: tuple[Entry, ...]
    comparisons: tuple[PairwiseComparison, ...]
    by_memory: tuple[PositionRange, ...]
    unranked_results: tuple[UnrankedResult, ...]
    flops_differ: bool
    below_floor: int
    remarks: tuple[str, ...] = ()
    stretch: BoardSegment | None = None
    outside: tuple[UncomparedResult, ...] = ()
    unranked: tuple[Refusal, ...] = ()

    @property
    def is_ranking(self) -> bool:
        return len(self.entries) > 1

    @property
    def first_two(self) -> tuple[str, str]:
        """Return the dispatchers of the first two places of a ranking."""
        return self.entries[0].dispatcher, self.entries[1].dispatcher

    @property
    def pairs_of_leaders(self) -> tuple[PairwiseComparison, ...]:
        return tuple(pair for pair in self.comparisons if {pair.first, pair.second} <= set(self.leaders))

    @property
    def runs_to_decide(self) -> int | None:
        """Return the further runs of each that would decide between two leaders; None for others, and if equal.

        Also None if they differ by less than what counts as equal: which one is ahead is not worth those runs.
        """
        pairs = self.pairs_of_leaders
        return pairs[0].more_runs if len(pairs) == 1 and not pairs[0].is_small else None

    def pair(self, first: Entry, second: Entry) -> PairwiseComparison | None:
        """Return the comparison of the first with the second; None if the two were not compared."""
        for pair in self.comparisons:
            if (pair.first, pair.second) == (first.dispatcher, second.dispatcher):
                return pair
            if (pair.second, pair.first) == (first.dispatcher, second.dispatcher):
                return pair.turned()
        return None

    def entry(self, dispatcher: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.dispatcher == dispatcher), None)


@dataclass(frozen=True, slots=True)
class StackStandings:
    """All standings of a stack. `refused`: its newest ineligible runs with reasons; `refused_count`: all of them.

    `fallbacks`: runs that count for another dispatcher than requested. `partial`: some figures wait to be recomputed
    after a change of definitions, so a leader may change without a new run.
    """

    stack_key: str
    hardware: str
    family: str
    precision: str
    boards: tuple[Board, ...]
    missing: tuple[MissingDispatcher, ...] = ()
    refused: tuple[Refusal, ...] = ()
    refused_count: int = 0
    fallbacks: tuple[Refusal, ...] = field(default=())
    partial: bool = False

    def boards_at(self, floor: str) -> tuple[Board, ...]:
        return tuple(board for board in self.boards if board.floor == floor)

    def board(self, floor: str, routing_mode: str, semantic_class: str) -> Board | None:
        wanted = (routing_mode, semantic_class)
        boards = (board for board in self.boards_at(floor) if (board.routing_mode, board.semantic_class) == wanted)
        return next(boards, None)


def missing_names(missing: Iterable[MissingDispatcher]) -> tuple[str, ...]:
    return tuple(item.dispatcher for item in missing)


# --- Sentences of a board: who leads, who ties, and when there is no ranking.


def listed(names: Sequence[str]) -> str:
    """Join names: `a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def reading_sentence(
    reading: Reading,
    entries: Sequence[Entry],
    comparisons: Sequence[PairwiseComparison],
    unranked_results: Sequence[UnrankedResult],
    *,
    missing: Sequence[MissingDispatcher],
    others: Sequence[UncomparedResult],
    unranked: Sequence[Refusal],
) -> str:
    """State the result of a board and the dispatchers without one."""
    match reading:
        case "only_measurement":
            text = _only(entries, unranked_results, missing_names(missing), unranked)
        case "nothing_ranked":
            seen = listed(tuple(result.dispatcher for result in unranked_results))
            text = f"{seen} ran, but without a run that is eligible here."
        case "directional":
            text = f"Direction only: {_windows(entries)} Confirm it with full runs. {_order(entries, comparisons)}"
        case "not_compared":
            text = _order(entries, comparisons) if len(entries) > 1 else "This is not a ranking."
        case "tie":
            text = f"No clear winner: {_order(entries, comparisons)}"
        case "leader" | "contested":
            text = _order(entries, comparisons)
    text = " ".join((text, *(other.sentence for other in others)))
    if missing:
        several = len(missing) > 1
        text += (
            f" {listed(missing_names(missing))} could not run because the {'packages are' if several else 'package is'}"
            f" not in the container. This says nothing about {'their' if several else 'its'} speed."
        )
    return text


def _only(
    entries: Sequence[Entry],
    unranked_results: Sequence[UnrankedResult],
    missing: Sequence[str],
    unranked: Sequence[Refusal],
) -> str:
    """State that one dispatcher has a result, and which others ran only in ineligible runs."""
    name = entries[0].dispatcher if entries else unranked_results[0].dispatcher
    role = "fallback" if missing and name not in NEED_A_PACKAGE else "dispatcher"
    ran = [result.dispatcher for result in unranked_results]
    ran += [refusal.dispatcher for refusal in unranked if refusal.why not in DID_NOT_RUN]
    others = tuple(dict.fromkeys(dispatcher for dispatcher in ran if dispatcher != name))
    text = f"{name} is the only measured {role} of this stack. This is not a ranking."
    if others:
        text = f"{name} is the only dispatcher of this stack with a result. This is not a ranking."
        text += f" {listed(others)} ran, but without a run that is eligible here."
    if not entries:
        text += f" Its run is not eligible: {unranked_results[0].why}."
    elif entries[0].directional:
        text += " Direction only: its runs are too short to show whether warm-up was over."
    return text


def _windows(entries: Sequence[Entry]) -> str:
    short = tuple(entry.dispatcher for entry in entries if entry.directional)
    return f"the runs of {listed(short)} are too short to show whether warm-up was over."


def _order(entries: Sequence[Entry], comparisons: Sequence[PairwiseComparison]) -> str:
    """State which dispatchers are faster, from the places of the entries."""
    first = [entry for entry in entries if entry.place and not entry.place.beaten_by]
    names = tuple(entry.dispatcher for entry in first)
    rest = tuple(entry.dispatcher for entry in entries if entry.dispatcher not in names)
    if len(names) == 1:
        return f"{names[0]} is faster than {listed(rest)}, beyond run-to-run variation."
    among = [pair for pair in comparisons if {pair.first, pair.second} <= set(names)]
    guarded = [pair for pair in among if pair.worse_loss and pair.tie_because]
    if guarded and len(names) == 2:
        return _guarded(guarded[0])
    equal = all(pair.outcome == "equal" for pair in among)
    close = f"are equally fast, {within(among[0]) if len(among) == 1 else 'within 2 %'}"
    tied = f"{listed(names)} {close if equal else 'cannot be distinguished yet'}."
    if len(names) > 2 and not all(len(entry.place.ties) >= len(first) - 1 for entry in first if entry.place):
        tied = f"none of {listed(names)} is beaten, although not all of them tie with each other."
    return f"{tied} {listed(rest)} {plural(len(rest), 'is', 'are', number=False)} slower." if rest else tied


def _guarded(comparison: PairwiseComparison) -> str:
    """State that one dispatcher is faster but has a worse loss."""
    faster = comparison if comparison.worse_loss == comparison.first else comparison.turned()
    return (
        f"{faster.first} is faster than {faster.second}, but its loss is {percent(faster.loss_delta_pct or 0.0)} worse:"
        " a faster run with a worse loss is not an improvement."
    )


def gain_sentence(name: str, comparison: PairwiseComparison, memory_more_pct: float | None, memory_clear: bool) -> str:
    """State a gain: `deepep is 15.4 % faster than alltoall (13.8 to 16.9), but needs 12.0 % more memory.`"""
    memory = _memory(comparison, memory_more_pct) if memory_clear and memory_more_pct is not None else ""
    short = " Direction only." if comparison.directional else ""
    if comparison.tie and comparison.worse_loss and comparison.tie_because:
        gain = gain_change(comparison.gain_pct, comparison.low_pct, comparison.high_pct).text
        return f"{_guarded(comparison)} {name} is {gain}{memory}.{short}"
    if comparison.tie:
        return f"{name} {_tied(comparison)}{memory.replace(', but', ', and', 1)}.{short}"
    change = gain_change(comparison.gain_pct, comparison.low_pct, comparison.high_pct)
    interval = f" ({change.interval})" if change.interval else ""
    return f"{name} is {change.than} {comparison.second}{interval}{memory}.{short}"


def _tied(comparison: PairwiseComparison) -> str:
    because = f": {comparison.tie_because}" if comparison.tie_because else ""
    if comparison.outcome == "equal":
        return f"is as fast as {comparison.second}, {within(comparison)}{because}"
    more = f"; {would_decide(comparison.more_runs)}" if comparison.more_runs else ""
    text = f"is not clearly faster or slower than {comparison.second} in speed{because}"
    interval = gain_change(comparison.gain_pct, comparison.low_pct, comparison.high_pct).interval
    return f"{text} ({interval}{more})"


def would_decide(runs: int, noun: str = "more run") -> str:
    """Return `3 more runs of each would decide if difference and spread stay the same`."""
    return f"{plural(runs, noun)} of each would decide if difference and spread stay the same"


def within(comparison: PairwiseComparison) -> str:
    """Return the interval of an `equal` pair: `within 2 % (1.2 slower to 0.9 faster by two one-sided tests)`."""
    ends = gain_change(comparison.gain_pct, comparison.low_pct, comparison.high_pct).interval
    return f"within 2 % ({ends} by two one-sided tests)"


def _memory(comparison: PairwiseComparison, more_pct: float) -> str:
    """Return the memory clause, with `but` where memory and speed disagree."""
    worse_memory = more_pct > 0
    disagree = worse_memory == (comparison.outcome == "first")
    return (
        f", {'but' if disagree else 'and'} needs {percent(abs(more_pct))} {'more' if worse_memory else 'less'} memory"
    )
