"""Standings kept from run to run are those of a rebuild, and what changes at the head is told once."""

import pytest

from app.domain.definitions import DEFINITION_VERSION
from app.domain.detection import DEFAULT_PRIOR, Prior
from app.domain.ranking.incremental import Head, heads_of, prior_to_keep, update
from app.domain.ranking.rank import rank_stack
from tests.domain.ranking.runs import make_run, make_runs

QUIET = Prior(variance=0.003**2, degrees_of_freedom=4, configurations=9)


def test_a_new_leader_is_told_once() -> None:
    runs = [make_run("1", "alltoall", 400)]
    first = update(None, runs, QUIET)
    assert first.changed
    assert first.heads == ()

    runs.append(make_run("2", "deepep", 320, hour=1))
    second = update(first.standings, runs, QUIET)
    assert [one.sentence for one in second.heads] == ["deepep"]
    heads = [one.after for one in second.heads]

    again = update(second.standings, runs, QUIET, None, heads)
    assert (again.changed, again.heads) == (False, ())

    runs.append(make_run("3", "hybridep", 321, hour=2))
    third = update(again.standings, runs, QUIET, None, heads)
    assert [one.sentence for one in third.heads] == ["deepep -> deepep and hybridep (tie)"]

    runs[1] = make_run("2", "deepep", 320, hour=1, quarantined="bad node")
    fourth = update(third.standings, runs, QUIET, None, [one.after for one in third.heads])
    assert [one.sentence for one in fourth.heads] == ["deepep and hybridep (tie) -> hybridep"]


def test_a_ranking_that_is_gone_is_told() -> None:
    known = [Head("dropless", "training_equivalent", "leader", ("deepep",))]
    found = update(None, [make_run("1", "alltoall")], QUIET, None, known)
    assert [one.sentence for one in found.heads] == ["deepep -> no ranking"]


def test_nothing_is_told_of_leaders_while_figures_are_computed_again() -> None:
    runs = [make_run("1", "alltoall", 400), make_run("2", "deepep", 320, definition_version=DEFINITION_VERSION - 1)]
    found = update(None, runs, QUIET, None, [Head("dropless", "training_equivalent", "leader", ("deepep",))])
    assert found.standings is not None
    assert found.standings.partial
    assert found.heads == ()


def test_a_stack_without_runs_has_no_standings() -> None:
    stored = rank_stack([make_run()])
    assert update(stored, []) == type(update(stored, []))(None, True, ())


def test_adding_runs_one_by_one_gives_what_a_rebuild_gives() -> None:
    runs = [*make_runs("alltoall", [400, 402, 399]), *make_runs("deepep", [350, 352]), make_run("x", outcome="failed")]
    stored = None
    for count in range(1, len(runs) + 1):
        stored = update(stored, runs[:count], QUIET).standings
    assert stored == rank_stack(list(reversed(runs)), QUIET)


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
