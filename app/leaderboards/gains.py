"""The gain over alltoall of each result on a page: rows of a chart and of its export."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.domain.numbers import THIN, percent
from app.domain.ranking import Board, Entry, Gain
from app.domain.stack_names import SEPARATOR, without_common
from app.leaderboards.words import range_text, routing_words, tie_sentence
from app.storage.standings import KeptStandings


@dataclass(frozen=True, slots=True)
class GainRow:
    """Percent more throughput than alltoall, with the 99 % interval of the test. `memory`: empty where unknown.

    `name`: of the stack; `short_name`: without what all stacks on the page share. `tie`: why it is one, else empty.
    """

    name: str
    short_name: str
    dispatcher: str
    gain_pct: float
    low_pct: float | None
    high_pct: float | None
    directional: bool
    tie: str
    text: str
    memory: str
    href: str


def gain_rows(items: Sequence[KeptStandings], page: str = "") -> tuple[GainRow, ...]:
    """In the order of the stacks, and in each of its ranking. `page`: the address on which their cards stand."""
    shorter = without_common([one.name for one in items])
    return tuple(
        _row(one, short + _class(one, board), entry, gain, page)
        for one, short in zip(items, shorter, strict=True)
        for board in one.standings.boards
        for entry, gain in _gains(board.entries)
    )


def gain_text(gain: Gain) -> str:
    """`+18.2 % (16.0 to 20.4 %)`."""
    duel = gain.duel
    interval = range_text(duel.low_pct, duel.high_pct)
    sign = "+" if duel.gain_pct > 0 else ""
    return f"{sign}{percent(duel.gain_pct)}" + (f" ({interval}{THIN}%)" if interval else "")


def memory_text(gain: Gain) -> str:
    """`12.0 % more memory`, `the same memory`; empty where it is unknown."""
    more = gain.memory_more_pct
    if more is None:
        return ""
    if abs(more) < 0.05:
        return "the same memory"
    return f"{percent(abs(more))} {'more' if more > 0 else 'less'} memory"


def _gains(entries: Iterable[Entry]) -> Iterable[tuple[Entry, Gain]]:
    return ((entry, entry.gain) for entry in entries if entry.gain is not None)


def _row(kept: KeptStandings, short: str, entry: Entry, gain: Gain, page: str) -> GainRow:
    duel = gain.duel
    return GainRow(
        name=kept.name,
        short_name=short,
        dispatcher=entry.dispatcher,
        gain_pct=duel.gain_pct,
        low_pct=duel.low_pct,
        high_pct=duel.high_pct,
        directional=duel.directional,
        tie=tie_sentence(duel) if duel.tie else "",
        text=gain_text(gain),
        memory=memory_text(gain),
        href=f"{page}#stack-{kept.stack_key[:12]}",
    )


def _class(kept: KeptStandings, board: Board) -> str:
    """Said where a stack has several boards: they are never one."""
    if len(kept.standings.boards) < 2:
        return ""
    return f"{SEPARATOR}{routing_words(board.routing_mode)}, {board.semantic_class.replace('_', ' ')}"
