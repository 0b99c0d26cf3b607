"""Where the step goes, and which runs are not fair for timing."""

import pytest

from app.domain.performance.summary import summarise
from app.domain.run import ParsedLog, Value
from tests.domain.builders import make_log, make_metadata


def log_with_timers(arguments: dict[str, Value] | None = None, **columns: list[float]) -> ParsedLog:
    series = {f"timer_{name}_ms": values for name, values in columns.items()}
    return make_log([9000.0] + [100.0] * 19, columns=series, arguments=arguments)


def test_the_share_of_the_step_and_the_spread_over_ranks() -> None:
    summary = summarise(
        log_with_timers(
            forward_backward=[8000.0] + [80.0] * 19,
            forward_backward_min=[7000.0] + [64.0] * 19,
            optimizer=[900.0] + [15.0] * 19,
            interval_time=[9000.0] + [100.0] * 19,
        ),
        make_metadata(),
    )
    first, second = summary.timers
    assert (first.name, first.median_ms, first.max_over_min) == ("forward-backward", 80.0, 1.25)
    assert first.share_of_step == pytest.approx(0.8)
    assert (second.name, second.max_over_min) == ("optimizer", None)
    assert summary.units["timer_optimizer_ms"] == "ms"


@pytest.mark.parametrize(
    ("arguments", "timers", "fair"),
    [
        ({}, [], True),
        ({"timing_log_level": 0}, [], True),
        ({"timing_log_level": 0}, ["interval_time"], True),
        ({"timing_log_level": 1}, [], False),
        ({"timing_log_level": 2}, ["forward_compute"], False),
        ({}, ["forward_compute"], False),
        ({"timing_log_level": 1, "barrier_with_L1_time": False}, ["forward_backward"], True),
    ],
)
def test_barriers_of_timers_make_a_run_unfair(arguments: dict[str, Value], timers: list[str], fair: bool) -> None:
    log = log_with_timers(arguments, **{name: [50.0] * 20 for name in timers})
    summary = summarise(log, make_metadata())
    assert summary.fair_for_timing is fair
    assert any(warning.startswith("This run is not fair for timing") for warning in summary.warnings) is not fair
    assert summary.metrics["step_time_ms"] is not None
