"""A journey for other tools: Mermaid for documents, DOT for Graphviz. Names come from outside, so they are quoted."""

from app.domain.experiments.journey import Journey, JourneyEdge, JourneyNode
from app.domain.numbers import step_time
from app.domain.text import one_line

_MOST = 80


def mermaid(journey: Journey) -> str:
    """A flowchart. https://mermaid.js.org/syntax/flowchart.html"""
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
    """A digraph. https://graphviz.org/doc/info/lang.html"""
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
        lines.append(f"{node.gain_from_root_pct:+.1f} % from the root")
    return [_short(line) for line in lines]


def _label(edge: JourneyEdge) -> str:
    knobs = ", ".join(f"{one.field} = {one.after_text}" for one in edge.knobs) or edge.title
    gain = f": {edge.gain.pct:+.1f} %" if edge.gain is not None else ""
    return f"{_short(knobs)}{gain} ({edge.state})"


def _short(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


def _mermaid(text: str) -> str:
    """Its entity codes, because quotes and brackets end a label: https://mermaid.js.org/syntax/flowchart.html#entity-codes-to-escape-characters"""
    return "".join(one if one.isalnum() or one in " .,:=+-%()/_…" else f"#{ord(one)};" for one in text)


def _dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
