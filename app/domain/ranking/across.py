"""Results over several stacks of one hardware and family: counts and ranges.

Stacks differ in workload, size, container and precision, so their step times and gains have no common mean. The summary
states in how many stacks a dispatcher won, tied or lost, and the range of its gain.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.domain.ranking.runs import DISPATCHERS, EpSize, ep_size
from app.domain.ranking.standings import REFERENCE, Board, Entry, StackStandings

Result = Literal["won", "tied", "lost", "directional", "alone", "could_not_run"]
"""won            clearly faster than every other dispatcher of the stack
tied           beaten by none, and not clearly faster than all
lost           clearly slower than at least one
directional    it, or everything it was compared with, rests on short runs: counted for neither side
alone          the only dispatcher with a result in its segment
could_not_run  its package is not in the container"""


@dataclass(frozen=True, slots=True)
class StackResult:
    """The result of one dispatcher in one stack. `gain_pct` over alltoall, None without a full-length result.

    `other_knobs`: in what else its configuration differs, where no two results differ only in the dispatcher.
    `more_runs`: further runs of each that would decide the only tie of the first place, None without one. `rival`: the
    second place behind a winner, or the other of two undecided leaders, with its gain over it, `ahead_pct`, of the
    configurations that the board ranks. `equal`: all leaders were shown to be within 2 %. `once`: those of a winner
    and its second place that have a single run.
    """

    stack_key: str
    dispatcher: str
    result: Result
    ep_size: EpSize
    precision: str
    gain_pct: float | None = None
    other_knobs: tuple[str, ...] = ()
    more_runs: int | None = None
    rival: str = ""
    ahead_pct: float = 0.0
    equal: bool = False
    once: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BoardResults:
    """The summary of one board: small enough to store with it and to read for hundreds of stacks."""

    stack_key: str
    hardware: str
    family: str
    routing_mode: str
    semantic_class: str
    floor: str
    is_ranking: bool
    results: tuple[StackResult, ...]


@dataclass(frozen=True, slots=True)
class GainRange:
    """The lowest and highest throughput gain over alltoall in percent, each with its stack.

    `other_knobs`: what else the gains are due to; empty if they are of the dispatcher alone.
    """

    lowest_pct: float
    lowest_stack: str
    highest_pct: float
    highest_stack: str
    stacks: int
    other_knobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tally:
    """One dispatcher over stacks. Each stack counts once, in one of the numbers.

    `more_runs`: the fewest further runs of each that would decide a tie of it. `rivals`: the second places and the
    undecided leaders behind it, with its gain over each in percent of throughput. `equal`: in how many of its ties all
    leaders are equal. `once`: it and second places behind it, those with a single run in a stack.
    """

    dispatcher: str
    won: int
    tied: int
    lost: int
    directional: int
    alone: int
    could_not_run: int
    gain: GainRange | None
    stacks: tuple[str, ...]
    more_runs: int | None = None
    rivals: tuple[tuple[str, float], ...] = ()
    equal: int = 0
    once: tuple[str, ...] = ()

    @property
    def is_placed(self) -> bool:
        """Return whether it ran in any of the stacks."""
        return self.won + self.tied + self.lost + self.directional + self.alone > 0


@dataclass(frozen=True, slots=True)
class TallyGroup:
    """Tallies of stacks with one precision and one EP size; None and None: all stacks."""

    precision: str | None
    ep_size: EpSize | None
    tallies: tuple[Tally, ...]


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """All stacks of one hardware, family, routing mode and semantic class at one evidence level."""

    hardware: str
    family: str
    routing_mode: str
    semantic_class: str
    floor: str
    stacks: int
    rankings: int
    overall: TallyGroup
    groups: tuple[TallyGroup, ...]


def summaries(boards: Iterable[BoardResults]) -> tuple[ClassSummary, ...]:
    """Return the summaries of board results that share one evidence floor."""
    classes: dict[tuple[str, str, str, str], list[BoardResults]] = {}
    for board in sorted(boards, key=lambda board: board.stack_key):
        key = (board.hardware, board.family, board.routing_mode, board.semantic_class)
        classes.setdefault(key, []).append(board)
    return tuple(_summary(classes[key]) for key in sorted(classes))


def board_results(stack: StackStandings, board: Board) -> BoardResults:
    return BoardResults(
        stack.stack_key, stack.hardware, stack.family, board.routing_mode, board.semantic_class, board.floor,
        board.is_ranking, results_of(stack, board),
    )  # fmt: skip


def results_of(stack: StackStandings, board: Board) -> tuple[StackResult, ...]:
    """Return the result of each dispatcher on one board or next to it."""
    done = [
        StackResult(
            stack.stack_key, entry.dispatcher, _result(entry, board), ep_size(entry.ep), stack.precision,
            *_solid_gain(entry), board.runs_to_decide if entry.dispatcher in board.leaders else None,
            *_second_place(entry, board),
            equal=_result(entry, board) == "tied" and {pair.outcome for pair in board.pairs_of_leaders} == {"equal"},
            once=_once(entry, board),
        )
        for entry in board.entries
    ]  # fmt: skip
    apart = [
        StackResult(
            stack.stack_key, item.dispatcher, "directional" if item.directional else "alone", ep_size(item.ep),
            stack.precision,
        )
        for item in board.outside
    ]  # fmt: skip
    names = {item.dispatcher for item in (*done, *apart)}
    could_not: list[StackResult] = [
        StackResult(stack.stack_key, item.dispatcher, "could_not_run", ep_size(item.ep), stack.precision)
        for item in stack.missing
        if item.dispatcher not in names
    ]
    return (*done, *apart, *could_not)


def _result(entry: Entry, board: Board) -> Result:
    place = entry.place
    if place is None:
        return "directional" if entry.directional else "alone"
    met = {other.dispatcher: other for other in board.entries}
    solid_loss = any(not met[name].directional for name in place.beaten_by)
    if entry.directional or all(met[name].directional for name in met if name != entry.dispatcher):
        return "directional"
    if place.beaten_by:
        return "lost" if solid_loss else "directional"
    return "tied" if place.ties else "won"


def _second_place(entry: Entry, board: Board) -> tuple[str, float]:
    """Return the dispatcher that a winner, or the first of two undecided leaders, is ahead of, and the gain."""
    result, among = _result(entry, board), board.pairs_of_leaders
    if result == "won" and entry is board.entries[0]:
        pair = board.pair(entry, board.entries[1])
        return (pair.second, pair.gain_pct) if pair else ("", 0.0)
    if result == "tied" and [(pair.outcome, pair.tie_because) for pair in among] == [("undecided", "")]:
        ahead = among[0] if among[0].gain_pct > 0 else among[0].turned()
        return (ahead.second, ahead.gain_pct) if ahead.first == entry.dispatcher else ("", 0.0)
    return "", 0.0


def _once(entry: Entry, board: Board) -> tuple[str, ...]:
    """Return which of a winner and its second place have a single run."""
    second = board.entry(_second_place(entry, board)[0]) if _result(entry, board) == "won" else None
    return tuple(item.dispatcher for item in (entry, second) if item and len(item.runs) == 1) if second else ()


def _solid_gain(entry: Entry) -> tuple[float | None, tuple[str, ...]]:
    """Return the gain of the dispatcher alone, else that of its best configuration with the other knobs."""
    gain = entry.gain
    if gain is None or gain.comparison.directional:
        return None, ()
    if gain.of_dispatcher is None:
        return gain.comparison.gain_pct, gain.differs_in
    return gain.of_dispatcher.gain_pct, ()


def _summary(boards: Sequence[BoardResults]) -> ClassSummary:
    results = [result for board in boards for result in board.results]
    groups = sorted({(board.precision, board.ep_size) for board in results})
    first = boards[0]
    return ClassSummary(
        hardware=first.hardware,
        family=first.family,
        routing_mode=first.routing_mode,
        semantic_class=first.semantic_class,
        floor=first.floor,
        stacks=len(boards),
        rankings=sum(board.is_ranking for board in boards),
        overall=TallyGroup(None, None, _tallies(results)),
        groups=tuple(
            TallyGroup(precision, size, _tallies([r for r in results if (r.precision, r.ep_size) == (precision, size)]))
            for precision, size in groups
        ),
    )


def _tallies(results: Sequence[StackResult]) -> tuple[Tally, ...]:
    """Return tallies in the order of names: an order by wins would rank different workloads."""
    present = {result.dispatcher for result in results}
    names = [name for name in DISPATCHERS if name in present] + sorted(present.difference(DISPATCHERS))
    return tuple(_tally(name, [result for result in results if result.dispatcher == name]) for name in names)


def _tally(name: str, results: Sequence[StackResult]) -> Tally:
    def times(result: Result) -> int:
        return sum(stack_result.result == result for stack_result in results)

    return Tally(
        dispatcher=name,
        won=times("won"),
        tied=times("tied"),
        lost=times("lost"),
        directional=times("directional"),
        alone=times("alone"),
        could_not_run=times("could_not_run"),
        gain=None if name == REFERENCE else _gain_range(results),
        stacks=tuple(stack_result.stack_key for stack_result in results),
        more_runs=min((item.more_runs for item in results if item.more_runs), default=None),
        rivals=tuple((item.rival, item.ahead_pct) for item in results if item.rival),
        equal=sum(item.equal for item in results),
        once=tuple(dict.fromkeys(dispatcher for item in results for dispatcher in item.once)),
    )


def _gain_range(results: Sequence[StackResult]) -> GainRange | None:
    gains = sorted((result.gain_pct, result.stack_key) for result in results if result.gain_pct is not None)
    others = dict.fromkeys(knob for result in results for knob in result.other_knobs)
    if not gains:
        return None
    (lowest, lowest_stack), (highest, highest_stack) = gains[0], gains[-1]
    return GainRange(lowest, lowest_stack, highest, highest_stack, len(gains), tuple(others))
