"""The page of a tuning journey: its result, the tree as a picture, and its table."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

from app.domain.experiments.journey import Journey, JourneyEdge, JourneyNode
from app.domain.experiments.values import DECISION_DUE
from app.domain.numbers import gain_change, plural, step_time
from app.domain.text import shortened
from app.experiments.pages import gain_text, knobs_text, short_gain, tone, values_text

# --- Layout of a journey's picture: a column per step, a row per branch.
#
# The first child of a run is in its parent's row, so that the first branch is a straight line.


@dataclass(frozen=True, slots=True)
class GridCell:
    """`column`: number of steps from the root; `row` counts from the top."""

    column: int
    row: int


def grid_cells(root: str, children: Mapping[str, Sequence[str]]) -> dict[str, GridCell]:
    """Return the place of every node reachable from `root`, in reading order (depth first)."""
    placed: dict[str, GridCell] = {}
    row = -1
    # Uses a stack because a journey may be longer than Python's recursion limit.
    todo: list[tuple[str, int, bool]] = [(root, 0, False)]
    while todo:
        key, column, goes_on = todo.pop()
        if key in placed:
            continue
        row += not goes_on
        placed[key] = GridCell(column, row)
        nexts = children.get(key, ())
        todo += [(child, column + 1, number == 0) for number, child in reversed(list(enumerate(nexts)))]
    return placed


# --- The picture of a tuning journey: boxes for runs, lines for knobs, in drawing units.
#
# Texts are shortened to fit, because drawn text does not wrap; titles and the table have the full text.

BOX_WIDTH, BOX_HEIGHT = 176, 66
_STEP, _ROW, _EDGE = BOX_WIDTH + 206, 92, 2
_BEND = 14
"""From a box to the point where its lines turn down."""
_CORNER = 6
_TITLE_LETTERS, _BOX_LETTERS, _LINE_LETTERS = 21, 24, 26
"""Characters of a box's title, of its lines, and along a line between boxes."""


@dataclass(frozen=True, slots=True)
class Node:
    """`kind`: root, won, lost, open or undecided; `lines` are below the title. `href`: its page."""

    key: str
    title: str
    lines: tuple[str, ...]
    kind: str
    href: str


@dataclass(frozen=True, slots=True)
class Edge:
    """`knob`: the changed field; `values`: from what to what; `effect`: its result.

    `tone`: improvement, regression or empty.
    """

    start: str
    end: str
    knob: str
    values: str
    effect: str
    tone: str
    kind: str
    href: str


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    title: str
    lines: tuple[tuple[int, str], ...]
    node: Node


@dataclass(frozen=True, slots=True)
class EdgeLine:
    """`path` in SVG syntax; texts begin at `text_x`: the knob above `text_y`, the others below."""

    path: str
    text_x: int
    text_y: int
    knob: str
    values: str
    effect: str
    edge: Edge


@dataclass(frozen=True, slots=True)
class JourneyPicture:
    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[EdgeLine, ...]


def picture(nodes: Mapping[str, Node], edges: Sequence[Edge], root: str) -> JourneyPicture:
    """Lay out the tree below `root`; the first edge of a node goes straight on, the others below it."""
    children: dict[str, list[str]] = {}
    for edge in edges:
        children.setdefault(edge.start, []).append(edge.end)
    placed = grid_cells(root, children)
    at = {key: (_EDGE + place.column * _STEP, _EDGE + place.row * _ROW) for key, place in placed.items()}
    boxes = tuple(_box(nodes[key], *at[key]) for key in placed)
    drawn = [edge for edge in edges if edge.start in at and edge.end in at]
    # The path to the winner is drawn last, above other lines of the same box.
    drawn.sort(key=lambda edge: edge.kind == "won")
    return JourneyPicture(
        width=max(x for x, _ in at.values()) + BOX_WIDTH + _EDGE,
        height=max(y for _, y in at.values()) + BOX_HEIGHT + _EDGE,
        boxes=boxes,
        lines=tuple(_line(edge, at[edge.start], at[edge.end]) for edge in drawn),
    )


def _box(node: Node, x: int, y: int) -> Box:
    lines = tuple((y + 39 + 16 * number, shortened(text, _BOX_LETTERS)) for number, text in enumerate(node.lines))
    return Box(x, y, shortened(node.title, _TITLE_LETTERS), lines, node)


def _line(edge: Edge, start: tuple[int, int], end: tuple[int, int]) -> EdgeLine:
    left, right = start[0] + BOX_WIDTH, end[0]
    top, bottom = start[1] + BOX_HEIGHT // 2, end[1] + BOX_HEIGHT // 2
    bend = left + _BEND
    path = f"M{left} {top}H{right}"
    if bottom != top:
        path = f"M{left} {top}H{bend}V{bottom - _CORNER}q0 {_CORNER} {_CORNER} {_CORNER}H{right}"
    knob, values, effect = (shortened(text, _LINE_LETTERS) for text in (edge.knob, edge.values, edge.effect))
    return EdgeLine(path, bend + 10, bottom, knob, values, effect, edge)


