"""The history of leaders as rows of a table and as times of a chart."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime

from app.domain.ranking import Head
from app.domain.ranking.incremental import told
from app.domain.stack_names import SEPARATOR, common_parts
from app.leaderboards.words import routing_words
from app.storage.leader_changes import LeaderChange


@dataclass(frozen=True, slots=True)
class Reign:
    """The time from one change at the head of a board to the next. `row`: of the chart, one for each board.

    `leader` is empty for a tie and where nobody leads; `text` says which. `lasts`: it has not ended; `ends` is then the
    last measurement of the stack, and not now: nobody knows who would lead today.
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


def reigns_of(changes: Sequence[LeaderChange], shown: Sequence[str] = ()) -> tuple[Reign, ...]:
    """From changes, newest first. Times are places in the history of the stack.

    `shown`: names of all stacks on the page: what those of the changes share with them is not repeated.
    """
    shared = set(common_parts([*shown, *(one.name for one in changes)]))
    boards: dict[tuple[str, str, str], list[LeaderChange]] = {}
    for one in reversed(changes):
        head = one.change.after
        boards.setdefault((one.stack_key, head.routing_mode, head.semantic_class), []).append(one)
    alike = len({(mode, semantic_class) for _, mode, semantic_class in boards}) == 1
    return tuple(
        reign
        for row, own in enumerate(boards.values())
        for reign in _reigns(row, own, _name(own[-1], shared, with_class=not alike))
    )


def told_class(head: Head) -> str:
    """`forced balance, benchmark only`."""
    return f"{routing_words(head.routing_mode)}, {head.semantic_class.replace('_', ' ')}"


def _reigns(row: int, own: Sequence[LeaderChange], name: str) -> list[Reign]:
    """Of one board, oldest change first. A run that came late may lie before the change that it follows."""
    begins: list[datetime] = []
    for one in own:
        begins.append(max([one.happened_at, *begins[-1:]]))
    ends = [*begins[1:], max(own[-1].measured_until, begins[-1])]
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


def _name(change: LeaderChange, shared: Set[str], *, with_class: bool) -> str:
    parts = change.name.split(SEPARATOR)
    name = SEPARATOR.join(part for part in parts if part not in shared) or change.name
    return f"{name}{SEPARATOR}{told_class(change.change.after)}" if with_class else name
