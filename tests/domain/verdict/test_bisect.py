"""Bisection: every place of the change is found, with noise, failed commits and a second change."""

import math
import random

import pytest

from app.domain.verdict.bisect import CommitLaunch, NotBisectableError, bisect
from tests.cases import every_case

SPREAD = 0.006
COMMITS = [f"{number:040x}" for number in range(33)]


def launch(run: int, place: int, *, bad_from: int, change: float = 0.05, noise: float = 0.0) -> CommitLaunch:
    return CommitLaunch(run, COMMITS[place], 8.0 + (math.log1p(change) if place >= bad_from else 0) + noise, 2.0)


def ends(**more: float) -> list[CommitLaunch]:
    return [launch(1, 0, bad_from=1, **more), launch(2, 32, bad_from=1, **more)]


def test_the_commit_is_found_wherever_it_is() -> None:
    with every_case() as case:
        for place in range(1, 33):
            with case(place):
                source = random.Random(place)  # noqa: S311  noise
                launches, steps = ends(), 0
                while (search := bisect(COMMITS, launches, SPREAD**2)).next:
                    steps += 1
                    assert steps <= 7
                    measured = COMMITS.index(search.next)
                    launches.append(launch(10 + steps, measured, bad_from=place, noise=source.gauss(0, SPREAD / 3)))
                assert search.first_bad == COMMITS[place]
                assert search.gpu_hours_each == 2.0


def test_a_commit_within_the_noise_is_measured_again_and_one_that_fails_is_avoided() -> None:
    unclear = CommitLaunch(3, COMMITS[16], 8.0 + math.log1p(0.05) / 2, 2.0)
    again = bisect(COMMITS, [*ends(), unclear], SPREAD**2)
    assert (again.next, again.steps) == (COMMITS[16], 5)
    assert [entry.state for entry in again.measured] == ["good", "unclear", "bad"]
    failed = bisect(COMMITS, [*ends(), CommitLaunch(3, COMMITS[16], math.nan)], SPREAD**2)
    assert failed.next in (COMMITS[15], COMMITS[17])
    assert failed.measured[1].delta_pct is None
    broken = [CommitLaunch(9, commit, math.nan) for commit in COMMITS[1:-1]]
    stuck = bisect(COMMITS, [*ends(), *broken], SPREAD**2)
    assert (stuck.next, stuck.first_bad, len(stuck.left)) == ("", "", 32)


def test_a_second_change_is_reported_and_the_first_one_searched() -> None:
    launches = [*ends(), launch(3, 8, bad_from=4), launch(4, 20, bad_from=30)]
    search = bisect(COMMITS, launches, SPREAD**2)
    assert (search.is_mixed, search.left[-1]) == (True, COMMITS[8])


def test_faster_is_searched_as_well() -> None:
    launches = [launch(1, 0, bad_from=1, change=-0.05), launch(2, 32, bad_from=1, change=-0.05)]
    search = bisect(COMMITS, [*launches, launch(3, 16, bad_from=10, change=-0.05)], SPREAD**2)
    assert search.change_pct == pytest.approx(-5)
    assert search.left == tuple(COMMITS[1:17])


def test_what_cannot_be_bisected_is_refused() -> None:
    for launches in (ends()[:1], ends(change=0.0), ends(change=0.001)):
        with pytest.raises(NotBisectableError):
            bisect(COMMITS, launches, SPREAD**2)
