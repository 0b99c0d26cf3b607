"""Robust statistics, by values that can be checked by eye."""

import numpy as np
import pytest

from app.domain.performance.steady_state import readable_range


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([100.0, 101.0, 102.0, 103.0, 104.0], (100.0, 104.0)),
        ([100.0, 101.0, 102.0, 103.0, 400.0], (100.0, 109.0)),
        ([1.0, 101.0, 102.0, 103.0, 104.0], (95.0, 104.0)),
        ([100.0] * 20 + [300.0], (100.0, 101.2)),
        ([7.0], (7.0, 7.0)),
    ],
)
def test_a_spike_does_not_set_the_axis(values: list[float], ends: tuple[float, float]) -> None:
    assert readable_range(np.array(values)) == pytest.approx(ends)
