"""PELT against the exhaustive search it must equal."""

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.run import FloatArray
from app.domain.verdict.history import (
    OpenedRegression,
    Segment,
    best_segments,
    find_changes,
    follow_up,
    settled_levels,
    winsorise,
)
from app.domain.verdict.step_time import Prior


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
        ([0.0] * 3 + [1.0] * 3, 2.0, []),  # the gain of 1.5 does not justify the boundary
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


# --- Levels and change points of generated histories.


FAMILY = Prior(0.006**2, 5, 8)


def history(seed: int, *levels: tuple[int, float], sd: float = 0.006) -> FloatArray:
    """`(runs, ln step time)` after another, with normal noise between launches."""
    draw = np.random.default_rng(seed)
    return np.concatenate([level + sd * draw.standard_normal(n) for n, level in levels])


@pytest.mark.parametrize(
    ("levels", "runs"),
    [
        ([(30, 6.0)], []),
        ([(15, 6.0), (15, 6.05)], [15]),
        ([(15, 6.05), (15, 6.0)], [15]),
        ([(10, 6.0), (10, 6.1), (10, 6.0)], [10, 20]),
        ([(20, 6.0), (3, 6.1)], [20]),  # three runs make a level
        ([(20, 6.0), (2, 6.1)], []),  # two wait for the third
        ([(20, 6.0), (1, 6.1)], []),  # a single run is left to the verdict
        ([(20, 6.0), (1, 6.5), (20, 6.0)], []),  # a bad node
        ([(5, 6.0), (6, 6.2)], []),  # with fewer than twelve runs, there are no segments
        ([(6, 6.0), (6, 6.2)], [6]),
        ([(30, 6.0), (30, 6.005)], []),  # certain or not, 0.5 % is too small
    ],
)
def test_change_points(levels: list[tuple[int, float]], runs: list[int]) -> None:
    assert [point.run for point in find_changes(history(1, *levels), FAMILY).change_points] == runs


def test_one_slow_run_at_the_end_is_not_a_level() -> None:
    histories = [history(seed, (20, 6.0), (1, 6.1)) for seed in range(200)]
    assert sum(bool(find_changes(y, FAMILY).change_points) for y in histories) <= 4  # with edges repeated: 180


def test_figures_of_a_change_point() -> None:
    # Levels of alternating +-0.004: nothing is clipped, the means are exact.
    y = [6 + 0.004 * (-1) ** i + (0.05 if i >= 12 else 0) for i in range(24)]
    changes = find_changes(y, Prior(0.004**2, 4))
    (point,) = changes.change_points
    assert changes.segments == (Segment(0, 12, pytest.approx(6.0)), Segment(12, 24, pytest.approx(6.05)))
    assert changes.current == changes.segments[-1]
    assert (point.run, point.shift) == (12, pytest.approx(0.05))
    assert point.delta_pct == pytest.approx(100 * math.expm1(0.05))
    # v = (4 x 16e-6 + 1.15 x 24 x 16e-6) / 26, t = 0.05 / sqrt(v / 6) = 27.1 with 26 degrees of freedom
    assert point.p_value < 1e-15


def test_a_boundary_must_be_certain_under_the_family_s_variation() -> None:
    y = history(3, (12, 6.0), (4, 6.03), sd=0.004)
    assert find_changes(y, FAMILY).change_points
    assert not find_changes(y, Prior(0.05**2, 20, 8)).change_points


def test_a_step_of_two_kinds_is_kept_where_the_larger_is() -> None:
    changes = find_changes(history(5, (20, 6.0), (20, 6.004), (20, 6.06)), FAMILY)
    assert [point.run for point in changes.change_points] == [40]


def test_a_constant_history_has_one_level() -> None:
    changes = find_changes([6.0] * 40)
    assert changes.segments == (Segment(0, 40, 6.0),)


def test_a_single_run_is_a_history() -> None:
    assert find_changes([6.0]).segments == (Segment(0, 1, 6.0),)


@pytest.mark.parametrize("bad", [[], [6.0, math.nan], [6.0, math.inf]])
def test_an_invalid_history_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one run"):
        find_changes(bad)


def test_winsorising_clips_one_odd_run_and_keeps_a_step() -> None:
    y = np.array([0.0, 0.01] * 6 + [1.0, 1.01] * 6)
    assert winsorise(y) == pytest.approx(y)
    y[5] = 5.0
    # running median 0.01 there; MAD of the deviations 0.01 x 1.4826 at most
    assert winsorise(y)[5] <= 0.01 + 2.5 * 1.4826 * 0.01 + 1e-12


@given(st.lists(st.floats(-0.2, 0.2), min_size=12, max_size=40), st.floats(-5, 5))
@settings(max_examples=60, deadline=None)
def test_the_unit_of_time_does_not_matter(values: list[float], scale: float) -> None:
    # Rounded, so that moving the series cannot break ties between equal divisions in another way.
    y = np.round(np.array(values) + 0.001 * np.sin(np.arange(len(values)) ** 2), 6)
    original, other = find_changes(y, FAMILY), find_changes(y + scale, FAMILY)
    assert [p.run for p in other.change_points] == [p.run for p in original.change_points]


