"""How runs end, derived from events and columns."""

import math

import pytest

from app.domain.logs.steps import STATE_NO_END
from app.domain.performance.health import explain_failures, outcome_of, read_health
from app.domain.run import LogEvent, MemoryReport
from tests.domain.builders import make_log

NAN = math.nan


def event(kind: str, line: int, text: str = "") -> LogEvent:
    return LogEvent(kind, line, text or kind)


# Iterations are on lines 101 to 110
@pytest.mark.parametrize(
    ("events", "total", "outcome"),
    [
        ([], 10, "completed"),
        ([], 20, "truncated"),
        ([], None, "truncated"),
        ([event("training_done", 120)], 20, "completed"),
        ([event("exit_iteration", 120)], 20, "completed"),
        ([event("exit_duration", 120)], 20, "stopped"),
        ([event("exit_signal", 120)], 20, "stopped"),
        ([event("scheduler", 120, "slurmstepd: error: *** STEP 1.0 CANCELLED AT X DUE TO TIME LIMIT ***")], 20,
         "stopped"),
        ([event("scheduler", 120, "slurmstepd: error: *** STEP 1.0 CANCELLED AT X DUE TO NODE FAILURE ***")], 20,
         "failed"),
        ([event("out_of_memory", 120), event("nccl_error", 118), event("process_failed", 130)], 20, "out_of_memory"),
        ([event("not_finite", 120), event("process_failed", 130)], 20, "not_finite"),
        ([event("nccl_timeout", 120)], 20, "failed"),
        ([event("error", 120, "ValueError: x")], 20, "failed"),
        ([event("error", 120, "BrokenPipeError: x")], 10, "completed"),
        ([event("error", 50), event("training_started", 90)], 10, "completed"),
        ([event("nccl_error", 104), event("training_started", 105), event("training_done", 120)], 20, "completed"),
        ([event("exit_code", 120, "exitcode  : 1 (pid: 7)"), event("process_failed", 111)], 20, "failed"),
        ([event("exit_code", 120, "exitcode  : -15 (pid: 7)")], 20, "truncated"),
        ([event("exit_duration", 120), event("training_done", 121)], 20, "stopped"),
        ([event("exit_duration", 120), event("training_done", 121)], 10, "completed"),
        ([event("error", 50, "ImportError: an optional package")], 20, "truncated"),
        ([event("error", 105, "ConnectionError: tried again")], 20, "truncated"),
        ([event("training_done", 120), event("nccl_error", 125)], 20, "completed"),
        ([event("training_done", 50), event("training_started", 60), event("out_of_memory", 120)], 20, "out_of_memory"),
    ],
)  # fmt: skip
def test_outcomes(events: list[LogEvent], total: int | None, outcome: str) -> None:
    assert outcome_of(make_log([100.0] * 10, events=events, total_iterations=total))[0] == outcome


@pytest.mark.parametrize(
    ("events", "truncated", "outcome"),
    [([], False, ""), ([], True, "truncated"), ([event("out_of_memory", 120)], False, "out_of_memory")],
)
def test_a_trainer_that_states_no_end_is_not_truncated(events: list[LogEvent], truncated: bool, outcome: str) -> None:
    for trainer in STATE_NO_END:
        log = make_log([100.0] * 10, events=events, trainer=trainer, truncated=truncated)
        assert outcome_of(log)[0] == outcome
        assert bool(explain_failures(log)) == bool(outcome)


def test_the_most_telling_failure_is_the_evidence() -> None:
    events = [
        event("nccl_error", 115),
        event("out_of_memory", 117, "torch.OutOfMemoryError: CUDA out of memory."),
        event("exit_code", 130, "exitcode  : -15 (pid: 7)"),
        event("process_failed", 129),
    ]
    health = read_health(make_log([100.0] * 10, events=events))
    assert (health["outcome"], health["evidence_line"]) == ("out_of_memory", 117)
    assert health["evidence"] == "torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(
    ("columns", "finite", "outcome"),
    [
        ({"lm_loss": [3.0, 2.0, 1.0, 0.9]}, True, "completed"),
        ({"lm_loss": [3.0, NAN, 1.0, 0.9]}, False, "completed"),
        ({"lm_loss": [3.0, 2.0, NAN, NAN]}, False, "not_finite"),
        ({"lm_loss": [3.0, 2.0, 1.0, math.inf]}, False, "not_finite"),
        ({"lm_loss": [NAN, NAN, 2.0, 1.0], "skipped_iterations": [1.0, 1.0, 0.0, 0.0]}, True, "completed"),
        ({"grad_norm": [NAN, NAN, NAN, NAN]}, False, "not_finite"),
        ({"grad_norm": [1.0, 1.0, 1.0, 1.0]}, True, "completed"),
        ({}, None, "completed"),
    ],
)
def test_losses_that_are_not_finite(columns: dict[str, list[float]], finite: bool | None, outcome: str) -> None:
    health = read_health(make_log([100.0] * 4, columns=columns, total_iterations=4))
    assert health["loss_finite"] is finite
    assert health["outcome"] == outcome


def test_a_cut_last_line_is_no_lost_loss() -> None:
    log = make_log([100.0] * 4, columns={"lm_loss": [3.0, 2.0, 1.0, NAN]}, total_iterations=9, truncated=True)
    health = read_health(log)
    assert health["loss_finite"] is True
    assert health["outcome"] == "truncated"


def test_numbers_of_a_run() -> None:
    log = make_log(
        [100.0] * 3,
        columns={
            "lm_loss": [3.0, 2.0, 1.5],
            "grad_norm": [9.0, 8.0, 7.0],
            "skipped_iterations": [0.0, 1.0, 0.0],
            "nan_iterations": [0.0, 0.0, 0.0],
        },
        memory=[MemoryReport(1, 0, 1, 2.0**30, 2.0**31, alloc_retries=2), MemoryReport(2, 1, 1, 2.0**31)],
        segment_starts=(0, 2),
        total_iterations=3,
    )
    health = read_health(log)
    expected = {
        "iterations": 3,
        "last_iteration": 3,
        "total_iterations": 3,
        "restarts": 1,
        "first_loss": 3.0,
        "last_loss": 1.5,
        "skipped_iterations": 1,
        "nan_iterations": 0,
        "last_grad_norm": 7.0,
        "largest_grad_norm": 9.0,
        "peak_allocated_gib": 2.0,
        "peak_reserved_gib": 2.0,
        "alloc_retries": 2,
    }
    assert {name: health[name] for name in expected} == expected


def test_a_log_without_iterations_failed() -> None:
    health = read_health(make_log())
    assert (health["outcome"], health["evidence"]) == ("failed", "No iteration line was read.")
    assert health["last_iteration"] is health["first_loss"] is health["loss_finite"] is None
