"""The runs of one config key over time: levels, change points, and what became of a regression. `docs/verdicts.md`."""

from app.domain.history.change_points import ChangePoint, History, Segment, find_changes
from app.domain.history.follow_up import FollowUp, OpenedRegression, follow_up
from app.domain.history.settled import settled_levels

__all__ = [
    "ChangePoint",
    "FollowUp",
    "History",
    "OpenedRegression",
    "Segment",
    "find_changes",
    "follow_up",
    "settled_levels",
]
