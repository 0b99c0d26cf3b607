"""The two levels of a regression as its history has them: the first slow run alone makes most of them look larger."""

from itertools import takewhile

import numpy as np

from app.domain.history.change_points import FEWEST_RUNS, History
from app.domain.history.follow_up import OpenedRegression
from app.domain.history.segmentation import SHORTEST_SEGMENT

_NEAR = 2
"""A boundary of levels lies up to so many runs beside the run that gave the alarm."""


def settled_levels(regression: OpenedRegression, history: History) -> tuple[float, float] | None:
    """The usual and the slow level (ln), from the levels at either side of the slow run; None while there is no slow
    one of three runs. Where nothing came before it, as after an upgrade, the usual level is what it was.

    In a history that is too short to be divided, the slow level is that of the slow runs that follow each other.
    """
    middle = (regression.usual_level + regression.slow_level) / 2
    if len(history.values) < FEWEST_RUNS:
        following = list(takewhile(lambda value: value > middle, history.values[max(regression.run, 0) :]))
        return (regression.usual_level, float(np.mean(following))) if len(following) >= SHORTEST_SEGMENT else None
    for number, segment in enumerate(history.segments):
        # The first two slow runs may form a level with a usual one before them, which lies in between.
        slow = history.values[max(segment.start, regression.run) : segment.stop]
        near = abs(segment.start - regression.run) <= _NEAR and len(slow) >= SHORTEST_SEGMENT
        if near and (level := float(np.mean(slow))) > middle:
            before = history.segments[number - 1].level if number else regression.usual_level
            return (before if before < middle else regression.usual_level), level
    return None
