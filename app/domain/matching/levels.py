"""The level of its history that a run is measured against, also while that history is too young for change points.

`find_changes` needs twelve runs, and does not always see a change at once. Until it does, three runs that follow one
another and are a change from the level before them make the new level. Never are runs of both levels a baseline.
"""

import statistics
from collections.abc import Sequence
from typing import TypeVar

from app.domain.detection import Prior
from app.domain.detection.baseline import MOST_BASELINE_RUNS, centre, select_baseline
from app.domain.detection.step_time import RELEVANT_SHIFT, decide_step_time
from app.domain.history import find_changes
from app.domain.history.change_points import FEWEST_RUNS
from app.domain.history.segmentation import SHORTEST_SEGMENT
from app.domain.matching.record import RunFacts

_LEAST_SHARE = 0.5
"""Of runs that are one change none lies nearer to the old level than half of their mean: it would be of neither."""

F = TypeVar("F", bound=RunFacts)


def current_level(runs: Sequence[F], prior: Prior) -> list[F]:
    """The newest 20 runs of the last level of their history."""
    return whole_level(runs, prior)[-MOST_BASELINE_RUNS:]


def whole_level(runs: Sequence[F], prior: Prior) -> list[F]:
    """All runs of the last level of their history; `runs`: at least one, oldest first."""
    starts = level_starts(runs, prior)
    return list(runs[starts[-1] :]) if starts else list(runs)


def level_starts(runs: Sequence[RunFacts], prior: Prior) -> list[int]:
    """Where the levels of a history begin, ascending, without 0; `runs`: at least one, oldest first."""
    starts = [one.run for one in find_changes([one.estimate.log_step_time for one in runs], prior).change_points]
    start = starts[-1] if starts else 0
    for place in _not_seen_yet(start, len(runs)):
        # A level is three runs or more; only the first runs of all may be fewer, for nothing came before them.
        if place - start < SHORTEST_SEGMENT and start:
            continue
        if _is_a_change(runs[start:place], runs[place : place + SHORTEST_SEGMENT], prior):
            start = place
            starts.append(place)
    return starts


def confirmed_level(runs: Sequence[F], prior: Prior) -> list[F]:
    """The last level without the one or two runs at its end that are a change by themselves.

    Three make a level of their own. Before that they would hide the change from the runs that are to confirm it, and
    two far ones are taken for a level together with the run before them.
    """
    level = whole_level(runs, prior)
    before = [one.estimate.log_step_time for one in level[:-1]]
    if not before or abs(level[-1].estimate.log_step_time - statistics.median(before)) < RELEVANT_SHIFT:
        return level
    just_made = len(level) == SHORTEST_SEGMENT < len(runs)
    if just_made and _is_a_change(_before(runs, SHORTEST_SEGMENT, prior), level, prior):
        return level
    for last in range(SHORTEST_SEGMENT - 1, 0, -1):
        rest = _before(runs, last, prior) if just_made else level[:-last]
        if _is_a_change(rest, runs[-last:], prior):
            return rest
    return level


def _before(runs: Sequence[F], last: int, prior: Prior) -> list[F]:
    return whole_level(runs[:-last], prior) if len(runs) > last else []


def _not_seen_yet(start: int, count: int) -> list[int]:
    """Where a level may begin that change points do not show: near the end, and after the first run or two of all."""
    first = [1, 2] if start == 0 else []
    tail = range(max(start + 1, count - FEWEST_RUNS + 1), count)
    return [place for place in sorted({*first, *tail}) if place + SHORTEST_SEGMENT <= count]


def _is_a_change(before: Sequence[RunFacts], after: Sequence[RunFacts], prior: Prior) -> bool:
    """Whether `after`, pooled, is a regression or an improvement from `before`, and each of them is a part of it."""
    values = [one.estimate.log_step_time for one in after]
    old = [one.estimate.log_step_time for one in before[-MOST_BASELINE_RUNS:]]
    if not old or min(values) <= statistics.median(old) <= max(values):
        return False
    against = select_baseline([one.estimate for one in before], prior.variance)
    shift = statistics.fmean(values) - centre(against.log_step_times)
    nearest = min(abs(value - centre(against.log_step_times)) for value in values)
    if nearest < max(RELEVANT_SHIFT, _LEAST_SHARE * abs(shift)):
        return False
    return decide_step_time([one.estimate for one in after], against, prior) in ("regression", "improvement")
