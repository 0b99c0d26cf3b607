"""Whatever is uploaded: no ranking holds two stacks, two classes or a run that may not be ranked."""

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from app.domain.definitions import DEFINITION_VERSION
from app.domain.ranking.across import across
from app.domain.ranking.rank import class_of, rank_runs
from app.domain.ranking.runs import DISPATCHERS, LEVELS, RankedRun, fallbacks, reaches, refusal
from app.domain.ranking.standings import Board, Reading, StackStandings
from app.domain.verdict.step_time import Prior
from tests.cases import sized
from tests.domain.ranking.runs import START, make_run

SOUND: dict[str, st.SearchStrategy[Any]] = {
    "dispatcher": st.sampled_from(DISPATCHERS[:3]),
    "step_time_ms": st.one_of(st.floats(390, 410), st.sampled_from((300.0, 400.0, 500.0))),
    "stack": st.sampled_from(("a", "a", "b")),
    "config": st.sampled_from((None, "x")),
    "semantic_class": st.sampled_from(("training_equivalent", "benchmark_only")),
    "window": st.sampled_from((8, 50)),
    "short": st.sampled_from((False, False, True)),
    "se": st.floats(0.0005, 0.01),
    "hour": st.integers(0, 5),
    "memory_gib": st.floats(50, 60),
    "evidence_level": st.sampled_from(LEVELS),
}
ODD: dict[str, st.SearchStrategy[Any]] = {
    "dispatcher": st.sampled_from((*DISPATCHERS, None)),
    "step_time_ms": st.just(0.0),
    "semantic_class": st.just("unknown"),
    "routing_mode": st.sampled_from(("forced-balance", "capacity-drop", "")),
    "outcome": st.sampled_from(("", "failed", "truncated", "out_of_memory", "stopped", "running")),
    "quarantined": st.just("bad node"),
    "window": st.sampled_from((0, 4, 5)),
    "is_steady": st.just(False),
    "memory_gib": st.sampled_from((None, 1.0)),
    "definition_version": st.just(DEFINITION_VERSION - 1),
    "requested": st.sampled_from((*DISPATCHERS, None)),
    "evidence_level": st.just("nonsense"),
    "shape": st.sampled_from((("48", "2048"), ("24", "2048"))),
    "not_finite": st.just(3),
    "fair": st.just(False),
    "missing": st.just(("deepep",)),
    "tflops_per_gpu": st.floats(100, 300),
}
"""Each makes a run unfit, or one of another class, or one that counts for something else."""


@st.composite
def any_run(draw: st.DrawFn) -> RankedRun:
    """Mostly fit to be ranked, so that there are rankings to look at; else with up to three oddities."""
    fields = {name: draw(values) for name, values in SOUND.items()}
    odd = draw(st.one_of(st.just([]), st.just([]), st.lists(st.sampled_from(sorted(ODD)), max_size=3)))
    return make_run("unnamed", **(fields | {name: draw(ODD[name]) for name in odd}))


