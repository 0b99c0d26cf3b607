"""Where the runs of a tuning journey stand in its picture: a column a step, a row a branch.

The first child of a run stands in its own row, so that whatever goes first is a straight line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """`column` is the number of steps from the root, `row` counts from the top."""

    column: int
    row: int


def places(root: str, children: Mapping[str, Sequence[str]]) -> dict[str, Place]:
    """The place of every node that can be reached from `root`, in the order of reading: each branch to its end."""
    found: dict[str, Place] = {}
    row = -1
    # A stack instead of recursion: a journey may be longer than Python's stack is deep.
    todo: list[tuple[str, int, bool]] = [(root, 0, False)]
    while todo:
        key, column, goes_on = todo.pop()
        if key in found:
            continue
        row += not goes_on
        found[key] = Place(column, row)
        nexts = children.get(key, ())
        todo += [(one, column + 1, number == 0) for number, one in reversed(list(enumerate(nexts)))]
    return found
