"""The page of a tuning journey: what was reached, the tree as a picture, and its table."""

from dataclasses import dataclass
from functools import cached_property

from app.domain.changes import signed
from app.domain.experiments.journey import Journey, JourneyEdge, JourneyNode
from app.domain.numbers import counted, step_time
from app.experiments.tree_picture import BOX_HEIGHT, BOX_WIDTH, Edge, Node, Picture, picture
from app.experiments.words import gain_text, knobs_text, short_gain, tone, values_text

_KINDS = {"rejected": "lost", "withdrawn": "lost", "planned": "open", "waiting": "open", "done": "undecided"}
_MARKS = {"root": "where it began", "winner": "accepted", "current": "where it stands"}
_ENDS = {
    "planned": "planned",
    "waiting": "runs are coming in",
    "done": "to be decided",
    "rejected": "rejected",
    "withdrawn": "withdrawn",
    "accepted": "accepted, not on the way",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A run of the journey with the experiment that led to it; the root has none. `facts`: its figures in words."""

    node: JourneyNode
    edge: JourneyEdge | None
    depth: int
    kind: str
    name: str
    href: str
    facts: str
    role: str
    knob: str
    effect: str
    tone: str
    edge_href: str
    from_root: str


class JourneyPage:
    """What the template asks for."""

    box_width, box_height = BOX_WIDTH, BOX_HEIGHT

    def __init__(self, journey: Journey, run_id: int) -> None:
        self.journey = journey
        self.run_id = run_id
        self.nodes = {node.key: node for node in journey.nodes}

    @cached_property
    def rows(self) -> list[Row]:
        """In the order of reading: each branch to its end, the way to the winner first."""
        edges: dict[str, list[JourneyEdge]] = {}
        for edge in self._ordered:
            edges.setdefault(edge.source, []).append(edge)
        root = self.journey.nodes[0]
        rows: list[Row] = []
        todo: list[tuple[JourneyNode, JourneyEdge | None, int]] = [(root, None, 0)]
        seen: set[str] = set()
        while todo:
            node, led, depth = todo.pop()
            if node.key in seen:
                continue
            seen.add(node.key)
            rows.append(_row(node, led, depth))
            todo += [(self.nodes[edge.target], edge, depth + 1) for edge in reversed(edges.get(node.key, []))]
        return rows

    @property
    def empty(self) -> bool:
        return not self.journey.edges

    @property
    def root(self) -> Row:
        return self.rows[0]

    @property
    def current(self) -> Row:
        """Where the journey stands: the last winner, or where it began."""
        return next((row for row in self.rows if row.node.run_id == self.journey.current_run_id), self.root)

    @property
    def answer(self) -> str:
        if self.empty:
            return "No experiment began from this run yet."
        edges = self.journey.edges
        states = [edge.state for edge in edges]
        accepted, ended = states.count("accepted"), states.count("rejected") + states.count("withdrawn")
        parts = [f"{accepted} accepted", f"{ended} rejected or withdrawn", f"{len(edges) - accepted - ended} open"]
        counts = f"{counted(len(edges), 'experiment')}: {', '.join(parts)}."
        gain = self.current.node.gain_from_root_pct
        if gain is None or self.current is self.root:
            return f"{counts} Nothing better than the run that it began from was accepted yet."
        return f"{signed(gain)} throughput from {self.root.name} to {self.current.name}, step by step. {counts}"

    @property
    def beside(self) -> list[Row]:
        """Accepted, and not on the way that was taken: a later one from the same run was accepted, too."""
        return [row for row in self.rows if row.kind == "accepted"]

    @cached_property
    def picture(self) -> Picture:
        nodes = {row.node.key: _node(row) for row in self.rows}
        return picture(nodes, [_edge(row) for row in self.rows if row.edge is not None], self.journey.nodes[0].key)

    @property
    def picture_label(self) -> str:
        return f"Tree of {counted(len(self.rows), 'run')} and {counted(len(self.journey.edges), 'experiment')}"

    @property
    def _ordered(self) -> list[JourneyEdge]:
        """The way to the winner first, else as they were planned."""
        return sorted(self.journey.edges, key=lambda edge: (not self.nodes[edge.target].on_path, edge.experiment_id))


def _row(node: JourneyNode, edge: JourneyEdge | None, depth: int) -> Row:
    figure = "" if node.step_time_ms is None else step_time(node.step_time_ms)
    number = f"experiment #{edge.experiment_id if edge else 0}" if node.run_id is None else f"#{node.run_id}"
    from_root = node.gain_from_root_pct
    return Row(
        node=node,
        edge=edge,
        depth=depth,
        kind=_kind(node, edge),
        name=(node.name or number) if node.run_id is not None else "no run yet",
        href=f"/runs/{node.run_id}" if node.run_id is not None else f"/experiments/{edge.experiment_id if edge else 0}",
        facts=", ".join(filter(None, (number, figure))),
        role=_role(node, edge),
        knob=knobs_text(edge.knobs) if edge else "",
        effect=(gain_text(edge.gain) or "not measured yet") if edge else "",
        tone=tone(edge.gain) if edge else "",
        edge_href=f"/experiments/{edge.experiment_id}" if edge else "",
        from_root="" if from_root is None else signed(from_root),
    )


def _kind(node: JourneyNode, edge: JourneyEdge | None) -> str:
    if edge is None:
        return "root"
    if node.on_path:
        return "won"
    return _KINDS.get(edge.state, "accepted")


def _role(node: JourneyNode, edge: JourneyEdge | None) -> str:
    if edge is not None and not node.on_path:
        return _ENDS[edge.state]
    return _MARKS.get(node.mark, "")


def _node(row: Row) -> Node:
    lines = (row.facts, row.role)
    return Node(row.node.key, row.name, lines, row.kind, row.href)


def _edge(row: Row) -> Edge:
    assert row.edge is not None  # noqa: S101  # only the root has none
    effect = short_gain(row.edge.gain) or "not measured yet"
    names = ", ".join(knob.field for knob in row.edge.knobs) or row.edge.title
    return Edge(
        start=row.edge.source,
        end=row.edge.target,
        knob=names,
        values=values_text(row.edge.knobs) if row.edge.knobs else "",
        effect=effect,
        tone=row.tone,
        kind=row.kind,
        href=row.edge_href,
    )
