"""The pictures of leaderboards: bars of one ranking, and step times over EP degrees."""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Self

from app.domain.experiments.plan import STEPS
from app.domain.naming import SEPARATOR, common_parts, field_words, without_common
from app.domain.numbers import (
    THIN,
    TimeUnit,
    change_text,
    gain_change,
    gpu_hours,
    level_text,
    plural,
    round_step,
    step_time,
)
from app.domain.ranking.experiments import DispatcherExperiment, contradictions, without_gain
from app.domain.ranking.matrix import Contender, EpMatrix
from app.domain.ranking.pairwise import PairwiseComparison
from app.domain.ranking.runs import hardware_of
from app.domain.ranking.standings import REFERENCE, Board, Entry, Gain, Interval, listed, would_decide
from app.domain.references.nearest import STEP_FIELDS, same_work
from app.domain.run import Value
from app.domain.verdict.policy import EQUAL_PCT
from app.leaderboards.words import board_time, board_unit, day_text
from app.storage.references import Reference
from app.storage.standings import StoredStandings

# --- The picture of a matrix: step time over EP degrees, a line for each dispatcher, with intervals.

HEIGHT = 300
"""Pixels of the drawing; horizontal positions are in percent of its width."""
_TOP, _BOTTOM = 8, HEIGHT - 28
_LEFT, _RIGHT = 3.0, 97.0
"""The first and the last EP degree. The stylesheet keeps space for tick labels left and names of dispatchers right."""
_EP_ROOM = 0.08
"""Free share above and below the results."""
_TICKS = 5
"""With 1, 2 and 5 as steps an axis has two ticks at least."""
_LABEL_HEIGHT, _SHIFT = 16, 10


@dataclass(frozen=True, slots=True)
class EpMark:
    """A result. `y`, `low`, `high`: pixels from the top; `x`: percent from the left."""

    x: float
    y: float
    low: float
    high: float
    title: str


@dataclass(frozen=True, slots=True)
class EpLine:
    """The results of a dispatcher, by EP degree. `label_y`: of its name, apart from the other names.

    `shift`: pixels to the right, so that equal results of two dispatchers are both visible.
    """

    dispatcher: str
    marks: tuple[EpMark, ...]
    label_y: float
    shift: float


@dataclass(frozen=True, slots=True)
class EpPicture:
    """`columns`: the EP degrees with their places; `ticks`: step times with theirs."""

    columns: Mapping[int, float]
    ticks: tuple[tuple[str, float], ...]
    lines: tuple[EpLine, ...]
    height: int = HEIGHT
    bottom: int = _BOTTOM


def ep_picture(matrix: EpMatrix, beyond: Sequence[int]) -> EpPicture:
    """Return the picture of a matrix with at least two columns, and with the degrees `beyond` as empty ones."""
    eps = sorted({*matrix.columns, *beyond})
    results = [cell.step_time_ms for column in matrix.columns.values() for cell in column]
    ends = [end for result in results for end in _ends(result)]
    room = (max(ends) - min(ends) or max(ends) * 0.1) * _EP_ROOM
    low, high = min(ends) - room, max(ends) + room
    unit = board_unit(result.value for result in results)

    def y_of(milliseconds: float) -> float:
        return round(_BOTTOM - (milliseconds - low) / (high - low) * (_BOTTOM - _TOP), 1)

    columns = {ep: round(_LEFT + (_RIGHT - _LEFT) * place / (len(eps) - 1), 2) for place, ep in enumerate(eps)}
    drawn = []
    for dispatcher in matrix.dispatchers:
        marks = []
        for ep in matrix.columns:
            cell = matrix.cell(dispatcher, ep)
            if cell is not None:
                title = f"{dispatcher}, EP{ep}: {step_time(cell.step_time_ms.value, unit)}"
                y, (least, most) = y_of(cell.step_time_ms.value), _ends(cell.step_time_ms)
                marks.append(EpMark(columns[ep], y, y_of(least), y_of(most), title))
        if marks:
            drawn.append((dispatcher, tuple(marks)))
    labels = _apart([marks[-1].y for _, marks in drawn])
    lines = tuple(
        EpLine(name, marks, label_y, _SHIFT * (place - (len(drawn) - 1) / 2))
        for place, ((name, marks), label_y) in enumerate(zip(drawn, labels, strict=True))
    )
    return EpPicture(columns, tuple((tick_text(tick, unit), y_of(tick)) for tick in round_ticks(low, high)), lines)


