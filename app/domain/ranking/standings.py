"""What is kept of a stack: for each class of runs and each floor of evidence, one board of its dispatchers.

These values are stored as they are (JSON by their types) and served; nothing in them is computed again for a page.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from app.domain.numbers import counted, grouped, percent
from app.domain.ranking.pairwise import Duel, Place
from app.domain.ranking.runs import DID_NOT_RUN, NEED_A_PACKAGE, Refusal
from app.domain.verdict.step_time import DroppedRun

Reading = Literal["leader", "tie", "directional", "not_compared", "only_measurement", "nothing_ranked"]
"""leader            one dispatcher is clearly better than every other one
tie               nobody is clearly better than all others
directional       it would be one of the two, but rests on runs that are too short
not_compared      a dispatcher was measured only before or after a change of the stack's speed: never beside the others
only_measurement  a single dispatcher was measured: this is not a ranking
nothing_ranked    several were seen, none well enough"""

GainKind = Literal["matched_ab", "side_by_side", "unknown"]
REFERENCE = "alltoall"
"""What gains are measured against: the dispatcher that every container has."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval over launches of the job; without one for memory."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Runs of a stack between two changes of its speed: the code that a board compares dispatchers on.

    `first_at` and `last_at`: places in the history of the first and last of the `runs` that stand on the board.
    `changes_since`: how often the speed of the stack changed after it; `changed_at`: the place of the first run after
    the first of these changes, None where there is none.
    """

    first_at: datetime
    last_at: datetime
    runs: int
    changes_since: int = 0
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """A dispatcher with results, none of them of the board's stretch: not compared there, and without a place.

    Its figure is of its own newest stretch. `days` and `changes`: how far its last run lies from the runs of the board;
    `before`: it is the older side. `beaten_by`: who of the board was clearly faster when both were measured on one
    stretch last; `never_met`: who of the board was never measured on one with it.
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
    """Against the best configuration of `over`. Percentages are of throughput, with the test's 99 % interval.

    `kind`: matched_ab when the two differ in the dispatcher alone, else side_by_side with `differs_in`; unknown when
    their contracts were not at hand. `memory_more_pct`: None where it is unknown on a side.
    """

    over: str
    duel: Duel
    kind: GainKind
    differs_in: tuple[str, ...]
    memory_more_pct: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration of a dispatcher. `duel`: against the best one; None for the best itself."""

    config_key: str
    runs: int
    step_time_ms: Interval
    directional: bool
    duel: Duel | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A dispatcher by its best configuration. `place` None when this is no ranking.

    `runs`: names of the runs behind it, oldest first, and `validated_runs` how many of them are validated. `level`:
    the result's. `unproven`: no log shows which dispatcher ran. `configurations`: all that were measured, best first.
    `left_out`: the newest eligible runs of the configuration that do not stand for it. `inferred`: that it ran is
    concluded from iterations, in all of its runs; no line of a log proves it. `from_prior`: there is one run, so its
    interval is how much launches of the family vary. `last_at`: its newest run's place in the history. `newest`: its
    step time on a newer stretch than the board's, None where it has none. `worse_loss_than`: dispatchers of the board
    whose loss is clearly better, over iterations that both have.
    """

    dispatcher: str
    place: Place | None
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
    configurations: tuple[Configuration, ...]
    left_out: tuple[DroppedRun, ...] = ()
    inferred: bool = False
    from_prior: bool = False
    last_at: datetime | None = None
    newest: Interval | None = None
    worse_loss_than: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Glimpse:
    """A dispatcher that was seen running, in a run that may not be ranked."""

    dispatcher: str
    run: str
    step_time_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class MissingDispatcher:
    """A dispatcher whose package is not in the container, with the runs that show it, newest first.

    `ep`: as they state it, else as all other runs of the stack do.
    """

    dispatcher: str
    runs: tuple[str, ...]
    ep: int | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """The ranking of one stack, one routing mode and one semantic class, from evidence of `floor` and better.

    `entries`: fastest first. `by_memory`: places by peak memory, least first; empty where it is unknown somewhere.
    `flops_differ`: the entries count other work in a step, so TFLOP/s/GPU must not order them. `below_floor`: how many
    runs the floor left out. `stretch`: what all its figures are of, None without any. `outside`: dispatchers that were
    measured on other stretches only. `unranked`: of each dispatcher that was asked for or ran and is none of these, the
    newest run with the reason why it is ranked nowhere.
    """

    floor: str
    routing_mode: str
    semantic_class: str
    reading: Reading
    sentence: str
    leaders: tuple[str, ...]
    entries: tuple[Entry, ...]
    duels: tuple[Duel, ...]
    by_memory: tuple[Place, ...]
    glimpses: tuple[Glimpse, ...]
    flops_differ: bool
    below_floor: int
    remarks: tuple[str, ...] = ()
    stretch: Stretch | None = None
    outside: tuple[Outside, ...] = ()
    unranked: tuple[Refusal, ...] = ()

    @property
    def is_ranking(self) -> bool:
        return len(self.entries) > 1

    def entry(self, dispatcher: str) -> Entry | None:
        return next((one for one in self.entries if one.dispatcher == dispatcher), None)


