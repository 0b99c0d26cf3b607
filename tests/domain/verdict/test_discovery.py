"""False discoveries among many stacks: p-values in, q-values and a sentence out."""

import re
from dataclasses import replace

import pytest

from app.domain.verdict.discovery import discoveries, doubt
from app.domain.verdict.special import t_quantile
from app.domain.verdict.step_time import DEFAULT_PRIOR, StepTimeChange, compare_step_time, select_baseline
from tests.domain.verdict.runs import make_run, make_runs

DF = 10.0


def change(p: float) -> StepTimeChange:
    """Return a called slowdown with this two-sided p-value."""
    baseline = select_baseline(make_runs([0.0, 0.001, 0.002]), DEFAULT_PRIOR.variance)
    measured = compare_step_time([make_run(slower=0.1)], baseline, DEFAULT_PRIOR)
    assert measured.decision == "regression"
    return replace(measured, shift=0.01 * t_quantile(1 - p / 2, DF), standard_error=0.01, degrees_of_freedom=DF)


def test_q_values_are_those_of_benjamini_and_hochberg() -> None:
    """The example of their paper, 1995, section 3.1: of 15 tests, four are significant at 5 %."""
    p_values = [
        *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344),
        *(0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 0.9999),
    ]
    significant = [discovery for discovery in discoveries([change(p) for p in reversed(p_values)]) if discovery][::-1]
    assert [discovery.p_value for discovery in significant] == pytest.approx(p_values, rel=1e-6)
    assert sum(not discovery.may_be_chance for discovery in significant) == 4
    assert significant[3].q_value == pytest.approx(0.0095 * 15 / 4)
    assert [discovery.q_value for discovery in significant] == sorted(discovery.q_value for discovery in significant)


def test_a_change_that_is_clear_alone_may_be_chance_among_many() -> None:
    alone, without = change(0.004), None
    assert doubt([alone]) == ""
    many = [alone, without, *(replace(change(0.5), decision="no_change") for _ in range(39))]
    assert re.findall(r"\d+", doubt(many)) == ["1", "40"]
    assert discoveries(many)[1] is None