def _ends(result: Interval) -> tuple[float, float]:
    return (
        result.value if result.low is None else result.low,
        result.value if result.high is None else result.high,
    )


def round_ticks(low: float, high: float) -> list[float]:
    """Return the round step times in the range."""
    step = round_step(high - low, _TICKS)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def tick_text(milliseconds: float, unit: TimeUnit) -> str:
    return f"{milliseconds / 1000:,.10g}{THIN}s" if unit == "s" else f"{milliseconds:,.10g}{THIN}ms"


def _apart(places: Sequence[float]) -> list[float]:
    """Move labels down until none covers the one above it."""
    moved = list(places)
    order = sorted(range(len(places)), key=lambda index: places[index])
    for above, below in itertools.pairwise(order):
        moved[below] = max(moved[below], moved[above] + _LABEL_HEIGHT)
    return moved


# --- The picture of one ranking: a bar for each dispatcher, those that cannot run, and comparable published figures.

_ROOM = 0.1
"""Free share of the axis before the fastest and after the slowest result."""


@dataclass(frozen=True, slots=True)
class RankingBar:
    """Places on the axis in percent; `low` and `high`: ends of the 95 % interval, equal without one.

    `knobs`: in what the configuration differs from another bar of the same dispatcher; empty without one. `time` is
    empty for a dispatcher that is not in the container. `is_estimated`: of one run, so that its interval is the
    run-to-run variation of the family.
    """

    kind: Literal["measured", "published", "missing"]
    label: str
    href: str
    at: float = 0.0
    low: float = 0.0
    high: float = 0.0
    time: str = ""
    gain: str = ""
    runs: str = ""
    knobs: str = ""
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class DecidingPlan:
    """The A/B that would decide an undecided first place: `runs` of each side, against `dispatcher`.

    `is_more`: they join the ranked runs; else a new A/B repeats the one that contradicts the leader. `cost`: of all of
    them with 50 steps each, as text; empty if the number of GPUs is unknown. `is_worth_it`: whether the difference is
    larger than what counts as equal.
    """

    dispatcher: str
    runs: int
    cost: str
    is_worth_it: bool
    is_more: bool = True

    @property
    def noun(self) -> str:
        return "more run" if self.is_more else "run"

    @property
    def sentence(self) -> str:
        if self.is_worth_it:
            decide = would_decide(self.runs, self.noun)
            return f"{decide}, {self.cost}." if self.cost else f"{decide}."
        cost = f" ({self.cost})" if self.cost else ""
        runs = plural(self.runs, self.noun)
        return f"Less than {EQUAL_PCT:g}{THIN}% counts as equal: not worth {runs} of each{cost}."


@dataclass(frozen=True, slots=True)
class BoardPicture:
    """`lead`: the result as a sentence; `ticks`: round step times with their places on the axis in percent.

    `basis`: the number of runs and their dates. `published`: the range of published TFLOP/s/GPU where no published
    step time is comparable, else empty. `leader`: the newest run of the fastest dispatcher.
    """

    title: str
    bars: tuple[RankingBar, ...]
    lead: str
    ticks: tuple[tuple[str, float], ...]
    basis: str
    published: str
    leader: str
    plan: "DecidingPlan | None" = None


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Self:
        """Return the axis of these step times with a little room on both sides."""
        room = (max(times) - min(times) or max(times)) * _ROOM
        return cls(max(0.0, min(times) - room), max(times) + room)

    def place(self, time: float) -> float:
        return round(100 * (time - self.low) / (self.high - self.low), 2)


