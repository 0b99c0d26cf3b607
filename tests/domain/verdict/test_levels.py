"""The level that a run is measured against in histories that are too young for change points: never two of them."""

import numpy as np
import pytest

from app.domain.verdict.assess import assess
from app.domain.verdict.record import confirmed_level, current_level
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior
from tests.domain.verdict.matching_runs import make_record

LEARNED = Prior(variance=0.006**2, degrees_of_freedom=5, configurations=7)
F, S = 0.0, 0.08
"""Two levels, 8 % apart."""

# The shifts of earlier runs; places of those that the next run is measured against.
YOUNG = [
    ([F, F, F, F], [0, 1, 2, 3]),
    ([F, F, F, F, S], [0, 1, 2, 3]),
    ([F, F, F, F, S, S], [0, 1, 2, 3]),
    ([F, F, F, F, S, S, S], [4, 5, 6]),
    ([F, F, F, F, S, S, S, S], [4, 5, 6, 7]),
    ([F, F, F, F, S, S, S, S + 0.015], [4, 5, 6, 7]),  # 1 % off the others is no news
    ([F, F, F, F, S, S, S, S, S, S, S, S, S], [4, 5, 6, 7, 8, 9, 10, 11, 12]),
    ([F, F, F, F, S, S, S, F], [4, 5, 6]),  # back once: not confirmed either
    ([F, F, F, F, S, S, S, F, F, F], [7, 8, 9]),
    ([F, F, F, F, S, F, F], [0, 1, 2, 3, 4, 5, 6]),  # an odd run, which the verdict leaves out or weighs down
    ([F, F, F, F, -S, -S, -S], [4, 5, 6]),
    ([F, S], [0]),
    ([F, S, S, S], [1, 2, 3]),
    ([F, F, S, S, S, S], [2, 3, 4, 5]),
    ([F, F, F, F, S, S, S, 2 * S, 2 * S], [4, 5, 6]),
    ([F, F, F, F, S, S, S, 2 * S, 2 * S, 2 * S], [7, 8, 9]),
    ([F, F, F, F, 0.012, S, S], [0, 1, 2, 3, 4]),  # the first of them is of neither level
]


@pytest.mark.parametrize(("shifts", "chosen"), YOUNG)
def test_a_young_history_has_levels_of_three(shifts: list[float], chosen: list[int]) -> None:
    runs = [make_record(str(place), slower=shift + place % 3 * 0.001) for place, shift in enumerate(shifts)]
    assert [int(one.run) for one in confirmed_level(runs, LEARNED)] == chosen


@pytest.mark.parametrize("prior", [LEARNED, DEFAULT_PRIOR])
@pytest.mark.parametrize("before", [3, 4, 6, 9, 14, 40])
def test_the_baseline_is_of_one_level_at_every_run_of_a_change(before: int, prior: Prior) -> None:
    """12 % is called by both priors in a single run."""
    chance = np.random.default_rng(before)
    shifts = [chance.normal(0.12 * (place >= before), 0.004) for place in range(before + 12)]
    runs = [make_record(str(place), slower=shift) for place, shift in enumerate(shifts)]
    for seen in range(before, len(runs)):
        chosen = {int(one.run) >= before for one in confirmed_level(runs[:seen], prior)}
        assert chosen == {seen - before >= 3}, seen


def test_a_confirmed_regression_does_not_turn_inconclusive_by_a_mixed_baseline() -> None:
    runs = [make_record(str(k), slower=shift + k % 2 * 0.002) for k, shift in enumerate([F] * 4 + [S] * 7)]
    found = [assess([run], runs[:place], prior=LEARNED).verdict for place, run in enumerate(runs)]
    assert [one.decision for one in found[4:7]] == ["regression"] * 3
    assert all(abs(one.step_time.delta_pct) < 0.5 for one in found[7:] if one.step_time)
    assert all(one.baseline_used[0] == "4" for one in found[7:])


def test_a_measured_contrast_rests_on_one_level_too() -> None:
    runs = [make_record(str(place), slower=shift) for place, shift in enumerate([F] * 4 + [S] * 4)]
    assert [one.run for one in current_level(runs, LEARNED)] == ["4", "5", "6", "7"]


def test_noise_makes_no_level() -> None:
    chance = np.random.default_rng(7)
    cut = 0
    for _ in range(60):
        runs = [make_record(str(k), slower=chance.normal(0, 0.006)) for k in range(10)]
        cut += len(confirmed_level(runs, LEARNED)) < 7
    assert cut <= 2
