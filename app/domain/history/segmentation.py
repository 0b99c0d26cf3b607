"""The best division of a series into levels: PELT with squared error (Killick, Fearnhead and Eckley 2012)."""

import numpy as np

from app.domain.run import FloatArray

SHORTEST_SEGMENT = 3
"""One or two odd runs are the verdict's business (or a bad node's); three make a level."""


def best_segments(values: FloatArray, penalty: float, shortest: int = SHORTEST_SEGMENT) -> list[int]:
    """Where new levels start, ascending, without 0.

    Minimises, exactly, the squared error about the segment means plus `penalty` for each boundary, over all divisions
    into segments of at least `shortest` values. A series too short for two segments has none.
    """
    n = len(values)
    if n < 2 * shortest:
        return []
    sums, squares = _prefix_sums(values)
    cost = np.full(n + 1, np.inf)  # of the best division of the first t values
    cost[0] = -penalty
    last = np.zeros(n + 1, np.intp)  # where that division's last segment starts
    starts, useless_from = np.array([0]), np.array([n + 1])
    for t in range(shortest, n + 1):
        error = squares[t] - squares[starts] - (sums[t] - sums[starts]) ** 2 / (t - starts)
        reached = cost[starts] + error
        best = int(np.argmin(reached))
        cost[t], last[t] = reached[best] + penalty, starts[best]
        # A start that is worse than a new segment at t stays so, but only once that new segment can be long enough.
        useless_from = np.where(reached > cost[t], np.minimum(useless_from, t + shortest), useless_from)
        starts = np.append(starts, t + 1 - shortest) if t + 1 - shortest >= shortest else starts
        useless_from = np.append(useless_from, n + 1)[: len(starts)]
        needed = useless_from > t + 1
        starts, useless_from = starts[needed], useless_from[needed]
    return _walk_back(last, n)


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
