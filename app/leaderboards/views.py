"""A stack as its card shows it: a board for each class of its runs, a row for each dispatcher, in the requested
order."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlmodel import Session, col

from app.domain.contract.fields import CONFIG_FIELDS
from app.domain.contract.values import comparable
from app.domain.naming import field_words, without_common
from app.domain.numbers import (
    THIN,
    TimeUnit,
    contract_value,
    gain_change,
    grouped,
    plural,
    significant,
    step_time,
)
from app.domain.ranking.across import ClassSummary, TallyGroup
from app.domain.ranking.pairwise import PairwiseComparison, PositionRange
from app.domain.ranking.runs import NEED_A_PACKAGE, Refusal
from app.domain.ranking.standings import (
    REFERENCE,
    Board,
    DispatcherConfiguration,
    Entry,
    Interval,
    MissingDispatcher,
    StackStandings,
    UncomparedResult,
    UnrankedResult,
    listed,
)
from app.domain.run import Metric, Stated
from app.domain.text import capitalized
from app.leaderboards.queries import BY_STEP_TIME
from app.leaderboards.words import (
    EP_SIZES,
    LEFT_OUT,
    board_unit,
    comparison_sentence,
    label,
    routing_words,
    stretch_sentence,
    ties_of,
)
from app.storage.experiments import contracts_of
from app.storage.runs import Quarantine
from app.storage.standings import StoredStandings
from app.storage.tables import RunRow, select_any

# --- Summary over many stacks: which dispatcher leads in how many, and the range of its gain.

_MOST_SUMMARIES = 2
"""Classes in the first sentence, real training first; each has its own sentence below."""
NO_PRECISION = "precision unknown"


@dataclass(frozen=True, slots=True)
class GroupView:
    label: str
    group: TallyGroup


@dataclass(frozen=True, slots=True)
class ClassView:
    """All stacks of one routing mode and semantic class. `groups`: all together, then by precision and EP size."""

    summary: ClassSummary
    routing: str
    sentence: str
    groups: tuple[GroupView, ...]


def class_view(summary: ClassSummary) -> ClassView:
    parts = [
        GroupView(
            f"{group.precision or NO_PRECISION}, EP {EP_SIZES.get(group.ep_size or 'unknown', group.ep_size)}", group
        )
        for group in summary.groups
    ]
    # With a single part, the whole takes its label.
    groups = [GroupView("all stacks", summary.overall), *parts] if len(parts) > 1 else parts
    return ClassView(summary, routing_words(summary.routing_mode), class_sentence(summary), tuple(groups))


def class_sentence(summary: ClassSummary) -> str:
    """Return `5 rankings in 6 stacks: deepep clearly leads in 3 and alltoall in 1; no clear leader in the other 1.`"""
    if not summary.rankings:
        return _none(summary.stacks)
    won = sorted(((tally.won, tally.dispatcher) for tally in summary.overall.tallies if tally.won), reverse=True)
    of = f"{plural(summary.rankings, 'ranking')} in {plural(summary.stacks, 'stack')}"
    undecided = summary.rankings - sum(wins for wins, _ in won)
    if not won:
        return f"{of}: no clear leader."
    ahead = listed([f"{name} clearly leads in {wins:,}" for wins, name in won])
    return f"{of}: {ahead}" + (f"; no clear leader in the other {undecided:,}." if undecided else ".")


def page_answer(summaries: Sequence[ClassSummary], total: int, evidence: str) -> str:
    """Return the first sentence of a leaderboard."""
    if not total:
        return "No matching stacks."
    if len(summaries) == 1:
        return class_sentence(summaries[0])
    if not summaries:
        return f"{plural(total, 'stack')}, none with a result at evidence {label(evidence)} or better."
    ranked = [summary for summary in summaries if summary.rankings]
    if not ranked:
        return _none(total)
    ranked.sort(key=lambda summary: summary.semantic_class != "training_equivalent")
    return " ".join(f"{_class_words(summary)}: {class_sentence(summary)}" for summary in ranked[:_MOST_SUMMARIES])


def _none(stacks: int) -> str:
    where = "the stack does not have" if stacks == 1 else f"none of {stacks:,} stacks has"
    return f"No ranking yet: {where} rankable results of two dispatchers."


def _class_words(summary: ClassSummary) -> str:
    return capitalized(f"{routing_words(summary.routing_mode)}, {label(summary.semantic_class)}")


# --- Who quarantined a run, and when: the reason alone does not show a contact.


def quarantines_of(session: Session, stacks: Iterable[StoredStandings]) -> Mapping[str, Quarantine]:
    """Return, by run, who quarantined the runs that are left out of these stacks, and when."""
    left_out = (run for stack in stacks for run in _left_out(stack.standings) if run.why == "quarantined")
    runs = sorted({int(run.run) for run in left_out})
    if not runs:
        return {}
    columns = (RunRow.id, RunRow.quarantine, RunRow.quarantined_by, RunRow.quarantined_at)
    chosen = select_any(*columns).where(col(RunRow.id).in_(runs), col(RunRow.quarantine) != "")
    return {str(run): Quarantine(reason, who, at) for run, reason, who, at in session.execute(chosen)}


def _left_out(standings: StackStandings) -> Iterable[Refusal]:
    return (*standings.refused, *(result for board in standings.boards for result in board.unranked))


# --- Configurations of one dispatcher in words: the fastest one, and how far the others are from it.
#
# In a stack with one dispatcher the runs are an A/B of its knobs, not a ranking of dispatchers.

_MOST_CONFIGURATIONS = 3
"""Configurations described in addition to the fastest; the table has all."""


def against_best(comparison: PairwiseComparison) -> str:
    """Format a comparison: `32.1 % slower (19.6 to 45.8)`, `as fast (...)`, `not significantly different (...)`."""
    change = gain_change(comparison.gain_pct, comparison.low_pct, comparison.high_pct)
    if not comparison.tie:
        return change.text
    text = "as fast" if comparison.outcome == "equal" else "not significantly different"
    return f"{text} ({change.interval})" if change.interval else text


@dataclass(frozen=True, slots=True)
class DistinguishingKnobs:
    """The knobs that tell the configurations of a dispatcher apart. `values`: as text, empty where unknown.

    `more`: the number of further ones.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    more: int = 0

    def __str__(self) -> str:
        texts = ", ".join(f"{name} {value or 'unknown'}" for name, value in self.values.items())
        return texts + (f" and {self.more} more" if self.more else "")

    def apart(self, other: "DistinguishingKnobs") -> "DistinguishingKnobs":
        """Return those that differ from the values of another configuration."""
        return DistinguishingKnobs(
            {name: value for name, value in self.values.items() if other.values.get(name) != value}, self.more
        )

    def unknown(self, other: "DistinguishingKnobs") -> list[str]:
        """Return the names of those that one of the two configurations does not state, so that no knob explains the
        difference of the two.
        """
        return [name for name, value in self.apart(other).values.items() if not value or not other.values.get(name)]