def board_picture(
    stack: StoredStandings,
    board: Board,
    published: Iterable[Reference],
    contenders: Iterable[Contender],
    *,
    knobs: Mapping[str, str],
    dates: Mapping[str, datetime],
    experiments: Sequence[DispatcherExperiment],
) -> BoardPicture:
    """Return the picture of a ranking. `published`: figures of the same model family.

    `contenders`: the results at the EP degree of each entry. A configuration that is compared only at equal knobs has
    a second bar of its dispatcher. `knobs`: by config key, what sets such bars apart. `dates`: history positions by
    run; `experiments`: for the first sentence.
    """
    published = [item for item in published if _gpu(item.point.contract) == _gpu(stack.about)]
    comparable = same_work(stack.about, [item.point for item in published])
    fastest = next((item for item in published if comparable and item.point is comparable[0]), None)
    theirs = (fastest and fastest.point.implied_step_ms) or 0.0
    contenders = list(contenders)
    # A second bar of the dispatcher has the gain at equal knobs, so that the first does not repeat it.
    alone = {
        (item.name, item.config_key): item.at_equal_knobs
        for item in contenders
        if item.equal is None or item.equal.name != item.name
    }
    rows = {
        key: (entry.step_time_ms, entry.runs, _gain(entry, alone.get(key)))
        for entry in board.entries
        for key in [(entry.dispatcher, entry.config_key)]
    }
    for item in contenders:
        if item.equal and item.at_equal_knobs:
            who = "" if item.equal.name == item.name else f"{item.name} "
            gain = f"{who}{_change(item.at_equal_knobs)}, equal knobs"
            rows.setdefault((item.equal.name, item.equal.config_key), (item.equal.step_time_ms, item.equal.runs, gain))
    times = [figure.value for figure, _, _ in rows.values()] + ([theirs] if fastest else [])
    ends = [end for figure, _, _ in rows.values() for end in (figure.low, figure.high) if end]
    axis, unit = _Axis.of([*times, *ends]), board_unit(times)
    bars = [
        replace(_bar(name, figure, runs, axis=axis, unit=unit, gain=gain), knobs=knobs.get(key, ""))
        for (name, key), (figure, runs, gain) in sorted(rows.items(), key=lambda row: row[1][0].value)
    ]
    names = {entry.dispatcher for entry in board.entries}
    if fastest:
        gain = f"best of {len(comparable)} published" if comparable[1:] else "published"
        bars.append(RankingBar(
            "published", _publisher(fastest), f"/references/{fastest.id}",
            at=axis.place(theirs),
            time=step_time(theirs, unit),
            gain=gain + ("" if stack.generated else _behind(board.entries[0], theirs)),
            runs=fastest.point.date,
        ))  # fmt: skip
    bars += [
        RankingBar("missing", missing.dispatcher, f"/runs/{missing.runs[0]}" if missing.runs else "/availability")
        for missing in stack.standings.missing
        if missing.dispatcher not in names
    ]
    return BoardPicture(
        _with_work(stack.name.removeprefix(f"{stack.family}{SEPARATOR}"), [stack]),
        tuple(bars),
        board_sentence(board, experiments),
        _ticks(axis, unit),
        _basis({run for _, runs, _ in rows.values() for run in runs}, dates),
        "" if fastest else published_range(published),
        board.entries[0].runs[-1],
        deciding_plan(board, stack.gpus, experiments),
    )


