"""Leaderboards: which dispatcher wins in a stack, on what evidence, and what may be said across stacks.

rank_stack(runs, prior, contracts) -> StackStandings    what is stored of a stack
head_changes(standings, last_heads) -> changes           what changed at its head
across(standings, floor) -> tuple[ClassSummary, ...]     counts and ranges over stacks
scaling_series(runs) -> tuple[ScalingSeries]             one workload at several sizes
"""

from app.domain.ranking.across import (
    BoardResults,
    ClassSummary,
    GainRange,
    StackResult,
    Tally,
    TallyGroup,
    across,
    board_results,
    results_of,
    summaries,
)
from app.domain.ranking.families import Family, family_of, hardware_of
from app.domain.ranking.incremental import Head, HeadChange, head_changes, heads_of, prior_to_keep
from app.domain.ranking.rank import rank_runs, rank_stack
from app.domain.ranking.ranked_run import DISPATCHERS, LEVELS, RankedRun, RoutingClass, routing_class
from app.domain.ranking.scaling import ScalingPoint, ScalingSeries, may_scale, most_sizes, scaling_series
from app.domain.ranking.scaling_pool import ScalingRuns, scaling_runs
from app.domain.ranking.standings import Board, Entry, Gain, StackStandings

__all__ = [
    "DISPATCHERS",
    "LEVELS",
    "Board",
    "BoardResults",
    "ClassSummary",
    "Entry",
    "Family",
    "Gain",
    "GainRange",
    "Head",
    "HeadChange",
    "RankedRun",
    "RoutingClass",
    "ScalingPoint",
    "ScalingRuns",
    "ScalingSeries",
    "StackResult",
    "StackStandings",
    "Tally",
    "TallyGroup",
    "across",
    "board_results",
    "family_of",
    "hardware_of",
    "head_changes",
    "heads_of",
    "may_scale",
    "most_sizes",
    "prior_to_keep",
    "rank_runs",
    "rank_stack",
    "results_of",
    "routing_class",
    "scaling_runs",
    "scaling_series",
    "summaries",
]