NO_KNOBS = DistinguishingKnobs()


def configurations_sentence(
    entry: Entry,
    knobs: Mapping[str, DistinguishingKnobs],
    unit: TimeUnit | None = None,
    most: int = _MOST_CONFIGURATIONS,
) -> str:
    """Summarise the configurations of a dispatcher; empty if there is only one.

    `Fastest of 3 configurations: ep_overlap on, 31.17 s. With ep_overlap off it is 32.1 % slower (...).`
    `knobs`: by config key, its distinguishing knobs.
    """
    if len(entry.configurations) < 2:
        return ""
    best, *others = entry.configurations
    time = step_time(best.step_time_ms.value, unit)
    named = knobs.get(best.config_key, NO_KNOBS)
    first = f"Fastest of {len(others) + 1} configurations: {str(named) or best.config_key[:8]}, {time}."
    missing = {other.config_key: knobs.get(other.config_key, NO_KNOBS).unknown(named) for other in others}
    stated = [other for other in others if not missing[other.config_key]]
    sentences = [f"With {_apart(other, named, knobs)} it {_result_text(other)}." for other in stated[:most]]
    more, unstated = len(stated) - most, dict.fromkeys(name for names in missing.values() for name in names)
    rest = [f"{plural(more, 'more is', 'more are')} slower or no better."] if more > 0 else []
    if unstated:
        count = plural(len(others) - len(stated), "other is", "others are")
        rest.append(f"{count} not compared: {listed(list(unstated))} unknown.")
    return " ".join((first, *sentences, *rest))


def _apart(
    configuration: DispatcherConfiguration, best: DistinguishingKnobs, knobs: Mapping[str, DistinguishingKnobs]
) -> str:
    """Return the knobs that differ from the best configuration's."""
    return str(knobs.get(configuration.config_key, NO_KNOBS).apart(best)) or configuration.config_key[:8]


