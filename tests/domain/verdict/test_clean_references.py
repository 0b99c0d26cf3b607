"""Runs that are no reference for others, and what a run that skipped steps or lost its loss may show."""

import json

import numpy as np
import pytest

from app.domain.documents.golden_values import read_golden_values
from app.domain.logs import parse_log
from app.domain.performance.summary import summarise, with_documents
from app.domain.run import Metadata, RunSummary
from app.domain.verdict.decide import judge
from app.domain.verdict.step_time import Prior
from tests.domain.verdict.runs import make_run, make_runs

FAMILY = Prior(0.006**2, 5, 8)
GIB = 2**30


def test_a_second_run_with_more_memory_is_a_regression_like_the_first() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)], peak_memory_bytes=60.0 * GIB)
    odd = make_run("odd", peak_memory_bytes=66.0 * GIB)
    for earlier in (baseline, [*baseline, odd]):
        found = judge([make_run("slow", peak_memory_bytes=66.0 * GIB)], earlier, FAMILY)
        assert found.decision == "regression"
        assert found.memory is not None
        assert found.memory.alarm_pct == 1.0


def test_three_runs_with_more_memory_are_a_level() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)], peak_memory_bytes=60.0 * GIB)
    level = [make_run(f"new {run}", peak_memory_bytes=66.0 * GIB) for run in range(3)]
    assert judge([make_run("next", peak_memory_bytes=66.0 * GIB)], [*baseline, *level], FAMILY).decision != "regression"


def test_a_run_with_a_worse_loss_is_no_reference() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)], loss=2.0)
    found = judge([make_run("next", loss=2.0)], [*baseline, make_run("bad", loss=2.4)], FAMILY)
    assert "bad" not in found.baseline_used
    assert any(dropped.why.startswith("its loss is 20.0") for dropped in found.dropped)


def test_a_loss_far_below_its_reference_warns() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)], loss=2.0)
    found = judge([make_run("odd", loss=1.2)], baseline, FAMILY)
    assert "The loss is 40.0 % lower: check the data and the labels." in found.notes


def test_a_run_that_skipped_steps_says_so_and_is_no_improvement() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)])
    found = judge([make_run("fast", -0.2, skipped_share=0.04)], baseline, FAMILY)
    assert found.decision == "inconclusive"
    assert found.notes[0] == "It skipped 4.0 % of its optimizer steps."
    skipping = make_runs([0.001 * (run % 3) for run in range(8)], skipped_share=0.04)
    assert judge([make_run("fast", -0.2, skipped_share=0.04)], skipping, FAMILY).decision == "improvement"


def test_a_run_that_skipped_many_steps_is_no_reference() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)])
    found = judge([make_run("next")], [*baseline, make_run("skips", skipped_share=0.5)], FAMILY)
    assert "skips" not in found.baseline_used


def golden(losses: list[float | None], times: list[float | None]) -> RunSummary:
    series = {"iteration-time": times, "lm loss": losses}
    document = read_golden_values(
        json.dumps({name: {"start_step": 1, "step_interval": 1, "values": values} for name, values in series.items()})
    )
    return summarise(with_documents(parse_log([]), [document]), Metadata(), [document], {})


@pytest.mark.parametrize(
    ("losses", "times", "finite"),
    [
        ([3.0] * 30, [0.5] * 30, True),
        ([3.0] * 29 + [None], [0.5] * 30, False),  # null is a loss that was not finite
        ([None] * 10 + [3.0] * 20, [None] * 10 + [0.5] * 20, True),  # steps before a resume, which nobody made
    ],
)
def test_a_null_loss_of_a_step_that_was_made_is_lost(
    losses: list[float | None], times: list[float | None], finite: bool
) -> None:
    assert golden(losses, times).health["loss_finite"] is finite


def test_the_step_time_is_that_of_steps_that_did_their_work() -> None:
    lines = [
        f" iteration {n:8d}/      50 | elapsed time per iteration (ms): {50.0 if n % 4 == 0 else 400.0 + n % 3} | "
        f"lm loss: 3.0E+00 | number of skipped iterations: {int(n % 4 == 0):3d} | number of nan iterations:   0 |"
        for n in range(1, 51)
    ]
    found = summarise(parse_log([line.encode() for line in lines]), Metadata(), [], {})
    assert found.steady_state is not None
    assert np.isclose(found.steady_state.step_time_ms, 401, atol=1)