def deciding_plan(
    board: Board, gpus: int | None, experiments: Iterable[DispatcherExperiment] = ()
) -> DecidingPlan | None:
    """Return the A/B that would decide between the first two; None if they are decided, and if no number would.

    Of a leader that an inconclusive A/B contradicts, it has as many runs as that one and those that it lacks. An A/B
    without a relevant gain is decided.
    """
    pairs, repeated = board.pairs_of_leaders, 0
    pair = pairs[0] if len(pairs) == 1 else None
    more = pair.more_runs if pair else None
    if not pairs and board.is_ranking and (pair := board.pair(*board.entries[:2])) and not pair.tie:
        ab = next(iter(contradictions(experiments, pair.first, pair.second)), None)
        ab = None if ab and ab.keeps else ab  # more runs would repeat a decided A/B
        more = ab.comparison.more_runs if ab and ab.comparison else None
        repeated = min(map(len, ab.runs.values()), default=0) if ab else 0
    if pair is None or not more:
        return None
    runs = more + repeated
    sides = [entry for entry in board.entries if entry.dispatcher in (pair.first, pair.second)]
    hours = sum(entry.step_time_ms.value for entry in sides) * runs * STEPS / 3.6e6
    cost = f"about {gpu_hours(hours * gpus)} GPU-hours" if gpus else ""
    second = next(name for name in (pair.first, pair.second) if name != board.entries[0].dispatcher)
    return DecidingPlan(second, runs, cost, is_worth_it=not pair.is_small, is_more=pair.tie)


def _change(pair: PairwiseComparison) -> str:
    return gain_change(pair.gain_pct).figure + (f", {_tie_word(pair)}" if pair.tie else "")


def board_sentence(board: Board, experiments: Iterable[DispatcherExperiment]) -> str:
    """Return the result of a ranking with the A/Bs that contradict it; the stored sentence of a board without one."""
    return f"{lead_sentence(board, experiments)}." if board.is_ranking else board.sentence


def lead_sentence(board: Board, experiments: Iterable[DispatcherExperiment] = ()) -> str:
    """Return `hybridep (20.97 s) is 11.2 % faster than alltoall`, or `deepep (400.0 ms) and hybridep are equal, ...`.

    A leader is compared with the second place first, and with the A/B of the two if that did not find it faster or
    found no gain from the second place. A lead with a single run of a side is unconfirmed.
    """
    first = board.entries[0]
    if board.reading == "tie":
        among = board.pairs_of_leaders
        is_undecided = len(among) == 1 and among[0].outcome == "undecided"
        return _tied(board, board.leaders, among) + ("" if is_undecided else _gains_of_leaders(board))
    pair = board.pair(first, board.entries[1]) if board.is_ranking else None
    if pair is None:
        return f"{first.dispatcher} is fastest: {board_time(first.step_time_ms.value)}"
    if pair.tie:
        return _tied(board, (pair.first, pair.second), (pair,))
    if otherwise := contradictions(experiments, pair.first, pair.second):
        return _contested(board, pair, otherwise[0])
    change = gain_change(pair.gain_pct, pair.low_pct, pair.high_pct)
    text = f"{_timed(board, pair.first)} is {change.than} {_timed(board, pair.second)}"
    if ab := without_gain(experiments, pair.first, pair.second):
        text += f" ({change.interval})" if change.interval else ""
        return f"{text}; not proven by A/B #{ab.id}"
    if first.gain and pair.second == first.gain.over:
        text = _gain_words(board, first.gain)
    else:
        text += f" ({change.interval})" if change.interval else ""
        text += _further_gain(first.gain) if first.gain else ""
    return f"{text}, unconfirmed" if 1 in (len(first.runs), len(board.entries[1].runs)) else text


def _contested(board: Board, pair: PairwiseComparison, ab: DispatcherExperiment) -> str:
    """Return `Undecided: deepep (17.03 s) is 2.0 % faster than hybridep by all runs, not by A/B #6`."""
    change = gain_change(pair.gain_pct)
    lead = f"Undecided: {_timed(board, pair.first)} is {change.than} {_timed(board, pair.second)}"
    if ab.faster:
        return f"{lead}; {ab.text}"
    is_equal = ab.comparison is not None and ab.comparison.outcome == "equal"
    return f"{lead} by all runs, {'equal in' if is_equal else 'not by'} A/B #{ab.id}"


