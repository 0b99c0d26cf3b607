"""Slow nodes are named, harmless ones are not, and a change of the code makes no node suspect."""

import math
import random

from app.domain.verdict.nodes import NodeRun, slow_nodes

SPREAD = 0.005


def history(slow: str = "", *, cost: float = 0.05, step_at: int = 1000, seed: int = 1) -> list[NodeRun]:
    """Sixty runs on four of twelve nodes each, which wait for the slowest."""
    source = random.Random(seed)  # noqa: S311  noise
    runs = []
    for number in range(60):
        nodes = frozenset(source.sample([f"n{place:02d}" for place in range(12)], 4))
        time = 7 + source.gauss(0, SPREAD) + (math.log1p(0.08) if number >= step_at else 0)
        runs.append(NodeRun(number, nodes, time + (math.log1p(cost) if slow in nodes else 0)))
    return runs


def test_the_slow_node_alone_is_named_with_its_cost() -> None:
    runs = history("n07")
    run = next(entry.run for entry in runs if "n07" in entry.nodes)
    (node,) = slow_nodes(runs, run, SPREAD**2)
    assert (node.node, node.runs) == ("n07", tuple(entry.run for entry in runs if "n07" in entry.nodes))
    assert 3 < node.delta_pct < 7
    other = next(entry.run for entry in runs if "n07" not in entry.nodes)
    assert slow_nodes(runs, other, SPREAD**2) == ()


def test_no_node_of_healthy_runs_is_named_nor_after_a_change_of_the_code() -> None:
    named = [
        slow_nodes(runs, run.run, SPREAD**2)
        for seed in range(20)
        for runs in (history(seed=seed), history(seed=seed, step_at=30))
        for run in runs[::10]
    ]
    assert len(named) == 240
    assert not any(named)


def test_a_node_that_costs_two_percent_is_named_in_every_run_with_it() -> None:
    for seed in range(10):
        runs = history("n07", cost=0.02, step_at=30, seed=seed)
        named = {run.run: [slow.node for slow in slow_nodes(runs, run.run, SPREAD**2)] for run in runs[::6]}
        assert named == {run.run: ["n07"] if "n07" in run.nodes else [] for run in runs[::6]}


def test_few_runs_or_unknown_nodes_name_none() -> None:
    assert slow_nodes(history("n07")[:4], 0, SPREAD**2) == ()
    assert slow_nodes([], 1, SPREAD**2) == ()
    assert slow_nodes([NodeRun(1, frozenset(), 7.0)], 1, SPREAD**2) == ()
