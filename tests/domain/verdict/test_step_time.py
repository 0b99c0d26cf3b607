"""The test on step time: when each word is said, and what would decide."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.verdict.decide import judge
from app.domain.verdict.step_time import DEFAULT_PRIOR, Comparison, Prior, RunsNeeded, StepTimeChange, throughput_pct
from tests.domain.verdict.runs import USUAL_MS, make_run, make_runs

QUIET = Prior(0.003**2, 4, 8)
MIDDLE = Prior(0.006**2, 5, 8)


def comparison(shift: float, prior: Prior, noise: float = 0.0) -> Comparison:
    return Comparison(shift, prior.variance, prior, candidate_noise=noise, baseline_noise=noise)


def change(slower: float, baseline: list[float], prior: Prior = MIDDLE) -> StepTimeChange:
    found = judge([make_run(slower=slower)], make_runs(baseline), prior).step_time
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        (QUIET, [2.0, 1.5, 1.3, 1.1, 1.0, 1.0]),
        (MIDDLE, [3.4, 2.7, 2.4, 2.1, 1.9, 1.9]),
        (DEFAULT_PRIOR, [9.8, 7.4, 6.4, 5.5, 4.8, 4.7]),
    ],
)
def test_smallest_callable_shift_by_baseline_size(prior: Prior, expected: list[float]) -> None:
    shifts = [100 * comparison(0, prior).smallest_callable_shift(1, m) for m in (1, 2, 3, 5, 10, 20)]
    assert [round(shift, 1) for shift in shifts] == expected


@pytest.mark.parametrize(
    ("shift", "expected"),
    [
        # prior sd 0.3 %, d0 4, m 5: df 8, SE = 0.003 sqrt(6/5) = 0.003286; t = 3.3554, 3.9910, 1.8595
        (0.0111, "regression"),  # 3.3554 SE = 0.01103
        (0.0109, "no_change"),  # 0.0109 + 1.8595 SE = 0.0170
        (-0.0132, "improvement"),  # 3.9910 SE = 0.01312
        (-0.0130, "no_change"),  # 0.0130 + 0.00611 = 0.0191: certain, and still within 2 %
        (-0.0111, "no_change"),
        (0.0, "no_change"),
    ],
)
def test_decision_with_a_quiet_family(shift: float, expected: str) -> None:
    assert comparison(shift, QUIET).decide(1, 5) == expected


@pytest.mark.parametrize(
    ("shift", "k", "m", "expected"),
    [
        # prior sd 0.6 %, d0 5, m 5: df 9, SE = 0.006573; t = 3.2498, 3.8345, 1.8331
        (0.0215, 1, 5, "regression"),  # 3.2498 SE = 0.02136
        (0.0212, 1, 5, "inconclusive"),
        (-0.0212, 1, 5, "inconclusive"),
        (-0.0254, 1, 5, "improvement"),  # 3.8345 SE = 0.02520
        (0.0079, 1, 5, "no_change"),  # 0.0079 + 0.01205 = 0.01995
        (0.0080, 1, 5, "inconclusive"),
        (0.0212, 2, 5, "regression"),  # SE(2, 5) = 0.00502
        (0.0, 1, 1, "no_change"),  # SE = 0.008485, t(0.95, 5) = 2.0150: 0.0171
        (0.0095, 20, 20, "no_change"),  # certain, but under 1 %: never a regression
    ],
)
def test_decision_with_a_middling_family(shift: float, k: int, m: int, expected: str) -> None:
    assert comparison(shift, MIDDLE).decide(k, m) == expected


def test_nothing_is_equal_with_one_run_and_nothing_learned() -> None:
    assert comparison(0, DEFAULT_PRIOR).decide(1, 1) == "inconclusive"


def test_noise_inside_the_runs_counts_when_it_is_the_larger_part() -> None:
    # max(v, se^2): 0.02^2 / 2 + 0.02^2 / 4
    assert comparison(0, QUIET, noise=0.02**2).standard_error(2, 4) == pytest.approx(0.02 * math.sqrt(0.75))
    assert comparison(0, QUIET, noise=0.001**2).standard_error(2, 4) == pytest.approx(0.003 * math.sqrt(0.75))


def test_figures_of_a_change() -> None:
    found = change(0.05, [0.0, 0.0])
    # v = 5/6 of the prior's, SE = 0.006 sqrt(5/6) sqrt(3/2), df 6, t(0.995) = 3.7074
    assert found.standard_error == pytest.approx(0.006 * math.sqrt(1.25))
    assert found.degrees_of_freedom == 6
    assert found.delta_pct == pytest.approx(100 * math.expm1(0.05))
    assert found.ci_low_pct == pytest.approx(100 * math.expm1(0.05 - 3.7074280213 * found.standard_error))
    assert found.ci_high_pct == pytest.approx(100 * math.expm1(0.05 + 3.7074280213 * found.standard_error))
    assert found.smallest_callable_pct == pytest.approx(100 * math.expm1(3.7074280213 * found.standard_error))
    assert found.baseline_ms == pytest.approx(USUAL_MS)
    assert found.candidate_ms == pytest.approx(USUAL_MS * math.exp(0.05))
    assert found.run_to_run_sd == pytest.approx(0.006 * math.sqrt(5 / 6))


@pytest.mark.parametrize(
    ("shift", "m", "need", "becomes"),
    [
        (0.0212, 5, 1, "regression"),
        (0.015, 5, 2, "regression"),  # k = 3: 3.2498 x 0.006 sqrt(1/3 + 1/5) = 0.01424
        (0.0125, 5, 3, "no_change"),  # k = 4: 0.0125 + 1.8331 x 0.006 sqrt(1/4 + 1/5) = 0.01988
        (0.030, 1, 1, "regression"),
    ],
)
def test_need_runs_is_the_first_number_that_decides(shift: float, m: int, need: int, becomes: str) -> None:
    asked = comparison(shift, MIDDLE)
    assert asked.need_runs(1, m) == need
    assert asked.decide(1 + need, m) == becomes
    assert all(asked.decide(1 + fewer, m) == "inconclusive" for fewer in range(need))


def test_where_the_baseline_limits_a_larger_one_is_proposed() -> None:
    # t(0.995, 4) x 0.015 sqrt(1/21 + 1) = 0.0707 > 0.05, so reruns never do. With 4 baseline runs and 2 of this commit:
    # t(0.995, 7) = 3.4995, SE = 0.015 sqrt(1/2 + 1/4), together 0.0455; three new ones with 2 baseline runs do not.
    found = change(0.05, [0.0], DEFAULT_PRIOR)
    assert (found.decision, found.need_runs) == ("inconclusive", None)
    assert found.alternative == RunsNeeded(reruns=1, baseline_runs=4)


def test_a_decided_comparison_needs_nothing() -> None:
    found = change(0.05, [0.0] * 5)
    assert (found.decision, found.need_runs, found.alternative) == ("regression", None, None)


def test_a_regression_on_a_short_run_needs_confirmation() -> None:
    baseline = make_runs([0.0] * 5)
    for candidates, needs in (
        ([make_run(slower=0.05, short=True)], True),
        ([make_run(slower=0.05)], False),
        ([make_run(slower=-0.05, short=True)], False),
    ):
        found = judge(candidates, baseline, MIDDLE).step_time
        assert found is not None
        assert found.needs_confirmation is needs


def test_throughput_is_the_same_change_turned_over() -> None:
    found = change(math.log(1.25), [0.0] * 5)
    delta, low, high = throughput_pct(found)
    assert delta == pytest.approx(-20)
    assert low == pytest.approx(100 * (100 / (100 + found.ci_high_pct) - 1))
    assert high == pytest.approx(100 * (100 / (100 + found.ci_low_pct) - 1))
    assert low < delta < high


SHIFTS = st.floats(-0.1, 0.1)
BASELINES = st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=12)


@given(SHIFTS, BASELINES, st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_order_of_the_runs_does_not_matter(slower: float, baseline: list[float], dice: object) -> None:
    shuffled = list(baseline)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = change(slower, baseline), change(slower, shuffled)
    assert other.shift == pytest.approx(one.shift, abs=1e-12)
    assert other.standard_error == pytest.approx(one.standard_error)


@given(SHIFTS, BASELINES, st.floats(-6, 6))
@settings(max_examples=60, deadline=None)
def test_the_unit_of_time_does_not_matter(slower: float, baseline: list[float], scale: float) -> None:
    one, other = change(slower, baseline), change(slower + scale, [b + scale for b in baseline])
    assert other.shift == pytest.approx(one.shift, abs=1e-9)
    assert other.ci_low_pct == pytest.approx(one.ci_low_pct, abs=1e-6)
    assert other.candidate_ms == pytest.approx(one.candidate_ms * math.exp(scale))


@given(SHIFTS, BASELINES)
@settings(max_examples=60, deadline=None)
def test_faster_is_slower_in_the_mirror(slower: float, baseline: list[float]) -> None:
    one, other = change(slower, baseline), change(-slower, [-b for b in baseline])
    assert other.shift == pytest.approx(-one.shift, abs=1e-12)
    assert other.ci_low_pct == pytest.approx(100 * (100 / (100 + one.ci_high_pct) - 1), abs=1e-6)
    if one.decision == "improvement":  # the stricter bound implies the other
        assert other.decision == "regression"


@given(SHIFTS, BASELINES)
@settings(max_examples=60, deadline=None)
def test_a_regression_is_what_its_figures_say(slower: float, baseline: list[float]) -> None:
    found = change(slower, baseline)
    callable_shift = math.log1p(found.smallest_callable_pct / 100)
    if abs(found.shift - callable_shift) > 1e-9:
        assert (found.decision == "regression") == (found.shift > callable_shift)
    assert found.ci_low_pct < found.delta_pct < found.ci_high_pct
    if found.decision == "no_change":
        assert abs(found.shift) < 0.02


def test_reruns_of_the_candidate_buy_power_and_no_false_alarms() -> None:
    draw = np.random.default_rng(11)
    called = {(shift, k): 0 for shift in (0.0, 0.02) for k in (1, 3)}
    for shift, k in called:
        for _ in range(400):
            sd = 0.006 * math.sqrt(5 / draw.chisquare(5))
            baseline = make_runs(list(sd * draw.standard_normal(5)))
            reruns = make_runs(list(shift + sd * draw.standard_normal(k)))
            called[shift, k] += judge(reruns, baseline, MIDDLE).decision == "regression"
    assert called[0.0, 1] <= 4
    assert called[0.0, 3] <= 4
    assert called[0.02, 1] < 200
    assert called[0.02, 3] > 280
