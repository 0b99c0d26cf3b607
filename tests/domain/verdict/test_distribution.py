"""The window of a run as a distribution."""

import numpy as np
import pytest

from app.domain.performance.steady_state import steady_state
from app.domain.verdict.comparison import density, distribution, window_step_times
from tests.builders import WARM_UP, step_times


def test_only_the_window_counts_and_spikes_are_part_of_it() -> None:
    times = step_times(400.0, 50)
    iterations = np.arange(1.0, 51.0)
    steady = steady_state(iterations, times)
    values = window_step_times({"iteration": iterations, "step_time_ms": times}, steady)
    found = distribution(values, steady)
    assert found is not None
    assert found.n == 50 - WARM_UP
    assert found.median_ms == pytest.approx(400, rel=0.01)
    assert found.spike_share == pytest.approx(3 / 46)
    assert found.highest_ms == pytest.approx(508, rel=0.03)
    assert list(found.quantiles) == sorted(found.quantiles)


@pytest.mark.parametrize("columns", [{}, {"iteration": np.arange(3.0)}])
def test_a_run_without_a_window_has_no_distribution(columns: dict[str, np.ndarray]) -> None:
    assert distribution(window_step_times(columns, None), None) is None


@pytest.mark.parametrize("values", [np.full(30, 5.0), np.random.default_rng(1).normal(5, 0.1, 10_000), np.empty(0)])
def test_a_density_is_finite_and_has_its_top_where_the_values_are(values: np.ndarray) -> None:
    places, heights = density(values, 4.0, 6.0)
    assert np.isfinite(heights).all()
    if len(values):
        assert heights.max() == 1
        assert abs(places[heights.argmax()] - 5) < 0.05
