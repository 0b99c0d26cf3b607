"""A tuning journey as a tree: runs are nodes, knobs are edges with their measured effect.

The root is the run of the first experiment. Each experiment is an edge from its baseline to its candidate. Later
experiments that start from an accepted winner extend the tree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.domain.experiments.values import DECISION_DUE, KnobChange, PlannedGain, State, state_text
from app.domain.numbers import gain_change, step_time, throughput_gain, time_saved
from app.domain.text import cut, one_line

Mark = Literal["", "root", "winner", "current"]


@dataclass(frozen=True, slots=True)
class JourneyNode:
    """One configuration, represented by its newest run: `run_id` None while none of its runs counts.

    `step_time_ms`, `tokens_per_s_per_gpu`: means over `runs`. `gain_from_root_pct`: of throughput against the root,
    and `step_time_saved_pct`: the same change as a share of the step time, by both step times; None where one is not
    measured.
    `on_path`: on the path from the root to the current node.
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
    step_time_saved_pct: float | None = None
    runs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class JourneyEdge:
    """An experiment: its knobs, its state, and its measured effect. `level_pct`: of the interval of `gain`.

    `compared_ms`: the step times of baseline and candidate that `gain` compares; those of the nodes may have more runs.
    """

    source: str
    target: str
    experiment_id: int
    title: str
    knobs: tuple[KnobChange, ...]
    state: State
    gain: PlannedGain | None
    evidence_level: str
    winner: str
    level_pct: float | None
    compared_ms: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Journey:
    """`nodes`: the root first, each before its children. `current`: the run to continue from."""

    run_id: int
    project: str
    nodes: tuple[JourneyNode, ...]
    edges: tuple[JourneyEdge, ...]
    current_run_id: int

    @property
    def runs(self) -> frozenset[int]:
        """Return the runs of all its configurations."""
        return frozenset(run for node in self.nodes for run in (node.run_id, *node.runs) if run is not None)


@dataclass(frozen=True, slots=True)
class JourneyRun:
    """A configuration: means over `runs`, and the run that represents it."""

    run_id: int
    name: str
    step_time_ms: float | None
    tokens_per_s_per_gpu: float | None
    runs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class JourneyStep:
    """An experiment of the journey. `candidate`: the run that represents its candidate, None while none counts."""

    experiment_id: int
    parent_id: int | None
    title: str
    knobs: tuple[KnobChange, ...]
    state: State
    gain: PlannedGain | None
    evidence_level: str
    winner: str
    candidate: JourneyRun | None
    level_pct: float | None = None
    compared_ms: tuple[float, float] | None = None


def make_journey(run_id: int, project: str, root: JourneyRun, steps: Sequence[JourneyStep]) -> Journey:
    """Build the journey.

    `steps`: all experiments that started from `root` or from a candidate of one of them, in any order. A step whose
    parent is not among them starts from the root.
    """
    ids = {step.experiment_id for step in steps}
    children: dict[int | None, list[JourneyStep]] = {}
    for step in sorted(steps, key=lambda entry: entry.experiment_id):
        children.setdefault(step.parent_id if step.parent_id in ids else None, []).append(step)
    path = _path(children)
    walked = list(_walk(children, None, 1))
    nodes = [_node(root, _key(None), "root", root, depth=0)]
    nodes += [
        _node(step.candidate, _key(step.experiment_id), "winner" if step.state == "accepted" else "", root, depth)
        for step, depth in walked
    ]
    current = path[-1].candidate if path and path[-1].candidate is not None else root
    on_path = {_key(None), *(_key(step.experiment_id) for step in path)}
    last = _key(path[-1].experiment_id) if path else _key(None)
    marked = tuple(
        replace(node, on_path=node.key in on_path, mark="current" if node.key == last and path else node.mark)
        for node in nodes
    )
    return Journey(run_id, project, marked, tuple(_edge(step, ids) for step, _ in walked), current.run_id)


