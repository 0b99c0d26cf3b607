"""The levels of a regression from its history, as tables; values are ln(step time), shifted so that usual is 0."""

import numpy as np
import pytest

from app.domain.verdict.history import OpenedRegression, find_changes, settled_levels

SEEN = 0.09
NOISE = (0.0, 0.002, -0.001, 0.001, -0.002)


def level(value: float, n: int) -> list[float]:
    return [value + NOISE[k % 5] for k in range(n)]


CASES = [
    # values, index of the slow run, the levels
    ([*level(0, 14), SEEN], 14, None),
    ([*level(0, 14), 0.06, 0.0602], 14, None),  # with the run before them they already make a level
    ([*level(0, 14), SEEN, *level(0.06, 12)], 14, (0.0, 0.06)),
    ([*level(0, 14), SEEN, *level(0.06, 12), *level(0, 8)], 14, (0.0, 0.06)),
    ([*level(0, 14), SEEN, *level(0, 10)], 14, None),  # an alarm that no second run confirmed
    ([*level(-0.1, 9), *level(0, 9), *level(0.06, 9)], 18, (0.0, 0.06)),
    ([*level(0.06, 14)], 0, (0.0, 0.06)),  # nothing before it: another container
    # Too short to be divided
    ([*level(0, 5), *level(0.06, 2)], 5, None),
    ([*level(0, 5), *level(0.06, 3)], 5, (0.0, 0.06)),
    ([*level(0.06, 4), *level(0, 3)], 0, (0.0, 0.06)),
]


@pytest.mark.parametrize(("values", "run", "expected"), CASES)
def test_levels_at_either_side_of_the_slow_run(
    values: list[float], run: int, expected: tuple[float, float] | None
) -> None:
    found = settled_levels(OpenedRegression(run, 0.0, SEEN), find_changes(values))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert np.allclose(found, expected, atol=0.005)
