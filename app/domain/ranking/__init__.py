"""Leaderboards: which dispatcher wins in a stack, on what evidence, and summaries across stacks.

rank_stack(runs, prior, contracts) -> StackStandings    the stored standings of a stack
head_changes(standings, last_heads) -> changes           changes of its leaders
summaries(board results) -> tuple[ClassSummary, ...]     counts and ranges over stacks
scaling_series(runs) -> tuple[ScalingSeries]             one workload at several sizes
"""