def _result_text(configuration: DispatcherConfiguration) -> str:
    if configuration.comparison is None:
        return "is the fastest"
    text = f"is {against_best(configuration.comparison)}"
    return f"{text}, directional" if configuration.directional else text


# --- The knobs in which the configurations of one dispatcher differ, by value.

_KNOBS = tuple(name for name in CONFIG_FIELDS if name != "dispatcher")
_MOST = 4
"""Maximum number of knobs in the text; the comparison of two runs lists all."""


def knobs_apart(session: Session, stacks: Sequence[StoredStandings]) -> dict[str, DistinguishingKnobs]:
    """Return config key -> `permute_fusion on, tp 2`, for dispatchers of these stacks with several configurations."""
    several = [
        [configuration.config_key for configuration in entry.configurations]
        for stack in stacks
        for board in stack.standings.boards
        for entry in board.entries
        if len(entry.configurations) > 1
    ]
    return knobs_between(session, several)


def knobs_between(session: Session, several: Collection[Collection[str]]) -> dict[str, DistinguishingKnobs]:
    """Return config key -> the knobs in which the configurations listed together differ."""
    contracts = contracts_of(session, {key for keys in several for key in keys})
    return {
        key: knobs
        for keys in several
        for key, knobs in _differing_knobs({key: contracts.get(key, {}) for key in keys}).items()
    }


def _differing_knobs(contracts: Mapping[str, Mapping[str, Stated]]) -> dict[str, DistinguishingKnobs]:
    names = [name for name in _KNOBS if len({_value(contract, name) for contract in contracts.values()}) > 1]
    more = max(0, len(names) - _MOST)
    return {
        key: DistinguishingKnobs({name: _text(contract, name) for name in names[:_MOST]}, more)
        for key, contract in contracts.items()
    }


def _value(contract: Mapping[str, Stated], name: str) -> object:
    return comparable(name, contract[name].value) if name in contract else ("unknown",)


def _text(contract: Mapping[str, Stated], name: str) -> str:
    return contract_value(contract[name].value) if name in contract else ""


# --- Figures with their intervals as dots and lines on one axis, drawn into their table without script.
#
# Positions are in percent of the axis, so that a plot is as wide as its cell and a dot stays round.

_ROOM = 0.06
"""Free share of the axis at each end: a dot has a radius."""


@dataclass(frozen=True, slots=True)
class IntervalDot:
    """Positions in percent of the axis, as text; `low` equals `high` without an interval."""

    at: str
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class Axis:
    """`low` and `high` end the axis.

    It does not start at zero, because readers look for differences of a few percent.
    """

    low: float
    high: float

    def dot(self, figure: Interval) -> IntervalDot:
        ends = (figure.low, figure.high)
        low, high = (figure.value if end is None or not math.isfinite(end) else end for end in ends)
        return IntervalDot(self._place(figure.value), self._place(low), self._place(high))

    def _place(self, value: float) -> str:
        share = (value - self.low) / (self.high - self.low)
        return f"{100 * min(max(share, 0.0), 1.0):.2f}"


def axis_of(figures: Iterable[Interval]) -> Axis | None:
    """Return an axis for all figures with their intervals; None without any."""
    ends = [
        end
        for figure in figures
        for end in (figure.value, figure.low, figure.high)
        if end is not None and math.isfinite(end)
    ]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    # A single figure without an interval is drawn in the middle.
    room = (high - low) * _ROOM / (1 - 2 * _ROOM) or abs(high) * 0.01 or 1.0
    return Axis(low - room, high + room)


BY_MEMORY = "memory_headroom"
BY_TFLOPS = "tflops_per_gpu"
MOST_COMPARED = 20
"""Runs per side in the link to a comparison."""
_IN_TITLE = ("model", "gpu", "gpus", "container", "routing_mode", "force_balance", "dispatcher", "dispatcher_type")


@dataclass(frozen=True, slots=True)
class EntryRow:
    """`place` is empty without a ranking; `ties`: with whom and why. `dot` and `figure_text`: of the board's order.

    `figures`: by name, None where unknown; their n is the number of runs. `knobs`: how its configuration differs from
    the dispatcher's others.
    """

    entry: Entry
    place: str
    is_leader: bool
    ties: tuple[str, ...]
    dot: IntervalDot | None
    figure_text: str
    figures: Mapping[str, Metric | None]
    knobs: DistinguishingKnobs = NO_KNOBS


