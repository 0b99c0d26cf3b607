"""One test of step time, seen as each headline figure."""

import math

import pytest

from app.domain.run import Metric
from app.domain.verdict.decide import judge, metric_changes
from app.domain.verdict.step_time import RunEstimate

GIB = 2.0**30


def run(name: str, step_time_ms: float, memory_gib: float | None = 60.0) -> RunEstimate:
    memory = None if memory_gib is None else memory_gib * GIB
    return RunEstimate(name, math.log(step_time_ms), 0.001, 50, peak_memory_bytes=memory)


def figures(step_time_ms: float, tokens: float | None) -> dict[str, Metric | None]:
    """`tokens`: those of a step, for each GPU."""
    values = {"step_time_ms": step_time_ms, "tokens_per_s_per_gpu": None if tokens is None else tokens / step_time_ms}
    return {name: None if value is None else Metric(value, value, value, 50) for name, value in values.items()}


def test_throughput_falls_as_the_step_time_rises() -> None:
    verdict = judge([run("new", 500)], [run("a", 400), run("b", 400), run("c", 400)])
    changes = metric_changes(verdict, {"new": figures(500, 4e6)} | {name: figures(400, 4e6) for name in "abc"})
    time, tokens = changes["step_time_ms"], changes["tokens_per_s_per_gpu"]
    assert time is not None
    assert tokens is not None
    assert (time.delta_pct, tokens.delta_pct) == (pytest.approx(25), pytest.approx(-20))
    assert (tokens.baseline, tokens.candidate) == (pytest.approx(10_000), pytest.approx(8_000))
    assert tokens.ci_low_pct == pytest.approx(100 / (1 + time.ci_high_pct / 100) - 100)  # type: ignore[operator]
    assert tokens.decision == time.decision == "regression"


def test_figures_of_other_work_a_step_are_not_judged() -> None:
    verdict = judge([run("new", 400)], [run("a", 400)])
    tokens = metric_changes(verdict, {"new": figures(400, 8e6), "a": figures(400, 4e6)})["tokens_per_s_per_gpu"]
    assert tokens is not None
    assert (tokens.delta_pct, tokens.decision) == (pytest.approx(100), "not_judged")


def test_what_is_unknown_on_a_side_is_no_change_of_nothing() -> None:
    verdict = judge([run("new", 400, None)], [run("a", 400)])
    changes = metric_changes(verdict, {"new": figures(400, None), "a": figures(400, 4e6)})
    assert [name for name, change in changes.items() if change is not None] == ["step_time_ms"]


def test_memory_is_told_in_gib_without_an_interval() -> None:
    memory = metric_changes(
        judge([run("new", 400, 66.0)], [run("a", 400)]), {"new": figures(400, 4e6), "a": figures(400, 4e6)}
    )["peak_memory_gib"]
    assert memory is not None
    assert (memory.baseline, memory.candidate, memory.ci_low_pct) == (60, pytest.approx(66), None)
    assert memory.decision == "regression"
