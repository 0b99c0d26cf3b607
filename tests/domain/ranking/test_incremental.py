"""Standings kept from run to run are those of a rebuild, and what changes at the head is told once."""

from collections.abc import Sequence

import pytest

from app.domain.definitions import DEFINITION_VERSION
from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.ranking.incremental import Head, HeadChange, head_changes, heads_of, prior_to_keep
from app.domain.ranking.rank import rank_stack
from app.domain.ranking.ranked_run import RankedRun
from tests.domain.ranking.runs import make_run, make_runs

QUIET = Prior(variance=0.003**2, degrees_of_freedom=4, configurations=9)


def test_a_new_leader_is_told_once() -> None:
    runs = [make_run("1", "alltoall", 400)]
    assert _changes(runs) == ()

    runs.append(make_run("2", "deepep", 320, hour=1))
    second = _changes(runs)
    assert [one.sentence for one in second] == ["deepep"]
    heads = [one.after for one in second]
    assert _changes(runs, heads) == ()

    runs.append(make_run("3", "hybridep", 321, hour=2))
    third = _changes(runs, heads)
    assert [one.sentence for one in third] == ["from deepep to deepep and hybridep (tie)"]

    runs[1] = make_run("2", "deepep", 320, hour=1, quarantined="bad node")
    fourth = _changes(runs, [one.after for one in third])
    assert [one.sentence for one in fourth] == ["from deepep and hybridep (tie) to hybridep"]


def _changes(runs: Sequence[RankedRun], last_heads: Sequence[Head] = ()) -> tuple[HeadChange, ...]:
    return head_changes(rank_stack(runs, QUIET), last_heads)


def test_a_ranking_that_is_gone_is_told() -> None:
    known = [Head("dropless", "training_equivalent", "leader", ("deepep",))]
    for left in (make_run("1", "alltoall"), make_run("1", "alltoall", quarantined="bad node")):
        assert [one.sentence for one in _changes([left], known)] == ["from deepep to no ranking"]
    after = [one.after for one in _changes([make_run("1", "alltoall", quarantined="bad node")], known)]
    assert _changes([make_run("1", "alltoall", quarantined="bad node")], after) == ()


def test_nothing_is_told_of_leaders_while_figures_are_computed_again() -> None:
    runs = [make_run("1", "alltoall", 400), make_run("2", "deepep", 320, definition_version=DEFINITION_VERSION - 1)]
    standings = rank_stack(runs, QUIET)
    assert standings.partial
    assert head_changes(standings, [Head("dropless", "training_equivalent", "leader", ("deepep",))]) == ()


def test_the_order_in_which_runs_arrive_does_not_matter() -> None:
    runs = [*make_runs("alltoall", [400, 402, 399]), *make_runs("deepep", [350, 352]), make_run("x", outcome="failed")]
    assert rank_stack(list(reversed(runs)), QUIET) == rank_stack(runs, QUIET)


def test_a_class_is_ranked_with_its_own_prior() -> None:
    runs = [*make_runs("alltoall", [400, 402]), *make_runs("deepep", [391, 390])]
    noisy = Prior(variance=0.1**2, degrees_of_freedom=9, configurations=9)
    assert rank_stack(runs, {"training_equivalent": QUIET, "benchmark_only": noisy}) == rank_stack(runs, QUIET)
    assert rank_stack(runs, {"benchmark_only": QUIET}) == rank_stack(runs)


def test_heads_are_those_of_the_usual_floor() -> None:
    runs = [make_run("1", "alltoall", 400), make_run("2", "deepep", 100, evidence_level="smoke", window=5)]
    assert [head.dispatchers for head in heads_of(rank_stack(runs))] == [()]


@pytest.mark.parametrize(
    ("fresh", "kept"),
    [
        (Prior(0.0031**2, 4, 10), True),
        (Prior(0.004**2, 4, 10), False),
        (Prior(0.003**2, 5.2, 10), False),
        (DEFAULT_PRIOR, False),
    ],
)
def test_the_prior_is_kept_until_it_moved(fresh: Prior, kept: bool) -> None:
    assert prior_to_keep(QUIET, fresh) is (QUIET if kept else fresh)
    assert prior_to_keep(None, fresh) is fresh
