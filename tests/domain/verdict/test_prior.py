"""The family's prior, computed by hand where that is possible."""

import math

import numpy as np
import pytest

from app.domain.verdict.decide import judge
from app.domain.verdict.step_time import (
    DEFAULT_PRIOR,
    Prior,
    RunEstimate,
    degrees_of_freedom,
    family_prior,
    moderated_variance,
    sample_of,
)
from tests.domain.verdict.runs import make_runs

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


def test_moderate_spread_gives_the_degrees_of_freedom_whose_trigamma_it_is() -> None:
    # f = 2: trigamma(1) = pi^2 / 6. Choose e = -a, -a, 0, a, a with variance a^2 = pi^2 / 6 + trigamma(2).
    a = math.sqrt(math.pi**2 / 6 + math.pi**2 / 6 - 1)
    sds = [0.006 * math.exp(step * a / 2) for step in (-1, -1, 0, 1, 1)]
    prior = family_prior([make_runs([-sd, 0, sd]) for sd in sds])
    assert prior.degrees_of_freedom == pytest.approx(4, abs=1e-6)
    # ln v0 = mean(e) + psi(2) - ln 2, and mean(e) = ln 0.006^2 + gamma.
    assert prior.variance == pytest.approx(0.006**2 * math.exp(EULER + (1 - EULER)) / 2)


def test_a_wild_spread_is_held_at_four_degrees_of_freedom() -> None:
    assert family_prior([pair(sd) for sd in (1e-4, 1e-4, 0.003, 0.04, 0.04)]).degrees_of_freedom == 4


def test_a_clean_change_of_40_percent_is_decided_whatever_five_configurations_taught() -> None:
    prior = family_prior([pair(sd) for sd in (0.01, 0.02, 0.3, 0.4, 0.5)])
    assert math.sqrt(prior.variance) <= 0.05
    for runs in (1, 2, 5):
        baseline = make_runs([0.001 * run for run in range(runs)])
        assert judge(make_runs([math.log(1.4)]), baseline, prior).decision == "regression"


def test_one_odd_run_does_not_widen_what_a_configuration_teaches() -> None:
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
