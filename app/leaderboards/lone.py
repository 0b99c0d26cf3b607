"""Stacks in which one dispatcher has a result, or none: a line each, under a heading that says so."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.numbers import counted
from app.domain.ranking import Board, Entry
from app.domain.ranking.ranked_run import NEED_A_PACKAGE
from app.domain.ranking.sentences import listed
from app.domain.run import Metric
from app.domain.stack_names import without_common
from app.leaderboards.configurations import configurations_sentence
from app.leaderboards.view import figures_of
from app.storage.standings import KeptStandings

_MOST_TOLD = 2
"""Configurations beside the fastest one."""


@dataclass(frozen=True, slots=True)
class LoneLine:
    """One class of runs of a stack; `board` None where none of its results reaches the evidence that is asked for.

    `name`: of the stack, without what all of them share. `configurations`: what those of its dispatcher say of its
    knobs, empty where there is one. `beside`: what else is known of its dispatchers.
    """

    kept: KeptStandings
    name: str
    board: Board | None
    entry: Entry | None
    figures: Mapping[str, Metric | None]
    configurations: str
    beside: tuple[str, ...]


def has_rivals(kept: KeptStandings) -> bool:
    """Whether results of several dispatchers stand in one of its boards, ranked or not."""
    return any(board.is_ranking or board.outside for board in kept.standings.boards)


def lone_lines(stacks: Sequence[KeptStandings], knobs: Mapping[str, str]) -> tuple[LoneLine, ...]:
    """`knobs`: by config key, what sets it apart from others of its dispatcher."""
    names = without_common([one.name for one in stacks])
    return tuple(line for one, name in zip(stacks, names, strict=True) for line in _lines(one, name, knobs))


def _lines(kept: KeptStandings, name: str, knobs: Mapping[str, str]) -> Iterable[LoneLine]:
    boards = kept.standings.boards
    if not boards:
        yield LoneLine(kept, name, None, None, {}, "", tuple(_of_stack(kept)))
    for board in boards:
        entry = board.entries[0] if board.entries else None
        figures = figures_of(entry) if entry else {}
        told = configurations_sentence(entry, knobs, most=_MOST_TOLD) if entry else ""
        yield LoneLine(kept, name, board, entry, figures, told, (*_of_board(kept, board, entry), *_of_stack(kept)))


def _of_board(kept: KeptStandings, board: Board, entry: Entry | None) -> Iterable[str]:
    if entry and kept.standings.missing and entry.dispatcher not in NEED_A_PACKAGE:
        yield "the only measured fallback"
    for one in board.glimpses:
        yield f"{one.dispatcher} ran, not ranked: {one.why}"
    missing = {one.dispatcher for one in kept.standings.missing}
    for refusal in board.unranked:
        if refusal.dispatcher not in missing:
            yield f"{refusal.dispatcher} not ranked: {refusal.sentence}"


def _of_stack(kept: KeptStandings) -> Iterable[str]:
    stack = kept.standings
    if stack.missing:
        yield f"{listed([one.dispatcher for one in stack.missing])} not available in the container"
    others = stack.refused_count - len({run for one in stack.missing for run in one.runs})
    if others > 0:
        yield f"{counted(others, 'run')} ranked nowhere"