def _timed(board: Board, name: str, ep: int | None = None) -> str:
    """Return a dispatcher with its EP degree, its step time if it is the fastest, and that it ran only once:
    `deepep (EP32, 400.0 ms)`, `alltoall (1 run)`.
    """
    first, entry = board.entries[0], board.entry(name)
    parts = [f"EP{ep}"] if ep else []
    parts += [board_time(first.step_time_ms.value)] if name == first.dispatcher else []
    parts += ["1 run"] if entry and len(entry.runs) == 1 else []
    return f"{name} ({', '.join(parts)})" if parts else name


def _gain_words(board: Board, gain: Gain) -> str:
    """Return `deepep (400.0 ms) is 28.1 % faster than alltoall, 16.4 % at equal knobs`.

    The fastest configurations come first.
    """
    alone, best = gain.of_dispatcher, gain_change(gain.comparison.gain_pct)
    first, second = board.entries[0], board.entry(gain.over)
    degrees = (first.ep, second.ep) if "ep" in gain.differs_in and second and first.ep and second.ep else (None, None)
    names = [_timed(board, name, ep) for name, ep in zip((gain.comparison.first, gain.over), degrees, strict=True)]
    text = f"{names[0]} is {best.than} {names[1]}"
    if alone is gain.comparison:
        return text
    if alone is None:
        others = [knob for knob in gain.differs_in if knob != "ep" or degrees == (None, None)]
        return f"{text} ({other_knobs(others)} also {'differ' if len(others) > 1 else 'differs'})" if others else text
    if gain.differs_in != ("ep",) or None in degrees:
        return f"{text}, {'but ' if alone.tie else ''}{_size_alone(alone, gain)} at equal knobs"
    parts = [f"{_size_alone(alone, gain)} at EP{degrees[0]}"]
    if gain.at_other_ep is not None:
        parts.append(f"{_size_alone(gain.at_other_ep, gain)} at EP{degrees[1]}")
    return f"{text}, {'but ' if alone.tie else ''}{', '.join(parts)}"


def _size_alone(pair: PairwiseComparison, gain: Gain) -> str:
    """Return `15.3 %`; with its word if it is no gain as `gain` is, or that it is a tie."""
    if pair.tie:
        return _tie_word(pair)
    change = gain_change(pair.gain_pct)
    return change.size if (pair.gain_pct > 0) == (gain.comparison.gain_pct > 0) else change.figure


def _further_gain(gain: Gain) -> str:
    """Return `, 20.0 % faster than alltoall`, `, 16.4 % than alltoall at equal knobs`, or nothing for a tie."""
    pair = gain.of_dispatcher or gain.comparison
    if pair.tie:
        return ""
    change = gain_change(pair.gain_pct)
    if not gain.differs_in:
        return f", {change.than} {gain.over}"
    size = change.size if pair.gain_pct > 0 else change.figure
    return f", {size} than {gain.over} {'at equal' if gain.of_dispatcher else 'with other'} knobs"


_MOST_KNOBS = 2


def other_knobs(names: Sequence[str]) -> str:
    """Return `permute_fusion and ep_overlap`."""
    words = ["another EP degree" if name == "ep" else name for name in names[:_MOST_KNOBS]]
    return listed([*words, *(["more"] if len(names) > _MOST_KNOBS else [])])


def _tie_word(pair: PairwiseComparison) -> str:
    return "equal" if pair.outcome == "equal" else "undecided"


def _tied(board: Board, names: Sequence[str], pairs: Sequence[PairwiseComparison]) -> str:
    """Return `deepep (400.0 ms) and hybridep are equal` if all pairs were shown to be within 2 %.

    Of two undecided ones: `hybridep (16.4 s) is 5.4 % faster than deepep, undecided (1.2 slower to 11.5 faster
    at 99.6 %)`.
    """
    if all(pair.outcome == "equal" for pair in pairs):
        return f"{listed([_timed(board, name) for name in names])} are equal"
    if len(pairs) > 1 or pairs[0].tie_because:
        return f"Undecided between {listed([_timed(board, name) for name in names])}"
    pair = pairs[0] if pairs[0].gain_pct > 0 else pairs[0].turned()
    change = gain_change(pair.gain_pct, pair.low_pct, pair.high_pct)
    ahead = f"{_timed(board, pair.first)} is {change.than} {_timed(board, pair.second)}"
    return f"{ahead}, undecided ({change.interval} at {level_text(pair.interval_level_pct)})"


