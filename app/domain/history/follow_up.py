"""Whether a regression is over, and whether it came back (DETECTION section 3, step 4). A proposal; people decide."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.domain.history.change_points import History
from app.domain.history.segmentation import SHORTEST_SEGMENT

SAME_LEVEL = 0.01
"""A level within 1 % of another is the same level."""

FollowUpState = Literal["open", "fixed", "reopened"]


@dataclass(frozen=True, slots=True)
class OpenedRegression:
    """As it was when it was opened: `run` is the index of the slow run, the levels are ln(step time), slow > usual."""

    run: int
    usual_level: float
    slow_level: float


@dataclass(frozen=True, slots=True)
class FollowUp:
    """`run`: index of the first run of the level that made the state; the slow run itself while it is open."""

    state: FollowUpState
    run: int


def follow_up(regression: OpenedRegression, history: History, said_fixed_at: int | None = None) -> FollowUp:
    """The state after the last level of `history`. `said_fixed_at`: from that run on, somebody holds it to be fixed.

    `fixed`: a level of at least three runs after the slow one returned to within 1 % of the usual level, or below it.
    So an alarm that no second run confirms ends here too. `reopened`: after that, a level returned to within 1 % of
    the slow level, or above it; one in between is a regression of its own. Single runs change nothing.
    """
    now = FollowUp("open", regression.run)
    first = regression.run + 1
    if said_fixed_at is not None:
        now, first = FollowUp("fixed", said_fixed_at), max(first, said_fixed_at)
    for start, level in _levels_from(first, history):
        if now.state != "fixed" and level <= regression.usual_level + SAME_LEVEL:
            now = FollowUp("fixed", start)
        elif now.state == "fixed" and level > regression.usual_level + SAME_LEVEL:
            came_back = level >= regression.slow_level - SAME_LEVEL
            now = FollowUp("reopened", start) if came_back else now
    return now


def _levels_from(run: int, history: History) -> list[tuple[int, float]]:
    """First run and level of each segment, without what lies before `run`, where three runs are left."""
    cut = [(max(segment.start, run), segment.stop) for segment in history.segments]
    return [(a, float(np.mean(history.values[a:b]))) for a, b in cut if b - a >= SHORTEST_SEGMENT]
