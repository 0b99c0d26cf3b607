"""The best division of a series into levels: PELT with squared error (Killick, Fearnhead and Eckley 2012)."""

import numpy as np

from app.domain.run import FloatArray

SHORTEST_SEGMENT = 3
"""One or two odd runs are the verdict's business (or a bad node's); three make a level."""
_ENDS_AT_ONCE = 48
"""Their errors are one table. More spare calls, fewer drop useless starts sooner; no less than the shortest segment."""


def best_segments(values: FloatArray, penalty: float, shortest: int = SHORTEST_SEGMENT) -> list[int]:
    """Where new levels start, ascending, without 0.

    Minimises, exactly, the squared error about the segment means plus `penalty` for each boundary, over all divisions
    into segments of at least `shortest` values. A series too short for two segments has none.
    """
    n = len(values)
    if n < 2 * shortest:
        return []
    prefix = _prefix_sums(values)
    cost = np.full(n + 1, np.inf)  # of the best division of the first t values
    cost[0] = -penalty
    last = np.zeros(n + 1, np.intp)  # where that division's last segment starts
    starts = np.array([0])
    for first in range(shortest, n + 1, _ENDS_AT_ONCE):
        ends = np.arange(first, min(first + _ENDS_AT_ONCE, n + 1))
        starts = np.append(starts, np.arange(max(shortest, first - shortest), ends[-1] + 1 - shortest))
        errors = _errors(prefix, starts, ends, shortest)
        for t, error in zip(ends.tolist(), errors, strict=True):
            reached = cost[starts] + error
            best = reached.argmin()
            cost[t], last[t] = reached[best] + penalty, starts[best]
        if len(ends) == _ENDS_AT_ONCE:
            # A start that is worse than a new segment at t stays so, once that new segment is long enough.
            t = ends[-shortest]
            starts = starts[(starts > t - shortest) | (cost[starts] + errors[-shortest] <= cost[t])]
    return _walk_back(last, n)


def _errors(
    prefix: tuple[FloatArray, FloatArray],
    starts: np.typing.NDArray[np.intp],
    ends: np.typing.NDArray[np.intp],
    shortest: int,
) -> FloatArray:
    """Squared error of a segment from each start (a column) to each end (a row); infinite where it is too short."""
    sums, squares = prefix
    lengths = ends[:, None] - starts
    too_short = lengths < shortest
    lengths[too_short] = 1
    errors = squares[ends][:, None] - squares[starts] - (sums[ends][:, None] - sums[starts]) ** 2 / lengths
    errors[too_short] = np.inf
    return errors


def _prefix_sums(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of the values and their squares, about the median: step times far from zero would cancel badly."""
    centred = values - np.median(values)
    return np.append(0.0, np.cumsum(centred)), np.append(0.0, np.cumsum(centred**2))


def _walk_back(last: np.typing.NDArray[np.intp], n: int) -> list[int]:
    starts: list[int] = []
    at = int(last[n])
    while at > 0:
        starts.append(at)
        at = int(last[at])
    return starts[::-1]
