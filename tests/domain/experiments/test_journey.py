"""A journey is a tree from its root; its texts quote what came from outside."""

from app.domain.experiments.journey import JourneyRun, JourneyStep, dot, make_journey, mermaid
from app.domain.experiments.values import Gain, KnobChange, State
from tests.domain.experiments.members import KNOB

ROOT = JourneyRun(1, "root", 400.0, 1000.0)


def step(number: int, parent: int | None, pct: float | None, state: State = "done", name: str = "run") -> JourneyStep:
    gain = None if pct is None else Gain(pct, pct - 1, pct + 1)
    run = None if pct is None else JourneyRun(100 + number, name, 400.0 / (1 + pct / 100), None)
    return JourneyStep(number, parent, f"step {number}", (KNOB,), state, gain, "matched_ab", "candidate", run)


def test_gains_on_the_way_multiply() -> None:
    tree = make_journey(
        1, "moe", ROOT, [step(2, 1, 10.0, "accepted"), step(1, None, 10.0, "accepted"), step(3, 1, None)]
    )
    assert [node.key for node in tree.nodes] == ["root", "experiment-1", "experiment-2", "experiment-3"]
    gains = [None if node.gain_from_root_pct is None else round(node.gain_from_root_pct, 6) for node in tree.nodes]
    assert gains == [0.0, 10.0, 21.0, None]
    assert [node.mark for node in tree.nodes] == ["root", "winner", "current", ""]
    assert [node.on_path for node in tree.nodes] == [True, True, True, False]
    assert tree.current_run_id == 102


def test_where_nothing_is_accepted_the_journey_stands_at_its_root() -> None:
    tree = make_journey(1, "moe", ROOT, [step(1, None, -3.0, "rejected"), step(2, 99, None, "planned")])
    assert tree.current_run_id == 1
    assert [(one.source, one.target) for one in tree.edges] == [("root", "experiment-1"), ("root", "experiment-2")]


def test_texts_for_other_tools_are_quoted() -> None:
    hostile = 'x"]; click n0 call evil() <b>\\'
    knobs = (KnobChange("env.NVTE_FUSED_ATTN", "1", 'a"|b'),)
    one = step(1, None, 5.0, "accepted", hostile)
    tree = make_journey(1, "moe", ROOT, [JourneyStep(1, None, "t", knobs, one.state, one.gain, "", "", one.candidate)])
    lines = mermaid(tree).splitlines()
    assert lines[0] == "flowchart TD"
    assert lines[1].startswith('    n0["run 1: root<br/>')
    assert all(line.count('"') in (0, 2) for line in lines)
    assert "<b>" not in mermaid(tree)
    assert '-->|"' in lines[-1]
    graph = dot(tree)
    assert graph.startswith("digraph journey {")
    assert '\\"];' in graph
    assert 'x"]' not in graph.replace('\\"', "")
