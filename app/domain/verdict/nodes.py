"""Find nodes whose runs are slower than neighbouring runs of the history.

Each run is compared with the median of its neighbours, so that a change of the code, which moves all later runs, does
not cast suspicion on nodes that happened to run afterwards.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST_WITH, FEWEST_WITHOUT = 2, 5
"""Runs with and without a node that a comparison needs."""
NEIGHBOURS = 5
"""Runs on each side that a run is compared with."""
SMALLEST = math.log1p(0.01)
"""A node that costs less than 1 % is not listed."""
MOST_NAMED = 5
MOST_NODES = 1_000
"""If a history has more nodes than this, none is listed."""
_ERRORS = 0.005
"""Probability, over all nodes of a history, that a harmless node is listed."""


@dataclass(frozen=True, slots=True)
class NodeRun:
    """A run with its nodes. `log_step_time`: ln ms."""

    run: int
    nodes: frozenset[str]
    log_step_time: float


@dataclass(frozen=True, slots=True)
class SlowNode:
    """`delta_pct`: how much slower runs with the node are than those without, each against its neighbours."""

    node: str
    runs: tuple[int, ...]
    others: int
    delta_pct: float


def slow_nodes(history: Sequence[NodeRun], run: int, variance: float) -> tuple[SlowNode, ...]:
    """Return the nodes of a run that make runs slower, slowest first.

    `history`: runs of one configuration, oldest first. `variance`: of ln(step time) between launches. The clearest node
    is named first. Its cost is subtracted from its runs, so that other nodes of these runs are not blamed for it.
    """
    own = next((entry.nodes for entry in history if entry.run == run), frozenset[str]())
    used = _positions(history)
    if not own or len(used) > MOST_NODES:
        return ()
    likely = statistics.NormalDist().inv_cdf(1 - _ERRORS / max(len(used), 1))
    times = [entry.log_step_time for entry in history]
    named: list[SlowNode] = []
    while len(named) < MOST_NAMED:
        residuals = _residuals(times)
        costs = [_cost(node, positions, history, residuals) for node, positions in used.items()]
        clear = [
            cost
            for cost in costs
            if cost is not None
            and cost.node not in {slow.node for slow in named}
            and cost.log > max(SMALLEST, likely * math.sqrt(variance * (1 / len(cost.used) + 1 / cost.others)))
        ]
        if not clear:
            break
        worst = max(clear, key=lambda cost: cost.log * math.sqrt(len(cost.used)))
        named.append(
            SlowNode(
                worst.node,
                tuple(history[position].run for position in worst.used),
                worst.others,
                100 * math.expm1(worst.log),
            )
        )
        for position in worst.used:
            times[position] -= worst.log
    return tuple(sorted((slow for slow in named if slow.node in own), key=lambda slow: -slow.delta_pct))


def _positions(history: Sequence[NodeRun]) -> dict[str, tuple[int, ...]]:
    """Return the positions of the runs with each node that enough runs have."""
    positions: dict[str, list[int]] = {}
    for position, entry in enumerate(history):
        for node in entry.nodes:
            positions.setdefault(node, []).append(position)
    return {node: tuple(used) for node, used in sorted(positions.items()) if len(used) >= FEWEST_WITH}


@dataclass(frozen=True, slots=True)
class _Cost:
    """Extra cost of the runs with a node, as a difference of logarithms. `used`: their positions."""

    node: str
    used: tuple[int, ...]
    others: int
    log: float


def _cost(node: str, used: tuple[int, ...], history: Sequence[NodeRun], residuals: Sequence[float]) -> _Cost | None:
    free = [position for position, entry in enumerate(history) if entry.nodes and node not in entry.nodes]
    if len(free) < FEWEST_WITHOUT:
        return None
    usual = statistics.median(residuals[position] for position in free)
    return _Cost(node, used, len(free), statistics.fmean(residuals[position] for position in used) - usual)


def _residuals(times: Sequence[float]) -> list[float]:
    """Return the distance of each run from the median of its neighbours."""
    return [
        time
        - statistics.median(
            [*times[max(position - NEIGHBOURS, 0) : position], *times[position + 1 : position + 1 + NEIGHBOURS]]
        )
        if len(times) > 1
        else 0.0
        for position, time in enumerate(times)
    ]
