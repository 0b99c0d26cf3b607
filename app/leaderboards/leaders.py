"""The history of leaders as rows of a table and as times of a chart."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from app.domain.ranking import Head
from app.domain.ranking.incremental import told
from app.leaderboards.words import routing_words
from app.storage.leader_changes import LeaderChange


@dataclass(frozen=True, slots=True)
class Reign:
    """The time from one change at the head of a board to the next. `row`: of the chart, one for each board.

    `leader` is empty for a tie and where nobody leads; `text` says which. `lasts`: it has not ended.
    """

    row: int
    name: str
    is_first: bool
    begins: datetime
    ends: datetime
    lasts: bool
    leader: str
    text: str
    href: str


def reigns_of(changes: Sequence[LeaderChange], now: datetime) -> tuple[Reign, ...]:
    """From changes, newest first. Times are those of the newest run of the stack, where it is still known."""
    boards: dict[tuple[str, str, str], list[LeaderChange]] = {}
    for one in reversed(changes):
        head = one.change.after
        boards.setdefault((one.stack_key, head.routing_mode, head.semantic_class), []).append(one)
    alike = len({(mode, semantic_class) for _, mode, semantic_class in boards}) == 1
    return tuple(
        reign
        for row, own in enumerate(boards.values())
        for reign in _reigns(row, own, now, _name(own[-1], with_class=not alike))
    )


def at(change: LeaderChange) -> datetime:
    """Where it stands in the history of its stack."""
    return change.placed_at or change.at


def told_class(head: Head) -> str:
    """`forced balance, benchmark only`."""
    return f"{routing_words(head.routing_mode)}, {head.semantic_class.replace('_', ' ')}"


def _reigns(row: int, own: Sequence[LeaderChange], now: datetime, name: str) -> list[Reign]:
    """Of one board, oldest change first. A run that came late may lie before the change that it follows."""
    begins: list[datetime] = []
    for one in own:
        begins.append(max([at(one), *begins[-1:]]))
    ends = [*begins[1:], max(now, begins[-1])]
    return [
        Reign(
            row=row,
            name=name,
            is_first=place == 0,
            begins=begin,
            ends=end,
            lasts=place == len(own) - 1,
            leader=_leader(one.change.after),
            text=told(one.change.after),
            href=f"/history/{one.stack_key}",
        )
        for place, (one, begin, end) in enumerate(zip(own, begins, ends, strict=True))
    ]


def _leader(head: Head) -> str:
    return head.dispatchers[0] if len(head.dispatchers) == 1 and head.reading == "leader" else ""


def _name(change: LeaderChange, *, with_class: bool) -> str:
    return f"{change.title} · {told_class(change.change.after)}" if with_class else change.title