@given(st.lists(st.sampled_from([0.0, 0.03, 0.1]), min_size=4, max_size=6), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_faster_is_slower_in_the_mirror(levels: list[float], seed: int) -> None:
    y = history(seed, *[(8, level) for level in levels])
    original, other = find_changes(y, FAMILY), find_changes(-y, FAMILY)
    assert [(p.run, pytest.approx(-p.shift)) for p in original.change_points] == [
        (p.run, p.shift) for p in other.change_points
    ]


def test_simulated_changes_are_found_soon_and_nothing_else() -> None:
    draw = np.random.default_rng(8)
    detected = late = false = 0
    for _ in range(60):
        y = 6 + 0.006 * draw.standard_t(4, 50) / math.sqrt(2)
        false += len(find_changes(y, FAMILY).change_points)
        y[30:] += 0.02
        detected += any(abs(p.run - 30) <= 2 for p in find_changes(y, FAMILY).change_points)
        late += any(abs(p.run - 30) <= 2 for p in find_changes(y[:34], FAMILY).change_points)
    assert detected >= 57
    assert late >= 45
    assert false <= 2


# --- The states of a regression that was opened at run 12, from 6.0 to 6.1.


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
        ([(12, 6.0), (8, 6.1), (1, 6.0)], "open", 12),
        ([(12, 6.0), (8, 6.1), (2, 6.0)], "fixed", 20),  # two good runs, before they make a level
        ([(12, 6.0), (4, 6.1), (2, 6.0), (4, 6.1)], "reopened", 18),  # proposed too early, and taken back
        ([(12, 6.0), (8, 6.1), (3, 6.0)], "fixed", 20),
        ([(12, 6.0), (8, 6.1), (5, 6.009)], "fixed", 20),  # within 1 %
        ([(12, 6.0), (8, 6.1), (5, 6.02)], "open", 12),  # better, not back
        ([(12, 6.0), (8, 6.1), (5, 5.9)], "fixed", 20),  # better than ever
        ([(12, 6.0), (8, 6.1), (6, 6.0), (5, 6.1)], "reopened", 26),
        ([(12, 6.0), (8, 6.1), (6, 6.0), (5, 6.2)], "reopened", 26),
        ([(12, 6.0), (8, 6.1), (6, 6.0), (5, 6.05)], "fixed", 20),  # a separate regression
        ([(12, 6.0), (8, 6.1), (6, 6.0), (5, 6.1), (5, 6.0)], "fixed", 31),
        ([(12, 6.0), (8, 6.1), (6, 6.0), (1, 6.1), (4, 6.0)], "fixed", 20),  # one bad run reopens nothing
        ([(12, 6.0), (1, 6.1), (1, 6.0)], "open", 12),
        ([(12, 6.0), (1, 6.1), (2, 6.0)], "fixed", 13),
        ([(12, 6.0), (1, 6.1), (3, 6.0)], "fixed", 13),  # the alarm that no run confirmed
    ],
)
def test_state(parts: list[tuple[int, float]], state: str, run: int) -> None:
    followed = follow_up(OPENED, find_changes(levels(*parts), FAMILY))
    assert (followed.state, followed.run) == (state, run)


@pytest.mark.parametrize(
    ("later", "state"),
    [
        ([], "open"),  # within 1 % of the usual level, as is every run
        ([(5, 6.007)], "open"),
        ([(5, 6.0)], "fixed"),
        ([(6, 6.0), (5, 6.01)], "reopened"),
    ],
)
def test_a_small_change_ends_only_when_less_than_half_of_it_is_left(later: list[tuple[int, float]], state: str) -> None:
    parts = ((n, 20 * level - 114) for n, level in [(20, 6.0), (12, 6.01), *later])
    values = [6 + (value - 6) / 20 for value in levels(*parts)]
    changes = find_changes(values, Prior(variance=0.0005**2, degrees_of_freedom=20))
    assert follow_up(OpenedRegression(20, 6.0, 6.01), changes).state == state


def test_noise_does_not_reopen() -> None:
    draw = np.random.default_rng(2)
    for _ in range(20):
        y = 6 + 0.006 * draw.standard_normal(60)
        y[12:20] += 0.1
        assert follow_up(OPENED, find_changes(y, FAMILY)).state == "fixed"


@pytest.mark.parametrize(
    ("parts", "stated_fixed_at", "state"),
    [
        ([(12, 6.0), (5, 6.1)], 17, "fixed"),  # no run since the state was set
        ([(12, 6.0), (5, 6.1)], 15, "fixed"),  # two runs are no level
        ([(12, 6.0), (6, 6.1)], 15, "reopened"),  # three runs are as slow as before
        ([(12, 6.0), (3, 6.1), (6, 6.0), (4, 6.1)], 24, "fixed"),  # a return before the state was set is already known
        ([(12, 6.0), (5, 6.1), (5, 6.0)], 17, "fixed"),
    ],
)
def test_a_regression_marked_fixed_is_reopened_by_later_runs_only(
    parts: list[tuple[int, float]], stated_fixed_at: int, state: str
) -> None:
    assert follow_up(OPENED, find_changes(levels(*parts), FAMILY), stated_fixed_at).state == state


# --- The levels of a regression from its history, as tables; values are ln(step time), shifted so that usual is 0.


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
    segments = settled_levels(OpenedRegression(run, 0.0, SEEN), find_changes(values))
    if expected is None:
        assert segments is None
    else:
        assert segments is not None
        assert np.allclose(segments, expected, atol=0.005)