def _walk(
    children: Mapping[int | None, Sequence[JourneyStep]], parent: int | None, depth: int
) -> Iterator[tuple[JourneyStep, int]]:
    """Yield each step before its children, with its depth."""
    for step in children.get(parent, ()):
        yield step, depth
        yield from _walk(children, step.experiment_id, depth + 1)


def _path(children: Mapping[int | None, Sequence[JourneyStep]]) -> list[JourneyStep]:
    """Return the accepted steps from the root to the current node; of several, the one accepted last counts."""
    path: list[JourneyStep] = []
    parent: int | None = None
    while accepted := [step for step in children.get(parent, ()) if step.state == "accepted"]:
        path.append(accepted[-1])
        parent = accepted[-1].experiment_id
    return path


def _key(experiment_id: int | None) -> str:
    return "root" if experiment_id is None else f"experiment-{experiment_id}"


def _node(run: JourneyRun | None, key: str, mark: Mark, root: JourneyRun, depth: int) -> JourneyNode:
    if run is None:
        return JourneyNode(key, None, "no run yet", None, None, mark, depth=depth)
    before, after = root.step_time_ms, run.step_time_ms
    gain = throughput_gain(before, after) if before and after else None
    return JourneyNode(
        key, run.run_id, run.name, run.step_time_ms, run.tokens_per_s_per_gpu, mark, gain_from_root_pct=gain,
        depth=depth, step_time_saved_pct=None if gain is None else time_saved(gain), runs=run.runs,
    )  # fmt: skip


def _edge(step: JourneyStep, ids: set[int]) -> JourneyEdge:
    return JourneyEdge(
        source=_key(step.parent_id if step.parent_id in ids else None),
        target=_key(step.experiment_id),
        experiment_id=step.experiment_id,
        title=step.title,
        knobs=step.knobs,
        state=step.state,
        gain=step.gain,
        evidence_level=step.evidence_level,
        winner=step.winner,
        level_pct=step.level_pct,
        compared_ms=step.compared_ms,
    )


# --- What a journey says about one of its runs: whether it went on, and what is not decided yet.


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a journey continues from a run.

    `run_id`: the run to continue from, None if that is a run of the same configuration. `decide`, `waiting`, `planned`:
    experiments from there, or from this run, that wait for a decision, for further runs or for their first one.
    """

    run_id: int | None = None
    decide: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    planned: tuple[int, ...] = ()

    @property
    def under_way(self) -> tuple[int, ...]:
        return (*self.waiting, *self.planned)

    @property
    def unfinished(self) -> tuple[tuple[int, str], ...]:
        """Return the experiments to finish before a new one, each with the word of its state."""
        groups = ((DECISION_DUE, self.decide), ("waiting", self.waiting), ("planned", self.planned))
        return tuple((number, word) for word, numbers in groups for number in numbers)

    @property
    def leads(self) -> bool:
        """Return whether this comes before any other next step of the run."""
        return self.run_id is not None or bool(self.decide or self.under_way)


def continuation(journey: Journey, run_id: int) -> Continuation:
    """Return how the journey continues from one of its runs. A run off the path continues from its end, too."""
    nodes = {node.key: node for node in journey.nodes}
    end = [node for node in journey.nodes if node.on_path][-1]
    is_current = run_id in (end.run_id, *end.runs)
    here = {end.key, *(key for key, node in nodes.items() if run_id in (node.run_id, *node.runs))}
    from_here = [edge for edge in journey.edges if edge.source in here]
    decide, waiting, planned = (
        tuple(edge.experiment_id for edge in from_here if edge.state == state)
        for state in ("done", "waiting", "planned")
    )
    return Continuation(None if is_current else journey.current_run_id, decide, waiting, planned)


# --- The accepted path as a waterfall: step time before and after each accepted change.


@dataclass(frozen=True, slots=True)
class AcceptedChange:
    """`gain`: of throughput by the A/B of the change, None if not measured; `level_pct`: of its interval.

    `of`: the run that represents the configuration before it, and how many runs its step time has; the same after it.
    """

    experiment_id: int
    title: str
    before_ms: float
    after_ms: float
    gain: PlannedGain | None
    of: tuple[tuple[int | None, int], tuple[int | None, int]] = ((None, 0), (None, 0))
    level_pct: float | None = None


def accepted_changes(journey: Journey) -> tuple[AcceptedChange, ...]:
    """Return the changes on the path from the root to the current node, as far as their runs have step times."""
    nodes = {node.key: node for node in journey.nodes}
    changes = []
    for edge in journey.edges:
        source, target = nodes[edge.source], nodes[edge.target]
        before, after = source.step_time_ms, target.step_time_ms
        if not target.on_path or before is None or after is None:
            continue
        fields = {knob.field for knob in edge.knobs}
        knobs = [knob for knob in edge.knobs if knob.field != "dispatcher_type" or "flex_backend" not in fields]
        text = ", ".join(f"{knob.field} {knob.after_text}" for knob in knobs) or edge.title
        of = (source.run_id, len(source.runs)), (target.run_id, len(target.runs))
        changes.append(AcceptedChange(edge.experiment_id, text, before, after, edge.gain, of, edge.level_pct))
    return tuple(changes)


# --- Export for other tools: Mermaid for documents, DOT for Graphviz. Names come from users, so they are quoted.

_MOST = 80


def mermaid(journey: Journey) -> str:
    """Return a flowchart. https://mermaid.js.org/syntax/flowchart.html"""
    ids = _ids(journey)
    lines = ["flowchart TD"]
    for node in journey.nodes:
        text = "<br/>".join(_mermaid(line) for line in _lines(node))
        lines.append(f'    {ids[node.key]}["{text}"]')
    for edge in journey.edges:
        arrow = "-->" if edge.state == "accepted" else "-.->"
        lines.append(f'    {ids[edge.source]} {arrow}|"{_mermaid(_label(edge))}"| {ids[edge.target]}')
    return "\n".join(lines) + "\n"


