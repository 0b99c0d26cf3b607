"""Memory and loss: thresholds on either side."""

import pytest

from app.domain.verdict.decide import compare_loss, compare_memory
from tests.domain.verdict.runs import make_run, make_runs

GIB = 2.0**30


@pytest.mark.parametrize(
    ("baseline", "candidate", "decision", "alarm_pct"),
    [
        ([60.0], 60.0, "no_change", 1.0),
        ([60.0, 60.0], 60.059, "no_change", 1.0),  # +0.098 %
        ([60.0, 60.0], 60.07, "changed", 1.0),
        ([60.0, 60.0], 60.59, "changed", 1.0),
        ([60.0, 60.0], 60.61, "regression", 1.0),  # +1.02 %
        ([60.0, 60.0], 59.93, "changed", 1.0),
        ([60.0, 60.0], 59.30, "improvement", 1.0),
        # a range of 0.6 of 60.3 is 0.995 %, three of them 2.985 %
        ([60.0, 60.3, 60.6], 62.0, "changed", 2.985),
        ([60.0, 60.3, 60.6], 62.2, "regression", 2.985),
        ([60.0, 60.3, 60.6], 58.4, "improvement", 2.985),
    ],
)
def test_memory(baseline: list[float], candidate: float, decision: str, alarm_pct: float) -> None:
    old = [make_run(f"run {i}", peak_memory_bytes=gib * GIB) for i, gib in enumerate(baseline)]
    found = compare_memory([make_run(peak_memory_bytes=candidate * GIB)], old)
    assert found is not None
    assert found.decision == decision
    assert found.alarm_pct == pytest.approx(alarm_pct, abs=1e-3)


def test_reruns_are_compared_by_their_median() -> None:
    reruns = [make_run(f"c{i}", peak_memory_bytes=gib * GIB) for i, gib in enumerate((60, 60, 70))]
    found = compare_memory(reruns, [make_run("b", peak_memory_bytes=60 * GIB)])
    assert found is not None
    assert (found.decision, found.delta_pct) == ("no_change", 0)


@pytest.mark.parametrize(("new", "old"), [(None, 60.0), (60.0, None), (0.0, 60.0), (float("nan"), 60.0)])
def test_unknown_memory_is_not_compared(new: float | None, old: float | None) -> None:
    assert compare_memory([make_run(peak_memory_bytes=new)], [make_run("b", peak_memory_bytes=old)]) is None


@pytest.mark.parametrize(
    ("baseline", "candidate", "decision"),
    [
        ([2.0, 2.0], 2.019, "no_worse"),
        ([2.0, 2.0], 2.021, "worse"),
        ([2.0, 2.0], 1.5, "no_worse"),
        ([1.98, 2.0, 2.02], 2.11, "no_worse"),  # a range of 2 %: 6 % is the alarm
        ([1.98, 2.0, 2.02], 2.13, "worse"),
    ],
)
def test_loss(baseline: list[float], candidate: float, decision: str) -> None:
    found = compare_loss([make_run(loss=candidate)], [make_run(f"b{i}", loss=x) for i, x in enumerate(baseline)])
    assert found is not None
    assert found.decision == decision


def test_one_iteration_without_a_finite_loss_is_enough() -> None:
    found = compare_loss([make_run("c0", loss=2.0), make_run("c1", loss=2.0, not_finite_iterations=3)], [])
    assert found is not None
    assert (found.decision, found.not_finite_iterations) == ("not_finite", 3)


def test_unknown_loss_is_not_compared() -> None:
    assert compare_loss([make_run()], make_runs([0, 0], loss=2.0)) is None