@dataclass(frozen=True, slots=True)
class StackStandings:
    """All that the leaderboards know of a stack. `refused`: its newest runs that may be ranked nowhere, and why.

    `refused_count`: all of them. `fallbacks`: runs that count for another dispatcher than they asked for. `partial`:
    some figures are of other definitions and wait to be computed again, so a leader may change without any new run.
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
        boards = (one for one in self.boards_at(floor) if (one.routing_mode, one.semantic_class) == wanted)
        return next(boards, None)


def missing_names(missing: Iterable[MissingDispatcher]) -> tuple[str, ...]:
    return tuple(item.dispatcher for item in missing)


# --- What a board says, in a sentence: who leads, who ties, and where no ranking may be read from it.


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def reading_sentence(
    reading: Reading,
    entries: Sequence[Entry],
    duels: Sequence[Duel],
    glimpses: Sequence[Glimpse],
    *,
    missing: Sequence[MissingDispatcher] = (),
    others: Sequence[Outside] = (),
    unranked: Sequence[Refusal] = (),
) -> str:
    """What may be read from a board, and what may not."""
    match reading:
        case "only_measurement":
            told = _only(entries, glimpses, missing_names(missing), unranked)
        case "nothing_ranked":
            seen = listed(tuple(one.dispatcher for one in glimpses))
            told = f"{seen} ran, but no run of theirs may be ranked here."
        case "directional":
            told = f"Directional only: {_windows(entries)} Let full runs confirm it. {_order(entries, duels)}"
        case "not_compared":
            told = _order(entries, duels) if len(entries) > 1 else "This is not a ranking."
        case "tie":
            told = f"No clear winner: {_order(entries, duels)}"
        case "leader":
            told = _order(entries, duels)
    told = " ".join((told, *(one.sentence for one in others)))
    if missing:
        several = len(missing) > 1
        told += (
            f" {listed(missing_names(missing))} could not run: the {'packages are' if several else 'package is'} not in"
            f" the container. That says nothing about {'their' if several else 'its'} speed."
        )
    return told


def _only(
    entries: Sequence[Entry], glimpses: Sequence[Glimpse], missing: Sequence[str], unranked: Sequence[Refusal]
) -> str:
    """One dispatcher with a result. Others may have been seen in runs that count for nothing."""
    name = entries[0].dispatcher if entries else glimpses[0].dispatcher
    role = "fallback" if missing and name not in NEED_A_PACKAGE else "dispatcher"
    ran = [one.dispatcher for one in glimpses]
    ran += [one.dispatcher for one in unranked if one.why not in DID_NOT_RUN]
    others = tuple(dict.fromkeys(one for one in ran if one != name))
    told = f"{name} is the only measured {role} of this stack. This is not a ranking."
    if others:
        told = f"{name} is the only dispatcher of this stack with a result. This is not a ranking."
        told += f" {listed(others)} ran, but in no run that may be ranked here."
    if not entries:
        told += f" And its run may not be ranked: {glimpses[0].why}."
    elif entries[0].directional:
        told += " It is directional only: its runs are too short to tell whether they were warm."
    return told


def _windows(entries: Sequence[Entry]) -> str:
    short = tuple(entry.dispatcher for entry in entries if entry.directional)
    return f"the runs of {listed(short)} are too short to tell whether they were warm."


def _order(entries: Sequence[Entry], duels: Sequence[Duel]) -> str:
    """Who is better than whom, from the places of the entries."""
    first = [one for one in entries if one.place and not one.place.beaten_by]
    names = tuple(one.dispatcher for one in first)
    rest = tuple(one.dispatcher for one in entries if one.dispatcher not in names)
    if len(names) == 1:
        return f"{names[0]} is faster than {listed(rest)}, beyond what launches of a job vary."
    among = [one for one in duels if {one.first, one.second} <= set(names)]
    guarded = [one for one in among if one.worse_loss and one.tie_because]
    if guarded and len(names) == 2:
        return _guarded(guarded[0])
    equal = all(one.outcome == "equal" for one in among)
    close = f"are equally fast, {within(among[0]) if len(among) == 1 else 'to within 2 %'}"
    tied = f"{listed(names)} {close if equal else 'cannot be told apart yet'}."
    if len(names) > 2 and not _all_tie(first):
        tied = f"none of {listed(names)} is beaten, though not all of them tie with each other."
    return f"{tied} {listed(rest)} {'is' if len(rest) == 1 else 'are'} slower." if rest else tied


def _guarded(duel: Duel) -> str:
    """One is faster, and its loss is worse."""
    faster = duel if duel.worse_loss == duel.first else duel.turned()
    return (
        f"{faster.first} is faster than {faster.second}, but its loss is {percent(faster.loss_delta_pct or 0.0)} worse:"
        " a faster run with a worse loss is no improvement."
    )


def _all_tie(entries: Sequence[Entry]) -> bool:
    return all(len(one.place.ties) >= len(entries) - 1 for one in entries if one.place)


def gain_sentence(name: str, duel: Duel, memory_more_pct: float | None, memory_clear: bool) -> str:
    """`deepep has 18.2 % more throughput than alltoall (16.0 to 20.4), but needs 12.0 % more memory.`"""
    memory = _memory(duel, memory_more_pct) if memory_clear and memory_more_pct is not None else ""
    short = " Directional only." if duel.directional else ""
    if duel.tie and duel.worse_loss and duel.tie_because:
        return f"{_guarded(duel)} Throughput of {name}: {percent(duel.gain_pct)} more ({_range(duel)}){memory}.{short}"
    if duel.tie:
        return f"{name} {_tied(duel)}{memory.replace(', but', ', and', 1)}.{short}"
    faster = duel.outcome == "first"
    low, high = duel.low_pct or 0.0, duel.high_pct or 0.0
    ends = (low, high) if faster else (-high, -low)
    side = "more" if faster else "less"
    interval = f"({percent(ends[0])} to {percent(ends[1])})"
    return f"{name} has {percent(abs(duel.gain_pct))} {side} throughput than {duel.second} {interval}{memory}.{short}"


def _tied(duel: Duel) -> str:
    because = f": {duel.tie_because}" if duel.tie_because else ""
    if duel.outcome == "equal":
        return f"is as fast as {duel.second}, {within(duel)}{because}"
    more = f"; {counted(duel.more_runs, 'more run')} of each would decide" if duel.more_runs else ""
    return f"cannot be told apart from {duel.second} in speed{because} ({_range(duel)} throughput{more})"


def within(duel: Duel) -> str:
    """Of an `equal` pair, with the interval that says so: `to within 2 % (-1.2 to 0.9 % by two one-sided tests)`."""
    ends = f"{grouped(duel.decides_low_pct or 0.0, 1)} to {percent(duel.decides_high_pct or 0.0)}"
    return f"to within 2 % ({ends} by two one-sided tests)"


def _memory(duel: Duel, more_pct: float) -> str:
    """`but` where memory and speed disagree."""
    worse_memory = more_pct > 0
    disagree = worse_memory == (duel.outcome == "first")
    return (
        f", {'but' if disagree else 'and'} needs {percent(abs(more_pct))} {'more' if worse_memory else 'less'} memory"
    )


def _range(duel: Duel) -> str:
    return f"{percent(duel.low_pct or 0.0)} to {percent(duel.high_pct or 0.0)}"
