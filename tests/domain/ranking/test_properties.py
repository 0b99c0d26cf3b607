"""Whatever is uploaded: no ranking holds two stacks, two classes or a run that may not be ranked."""

import math
from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.definitions import DEFINITION_VERSION
from app.domain.detection import DEFAULT_PRIOR
from app.domain.ranking.across import across
from app.domain.ranking.eligibility import fallbacks, refusal
from app.domain.ranking.rank import class_of, rank_runs
from app.domain.ranking.ranked_run import DISPATCHERS, LEVELS, RankedRun, reaches
from app.domain.ranking.standings import Board, StackStandings
from tests.domain.ranking.runs import START, make_run

ROUTING = ("dropless", "forced-balance", "capacity-drop", "")
CLASSES = ("training_equivalent", "benchmark_only", "unknown")
OUTCOMES = ("completed", "completed", "completed", "", "failed", "truncated", "out_of_memory", "stopped", "running")


@st.composite
def any_run(draw: st.DrawFn) -> RankedRun:
    dispatchers = st.sampled_from((*DISPATCHERS, None))
    return make_run(
        "unnamed",
        draw(dispatchers),
        draw(st.one_of(st.floats(300, 500), st.sampled_from((0.0, 400.0)))),
        stack=draw(st.sampled_from(("a", "b"))),
        config=draw(st.sampled_from(("x", "y", None))),
        semantic_class=draw(st.sampled_from(CLASSES)),
        routing_mode=draw(st.sampled_from(ROUTING)),
        outcome=draw(st.sampled_from(OUTCOMES)),
        quarantined=draw(st.sampled_from(("", "", "", "bad node"))),
        window=draw(st.sampled_from((0, 4, 5, 8, 20, 50))),
        is_steady=draw(st.sampled_from((True, True, True, False))),
        short=draw(st.booleans()),
        memory_gib=draw(st.one_of(st.none(), st.floats(1, 80))),
        definition_version=draw(st.sampled_from((DEFINITION_VERSION, DEFINITION_VERSION, DEFINITION_VERSION - 1))),
        requested=draw(st.sampled_from((*DISPATCHERS, None))),
        evidence_level=draw(st.sampled_from((*LEVELS, "nonsense"))),
        shape=draw(st.sampled_from(((), (), ("48", "2048"), ("24", "2048")))),
        not_finite=draw(st.sampled_from((0, 0, 0, 3))),
        fair=draw(st.sampled_from((True, True, False))),
        se=draw(st.floats(0.0005, 0.05)),
        hour=draw(st.integers(0, 5)),
        missing=draw(st.sampled_from(((), (), ("deepep",)))),
        tflops_per_gpu=draw(st.one_of(st.none(), st.floats(100, 300))),
    )


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


RUNS = st.lists(any_run(), max_size=25).map(named)
THOROUGH = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def boards(runs: list[RankedRun]) -> list[tuple[StackStandings, Board]]:
    return [(stack, board) for stack in rank_runs(runs).values() for board in stack.boards]


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
        assert (board.reading in ("leader", "tie", "directional")) == board.is_ranking


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
    for one in across(rank_runs(runs, DEFAULT_PRIOR).values(), "screen"):
        for row in one.overall.tallies:
            total = row.won + row.tied + row.lost + row.directional + row.alone + row.could_not_run
            assert total == len(row.stacks) == len(set(row.stacks)) <= one.stacks