def _gains_of_leaders(board: Board) -> str:
    """Return `, hybridep 7.5 % faster than alltoall`: the tied leaders that beat it by their own comparison."""
    decided = [
        (entry.dispatcher, pair)
        for entry in board.entries
        if entry.dispatcher in board.leaders
        and entry.gain
        and (pair := entry.gain.of_dispatcher)
        and pair.outcome == "first"
    ]
    if not decided:
        return ""
    gains = [f"{name} {gain_change(comparison.gain_pct).size}" for name, comparison in decided]
    return f", {listed(gains)} faster than {decided[0][1].second}"


def _behind(first: Entry, theirs: float) -> str:
    """Return `; hybridep 4.1 % slower`: the fastest own result against a published step time."""
    return f"; {first.dispatcher} {change_text(100 * (first.step_time_ms.value / theirs - 1)).figure}"


def published_range(points: Sequence[Reference]) -> str:
    """Format `276\u2013370` TFLOP/s/GPU; empty without a figure."""
    values = sorted(reference.point.tflops_per_gpu for reference in points if reference.point.tflops_per_gpu)
    if not values:
        return ""
    low, high = f"{values[0]:,.0f}", f"{values[-1]:,.0f}"
    return low if low == high else f"{low}\u2013{high}"


def _basis(runs: Collection[str], dates: Mapping[str, datetime]) -> str:
    """Return `14 runs, 2026-08-31 to 2026-09-12`; without dates where one is unknown."""
    days = sorted(dates[run] for run in runs if run in dates)
    if len(days) < len(runs):
        return plural(len(runs), "run")
    first, last = day_text(days[0]), day_text(days[-1])
    return f"{plural(len(runs), 'run')}, {first}" + (f" to {last}" if last != first else "")


def _publisher(reference: Reference) -> str:
    dispatcher = reference.point.contract.get("dispatcher")
    return f"{reference.point.measured_by}, {dispatcher}" if dispatcher else reference.point.measured_by


def _ticks(axis: _Axis, unit: TimeUnit) -> tuple[tuple[str, float], ...]:
    return tuple((tick_text(tick, unit), axis.place(tick)) for tick in round_ticks(axis.low, axis.high))


def _bar(name: str, figure: Interval, runs: Sequence[str], *, axis: _Axis, unit: TimeUnit, gain: str) -> RankingBar:
    low, high = figure.low or figure.value, figure.high or figure.value
    return RankingBar(
        "measured", name, f"/runs/{runs[-1]}",
        at=axis.place(figure.value), low=axis.place(low), high=axis.place(high),
        time=step_time(figure.value, unit), gain=gain, runs=plural(len(runs), "run"), is_estimated=len(runs) == 1,
    )  # fmt: skip


def _gain(entry: Entry, alone: PairwiseComparison | None) -> str:
    """Return `16.4 % faster at equal knobs; 28.1 % with other knobs`. `alone`: the gain of the dispatcher alone."""
    if entry.dispatcher == REFERENCE:
        return "reference"
    if entry.gain is None:
        return ""
    pair = entry.gain.comparison
    change = gain_change(pair.gain_pct, pair.low_pct, pair.high_pct)
    tie = f", {_tie_word(pair)}" if pair.tie else ""
    if not entry.gain.differs_in:
        return change.text + tie
    other = "another EP degree" if entry.gain.differs_in == ("ep",) else "other knobs"
    if alone is None:
        return f"{change.figure}{tie}, with {other}"
    is_alike = gain_change(alone.gain_pct).word == change.word
    return f"{_change(alone)} at equal knobs; {change.size if is_alike else change.figure} with {other}"


def _gpu(values: Mapping[str, Value]) -> str:
    return hardware_of(str(values.get("gpu") or "")).slug


