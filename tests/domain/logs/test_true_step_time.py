"""The second printed time since Megatron Core 0.16, which holds the first iteration as well."""

import pytest

from app.domain.logs import parse_text
from tests.domain.logs.lines import STARTED, column, iteration

LOADED = "  successfully loaded checkpoint from /checkpoints [ t 1/2, p 1/2 ] at iteration {}\n"


def fine(number: int, time_ms: float, second: float = 0.0) -> str:
    """A line with microseconds in its stamp, `second` seconds after noon."""
    return iteration(number, time_ms, stamp=f"2026-05-11 12:{int(second // 60):02d}:{second % 60:09.6f}")


def test_real_example_of_a_primus_log() -> None:
    # dsv2lite-fp8-mi355x-baseline, 2026-05-11
    log = parse_text(fine(1, 78258.5, 22.912300) + fine(2, 55245.7, 55.145289) + fine(3, 32208.7, 87.354))
    assert column(log, "step_time_ms") == [78258.5, 55245.7, 32208.7]
    assert column(log, "step_time_true_ms") == pytest.approx([78258.5, 32232.9, 32208.7])


@pytest.mark.parametrize("stamp", ["", "2025-05-11 12:00:01"])
def test_older_versions_print_true_times(stamp: str) -> None:
    log = parse_text("".join(iteration(n, time, stamp=stamp) for n, time in ((1, 100.0), (2, 60.0))))
    assert column(log, "step_time_true_ms") == [100.0, 60.0]


def test_with_a_longer_interval_the_rest_of_the_window_is_averaged() -> None:
    # Iterations 1 to 5 took 100 + 4 x 20 ms; the line for 5 prints their mean, 36
    log = parse_text(fine(1, 100.0) + fine(5, 36.0) + fine(10, 20.0))
    assert column(log, "step_time_true_ms") == [100.0, 20.0, 20.0]


def test_the_same_holds_after_each_restart() -> None:
    first = fine(1, 100.0) + fine(2, 60.0) + fine(3, 20.0)
    second = LOADED.format(2) + STARTED + fine(3, 200.0) + fine(4, 110.0) + fine(5, 20.0)
    log = parse_text(STARTED + first + second)
    assert column(log, "iteration") == [1, 2, 3, 4, 5]
    assert column(log, "step_time_true_ms") == [100.0, 20.0, 200.0, 20.0, 20.0]
    assert log.segment_starts == (0, 2)


@pytest.mark.parametrize(
    "text",
    [
        STARTED + fine(2, 60.0) + fine(3, 20.0),
        fine(2, 60.0) + fine(3, 20.0),
        LOADED.format(40) + STARTED + fine(45, 60.0) + fine(50, 20.0),
        STARTED + fine(5, 60.0) + fine(10, 20.0),
    ],
)
def test_without_the_first_line_the_first_time_is_unknown(text: str) -> None:
    log = parse_text(text)
    assert column(log, "step_time_ms") == [60.0, 20.0]
    assert column(log, "step_time_true_ms") == [None, 20.0]
    assert [problem.kind for problem in log.problems] == ["unknown step time"]


def test_an_excerpt_from_the_middle_of_a_run_is_left_alone() -> None:
    log = parse_text(fine(44, 6922.3) + fine(45, 6928.0))
    assert column(log, "step_time_true_ms") == [6922.3, 6928.0]
    assert log.problems == ()


def test_doubled_lines_do_not_hide_the_second_iteration() -> None:
    log = parse_text(fine(1, 100.0) * 2 + fine(2, 60.0) * 2 + fine(3, 20.0) * 2)
    assert column(log, "step_time_true_ms") == [100.0, 20.0, 20.0]


def test_a_correction_that_needs_more_time_than_there_was_is_refused() -> None:
    # Between the stamps lie 1.2 s: 2 x 1200 - 600 = 1800 ms cannot have passed, 1200 ms can
    log = parse_text(fine(1, 600.0, 10.0) + fine(2, 1200.0, 11.2))
    assert column(log, "step_time_true_ms") == [600.0, 1200.0]


def test_a_time_too_short_to_hold_the_first_iteration_is_unknown() -> None:
    log = parse_text(fine(1, 1000.0, 10.0) + fine(2, 400.0, 10.1))
    assert column(log, "step_time_true_ms") == [1000.0, None]
    assert [problem.kind for problem in log.problems] == ["unknown step time"]


def test_time_stamps_may_cross_midnight() -> None:
    first = iteration(1, 5000.0, stamp="2026-05-11 23:59:59.000000")
    log = parse_text(first + iteration(2, 3000.0, stamp="2026-05-12 00:00:00.000000"))
    assert column(log, "step_time_true_ms") == [5000.0, 1000.0]


def test_a_pretrained_checkpoint_does_not_make_iteration_1_any_other() -> None:
    log = parse_text(LOADED.format(5000) + STARTED + fine(1, 100.0) + fine(2, 60.0))
    assert column(log, "step_time_true_ms") == [100.0, 20.0]


def test_lines_of_several_ranks_do_not_disturb() -> None:
    log = parse_text(fine(1, 100.0) + fine(1, 100.2) + fine(2, 60.1) + fine(2, 60.0))
    assert column(log, "step_time_true_ms") == pytest.approx([100.2, 19.8])
