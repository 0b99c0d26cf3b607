"""What a log holds that no reader understood: counted, with an example that a person can report."""

import pytest

from app.domain.logs import parse_text
from app.domain.run import LineExample
from tests.domain.logs.lines import column, iteration


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        ("iteration 5/ 10 | elapsed time per iteration (ms): fast |\n", "an iteration line", 1),
        ("x\nStep Time : soon GPU utilization: 5MODEL_TFLOP/s/GPU\n", "a step line", 2),
        ("[Rank 3] (after 2 iterations) memory (MB) | max allocated: much |\n", "a memory line", 1),
        (" iteration 5/ 10 | consumed samples: 40 | elap[rank1]: warn\n", "half of an iteration line", 1),
        ("2026 step 5 loss 2.5 time 0.3\n", "a step of an unknown trainer", 0),
        ("INFO | step x | step-time soon |\n", "a step of pith-train", 1),
    ],
)
def test_kinds_are_counted_with_the_first_example(text: str, kind: str, line: int) -> None:
    (example,) = parse_text(text * 2).not_understood
    assert (example.kind, example.count, example.line) == (kind, 2, line)
    assert example.example


def test_fields_without_a_number_are_told_once_a_name() -> None:
    log = parse_text(iteration(1, 10.0, tail="mood: good | eta: 1:00:00") + iteration(2, 10.0, tail="mood: bad"))
    assert log.not_understood == (LineExample("the field mood of an iteration line", 2, "mood: good", 1),)


def test_half_a_line_of_one_rank_does_not_spoil_the_line_of_another() -> None:
    half = iteration(5, 99.0)[:60]
    log = parse_text(half + iteration(6, 10.0) + iteration(7, 11.0))
    assert (column(log, "iteration"), column(log, "step_time_ms")) == ([6, 7], [10.0, 11.0])
    assert [example.kind for example in log.not_understood] == ["half of an iteration line"]


def test_a_log_that_was_understood_says_so() -> None:
    assert parse_text("noise\n" + iteration(1, 10.0)).not_understood == ()
