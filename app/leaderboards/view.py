"""A stack as its card shows it: a board for each class of its runs, a row for each dispatcher, ordered as asked."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.numbers import THIN, TimeUnit, grouped, significant, step_time, time_unit_of
from app.domain.ranking import Board, Entry
from app.domain.ranking.places import Place
from app.domain.ranking.standings import REFERENCE, Glimpse, Interval, MissingDispatcher, Outside
from app.domain.run import Metric
from app.domain.stack_names import field_words
from app.leaderboards.configurations import configurations_sentence
from app.leaderboards.dot_plot import Axis, Dot, axis_of
from app.leaderboards.filters import BY_STEP_TIME
from app.leaderboards.words import LEFT_OUT, duel_sentence, stretch_sentence, ties_of
from app.storage.standings import KeptStandings

BY_MEMORY = "memory_headroom"
BY_TFLOPS = "tflops_per_gpu"
MOST_COMPARED = 20
"""Runs of a side that the link to a comparison names."""
_IN_TITLE = ("model", "gpu", "gpus", "container", "routing_mode", "force_balance", "dispatcher", "dispatcher_type")


@dataclass(frozen=True, slots=True)
class EntryRow:
    """`place` empty where this is no ranking; `ties`: with whom and why. `dot` and `said` are of what the board is by.

    `figures` by the names of headline figures, None where unknown; their n is the number of runs. `knobs`: what sets
    its configuration apart from others of the dispatcher.
    """

    entry: Entry
    place: str
    is_leader: bool
    ties: tuple[str, ...]
    dot: Dot | None
    said: str
    figures: Mapping[str, Metric | None]
    knobs: str = ""


@dataclass(frozen=True, slots=True)
class OutsideRow:
    """A dispatcher that was measured on other code only: its figure stands beside the ranking, without a place."""

    outside: Outside
    dot: Dot | None


@dataclass(frozen=True, slots=True)
class GlimpseRow:
    """A dispatcher that ran, with nothing that may be ranked. Step time is all that is known of it."""

    glimpse: Glimpse
    dot: Dot | None


@dataclass(frozen=True, slots=True)
class BoardView:
    """`axis` says from where to where the dots go, empty without any. `notes`: what must be known to read the order.

    `configurations`: what those of the only dispatcher say of its knobs, empty in a ranking and where there is one.
    `runs_over`: those of the dispatcher that gains are over. `costs`: by dispatcher, whether it pays for its gain with
    memory, or for less memory with throughput. `knobs`: by config key, what sets configurations of a dispatcher apart.
    `time_unit`: of all step times of the board, which are read down one column.
    """

    board: Board
    rows: tuple[EntryRow, ...]
    outside: tuple[OutsideRow, ...]
    glimpses: tuple[GlimpseRow, ...]
    missing: tuple[MissingDispatcher, ...]
    axis: str
    notes: tuple[str, ...]
    configurations: str
    tests: tuple[str, ...]
    runs_over: tuple[str, ...]
    costs: Mapping[str, bool]
    knobs: Mapping[str, str]
    time_unit: TimeUnit

    @property
    def has_configurations(self) -> bool:
        """Whether more can be told of them than the board does."""
        return any(len(row.entry.configurations) > 1 or row.entry.left_out for row in self.rows)


@dataclass(frozen=True, slots=True)
class StackCard:
    """`facts`: what the name does not say of the stack. `left_out`: why runs are ranked nowhere, in a few words."""

    kept: KeptStandings
    facts: tuple[str, ...]
    boards: tuple[BoardView, ...]
    left_out: str


def stack_card(kept: KeptStandings, rank: str, knobs: Mapping[str, str]) -> StackCard:
    told = ((name, value) for name, value in kept.about.items() if name not in _IN_TITLE and value is not None)
    facts = tuple(words for name, value in told if (words := field_words(name, value)) not in kept.name)
    boards = tuple(_board(board, kept.standings.missing, rank, knobs) for board in kept.standings.boards)
    reasons = Counter(LEFT_OUT[one.why] for one in kept.standings.refused).most_common()
    return StackCard(kept, facts, boards, ", ".join(f"{count:,} {reason}" for reason, count in reasons))


def figure_of(entry: Entry, rank: str) -> Interval | None:
    """What a board orders by; of memory, what is used: the headroom is the rest of the GPU."""
    if rank == BY_MEMORY:
        return None if entry.peak_memory_gib is None else Interval(entry.peak_memory_gib)
    if rank == BY_STEP_TIME:
        return entry.step_time_ms
    return entry.tflops_per_gpu if rank == BY_TFLOPS else entry.tokens_per_s_per_gpu


def _board(board: Board, missing: Sequence[MissingDispatcher], rank: str, knobs: Mapping[str, str]) -> BoardView:
    entries = _ordered(board, rank)
    figures = [figure for entry in entries if (figure := figure_of(entry, rank))]
    seen = [Interval(one.step_time_ms) for one in board.glimpses] + [one.step_time_ms for one in board.outside]
    axis = axis_of([*figures, *(seen if rank == BY_STEP_TIME else [])])
    names = {one.dispatcher for one in entries} | {one.dispatcher for one in board.outside}
    reference = board.entry(REFERENCE)
    drawn = axis if rank == BY_STEP_TIME else None
    unit = time_unit_of([*(one.step_time_ms.value for one in entries), *(one.value for one in seen)])
    return BoardView(
        board=board,
        rows=tuple(_row(board, entry, rank, axis, knobs=knobs, unit=unit) for entry in entries),
        outside=tuple(OutsideRow(one, drawn.dot(one.step_time_ms) if drawn else None) for one in board.outside),
        glimpses=tuple(
            GlimpseRow(one, drawn.dot(Interval(one.step_time_ms)) if drawn else None)
            for one in board.glimpses
            if one.dispatcher not in names
        ),
        missing=tuple(one for one in missing if one.dispatcher not in names),
        axis=_axis_text(axis, rank, unit) if axis else "",
        notes=tuple(_notes(board, rank)),
        configurations="" if len(entries) != 1 else configurations_sentence(entries[0], knobs, unit),
        tests=tuple(duel_sentence(one) for one in board.duels),
        runs_over=reference.runs[-MOST_COMPARED:] if reference else (),
        costs={entry.dispatcher: _costs(entry) for entry in entries},
        knobs=knobs,
        time_unit=unit,
    )


def _costs(entry: Entry) -> bool:
    gain = entry.gain
    return gain is not None and not gain.duel.tie and (gain.memory_more_pct or 0) * gain.duel.gain_pct > 0


def _ordered(board: Board, rank: str) -> Sequence[Entry]:
    """As asked for, where that is known of all; else by step time, as they are kept."""
    if rank != BY_MEMORY or not board.by_memory:
        return board.entries
    order = [place.name for place in board.by_memory]
    return sorted(board.entries, key=lambda entry: order.index(entry.dispatcher))


def _row(
    board: Board, entry: Entry, rank: str, axis: Axis | None, *, knobs: Mapping[str, str], unit: TimeUnit
) -> EntryRow:
    by_memory = next((place for place in board.by_memory if place.name == entry.dispatcher), None)
    place = by_memory if rank == BY_MEMORY and by_memory else entry.place
    figure = figure_of(entry, rank)
    return EntryRow(
        entry=entry,
        place=place.text if place else "",
        is_leader=board.is_ranking and place is not None and not place.beaten_by,
        ties=_ties(board, entry, rank, place),
        dot=axis.dot(figure) if axis and figure else None,
        said=_said(figure, rank, unit) if figure else "unknown",
        figures=figures_of(entry),
        knobs=knobs.get(entry.config_key, ""),
    )


def figures_of(entry: Entry) -> dict[str, Metric | None]:
    memory = None if entry.peak_memory_gib is None else Interval(entry.peak_memory_gib)
    figures = {
        "step_time_ms": entry.step_time_ms,
        "tokens_per_s_per_gpu": entry.tokens_per_s_per_gpu,
        "tflops_per_gpu": entry.tflops_per_gpu,
        "peak_memory_gib": memory,
    }
    return {name: None if one is None else _metric(one, len(entry.runs)) for name, one in figures.items()}


def _metric(figure: Interval, runs: int) -> Metric:
    low, high = (figure.value if end is None else end for end in (figure.low, figure.high))
    return Metric(figure.value, low, high, runs)


def _ties(board: Board, entry: Entry, rank: str, place: Place | None) -> tuple[str, ...]:
    if rank != BY_MEMORY:
        return ties_of(entry.dispatcher, board.duels)
    return tuple(f"needs as much memory as {name}, as far as can be told" for name in place.ties) if place else ()


def _notes(board: Board, rank: str) -> Iterable[str]:
    if rank == BY_MEMORY and board.is_ranking and not board.by_memory:
        yield "The peak memory of one of them is not known, so they stand in the order of their step times."
    elif rank == BY_MEMORY and board.is_ranking:
        yield "Places are by peak memory, least first. What is said above and of gains is about speed."
    if rank == BY_TFLOPS and board.flops_differ:
        yield (
            "Their logs count other FLOPs for the same step, so TFLOP/s/GPU must not order them: they stand in the "
            "order of their step times."
        )
    if board.stretch is not None and (told := stretch_sentence(board.stretch)):
        yield told
    yield from board.remarks


def _said(figure: Interval, rank: str, unit: TimeUnit) -> str:
    """A figure in words, for who does not see the dot."""
    value, low, high = (
        None if end is None else _value(end, rank, unit) for end in (figure.value, figure.low, figure.high)
    )
    return f"{value}" if low is None or high is None else f"{value}, 95 % interval {low} to {high}"


def _axis_text(axis: Axis, rank: str, unit: TimeUnit) -> str:
    return f"{_value(axis.low, rank, unit)} to {_value(axis.high, rank, unit)}"


def _value(value: float, rank: str, unit: TimeUnit) -> str:
    if rank == BY_STEP_TIME:
        return step_time(value, unit)
    if rank == BY_MEMORY:
        return f"{grouped(value, 1)}{THIN}GiB"
    return significant(value)
