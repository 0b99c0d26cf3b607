"""The picture of a tuning journey: boxes for runs, lines for knobs, in the units of its drawing.

Texts are cut to what their places hold, because text in a drawing does not wrap; titles and the table have them whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.experiments.tree_layout import places

BOX_WIDTH, BOX_HEIGHT = 176, 66
_STEP, _ROW, _EDGE = BOX_WIDTH + 206, 92, 2
_BEND = 14
"""From a box to where its lines turn down."""
_CORNER = 6
_TITLE_LETTERS, _BOX_LETTERS, _LINE_LETTERS = 21, 24, 26
"""Of the title of a box, of its lines, and along a line between boxes."""


@dataclass(frozen=True, slots=True)
class Node:
    """`kind`: root, won, lost, open or undecided; `lines` stand under the title. `href` is its page."""

    key: str
    title: str
    lines: tuple[str, ...]
    kind: str
    href: str


@dataclass(frozen=True, slots=True)
class Edge:
    """`knob` is what was turned, `values` from what to what, `effect` what that did, `tone` its colour: improvement,
    regression or empty."""

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
class Line:
    """`path` as SVG writes it; the texts begin at `text_x`: the knob above `text_y`, the others below."""

    path: str
    text_x: int
    text_y: int
    knob: str
    values: str
    effect: str
    edge: Edge


@dataclass(frozen=True, slots=True)
class Picture:
    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def picture(nodes: Mapping[str, Node], edges: Sequence[Edge], root: str) -> Picture:
    """Of the tree below `root`; the first edge of a node goes straight on, the others below it."""
    children: dict[str, list[str]] = {}
    for edge in edges:
        children.setdefault(edge.start, []).append(edge.end)
    found = places(root, children)
    at = {key: (_EDGE + place.column * _STEP, _EDGE + place.row * _ROW) for key, place in found.items()}
    boxes = tuple(_box(nodes[key], *at[key]) for key in found)
    drawn = [edge for edge in edges if edge.start in at and edge.end in at]
    # What leads to the winner is drawn last, above the lines that leave the same box.
    drawn.sort(key=lambda edge: edge.kind == "won")
    return Picture(
        width=max(x for x, _ in at.values()) + BOX_WIDTH + _EDGE,
        height=max(y for _, y in at.values()) + BOX_HEIGHT + _EDGE,
        boxes=boxes,
        lines=tuple(_line(edge, at[edge.start], at[edge.end]) for edge in drawn),
    )


def _box(node: Node, x: int, y: int) -> Box:
    lines = tuple((y + 39 + 16 * number, cut(text, _BOX_LETTERS)) for number, text in enumerate(node.lines))
    return Box(x, y, cut(node.title, _TITLE_LETTERS), lines, node)


def _line(edge: Edge, start: tuple[int, int], end: tuple[int, int]) -> Line:
    left, right = start[0] + BOX_WIDTH, end[0]
    top, bottom = start[1] + BOX_HEIGHT // 2, end[1] + BOX_HEIGHT // 2
    bend = left + _BEND
    path = f"M{left} {top}H{right}"
    if bottom != top:
        path = f"M{left} {top}H{bend}V{bottom - _CORNER}q0 {_CORNER} {_CORNER} {_CORNER}H{right}"
    knob, values, effect = (cut(text, _LINE_LETTERS) for text in (edge.knob, edge.values, edge.effect))
    return Line(path, bend + 10, bottom, knob, values, effect, edge)


def cut(text: str, letters: int) -> str:
    """`text`, or as much of it as fits with an ellipsis."""
    return text if len(text) <= letters else text[: letters - 1].rstrip() + "…"