def dot(journey: Journey) -> str:
    """Return a digraph. https://graphviz.org/doc/info/lang.html"""
    ids = _ids(journey)
    lines = ["digraph journey {", "    node [shape=box];"]
    for node in journey.nodes:
        text = "\\n".join(_dot(line) for line in _lines(node))
        weight = ", penwidth=2" if node.on_path else ""
        lines.append(f'    {ids[node.key]} [label="{text}"{weight}];')
    for edge in journey.edges:
        style = "solid" if edge.state == "accepted" else "dashed"
        lines.append(f'    {ids[edge.source]} -> {ids[edge.target]} [label="{_dot(_label(edge))}", style={style}];')
    return "\n".join([*lines, "}"]) + "\n"


def _ids(journey: Journey) -> dict[str, str]:
    return {node.key: f"n{number}" for number, node in enumerate(journey.nodes)}


def _lines(node: JourneyNode) -> list[str]:
    lines = [node.name if node.run_id is None else f"run {node.run_id}: {node.name}"]
    if node.step_time_ms is not None:
        lines.append(step_time(node.step_time_ms))
    if node.depth and node.gain_from_root_pct is not None:
        lines.append(f"{gain_change(node.gain_from_root_pct).than} the root")
    return [_short(line) for line in lines]


def _label(edge: JourneyEdge) -> str:
    knobs = ", ".join(f"{knob.field} = {knob.after_text}" for knob in edge.knobs) or edge.title
    gain = f": {gain_change(edge.gain.pct).figure}" if edge.gain is not None else ""
    return f"{_short(knobs)}{gain} ({state_text(edge.state, edge.evidence_level)})"


def _short(text: str) -> str:
    return cut(one_line(text), _MOST)


def _mermaid(text: str) -> str:
    """Escape quotes and brackets, which end a label.

    https://mermaid.js.org/syntax/flowchart.html#entity-codes-to-escape-characters
    """
    return "".join(
        character if character.isalnum() or character in " .,:=+-%()/_…" else f"#{ord(character)};"
        for character in text
    )


def _dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