@dataclass(frozen=True, slots=True)
class OutsideRow:
    """A dispatcher measured only on other code: its figure is shown next to the ranking, without a place."""

    outside: UncomparedResult
    dot: IntervalDot | None


@dataclass(frozen=True, slots=True)
class UnrankedRow:
    """A dispatcher that ran without a rankable result. Only its step time is known."""

    unranked_result: UnrankedResult
    dot: IntervalDot | None


@dataclass(frozen=True, slots=True)
class BoardView:
    """`axis`: the range of the dots, empty without any. `notes`: what qualifies the order.

    `configurations`: comparison of the knobs of the only dispatcher, empty in a ranking and for a single configuration.
    `runs_over`: runs of the dispatcher that gains refer to. `costs`: by dispatcher, whether a gain costs memory or less
    memory costs throughput. `knobs`: by config key, the distinguishing knobs. `time_unit`: one unit for all step times
    of the board, which share a column.
    """

    board: Board
    sentence: str
    rows: tuple[EntryRow, ...]
    outside: tuple[OutsideRow, ...]
    unranked_results: tuple[UnrankedRow, ...]
    missing: tuple[MissingDispatcher, ...]
    axis: str
    notes: tuple[str, ...]
    configurations: str
    tests: tuple[str, ...]
    runs_over: tuple[str, ...]
    costs: Mapping[str, bool]
    knobs: Mapping[str, DistinguishingKnobs]
    time_unit: TimeUnit

    def knobs_of(self, row: EntryRow, configuration: DispatcherConfiguration) -> str:
        """Return the knobs of the ranked configuration of a row; of another one, those that differ from it."""
        if configuration.config_key == row.entry.config_key:
            return str(row.knobs)
        return _apart(configuration, row.knobs, self.knobs)

    def unknown_knobs(self, row: EntryRow, configuration: DispatcherConfiguration) -> list[str]:
        """Return the knobs whose unknown value may explain the difference from the ranked configuration of a row."""
        return self.knobs.get(configuration.config_key, NO_KNOBS).unknown(row.knobs)

    @property
    def has_configurations(self) -> bool:
        """Return whether there are details of configurations that the board does not show."""
        return any(len(row.entry.configurations) > 1 or row.entry.left_out for row in self.rows)


@dataclass(frozen=True, slots=True)
class StackCard:
    """`facts`: fields that the stack's name does not contain. `left_out`: why runs are not ranked, in a few words."""

    stack: StoredStandings
    facts: tuple[str, ...]
    boards: tuple[BoardView, ...]
    left_out: str


def stack_card(
    standings: StoredStandings,
    rank: str,
    knobs: Mapping[str, DistinguishingKnobs],
) -> StackCard:
    """Return the boards of a stack."""
    about = ((name, value) for name, value in standings.about.items() if name not in _IN_TITLE and value is not None)
    facts = tuple(words for name, value in about if (words := field_words(name, value)) not in standings.name)
    boards = tuple(_board(board, standings.standings.missing, rank, knobs) for board in standings.standings.boards)
    reasons = Counter(LEFT_OUT[refusal.why] for refusal in standings.standings.refused).most_common()
    return StackCard(standings, facts, boards, ", ".join(f"{count:,} {reason}" for reason, count in reasons))


def figure_of(entry: Entry, rank: str) -> Interval | None:
    """Return the figure that orders a board; for memory the memory used."""
    if rank == BY_MEMORY:
        return None if entry.peak_memory_gib is None else Interval(entry.peak_memory_gib)
    if rank == BY_STEP_TIME:
        return entry.step_time_ms
    return entry.tflops_per_gpu if rank == BY_TFLOPS else entry.tokens_per_s_per_gpu


