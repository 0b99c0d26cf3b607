"""What becomes of a regression that was opened at run 12, from 6.0 to 6.1."""

import numpy as np
import pytest

from app.domain.verdict.history import OpenedRegression, find_changes, follow_up
from app.domain.verdict.step_time import Prior

FAMILY = Prior(0.006**2, 5, 8)
OPENED = OpenedRegression(run=12, usual_level=6.0, slow_level=6.1)


def levels(*parts: tuple[int, float]) -> list[float]:
    noise = [0.002, -0.001, 0.0, 0.001, -0.002]
    runs = [level for n, level in parts for _ in range(n)]
    return [level + noise[i % 5] for i, level in enumerate(runs)]


@pytest.mark.parametrize(
    ("parts", "state", "run"),
    [
        ([(12, 6.0), (1, 6.1)], "open", 12),
        ([(12, 6.0), (8, 6.1)], "open", 12),
        ([(12, 6.0), (8, 6.1), (2, 6.0)], "open", 12),  # two runs are no level yet
        ([(12, 6.0), (8, 6.1), (3, 6.0)], "fixed", 20),
        ([(12, 6.0), (8, 6.1), (5, 6.009)], "fixed", 20),  # within 1 %
        ([(12, 6.0), (8, 6.1), (5, 6.02)], "open", 12),  # better, not back
        ([(12, 6.0), (8, 6.1), (5, 5.9)], "fixed", 20),  # better than ever
        ([(12, 6.0), (8, 6.1), (6, 6.0), (5, 6.1)], "reopened", 26),
        ([(12, 6.0), (8, 6.1), (6, 6.0), (5, 6.2)], "reopened", 26),
        ([(12, 6.0), (8, 6.1), (6, 6.0), (5, 6.05)], "fixed", 20),  # a regression of its own
        ([(12, 6.0), (8, 6.1), (6, 6.0), (5, 6.1), (5, 6.0)], "fixed", 31),
        ([(12, 6.0), (8, 6.1), (6, 6.0), (1, 6.1), (4, 6.0)], "fixed", 20),  # one bad run reopens nothing
        ([(12, 6.0), (1, 6.1), (2, 6.0)], "open", 12),
        ([(12, 6.0), (1, 6.1), (3, 6.0)], "fixed", 13),  # the alarm that nobody confirmed
    ],
)
def test_state(parts: list[tuple[int, float]], state: str, run: int) -> None:
    found = follow_up(OPENED, find_changes(levels(*parts), FAMILY))
    assert (found.state, found.run) == (state, run)


def test_noise_does_not_reopen() -> None:
    draw = np.random.default_rng(2)
    for _ in range(20):
        y = 6 + 0.006 * draw.standard_normal(60)
        y[12:20] += 0.1
        assert follow_up(OPENED, find_changes(y, FAMILY)).state == "fixed"


@pytest.mark.parametrize(
    ("parts", "said_fixed_at", "state"),
    [
        ([(12, 6.0), (5, 6.1)], 17, "fixed"),  # nothing came after it was said
        ([(12, 6.0), (5, 6.1)], 15, "fixed"),  # two runs are no level
        ([(12, 6.0), (6, 6.1)], 15, "reopened"),  # three runs are as slow as before
        ([(12, 6.0), (3, 6.1), (6, 6.0), (4, 6.1)], 24, "fixed"),  # what came back before it was said is known
        ([(12, 6.0), (5, 6.1), (5, 6.0)], 17, "fixed"),
    ],
)
def test_what_somebody_holds_to_be_fixed_is_reopened_by_later_runs_only(
    parts: list[tuple[int, float]], said_fixed_at: int, state: str
) -> None:
    assert follow_up(OPENED, find_changes(levels(*parts), FAMILY), said_fixed_at).state == state
