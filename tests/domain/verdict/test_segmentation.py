"""PELT against the exhaustive search it must equal."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.verdict.history import best_segments


def cost_of(values: list[float], starts: list[int], penalty: float) -> float:
    bounds = [0, *starts, len(values)]
    parts = [np.array(values[a:b]) for a, b in pairwise(bounds)]
    return sum(float(((part - part.mean()) ** 2).sum()) for part in parts) + penalty * len(starts)


def least_cost(values: list[float], penalty: float, shortest: int) -> float:
    @cache
    def from_here(start: int) -> float:
        rest = np.array(values[start:])
        whole = float(((rest - rest.mean()) ** 2).sum())
        cuts = range(start + shortest, len(values) - shortest + 1)
        head = [np.array(values[start:cut]) for cut in cuts]
        split = [
            float(((h - h.mean()) ** 2).sum()) + penalty + from_here(cut) for h, cut in zip(head, cuts, strict=True)
        ]
        return min([whole, *split])

    return from_here(0)


@pytest.mark.parametrize(
    ("values", "penalty", "starts"),
    [
        ([], 1, []),
        ([1.0] * 5, 0.01, []),  # too short for two segments
        ([0.0] * 3 + [1.0] * 3, 0.1, [3]),
        ([0.0] * 3 + [1.0] * 3, 2.0, []),  # the gain of 1.5 does not pay for the boundary
        ([0.0] * 3 + [1.0] * 3, 1.4, [3]),
        ([0.0] * 6 + [1.0] * 2 + [0.0] * 6, 1.0, []),  # two odd runs are no level
        ([0.0] * 6 + [1.0] * 3 + [0.0] * 6, 0.1, [6, 9]),
        ([5.0] * 4 + [6.0] * 4 + [8.0] * 4, 0.5, [4, 8]),
    ],
)
def test_levels_of_plain_series(values: list[float], penalty: float, starts: list[int]) -> None:
    assert best_segments(np.array(values), penalty) == starts


@given(
    st.lists(st.integers(0, 4).map(float), min_size=1, max_size=24),
    st.sampled_from([0.05, 0.7, 1.3, 3.1]),
    st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_no_division_is_better(values: list[float], penalty: float, shortest: int) -> None:
    starts = best_segments(np.array(values), penalty, shortest)
    bounds = [0, *starts, len(values)]
    assert not starts or min(b - a for a, b in pairwise(bounds)) >= shortest
    assert cost_of(values, starts, penalty) == pytest.approx(least_cost(values, penalty, shortest), abs=1e-9)
