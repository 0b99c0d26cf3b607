"""Leaderboards: which dispatcher wins in a stack, on what evidence, and what may be said across stacks.

rank_stack(runs, prior, contracts) -> StackStandings    what is stored of a stack
head_changes(standings, last_heads) -> changes           what changed at its head
across(standings, floor) -> tuple[ClassSummary, ...]     counts and ranges over stacks
scaling_series(runs) -> tuple[ScalingSeries]             one workload at several sizes
"""
