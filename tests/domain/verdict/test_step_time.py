"""The test of the step time: the conditions of each decision, and what would decide."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.verdict.decide import judge
from app.domain.verdict.special import digamma, t_quantile, t_two_sided_p, trigamma
from app.domain.verdict.step_time import (
    DEFAULT_PRIOR,
    Comparison,
    Prior,
    RunEstimate,
    RunsNeeded,
    StepTimeChange,
    degrees_of_freedom,
    family_prior,
    moderated_variance,
    sample_of,
    throughput_pct,
)
from tests.domain.verdict.runs import USUAL_MS, make_run, make_runs

QUIET = Prior(0.003**2, 4, 8)
MIDDLE = Prior(0.006**2, 5, 8)


def comparison(shift: float, prior: Prior, noise: float = 0.0) -> Comparison:
    return Comparison(shift, prior.variance, prior, candidate_noise=noise, baseline_noise=noise)


def change(slower: float, baseline: list[float], prior: Prior = MIDDLE) -> StepTimeChange:
    step_time = judge([make_run(slower=slower)], make_runs(baseline), prior).step_time
    assert step_time is not None
    return step_time


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


@pytest.mark.parametrize(
    ("shift", "at_once", "of_two_looks"),
    [
        # As above with half the error for each look: t = 3.6897, 4.2968, 2.2622
        (0.0242, "regression", "inconclusive"),  # 3.6897 SE = 0.02425
        (0.0243, "regression", "regression"),
        (-0.0282, "improvement", "inconclusive"),  # 4.2968 SE = 0.02824
        (-0.0283, "improvement", "improvement"),
        (0.0051, "no_change", "no_change"),  # 0.0051 + 0.01487 = 0.01997
        (0.0052, "no_change", "inconclusive"),
    ],
)
def test_looks_that_are_planned_share_the_error(shift: float, at_once: str, of_two_looks: str) -> None:
    middling = comparison(shift, MIDDLE)
    assert (middling.decide(1, 5), middling.decide(1, 5, looks=2)) == (at_once, of_two_looks)


def test_nothing_is_equal_with_one_run_and_nothing_learned() -> None:
    assert comparison(0, DEFAULT_PRIOR).decide(1, 1) == "inconclusive"


def test_noise_inside_the_runs_counts_when_it_is_the_larger_part() -> None:
    # max(v, se^2): 0.02^2 / 2 + 0.02^2 / 4
    assert comparison(0, QUIET, noise=0.02**2).standard_error(2, 4) == pytest.approx(0.02 * math.sqrt(0.75))
    assert comparison(0, QUIET, noise=0.001**2).standard_error(2, 4) == pytest.approx(0.003 * math.sqrt(0.75))


def test_figures_of_a_change() -> None:
    step_time_change = change(0.05, [0.0, 0.0])
    # v = 5/6 of the prior's, SE = 0.006 sqrt(5/6) sqrt(3/2), df 6, t(0.995) = 3.7074
    assert step_time_change.standard_error == pytest.approx(0.006 * math.sqrt(1.25))
    assert step_time_change.degrees_of_freedom == 6
    assert step_time_change.delta_pct == pytest.approx(100 * math.expm1(0.05))
    assert step_time_change.ci_low_pct == pytest.approx(
        100 * math.expm1(0.05 - 3.7074280213 * step_time_change.standard_error)
    )
    assert step_time_change.ci_high_pct == pytest.approx(
        100 * math.expm1(0.05 + 3.7074280213 * step_time_change.standard_error)
    )
    assert step_time_change.smallest_callable_pct == pytest.approx(
        100 * math.expm1(3.7074280213 * step_time_change.standard_error)
    )
    assert step_time_change.baseline_ms == pytest.approx(USUAL_MS)
    assert step_time_change.candidate_ms == pytest.approx(USUAL_MS * math.exp(0.05))
    assert step_time_change.run_to_run_sd == pytest.approx(0.006 * math.sqrt(5 / 6))


@pytest.mark.parametrize(
    ("shift", "m", "decision", "p"),
    [
        (0.05, 12, "regression", 0.995), (0.0, 12, "no_change", 0.95), (-0.05, 12, "improvement", 0.998),
        (0.01, 1, "inconclusive", 0.995), (-0.01, 1, "inconclusive", 0.998),
    ],
)  # fmt: skip
def test_an_interval_has_the_certainty_of_the_test_that_decided(shift: float, m: int, decision: str, p: float) -> None:
    result = change(shift, [0.0] * m)
    assert (result.decision, result.interval_p) == (decision, p)
    half = t_quantile(p, result.degrees_of_freedom) * result.standard_error
    assert result.ci_high_pct == pytest.approx(100 * math.expm1(shift + half))


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
    at_middle = comparison(shift, MIDDLE)
    assert at_middle.need_runs(1, m) == need
    assert at_middle.decide(1 + need, m) == becomes
    assert all(at_middle.decide(1 + fewer, m) == "inconclusive" for fewer in range(need))


def test_where_the_baseline_limits_a_larger_one_is_proposed() -> None:
    # t(0.995, 4) x 0.015 sqrt(1/21 + 1) = 0.0707 > 0.05, so reruns never do. With 4 baseline runs and 2 of this commit:
    # t(0.995, 7) = 3.4995, SE = 0.015 sqrt(1/2 + 1/4), together 0.0455; three new ones with 2 baseline runs do not.
    step_time_change = change(0.05, [0.0], DEFAULT_PRIOR)
    assert (step_time_change.decision, step_time_change.need_runs) == ("inconclusive", None)
    assert step_time_change.alternative == RunsNeeded(reruns=1, baseline_runs=4)


def test_a_decided_comparison_needs_nothing() -> None:
    step_time_change = change(0.05, [0.0] * 5)
    assert (step_time_change.decision, step_time_change.need_runs, step_time_change.alternative) == (
        "regression",
        None,
        None,
    )


def test_a_regression_on_a_short_run_needs_confirmation() -> None:
    baseline = make_runs([0.0] * 5)
    for candidates, needs in (
        ([make_run(slower=0.05, short=True)], True),
        ([make_run(slower=0.05)], False),
        ([make_run(slower=-0.05, short=True)], False),
    ):
        step_time = judge(candidates, baseline, MIDDLE).step_time
        assert step_time is not None
        assert step_time.needs_confirmation is needs


def test_throughput_is_the_same_change_turned_over() -> None:
    step_time_change = change(math.log(1.25), [0.0] * 5)
    delta, low, high = throughput_pct(step_time_change)
    assert delta == pytest.approx(-20)
    assert low == pytest.approx(100 * (100 / (100 + step_time_change.ci_high_pct) - 1))
    assert high == pytest.approx(100 * (100 / (100 + step_time_change.ci_low_pct) - 1))
    assert low < delta < high


SHIFTS = st.floats(-0.1, 0.1)
BASELINES = st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=12)


@given(SHIFTS, BASELINES, st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_order_of_the_runs_does_not_matter(slower: float, baseline: list[float], dice: object) -> None:
    shuffled = list(baseline)
    dice.shuffle(shuffled)
    original, other = change(slower, baseline), change(slower, shuffled)
    assert other.shift == pytest.approx(original.shift, abs=1e-12)
    assert other.standard_error == pytest.approx(original.standard_error)


@given(SHIFTS, BASELINES, st.floats(-6, 6))
@settings(max_examples=60, deadline=None)
def test_the_unit_of_time_does_not_matter(slower: float, baseline: list[float], scale: float) -> None:
    original, other = change(slower, baseline), change(slower + scale, [b + scale for b in baseline])
    assert other.shift == pytest.approx(original.shift, abs=1e-9)
    assert other.ci_low_pct == pytest.approx(original.ci_low_pct, abs=1e-6)
    assert other.candidate_ms == pytest.approx(original.candidate_ms * math.exp(scale))


@given(SHIFTS, BASELINES)
@settings(max_examples=60, deadline=None)
def test_faster_is_slower_in_the_mirror(slower: float, baseline: list[float]) -> None:
    original, other = change(slower, baseline), change(-slower, [-b for b in baseline])
    assert other.shift == pytest.approx(-original.shift, abs=1e-12)
    if original.decision == other.decision == "no_change":  # faster is tested at a stricter level than slower
        assert other.ci_low_pct == pytest.approx(100 * (100 / (100 + original.ci_high_pct) - 1), abs=1e-6)
    if original.decision == "improvement":  # the stricter bound implies the other
        assert other.decision == "regression"


@given(SHIFTS, BASELINES)
@settings(max_examples=60, deadline=None)
def test_a_regression_follows_from_its_figures(slower: float, baseline: list[float]) -> None:
    step_time_change = change(slower, baseline)
    callable_shift = math.log1p(step_time_change.smallest_callable_pct / 100)
    if abs(step_time_change.shift - callable_shift) > 1e-9:
        assert (step_time_change.decision == "regression") == (step_time_change.shift > callable_shift)
    assert step_time_change.ci_low_pct < step_time_change.delta_pct < step_time_change.ci_high_pct
    if step_time_change.decision == "no_change":
        assert abs(step_time_change.shift) < 0.02


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


# --- The family's prior, computed by hand where that is possible.


EULER = 0.5772156649015329
PSI_10 = 2.251752589066721


def pair(sd: float) -> list[RunEstimate]:
    """Two runs whose sample standard deviation is `sd`."""
    return make_runs([0, sd * math.sqrt(2)])


def test_equal_variances_give_the_firmest_prior() -> None:
    # f = 2: e = ln S^2 - psi(1) + ln 1 = ln S^2 + gamma; no spread, so d0 = 20 and ln v0 = e + psi(10) - ln 10.
    triple = make_runs([-0.006, 0, 0.006])
    prior = family_prior([triple] * 5)
    assert prior.degrees_of_freedom == 20
    assert prior.configurations == 5
    assert prior.variance == pytest.approx(0.006**2 * math.exp(EULER + PSI_10) / 10)


def test_moderate_spread_yields_the_degrees_of_freedom_with_that_trigamma() -> None:
    # f = 2: trigamma(1) = pi^2 / 6. Choose e = -a, -a, 0, a, a with variance a^2 = pi^2 / 6 + trigamma(2).
    a = math.sqrt(math.pi**2 / 6 + math.pi**2 / 6 - 1)
    sds = [0.006 * math.exp(step * a / 2) for step in (-1, -1, 0, 1, 1)]
    prior = family_prior([make_runs([-sd, 0, sd]) for sd in sds])
    assert prior.degrees_of_freedom == pytest.approx(4, abs=1e-6)
    # ln v0 = mean(e) + psi(2) - ln 2, and mean(e) = ln 0.006^2 + gamma.
    assert prior.variance == pytest.approx(0.006**2 * math.exp(EULER + (1 - EULER)) / 2)


def test_a_wide_spread_keeps_at_least_four_degrees_of_freedom() -> None:
    assert family_prior([pair(sd) for sd in (1e-4, 1e-4, 0.003, 0.04, 0.04)]).degrees_of_freedom == 4


def test_a_clean_change_of_40_percent_is_decided_whatever_five_configurations_taught() -> None:
    prior = family_prior([pair(sd) for sd in (0.01, 0.02, 0.3, 0.4, 0.5)])
    assert math.sqrt(prior.variance) <= 0.05
    for runs in (1, 2, 5):
        baseline = make_runs([0.001 * run for run in range(runs)])
        assert judge(make_runs([math.log(1.4)]), baseline, prior).decision == "regression"


def test_one_outlier_does_not_widen_the_learned_variation() -> None:
    usual = (0.001 * np.random.default_rng(1).standard_normal(12)).tolist()
    clean, odd = sample_of(make_runs(usual)), sample_of(make_runs([*usual, 0.04]))
    assert clean is not None
    assert odd is not None
    assert odd[0] < 5 * clean[0]  # not clipped, it is 100 times that


@pytest.mark.parametrize(
    "configurations",
    [
        [],
        [pair(0.006)] * 4,
        [*[pair(0.006)] * 4, make_runs([0])],  # one run has no variance
        [*[pair(0.006)] * 4, make_runs([0, 0.01], short=True)],
    ],
)
def test_fewer_than_five_configurations_teach_nothing(configurations: list[list[RunEstimate]]) -> None:
    assert family_prior(configurations) == DEFAULT_PRIOR


def test_outliers_do_not_teach() -> None:
    clean = make_runs([-0.006, 0, 0.006])
    assert family_prior([clean] * 5) == family_prior([*[clean] * 4, make_runs([-0.006, 0, 0.006, 0.5])])


def test_from_ten_configurations_on_the_tails_are_winsorised() -> None:
    with_one_wild = [make_runs([-0.006, 0, 0.006])] * 30 + [make_runs([-0.06, 0, 0.06])]
    assert family_prior(with_one_wild).degrees_of_freedom == 20


def test_runs_equal_to_the_last_digit_have_a_variance_all_the_same() -> None:
    prior = family_prior([make_runs([0, 0, 0])] * 5)
    assert 0 < prior.variance < 1e-7


def test_the_prior_of_simulated_families_is_found_again() -> None:
    draw = np.random.default_rng(4)
    sds = 0.008 * np.sqrt(6 / draw.chisquare(6, size=600))
    prior = family_prior([make_runs(list(sd * draw.standard_normal(8))) for sd in sds])
    assert math.sqrt(prior.variance) == pytest.approx(0.008, rel=0.08)
    assert prior.degrees_of_freedom == pytest.approx(6, rel=0.4)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 4e-4),  # the prior alone
        ([0.0, 0.02], (4 * 4e-4 + 2e-4) / 5),
        ([-0.03, 0.0, 0.03], (4 * 4e-4 + 1.8e-3) / 6),
    ],
)
def test_moderated_variance(values: list[float], expected: float) -> None:
    assert moderated_variance(Prior(4e-4, 4), np.array(values)) == pytest.approx(expected)


@pytest.mark.parametrize(("d0", "m", "df"), [(4, 1, 4), (4, 3, 6), (5, 8, 12), (5, 20, 12), (20, 1, 12)])
def test_degrees_of_freedom_are_capped(d0: float, m: int, df: float) -> None:
    assert degrees_of_freedom(Prior(1e-4, d0), m) == df


# --- Quantiles and the two gamma functions against published tables (t: any textbook) and SciPy 1.17's digits.


T_TABLE = [
    # df, 0.95, 0.995, 0.998, 0.9995
    (1, 6.313751514675037, 63.656741162871526, 159.15284869128055, 636.6192487687897),
    (2, 2.9199855803537242, 9.924843200918287, 15.76391455203966, 31.599054576445365),
    (4, 2.1318467863266495, 4.604094871349992, 5.951372849088097, 8.610301581379522),
    (7.5, 1.8757474792112878, 3.421422688124044, 4.089650944941526, 5.20772565580064),
    (12, 1.782287555649319, 3.0545395893929013, 3.5495437045318887, 4.3177912836062475),
    (30, 1.697260886593957, 2.7499956535672254, 3.117681771071494, 3.6459586350420627),
]


@pytest.mark.parametrize(
    ("p", "df", "t"),
    [(p, row[0], t) for row in T_TABLE for p, t in zip((0.95, 0.995, 0.998, 0.9995), row[1:], strict=True)],
)
def test_t_quantile(p: float, df: float, t: float) -> None:
    assert t_quantile(p, df) == pytest.approx(t, rel=1e-10)
    assert t_quantile(1 - p, df) == pytest.approx(-t, rel=1e-9)


@pytest.mark.parametrize(
    ("t", "df", "p"),
    [
        (0, 5, 1.0),
        (1, 1, 0.5),
        (2.5, 7.5, 0.03882025827362553),
        (-3, 4, 0.03994196807171883),
        (4, 30, 0.0003818456360837564),
        (10, 12, 3.5813236876723737e-07),
    ],
)
def test_t_two_sided_p(t: float, df: float, p: float) -> None:
    assert t_two_sided_p(t, df) == pytest.approx(p, rel=1e-10)


@pytest.mark.parametrize(
    ("x", "psi", "psi_prime"),
    [
        (0.5, -EULER - 2 * math.log(2), math.pi**2 / 2),
        (1, -EULER, math.pi**2 / 6),
        (2, 1 - EULER, math.pi**2 / 6 - 1),
        (3.7, 1.1671535393615113, 0.31003785767003833),
        (10, 2.251752589066721, 0.10516633568168576),
        (25, 3.198742512851974, 0.04081066325722558),
    ],
)
def test_digamma_and_trigamma(x: float, psi: float, psi_prime: float) -> None:
    assert digamma(x) == pytest.approx(psi, rel=1e-12)
    assert trigamma(x) == pytest.approx(psi_prime, rel=1e-12)


@given(st.floats(0.5001, 0.99999), st.floats(1, 60))
@settings(deadline=None)
def test_the_quantile_undoes_the_probability(p: float, df: float) -> None:
    assert t_two_sided_p(t_quantile(p, df), df) == pytest.approx(2 * (1 - p), rel=1e-8)


@pytest.mark.parametrize(("p", "df"), [(0, 5), (1, 5), (1.2, 5), (0.9, 0), (0.9, -1), (0.9, math.inf)])
def test_impossible_arguments_are_refused(p: float, df: float) -> None:
    with pytest.raises(ValueError, match="needed"):
        t_quantile(p, df)


@pytest.mark.parametrize("function", [digamma, trigamma])
def test_gamma_functions_refuse_non_positive_arguments(function: object) -> None:
    with pytest.raises(ValueError, match="positive"):
        function(0.0)
