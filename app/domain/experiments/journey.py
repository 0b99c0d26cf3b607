"""A tuning journey as a tree: runs as nodes, knobs as edges with what they were measured to do.

The root is the run that the first experiment began from. Each experiment is an edge from its baseline to its candidate;
where its winner was accepted and later experiments began from it, the tree goes on there.
"""

from dataclasses import dataclass
from typing import Literal

from app.domain.experiments.values import Gain, KnobChange, State

Mark = Literal["", "root", "winner", "current"]


@dataclass(frozen=True, slots=True)
class JourneyNode:
    """One configuration, by the run that stands for it: `run_id` None while no run of it counts yet.

    `gain_from_root`: throughput against the root in percent, by the steps on the way; None where one is not measured.
    `on_path`: on the way from the root to where the journey stands now.
    """

    key: str
    run_id: int | None
    name: str
    step_time_ms: float | None
    tokens_per_s_per_gpu: float | None
    mark: Mark = ""
    on_path: bool = False
    gain_from_root_pct: float | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True)
class JourneyEdge:
    """An experiment: what it turned, its state, and what it did to throughput."""

    source: str
    target: str
    experiment_id: int
    title: str
    knobs: tuple[KnobChange, ...]
    state: State
    gain: Gain | None
    evidence_level: str
    winner: str


@dataclass(frozen=True, slots=True)
class Journey:
    """`nodes`: the root first, each before those that come from it. `current`: the run to go on from."""

    run_id: int
    project: str
    nodes: tuple[JourneyNode, ...]
    edges: tuple[JourneyEdge, ...]
    current_run_id: int
