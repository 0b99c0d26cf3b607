"""A board in the order that the API is asked for: its entries, and their places."""

from collections.abc import Iterable
from dataclasses import replace

from app.domain.ranking import Board
from app.storage.standings import KeptStandings

_BY_MEMORY, _BY_TFLOPS = "memory_headroom", "tflops_per_gpu"


def ordered(items: Iterable[KeptStandings], rank: str) -> tuple[KeptStandings, ...]:
    """Readings, sentences and gains stay: they are about speed, whatever the order."""
    return tuple(
        replace(
            one, standings=replace(one.standings, boards=tuple(_board(board, rank) for board in one.standings.boards))
        )
        for one in items
    )


def _board(board: Board, rank: str) -> Board:
    if rank == _BY_MEMORY:
        places = {place.name: place for place in board.by_memory}
        order = list(places) or [entry.dispatcher for entry in board.entries]
        entries = [replace(entry, place=places.get(entry.dispatcher)) for entry in board.entries]
        return replace(board, entries=tuple(sorted(entries, key=lambda entry: order.index(entry.dispatcher))))
    if rank == _BY_TFLOPS and board.flops_differ:
        return replace(board, entries=tuple(replace(entry, place=None) for entry in board.entries))
    return board