_KINDS = {"rejected": "lost", "withdrawn": "lost", "planned": "open", "waiting": "open", "done": "undecided"}
_FINAL = ("accepted", "rejected", "withdrawn")
_MARKS = {"root": "start", "winner": "accepted", "current": "current"}
_ENDS = {
    "planned": "planned",
    "waiting": "runs are coming in",
    "done": DECISION_DUE,
    "rejected": "rejected",
    "withdrawn": "withdrawn",
    "accepted": "accepted, off the path",
}


@dataclass(frozen=True, slots=True)
class JourneyRow:
    """A run of the journey and the experiment that led to it; the root has none. `facts`: its figures as text.

    `effect`: of the experiment, with its own step times where those of the nodes have other runs.
    """

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
    short_effect: str
    tone: str
    edge_href: str
    from_root: str


class JourneyPage:
    """The data of the template."""

    box_width, box_height = BOX_WIDTH, BOX_HEIGHT

    def __init__(self, journey: Journey, run_id: int) -> None:
        self.journey = journey
        self.run_id = run_id
        self.nodes = {node.key: node for node in journey.nodes}

    @cached_property
    def rows(self) -> list[JourneyRow]:
        """Return runs in reading order: depth first, the path to the winner first."""
        edges: dict[str, list[JourneyEdge]] = {}
        for edge in self._ordered:
            edges.setdefault(edge.source, []).append(edge)
        root = self.journey.nodes[0]
        rows: list[JourneyRow] = []
        todo: list[tuple[JourneyNode, JourneyEdge | None, int]] = [(root, None, 0)]
        seen: set[str] = set()
        while todo:
            node, led, depth = todo.pop()
            if node.key in seen:
                continue
            seen.add(node.key)
            rows.append(_row(node, led, depth, self.nodes[led.source] if led else None))
            todo += [(self.nodes[edge.target], edge, depth + 1) for edge in reversed(edges.get(node.key, []))]
        return rows

    @property
    def empty(self) -> bool:
        return not self.journey.edges

    @property
    def root(self) -> JourneyRow:
        return self.rows[0]

    @property
    def current(self) -> JourneyRow:
        """Return the current run of the journey: the last winner, or the root."""
        return next((row for row in self.rows if row.node.run_id == self.journey.current_run_id), self.root)

    @property
    def answer(self) -> str:
        if self.empty:
            return "No experiment started from this run yet."
        edges = self.journey.edges
        accepted = [edge for edge in edges if edge.state == "accepted"]
        unproven = sum(edge.evidence_level != "validated" for edge in accepted)
        gain = self.current.node.gain_from_root_pct
        if gain is None or self.current is self.root:
            return f"{plural(len(edges), 'experiment')}. No change has been accepted yet."
        before, now = (step_time(row.node.step_time_ms or 0.0) for row in (self.root, self.current))
        some = "" if unproven == len(accepted) else f"{unproven} of them "
        counts = Counter(edge.state if edge.state in _FINAL else "open" for edge in edges)
        parts = [f"{plural(len(accepted), 'A/B')} accepted" + (f", {some}not full-length" if unproven else "")]
        parts += [f"{counts[state]} {state}" for state in ("rejected", "open") if counts[state]]
        return f"{gain_change(gain).figure}: {now}, was {before}. {'; '.join(parts)}."

    @property
    def beside(self) -> list[JourneyRow]:
        """Return accepted runs off the path: a later candidate of the same run was accepted too."""
        return [row for row in self.rows if row.kind == "accepted"]

    @cached_property
    def picture(self) -> JourneyPicture:
        nodes = {row.node.key: _node(row) for row in self.rows}
        return picture(nodes, [_edge(row) for row in self.rows if row.edge is not None], self.journey.nodes[0].key)

    @property
    def picture_label(self) -> str:
        return f"Tree of {plural(len(self.rows), 'run')} and {plural(len(self.journey.edges), 'experiment')}"

    @property
    def _ordered(self) -> list[JourneyEdge]:
        """Return edges with the path to the winner first, else as planned."""
        return sorted(self.journey.edges, key=lambda edge: (not self.nodes[edge.target].on_path, edge.experiment_id))