def _board(
    board: Board,
    missing: Sequence[MissingDispatcher],
    rank: str,
    knobs: Mapping[str, DistinguishingKnobs],
) -> BoardView:
    entries = _ordered(board, rank)
    figures = [figure for entry in entries if (figure := figure_of(entry, rank))]
    seen = [Interval(result.step_time_ms) for result in board.unranked_results] + [
        entry.step_time_ms for entry in board.outside
    ]
    axis = axis_of([*figures, *(seen if rank == BY_STEP_TIME else [])])
    names = {entry.dispatcher for entry in entries} | {entry.dispatcher for entry in board.outside}
    reference = board.entry(REFERENCE)
    drawn = axis if rank == BY_STEP_TIME else None
    unit = board_unit([*(entry.step_time_ms.value for entry in entries), *(interval.value for interval in seen)])
    return BoardView(
        board=board,
        sentence=board.sentence,
        rows=tuple(_row(board, entry, rank, axis, knobs=knobs, unit=unit) for entry in entries),
        outside=tuple(OutsideRow(entry, drawn.dot(entry.step_time_ms) if drawn else None) for entry in board.outside),
        unranked_results=tuple(
            UnrankedRow(result, drawn.dot(Interval(result.step_time_ms)) if drawn else None)
            for result in board.unranked_results
            if result.dispatcher not in names
        ),
        missing=tuple(absent for absent in missing if absent.dispatcher not in names),
        axis=f"{_view_value(axis.low, rank, unit)} to {_view_value(axis.high, rank, unit)}" if axis else "",
        notes=tuple(_notes(board, rank)),
        configurations="" if len(entries) != 1 else configurations_sentence(entries[0], knobs, unit),
        tests=tuple(comparison_sentence(comparison) for comparison in board.comparisons),
        runs_over=reference.runs[-MOST_COMPARED:] if reference else (),
        costs={entry.dispatcher: _costs(entry) for entry in entries},
        knobs=knobs,
        time_unit=unit,
    )


def _costs(entry: Entry) -> bool:
    gain = entry.gain
    return gain is not None and not gain.comparison.tie and (gain.memory_more_pct or 0) * gain.comparison.gain_pct > 0


def _ordered(board: Board, rank: str) -> Sequence[Entry]:
    """Return entries in the requested order if that figure is known for all, else by step time, as stored."""
    if rank != BY_MEMORY or not board.by_memory:
        return board.entries
    order = [place.name for place in board.by_memory]
    return sorted(board.entries, key=lambda entry: order.index(entry.dispatcher))


def _row(
    board: Board,
    entry: Entry,
    rank: str,
    axis: Axis | None,
    *,
    knobs: Mapping[str, DistinguishingKnobs],
    unit: TimeUnit,
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
        figure_text=_figure_text(figure, rank, unit) if figure else "unknown",
        figures=figures_of(entry),
        knobs=knobs.get(entry.config_key, NO_KNOBS),
    )


def figures_of(entry: Entry) -> dict[str, Metric | None]:
    memory = None if entry.peak_memory_gib is None else Interval(entry.peak_memory_gib)
    figures = {
        "step_time_ms": entry.step_time_ms,
        "tokens_per_s_per_gpu": entry.tokens_per_s_per_gpu,
        "tflops_per_gpu": entry.tflops_per_gpu,
        "peak_memory_gib": memory,
    }
    return {name: None if value is None else _metric(value, len(entry.runs)) for name, value in figures.items()}


def _metric(figure: Interval, runs: int) -> Metric:
    low, high = (figure.value if end is None else end for end in (figure.low, figure.high))
    return Metric(figure.value, low, high, runs)


def _ties(board: Board, entry: Entry, rank: str, place: PositionRange | None) -> tuple[str, ...]:
    if rank != BY_MEMORY:
        return ties_of(entry.dispatcher, board.comparisons)
    return tuple(f"peak memory not significantly different from {name}" for name in place.ties) if place else ()


def _notes(board: Board, rank: str) -> Iterable[str]:
    if rank == BY_MEMORY and board.is_ranking and not board.by_memory:
        yield "The peak memory of an entry is unknown, so entries are ordered by step time."
    elif rank == BY_MEMORY and board.is_ranking:
        yield "Positions are by peak memory, least first. The summary and the gains are about speed."
    if rank == BY_TFLOPS and board.flops_differ:
        yield (
            "Their logs count different FLOPs for the same step, so entries are ordered by step time instead of "
            "TFLOP/s/GPU."
        )
    if board.stretch is not None and (sentence := stretch_sentence(board.stretch)):
        yield sentence
    yield from board.remarks


def _figure_text(figure: Interval, rank: str, unit: TimeUnit) -> str:
    """Format a figure as text, for readers who do not see the dot."""
    value, low, high = (
        None if end is None else _view_value(end, rank, unit) for end in (figure.value, figure.low, figure.high)
    )
    return f"{value}" if low is None or high is None else f"{value}, 95 % interval {low} to {high}"


def _view_value(value: float, rank: str, unit: TimeUnit) -> str:
    if rank == BY_STEP_TIME:
        return step_time(value, unit)
    if rank == BY_MEMORY:
        return f"{grouped(value, 1)}{THIN}GiB"
    return significant(value)