# --- The picture of a board without a ranking: the runs that it has, and the dispatcher that a ranking lacks.

_MOST_ROWS = 8
"""Maximum rows, those of the newest stacks."""


@dataclass(frozen=True, slots=True)
class TimedDispatcherRun:
    """A run with a step time in ms. `dispatcher`: empty if unknown."""

    id: int
    stack_key: str
    dispatcher: str
    step_time_ms: float


@dataclass(frozen=True, slots=True)
class RunDot:
    run_id: int
    at: float
    time: str


@dataclass(frozen=True, slots=True)
class RunsRow:
    """The runs of one dispatcher in one stack. `stack`: what sets it apart, empty for a single stack."""

    dispatcher: str
    stack: str
    dots: tuple[RunDot, ...]

    @property
    def times(self) -> str:
        """Return the step time, or the range of several."""
        ends = (min(self.dots, key=lambda dot: dot.at).time, max(self.dots, key=lambda dot: dot.at).time)
        return ends[0] if ends[0] == ends[1] else f"{ends[0]}\u2013{ends[1]}"

    @property
    def label(self) -> str:
        return f"{self.dispatcher or 'unknown dispatcher'}: {plural(len(self.dots), 'run')}, {self.times}"


@dataclass(frozen=True, slots=True)
class RunsPicture:
    """`missing`: the dispatcher to run next; empty if the logs must name it. `ticks`: as in `BoardPicture`."""

    title: str
    rows: tuple[RunsRow, ...]
    ticks: tuple[tuple[str, float], ...]
    missing: str


def runs_picture(
    stacks: Sequence[StoredStandings], runs: Iterable[TimedDispatcherRun], missing: str
) -> RunsPicture | None:
    """Return the runs of the newest stack and of its work in other containers; None without a step time.

    Other stacks do other work, so that their step times do not belong on one axis.
    """
    newest = max(stacks, key=lambda stack: stack.newest_at)
    alike = sorted(
        (stack for stack in stacks if _work(stack) == _work(newest)), key=lambda stack: stack.newest_at, reverse=True
    )
    names = dict(
        zip((stack.stack_key for stack in alike), without_common([stack.name for stack in alike]), strict=True)
    )
    groups: dict[tuple[str, str], list[TimedDispatcherRun]] = {}
    for run in runs:
        if run.stack_key in names:
            groups.setdefault((run.stack_key, run.dispatcher), []).append(run)
    order = list(names)
    chosen = sorted(groups, key=lambda key: (order.index(key[0]), key[1]))[:_MOST_ROWS]
    times = [run.step_time_ms for key in chosen for run in groups[key]]
    if not times:
        return None
    axis, unit = _Axis.of(times), board_unit(times)
    rows = tuple(
        RunsRow(
            dispatcher,
            names[stack_key] if len(names) > 1 else "",
            tuple(
                RunDot(run.id, axis.place(run.step_time_ms), step_time(run.step_time_ms))
                for run in groups[stack_key, dispatcher]
            ),
        )
        for stack_key, dispatcher in chosen
    )
    title = SEPARATOR.join(common_parts([stack.name for stack in alike])) if len(alike) > 1 else newest.name
    title = _with_work(title.removeprefix(f"{newest.family}{SEPARATOR}"), alike)
    return RunsPicture(title, rows, _ticks(axis, unit), missing)


def _with_work(title: str, stacks: Sequence[StoredStandings]) -> str:
    """Add the sequence length, batch size and precision that all stacks share, so that a row need not name them."""
    texts = [
        {field_words(name, stack.about[name]) if stack.about.get(name) is not None else "" for stack in stacks}
        for name in STEP_FIELDS
        if name != "gpus"
    ]
    shared = [words.pop() for words in texts if len(words) == 1]
    return SEPARATOR.join([title, *(words for words in shared if words and words not in title)])


def _work(stack: StoredStandings) -> tuple[object, ...]:
    about = ((name, value) for name, value in stack.about.items() if name != "container")
    return stack.project_id, tuple(sorted((name, str(value)) for name, value in about))
