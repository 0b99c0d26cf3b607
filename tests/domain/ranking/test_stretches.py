"""A change of the stack's code between runs of two dispatchers is no difference between the dispatchers."""

from collections.abc import Sequence

import pytest

from app.domain.ranking.pools import Segments
from app.domain.ranking.rank import heads_of, rank_stack
from app.domain.ranking.runs import RankedRun
from app.domain.ranking.standings import Board
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior
from tests.domain.ranking.runs import make_run, make_runs
from tests.domain.ranking.test_boards import contract

QUIET = Prior(variance=0.003**2, degrees_of_freedom=4, configurations=9)
FAST, SLOW = [21_000.0, 21_040.0, 20_960.0], [22_300.0, 22_340.0, 22_280.0]
MATCHED = {f"stack {name}": contract(name) for name in ("alltoall", "hybridep", "deepep")}


def nights(dispatcher: str, times: Sequence[float], first: int = 0) -> list[RankedRun]:
    return [make_run(f"{dispatcher}-{day}", dispatcher, ms, hour=24 * day) for day, ms in enumerate(times, start=first)]


def board_of(runs: list[RankedRun], floor: str = "screen") -> Board:
    (board,) = rank_stack(runs, QUIET, MATCHED).boards_at(floor)
    return board


def nightly(slow_down: int = 1, repaired: int = 1) -> list[RankedRun]:
    """HybridEP every night: four weeks' code at 21.0 s, then so many nights times three slower, then as before."""
    return nights("hybridep", FAST * 4 + SLOW * slow_down + FAST * repaired)


def test_an_ab_counts_on_the_code_that_both_ran() -> None:
    """The alltoall run of one night is held against that code's nights, however the code went on."""
    runs = [*nightly(), make_run("ab", "alltoall", 23_615, hour=24 * 10)]
    board = board_of(runs)
    assert (board.reading, board.leaders) == ("leader", ("hybridep",))
    hybridep = board.entry("hybridep")
    assert hybridep is not None
    assert hybridep.gain is not None
    assert hybridep.runs == tuple(f"hybridep-{day}" for day in range(12))
    assert (hybridep.gain.kind, hybridep.level) == ("matched_ab", "validated")
    assert hybridep.newest is not None
    assert hybridep.newest.value == pytest.approx(21_000, rel=1e-3)
    assert board.stretch is not None
    assert (board.stretch.runs, board.stretch.changes_since) == (13, 2)
    assert board.stretch.changed_at == runs[12].ordered_at
    assert {one.why for one in hybridep.left_out} == {"in another segment: the speed of the stack changed in between"}


def test_a_change_of_the_code_does_not_change_the_leader() -> None:
    ab = make_run("ab", "alltoall", 22_150, hour=24 * 10)
    history = nightly()
    heads = {heads_of(rank_stack([*history[:count], ab], QUIET, MATCHED)) for count in range(8, len(history) + 1)}
    assert {head.dispatchers for head in next(iter(heads))} == {("hybridep",)}
    assert len(heads) == 1


def test_who_ran_on_other_code_only_stands_beside_the_board() -> None:
    """Alltoall and DeepEP run today's code; allgather ran beside alltoall before a slow-down, never beside DeepEP."""
    alltoall, deepep = nights("alltoall", [23_600.0] * 3 + [25_100.0] * 3), nights("deepep", FAST, first=4)
    board = board_of([*alltoall, *deepep, *nights("allgather", [30_000.0])])
    assert {entry.dispatcher for entry in board.entries} == {"alltoall", "deepep"}
    (outside,) = board.outside
    assert (outside.dispatcher, outside.changes, outside.before) == ("allgather", 1, True)
    assert (outside.beaten_by, outside.never_met) == (("alltoall",), ("deepep",))
    assert board.reading == "not_compared"
    assert board.leaders == ("deepep",)
    assert "allgather was last measured 6 days and one change of the stack's speed before deepep" in board.sentence


def test_a_leader_stays_one_over_who_it_beat_on_older_code() -> None:
    runs = [
        *nights("hybridep", [*FAST, *SLOW]),
        *nights("alltoall", [23_600.0] * 2),
        *nights("deepep", [25_000.0] * 2, 3),
    ]
    board = board_of(runs)
    assert [one.beaten_by for one in board.outside] == [("hybridep",)]
    assert (board.reading, board.leaders) == ("leader", ("hybridep",))


def test_two_that_never_ran_the_same_code_are_no_ranking() -> None:
    runs = [make_run("ab", "alltoall", 23_615, hour=24 * 2), *nights("hybridep", [*SLOW, *FAST], first=3)]
    # Alltoall ran before the slow nights: on their code or on what came before, nobody knows; so it is on their side.
    assert board_of(runs).reading == "leader"
    between = [*nights("hybridep", SLOW), make_run("ab", "alltoall", 23_615, hour=24 * 3), *nights("hybridep", FAST, 4)]
    board = board_of(between)
    assert (board.reading, board.is_ranking, board.leaders) == ("not_compared", False, ())
    assert [entry.dispatcher for entry in board.entries] == ["hybridep"]
    assert [(one.dispatcher, one.runs, one.never_met) for one in board.outside] == [
        ("alltoall", ("ab",), ("hybridep",))
    ]
    assert board.entries[0].level == "validated"
    assert board.entries[0].gain is None
    assert "This is not a ranking. alltoall was last measured 3 days and one change" in board.sentence
    assert board_of(between, "matched_ab").reading in ("not_compared", "only_measurement")


def test_runs_of_one_commit_are_on_one_side_of_a_change() -> None:
    """The A/B of the last fast commit came in after the nightly run of it."""
    history = nights("hybridep", [*FAST, *SLOW])
    ab = make_run("z", "alltoall", 23_615, hour=24 * 2)
    stretches = Segments(sorted([*history, ab], key=lambda run: run.history_position), QUIET)
    assert stretches.number(ab) == stretches.number(history[2]) == 0
    assert stretches.number(history[3]) == 2


def test_changes_that_may_be_one_are_one() -> None:
    """Two configurations see the same slow-down, one of them every third night only."""
    daily = nights("hybridep", FAST * 2 + SLOW * 2)
    rare = [make_run(f"d{day}", "deepep", 21_500 if day < 6 else 23_000, hour=24 * day) for day in range(0, 18, 3)]
    stretches = Segments(sorted([*daily, *rare], key=lambda run: run.history_position), QUIET)
    assert len(stretches.changes) == 1
    assert {stretches.number(run) for run in (*daily, *rare)} == {0, 2}
    assert stretches.changes_between(0, 2) == 1


def test_short_runs_that_count_in_full_make_a_level() -> None:
    """Validated ones of a short window: a verdict's baseline would be empty of them."""
    times = [400.0, 401, 402, 399, 300, 301, 302, 299]
    runs = make_runs("alltoall", times, short=True, window=12)
    assert not any(run.directional for run in runs)
    assert len(Segments(runs, DEFAULT_PRIOR).changes) == 1