# --- Stacks with a result of at most one dispatcher: a line each, under their own heading.


@dataclass(frozen=True, slots=True)
class LoneLine:
    """One class of runs of a stack; `board` None where no result reaches the requested evidence.

    `name`: of the stack, without the part that all share. `configurations`: comparison of its dispatcher's knobs, empty
    for one configuration. `beside`: other facts about its dispatchers.
    """

    stack: StoredStandings
    name: str
    board: Board | None
    entry: Entry | None
    figures: Mapping[str, Metric | None]
    configurations: str
    beside: tuple[str, ...]


def has_rivals(standings: StoredStandings) -> bool:
    """Return whether one of its boards has results of several dispatchers, ranked or not."""
    return any(board.is_ranking or board.outside for board in standings.standings.boards)


@dataclass(frozen=True, slots=True)
class NextRanking:
    """Why stacks have no ranking, and the run to start from. `dispatcher`: to plan; empty if the log must name it."""

    sentence: str
    run: int
    dispatcher: str


def next_ranking(stacks: Sequence[StoredStandings]) -> NextRanking | None:
    """Return what a ranking of these stacks lacks; None without stacks, with a ranking, or if nothing else can run."""
    if not stacks or any(has_rivals(stack) for stack in stacks):
        return None
    boards = [board for stack in stacks for board in stack.standings.boards]
    measured = sorted({entry.dispatcher for board in boards for entry in board.entries})
    newest = max(stacks, key=lambda stack: stack.newest_at).newest_run_id
    if measured:
        missing = {absent.dispatcher for stack in stacks for absent in stack.standings.missing}
        candidates = [name for name in (REFERENCE, "hybridep", "deepep") if name not in {measured[0], *missing}]
        if not candidates:
            return None
        other = candidates[0]
        shown = any(not entry.unproven for board in boards for entry in board.entries)
        only = f"{listed(measured)} measured" if shown else f"{listed(measured)}, requested, not in the log"
        sentence = f"No ranking yet: only {only}. Run the same workload with {other}."
        return NextRanking(sentence, newest, other)
    reasons = Counter(refusal.why for stack in stacks for refusal in stack.standings.refused).most_common(1)
    if reasons and reasons[0][0] == "dispatcher_unknown":
        return NextRanking("No ranking yet: no log names the dispatcher.", newest, "")
    why = f" (most are {LEFT_OUT[reasons[0][0]]})" if reasons else ""
    return NextRanking(f"No ranking yet: no run can be ranked{why}.", newest, "")


def lone_lines(stacks: Sequence[StoredStandings], knobs: Mapping[str, DistinguishingKnobs]) -> tuple[LoneLine, ...]:
    """Return a line for each class. `knobs`: by config key, its distinguishing knobs."""
    names = without_common([stack.name for stack in stacks])
    return tuple(line for stack, name in zip(stacks, names, strict=True) for line in _lines(stack, name, knobs))


def _lines(standings: StoredStandings, name: str, knobs: Mapping[str, DistinguishingKnobs]) -> Iterable[LoneLine]:
    boards = standings.standings.boards
    if not boards:
        yield LoneLine(standings, name, None, None, {}, "", tuple(_of_stack(standings)))
    for board in boards:
        entry = board.entries[0] if board.entries else None
        figures = figures_of(entry) if entry else {}
        text = configurations_sentence(entry, knobs, most=2) if entry else ""
        yield LoneLine(
            standings, name, board, entry, figures, text, (*_of_board(standings, board, entry), *_of_stack(standings))
        )


def _of_board(standings: StoredStandings, board: Board, entry: Entry | None) -> Iterable[str]:
    if entry and standings.standings.missing and entry.dispatcher not in NEED_A_PACKAGE:
        yield "the only measured fallback"
    for result in board.unranked_results:
        yield f"{result.dispatcher} ran, not ranked: {result.why}"
    missing = {dispatcher.dispatcher for dispatcher in standings.standings.missing}
    for refusal in board.unranked:
        if refusal.dispatcher not in missing:
            yield f"{refusal.dispatcher} not ranked: {refusal.sentence}"


def _of_stack(standings: StoredStandings) -> Iterable[str]:
    stack = standings.standings
    if stack.missing:
        yield f"{listed([missing.dispatcher for missing in stack.missing])} not available in the container"
    others = stack.refused_count - len({run for missing in stack.missing for run in missing.runs})
    if others > 0:
        yield f"{plural(others, 'run')} ranked nowhere"
