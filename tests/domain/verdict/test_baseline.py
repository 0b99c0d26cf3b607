"""Which runs are the baseline, and where its centre lies."""

import numpy as np
import pytest

from app.domain.verdict.step_time import RunEstimate, centre, select_baseline
from tests.domain.verdict.runs import make_run, make_runs

VARIANCE = 0.006**2


@pytest.mark.parametrize(
    ("slower", "dropped"),
    [
        ([0, 0.2], []),  # of two, nobody can say which is the bad one
        ([0, 0.001, 0.2], ["run 2"]),
        ([0, 0.001, 0.049], []),  # within the floor of 5 %
        ([0, 0.001, -0.06], ["run 2"]),
        ([0.0] * 9 + [0.051], ["run 9"]),  # MAD 0: the floor alone decides
        ([-0.03, -0.02, -0.01, 0, 0.01, 0.02, 0.12], []),  # 6 MAD = 0.178 of these
    ],
)
def test_runs_far_off_the_others_are_left_out(slower: list[float], dropped: list[str]) -> None:
    assert [d.run for d in select_baseline(make_runs(slower), VARIANCE).dropped] == dropped


def test_a_family_that_varies_more_keeps_more() -> None:
    runs = make_runs([0, 0.001, 0.07])
    assert len(select_baseline(runs, 0.006**2).used) == 2
    assert len(select_baseline(runs, 0.015**2).used) == 3


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (make_run("bad", window_length=4), "only 4 steady iterations, 5 are needed"),
        (make_run("bad", is_steady=False), "not steady"),
        (make_run("bad", is_steady=False, not_steady_reasons=("two speeds", "drift")), "not steady: two speeds; drift"),
        (make_run("bad", short=True), "too short to show that warm-up was over"),
        (make_run("bad", not_finite_iterations=2), "the loss was not finite in 2 iterations"),
        (RunEstimate.from_steady_state("bad", None), "only 0 steady iterations, 5 are needed"),
    ],
)
def test_a_run_that_says_nothing_is_no_baseline(run: RunEstimate, why: str) -> None:
    baseline = select_baseline([*make_runs([0, 0.001]), run], VARIANCE)
    assert [r.run for r in baseline.used] == ["run 0", "run 1"]
    assert [(d.run, d.why) for d in baseline.dropped] == [("bad", why)]


def test_the_newest_twenty_usable_runs_count() -> None:
    runs = [*make_runs([0.0] * 25), make_run("unsteady", is_steady=False)]
    assert [r.run for r in select_baseline(runs, VARIANCE).used] == [f"run {i}" for i in range(5, 25)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0, 6.0], 3.0),  # below five runs the plain mean
        ([0, 0, 0, 0, 1], 0.0),  # MAD 0: the median
        # median 3, MAD 1.4826, clip at 3.7065: the deviations are -2, -1, 0, 1, 3.7065
        ([1, 2, 3, 4, 100], 3 + 1.7065 / 5),
        ([1, 2, 3, 4, 5], 3.0),
    ],
)
def test_centre(values: list[float], expected: float) -> None:
    assert centre(np.array(values, dtype=float)) == pytest.approx(expected)