def named(runs: list[RankedRun]) -> list[RankedRun]:
    """Each run its own name, as the service gives it."""
    return [
        replace(
            run,
            facts=replace(run.facts, run=str(i), estimate=replace(run.facts.estimate, run=str(i))),
            ordered_at=START + timedelta(hours=(run.ordered_at - START).total_seconds() // 3600),
        )
        for i, run in enumerate(runs)
    ]


@st.composite
def history(draw: st.DrawFn) -> list[RankedRun]:
    """One stack whose code becomes faster or slower, and runs of other dispatchers than its usual one in between."""
    usual, *others = draw(st.permutations(DISPATCHERS[:3]))
    levels = draw(st.lists(st.sampled_from((300.0, 400.0, 500.0)), min_size=1, max_size=3))
    runs = [
        make_run("unnamed", usual, level * draw(st.floats(0.997, 1.003)), hour=2 * (4 * place + day))
        for place, level in enumerate(levels)
        for day in range(4)
    ]
    few = st.lists(st.tuples(st.sampled_from(others), st.integers(0, 24), st.floats(290, 510)), max_size=4)
    return runs + [make_run("unnamed", name, time, hour=hour) for name, hour, time in draw(few)]


RUNS = st.one_of(st.lists(any_run(), max_size=20), st.lists(any_run(), max_size=20), history()).map(named)
FINDING = settings(max_examples=2000, deadline=None, phases=[Phase.generate], database=None, derandomize=True)
"""Many, because the order of examples changes with the constants in the code; a search ends with its first hit."""
QUIET = Prior(variance=0.002**2, degrees_of_freedom=8, configurations=9)
"""Of a family that varies little, so that all kinds of duels happen among few runs."""
THOROUGH = settings(max_examples=sized(40, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def boards(runs: list[RankedRun]) -> list[tuple[StackStandings, Board]]:
    return [(stack, board) for stack in rank_runs(runs, QUIET).values() for board in stack.boards]


@THOROUGH
@given(RUNS)
def test_no_ranking_holds_two_stacks_two_classes_or_an_ineligible_run(runs: list[RankedRun]) -> None:
    by_name = {run.name: run for run in runs}
    for stack, board in boards(runs):
        for entry in board.entries:
            for run in (by_name[name] for name in entry.runs):
                assert run.facts.stack_key == stack.stack_key
                assert class_of(run) == (board.routing_mode, board.semantic_class)
                assert refusal(run) is None
                assert run.dispatcher == entry.dispatcher
                assert run.facts.config_key == entry.config_key
                assert reaches(run.evidence_level, "screen" if board.floor == "matched_ab" else board.floor)
            assert reaches(entry.level, board.floor)


@THOROUGH
@given(RUNS)
def test_a_run_never_counts_for_what_it_only_asked_for(runs: list[RankedRun]) -> None:
    ranked = {(name, entry.dispatcher) for _, board in boards(runs) for entry in board.entries for name in entry.runs}
    assert not ranked & {(one.run, one.dispatcher) for one in fallbacks(runs)}


@THOROUGH
@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(runs: list[RankedRun], random: object) -> None:
    shuffled = list(runs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rank_runs(runs) == rank_runs(shuffled)


@THOROUGH
@given(RUNS)
def test_ties_are_symmetric_and_places_agree_with_them(runs: list[RankedRun]) -> None:
    for _, board in boards(runs):
        places = {entry.dispatcher: entry.place for entry in board.entries if entry.place}
        for orders in (places, {place.name: place for place in board.by_memory}):
            for name, place in orders.items():
                assert 1 <= place.first <= place.last <= len(orders)
                assert all(name in orders[other].ties for other in place.ties)
                assert all(name in orders[other].beaten_by for other in place.beats)
                assert all(name in orders[other].beats for other in place.beaten_by)
                assert set(place.ties) | set(place.beats) | set(place.beaten_by) | {name} == set(orders)
        for one in board.duels:
            assert one.turned().winner == one.winner
            assert one.turned().tie == one.tie
            assert math.isfinite(one.gain_pct)
        assert bool(board.leaders) == board.is_ranking
        assert board.is_ranking or board.reading not in ("leader", "tie", "directional")
        assert not board.is_ranking or board.reading not in ("only_measurement", "nothing_ranked")


@THOROUGH
@given(RUNS)
def test_a_faster_result_is_never_beaten_by_a_slower_one(runs: list[RankedRun]) -> None:
    for _, board in boards(runs):
        entries = {entry.dispatcher: entry for entry in board.entries}
        for entry in board.entries:
            for name in entry.place.beaten_by if entry.place else ():
                assert entries[name].step_time_ms.value < entry.step_time_ms.value


@THOROUGH
@given(RUNS)
def test_every_stack_counts_once_for_each_dispatcher(runs: list[RankedRun]) -> None:
    for one in across(rank_runs(runs, QUIET).values(), "screen"):
        for row in one.overall.tallies:
            total = row.won + row.tied + row.lost + row.directional + row.alone + row.could_not_run
            assert total == len(row.stacks) == len(set(row.stacks)) <= one.stacks


@pytest.mark.parametrize("reading", get_args(Reading))
def test_the_runs_of_these_tests_make_rankings_of_every_kind(reading: str) -> None:
    """Else the tests above would prove nothing."""
    find(RUNS, lambda runs: any(board.reading == reading for _, board in boards(runs)), settings=FINDING)


@pytest.mark.parametrize("outcome", ["first", "equal", "undecided"])  # the first of a board's duels is the faster one
def test_the_runs_of_these_tests_meet_in_every_way(outcome: str) -> None:
    def meet(runs: list[RankedRun]) -> bool:
        return any(one.outcome == outcome for _, board in boards(runs) for one in board.duels)

    find(RUNS, meet, settings=FINDING)