def _row(node: JourneyNode, edge: JourneyEdge | None, depth: int, source: JourneyNode | None) -> JourneyRow:
    figure = "" if node.step_time_ms is None else step_time(node.step_time_ms)
    figure += f" ({len(node.runs)} runs)" if len(node.runs) > 1 else ""
    number = f"experiment #{edge.experiment_id if edge else 0}" if node.run_id is None else f"#{node.run_id}"
    from_root = node.gain_from_root_pct
    effect, short_effect = _effects(edge, source, node) if edge and source else ("", "")
    return JourneyRow(
        node=node,
        edge=edge,
        depth=depth,
        kind=_kind(node, edge),
        name=(node.name or number) if node.run_id is not None else "no run yet",
        href=f"/runs/{node.run_id}" if node.run_id is not None else f"/experiments/{edge.experiment_id if edge else 0}",
        facts=", ".join(filter(None, (number, figure))),
        role=_role(node, edge),
        knob=knobs_text(edge.knobs) if edge else "",
        effect=effect,
        short_effect=short_effect,
        tone=tone(edge.gain) if edge else "",
        edge_href=f"/experiments/{edge.experiment_id}" if edge else "",
        from_root="" if from_root is None or edge is None else gain_change(from_root).figure,
    )


def _effects(edge: JourneyEdge, source: JourneyNode, target: JourneyNode) -> tuple[str, str]:
    """Return `0.53 % slower (0.9 faster to 2.0 slower at 90 %), 21.5 s to 21.6 s` and `0.53 % slower than 21.53 s`."""
    if edge.gain is None:
        return "not measured yet", "not measured yet"
    text, short = gain_text(edge.gain, edge.level_pct), short_gain(edge.gain)
    if edge.compared_ms is None:
        return text, short
    before, after = map(step_time, edge.compared_ms)
    if (before, after) == tuple(step_time(node.step_time_ms or 0.0) for node in (source, target)):
        return text, short
    return f"{text}, {before} to {after}", f"{gain_change(edge.gain.pct).than} {before}"


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


def _node(row: JourneyRow) -> Node:
    lines = (row.facts, row.role)
    return Node(row.node.key, row.name, lines, row.kind, row.href)


def _edge(row: JourneyRow) -> Edge:
    assert row.edge is not None  # noqa: S101  # only the root has none
    names = ", ".join(knob.field for knob in row.edge.knobs) or row.edge.title
    return Edge(
        start=row.edge.source,
        end=row.edge.target,
        knob=names,
        values=values_text(row.edge.knobs) if row.edge.knobs else "",
        effect=row.short_effect,
        tone=row.tone,
        kind=row.kind,
        href=row.edge_href,
    )


# --- The picture as an SVG file for documents and slides, with its styles, always on white.
#
# https://www.w3.org/TR/SVG2/. Titles come from users, so every text is escaped.

_MARGIN = 16
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5b6472}.name{font-size:13px;font-weight:600;fill:#1b2130}"
    ".knob{font:11px ui-monospace,monospace;fill:#1b2130}.improvement{fill:#00734f}.regression{fill:#b3400a}"
    "path{fill:none;stroke:#8a93a1;stroke-width:1.5}rect{fill:#f6f7f9;stroke:#8a93a1}"
    ".won path{stroke:#2457d6;stroke-width:4}.accepted path{stroke:#2457d6}"
    ".won rect,.root rect{fill:#fff;stroke:#2457d6;stroke-width:2}.accepted rect{fill:#fff;stroke:#2457d6}"
    ".open path,.undecided path,.open rect,.undecided rect{stroke-dasharray:5 4}"
)
"""The light colours of the page's `tuning.css`."""


def svg(picture: JourneyPicture, title: str) -> str:
    """Return the SVG file; `title` is its accessible name."""
    width, height = picture.width + 2 * _MARGIN, picture.height + 2 * _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="{-_MARGIN} {-_MARGIN} {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="{width}" height="{height}" style="fill:#fff;stroke:none"/>',
            *(part for line in picture.lines for part in _tree_svg_line(line)),
            *(part for box in picture.boxes for part in _tree_svg_box(box)),
            "</svg>",
            "",
        ]
    )


def _tree_svg_line(line: EdgeLine) -> Iterator[str]:
    yield f'<g class="{line.edge.kind}"><path d="{line.path}"/>'
    yield _text(line.text_x, line.text_y - 7, line.knob, "knob")
    yield _text(line.text_x, line.text_y + 15, line.values, "knob")
    yield _text(line.text_x, line.text_y + 31, line.effect, line.edge.tone)
    yield "</g>"


def _tree_svg_box(box: Box) -> Iterator[str]:
    size = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
    yield f'<g class="{box.node.kind}"><rect x="{box.x}" y="{box.y}" {size}/>'
    yield _text(box.x + 12, box.y + 21, box.title, "name")
    for y, text in box.lines:
        yield _text(box.x + 12, y, text, "")
    yield "</g>"


def _text(x: int, y: int, text: str, of: str) -> str:
    kind = f' class="{of}"' if of else ""
    return f'<text x="{x}" y="{y}"{kind}>{escape(text)}</text>'
