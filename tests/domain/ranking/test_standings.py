"""Standings of a stack, and properties of every ranking."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from app.domain.definitions import DEFINITION_VERSION
from app.domain.ranking.across import ClassSummary, Tally
from app.domain.ranking.rank import (
    Head,
    HeadChange,
    StoredState,
    class_of,
    explained,
    head_changes,
    heads_of,
    newest_run,
    prior_to_keep,
    rank_stack,
)
from app.domain.ranking.runs import (
    DISPATCHERS,
    UNKNOWN_FAMILY,
    UNKNOWN_HARDWARE,
    RankedRun,
    ep_size,
    fallbacks,
    family_of,
    hardware_of,
    other_shapes,
    reaches,
    refusal,
    routing_class,
    slug,
)
from app.domain.ranking.standings import Board, Reading, StackStandings
from app.domain.run import EVIDENCE_LEVELS, Value
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior
from app.storage.json_text import from_json, to_json
from tests.cases import sized
from tests.domain.ranking.runs import START, across, make_run, make_runs, rank_runs

QUIET = Prior(variance=0.003**2, degrees_of_freedom=4, configurations=9)


def test_a_new_leader_is_reported_once() -> None:
    runs = [make_run("1", "alltoall", 400)]
    assert _changes(runs) == ()

    runs.append(make_run("2", "deepep", 320, hour=1))
    second = _changes(runs)
    assert [item.sentence for item in second] == ["deepep"]
    heads = [item.after for item in second]
    assert _changes(runs, heads) == ()

    runs.append(make_run("3", "hybridep", 321, hour=2))
    third = _changes(runs, heads)
    assert [item.sentence for item in third] == ["from deepep to deepep and hybridep (tie)"]

    runs[1] = make_run("2", "deepep", 320, hour=1, quarantined="bad node")
    fourth = _changes(runs, [item.after for item in third])
    assert [item.sentence for item in fourth] == ["from deepep and hybridep (tie) to hybridep"]


def _changes(runs: Sequence[RankedRun], last_heads: Sequence[Head] = ()) -> tuple[HeadChange, ...]:
    return head_changes(rank_stack(runs, QUIET), last_heads)


def test_a_lost_ranking_is_reported() -> None:
    heads = [Head("dropless", "training_equivalent", "leader", ("deepep",))]
    for left in (make_run("1", "alltoall"), make_run("1", "alltoall", quarantined="bad node")):
        assert [change.sentence for change in _changes([left], heads)] == ["from deepep to no ranking"]
    after = [change.after for change in _changes([make_run("1", "alltoall", quarantined="bad node")], heads)]
    assert _changes([make_run("1", "alltoall", quarantined="bad node")], after) == ()


def test_no_leader_changes_are_reported_during_recomputation() -> None:
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
    ("fresh", "kept_prior"),
    [
        (Prior(0.0031**2, 4, 10), True),
        (Prior(0.004**2, 4, 10), False),
        (Prior(0.003**2, 5.2, 10), False),
        (DEFAULT_PRIOR, False),
    ],
)
def test_the_prior_is_kept_until_it_moved(fresh: Prior, kept_prior: bool) -> None:
    assert prior_to_keep(QUIET, fresh) is (QUIET if kept_prior else fresh)
    assert prior_to_keep(None, fresh) is fresh


def explanation(
    before: Sequence[RankedRun], after: Sequence[RankedRun], newest: str = "", *, other_rules: bool = False
) -> Head:
    """Return the explanation of a change between the boards of two sets of runs; the leader differs."""
    boards = [rank_stack(runs, QUIET).boards_at("screen")[0] if runs else None for runs in (before, after)]
    was, now = boards
    assert now is not None
    head = heads_of(rank_stack(after, QUIET))[0]
    other = Head(head.routing_mode, head.semantic_class, "tie", ("nobody",))
    places = {run.name: run.ordered_at for run in (*before, *after)}
    stored = StoredState(was, newest or newest_run([was] if was else [], ()), other_rules)
    return explained(HeadChange(other if was else None, head), stored, now, places).after


SLOW = [make_run(name, "alltoall", 400, hour=9) for name in ("134", "137")]
FAST = [make_run(name, "deepep", 300, hour=hour) for name, hour in (("135", 9.0), ("136", 2.0))]


def test_the_first_ranking_is_made_by_the_run_that_completes_the_pair() -> None:
    """Runs of one commit share one history position: the last arrival caused the change."""
    head = explanation([], [*SLOW, *FAST])
    assert (head.run, head.because) == ("135", "Run 135 was added.")


def test_a_known_run_that_counts_again_is_not_called_new() -> None:
    head = explanation(SLOW, [*SLOW, *FAST], newest="137")
    assert (head.run, head.because) == ("136", "Runs 135 and 136 count again.")
    head = explanation(SLOW, [*SLOW, *FAST], newest="135")
    assert (head.run, re.findall(r"\d+", head.because)) == ("136", ["136", "135"])


def test_a_run_that_left_is_the_one_that_made_the_change() -> None:
    head = explanation([*SLOW, *FAST], [*SLOW, FAST[0]])
    assert (head.run, head.because, head.by_runs) == ("136", "Run 136 no longer counts.", True)


def test_a_change_without_a_run_says_what_did_it() -> None:
    runs = [*SLOW, *FAST]
    assert explanation(runs, runs).because.startswith("The estimate of run-to-run variation")
    assert explanation(runs, runs, other_rules=True).because.startswith("The ranking rules changed;")
    assert (explanation(runs, runs).run, explanation(runs, runs).by_runs) == ("", False)


# --- Counts and ranges over stacks; nothing is averaged.


def summary(runs: list[RankedRun]) -> ClassSummary:
    (result,) = across(rank_runs(runs, QUIET).values())
    return result


def stack(name: str, alltoall: float, deepep: float, **other: object) -> list[RankedRun]:
    return [
        make_run(f"{name}1", "alltoall", alltoall, stack=name, **other),
        make_run(f"{name}2", "deepep", deepep, stack=name, **other),
    ]


def tally(summary: ClassSummary, dispatcher: str) -> Tally:
    return next(row for row in summary.overall.tallies if row.dispatcher == dispatcher)


def test_won_tied_lost_and_the_range_of_gains() -> None:
    runs = [*stack("a", 400, 320), *stack("b", 8000, 7900), *stack("c", 100, 130)]
    result = summary(runs)
    deepep, alltoall = tally(result, "deepep"), tally(result, "alltoall")
    assert (deepep.won, deepep.tied, deepep.lost) == (1, 1, 1)
    assert (alltoall.won, alltoall.tied, alltoall.lost) == (1, 1, 1)
    assert alltoall.gain is None
    assert deepep.gain is not None
    assert (deepep.gain.lowest_stack, deepep.gain.highest_stack, deepep.gain.stacks) == ("c", "a", 3)
    assert deepep.gain.lowest_pct == pytest.approx(100 * (100 / 130 - 1))
    assert deepep.gain.highest_pct == pytest.approx(25)
    assert (result.stacks, result.rankings) == (3, 3)


def test_could_not_run_alone_and_directional_are_counted_apart() -> None:
    short = {"short": True, "window": 8, "evidence_level": "screen"}
    failed = make_run("x", None, 0.0, stack="a", requested="deepep", missing=("deepep",), outcome="failed", window=0)
    runs = [make_run("a1", "alltoall", stack="a"), failed, *stack("b", 400, 300, **short)]
    result = summary(runs)
    deepep, alltoall = tally(result, "deepep"), tally(result, "alltoall")
    assert (deepep.could_not_run, deepep.directional, deepep.won, deepep.lost) == (1, 1, 0, 0)
    assert (alltoall.alone, alltoall.directional, alltoall.lost) == (1, 1, 0)
    assert deepep.gain is None
    assert (result.stacks, result.rankings) == (2, 1)


def test_a_win_over_short_runs_alone_is_directional() -> None:
    quick = make_run("q", "deepep", 500, short=True, window=8, evidence_level="screen")
    result = summary([make_run("1", "alltoall", 400), quick])
    assert tally(result, "alltoall").directional == 1
    assert tally(result, "deepep").directional == 1


def test_by_precision_and_size_of_expert_parallelism() -> None:
    runs = [*stack("a", 400, 320, ep=8), *stack("b", 400, 410, ep=64), *stack("c", 400, 320, ep=64, precision="fp8_mx")]
    groups = {(group.precision, group.ep_size): group for group in summary(runs).groups}
    assert set(groups) == {("bf16", "small"), ("bf16", "large"), ("fp8_mx", "large")}
    assert all(sum((row.won, row.tied, row.lost)) == 1 for group in groups.values() for row in group.tallies)


@pytest.mark.parametrize(
    ("ep", "size"),
    [(None, "unknown"), (1, "small"), (8, "small"), (9, "medium"), (31, "medium"), (32, "large"), (64, "large")],
)
def test_sizes_of_expert_parallelism(ep: int | None, size: str) -> None:
    assert ep_size(ep) == size


def test_classes_hardware_and_families_are_never_added_up() -> None:
    runs = [
        *stack("a", 400, 320),
        *stack("b", 400, 320, semantic_class="benchmark_only", routing_mode="forced-balance"),
        *stack("c", 400, 320, hardware="GB200"),
        *stack("d", 400, 320, family="deepseek-v3"),
    ]
    assert [item.stacks for item in across(rank_runs(runs, QUIET).values())] == [1, 1, 1, 1]


def test_each_stack_counts_once() -> None:
    runs = [*stack("a", 400, 320), *make_runs("hybridep", [330, 331], stack="a")]
    for row in summary(runs).overall.tallies:
        assert row.won + row.tied + row.lost + row.directional + row.alone + row.could_not_run == len(row.stacks) == 1


# --- Standings are stored as JSON by their types, and are restored unchanged.


def test_standings_survive_storage() -> None:
    runs = [
        *make_runs("alltoall", [400, 402]),
        *make_runs("deepep", [340, 341], tflops_per_gpu=250.0),
        make_run("f", None, 0.0, requested="hybridep", missing=("hybridep",), outcome="failed", window=0),
        make_run("g", "alltoall", 390, requested="ncclep", hour=4),
    ]
    standings = rank_stack(runs)
    stored = json.dumps(to_json(standings), allow_nan=False)
    assert from_json(StackStandings, json.loads(stored)) == standings
    assert len(stored) < 40_000


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
    "evidence_level": st.sampled_from(EVIDENCE_LEVELS),
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
    """Mostly eligible runs, so that there are rankings to check; others have up to three anomalies."""
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
    """One stack whose code becomes faster or slower, with runs of other dispatchers in between."""
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
PRIOR = Prior(variance=0.002**2, degrees_of_freedom=8, configurations=9)
"""Of a family that varies little, so that all kinds of comparisons happen among few runs."""
THOROUGH = settings(max_examples=sized(40, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def boards(runs: list[RankedRun]) -> list[tuple[StackStandings, Board]]:
    return [(stack, board) for stack in rank_runs(runs, PRIOR).values() for board in stack.boards]


@THOROUGH
@given(RUNS)
def test_no_ranking_mixes_stacks_or_classes_or_includes_an_ineligible_run(runs: list[RankedRun]) -> None:
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
def test_a_run_never_counts_for_a_merely_requested_dispatcher(runs: list[RankedRun]) -> None:
    ranked = {(name, entry.dispatcher) for _, board in boards(runs) for entry in board.entries for name in entry.runs}
    assert not ranked & {(fallback.run, fallback.dispatcher) for fallback in fallbacks(runs)}


@THOROUGH
@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(runs: list[RankedRun], random: object) -> None:
    shuffled = list(runs)
    random.shuffle(shuffled)
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
        for comparison in board.comparisons:
            assert comparison.turned().winner == comparison.winner
            assert comparison.turned().tie == comparison.tie
            assert math.isfinite(comparison.gain_pct)
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
    for item in across(rank_runs(runs, PRIOR).values()):
        for row in item.overall.tallies:
            total = row.won + row.tied + row.lost + row.directional + row.alone + row.could_not_run
            assert total == len(row.stacks) == len(set(row.stacks)) <= item.stacks


@pytest.mark.parametrize("reading", sorted({*get_args(Reading)} - {"contested"}))  # that needs an A/B
def test_the_runs_of_these_tests_make_rankings_of_every_kind(reading: str) -> None:
    """Otherwise the tests above would prove nothing."""
    find(RUNS, lambda runs: any(board.reading == reading for _, board in boards(runs)), settings=FINDING)


@pytest.mark.parametrize(
    "outcome", ["first", "equal", "undecided"]
)  # the first of a board's comparisons is the faster one
def test_the_runs_of_these_tests_meet_in_every_way(outcome: str) -> None:
    def meet(runs: list[RankedRun]) -> bool:
        return any(comparison.outcome == outcome for _, board in boards(runs) for comparison in board.comparisons)

    find(RUNS, meet, settings=FINDING)


# --- The runs that count on a board.


@pytest.mark.parametrize(
    ("fields", "why", "sentence"),
    [
        ({"quarantined": "bad node"}, "quarantined", "quarantined: bad node"),
        ({"outcome": "failed"}, "ended_badly", "the job failed"),
        ({"outcome": "out_of_memory"}, "ended_badly", "the job ran out of memory"),
        ({"outcome": "not_finite"}, "ended_badly", "the loss or the gradient was not finite"),
        ({"outcome": "truncated"}, "ended_badly", "its log ends before the training does"),
        ({"outcome": "stopped"}, "ended_badly", "it was stopped by a time limit or a signal"),
        ({"outcome": "running"}, "ended_badly", "it is still running"),
        ({"not_finite": 2}, "not_finite", "its loss was not finite in 2 iterations"),
        ({"fair": False}, "slowed_by_timers", "timer barriers slowed it down"),
        (
            {"definition_version": DEFINITION_VERSION - 1},
            "other_definitions",
            "its figures use another version of the definitions",
        ),
        (
            {"dispatcher": None, "requested": None},
            "dispatcher_unknown",
            "its dispatcher is neither stated nor shown by its log",
        ),
        (
            {"dispatcher": None, "requested": "hybridep"},
            "not_active",
            "hybridep was requested, but its log does not show that it ran",
        ),
        ({"window": 4}, "too_short", "only 4 steady iterations, 5 are needed"),
        ({"step_time_ms": 0.0, "window": 0}, "too_short", "only 0 steady iterations, 5 are needed"),
        ({"is_steady": False}, "not_steady", "not steady"),
        (
            {"dispatcher": None, "requested": "deepep", "missing": ("deepep",), "outcome": "failed"},
            "import_failed",
            "the deepep package is not in its container",
        ),
        # The strongest reason is named.
        ({"quarantined": "bad node", "outcome": "failed", "window": 4}, "quarantined", "quarantined: bad node"),
    ],
)
def test_a_run_that_may_not_be_ranked(fields: dict[str, object], why: str, sentence: str) -> None:
    result = refusal(make_run(**fields))
    assert result is not None
    assert (result.why, result.sentence) == (why, sentence)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"outcome": ""},  # documents only: how it ended is unknown
        {"short": True, "window": 8, "evidence_level": "screen"},
        {"dispatcher": None, "requested": "alltoall"},  # needs no package, and nothing else runs under its name
        {"dispatcher": "alltoall", "requested": "deepep"},  # counts for the active dispatcher
        {"dispatcher": "alltoall", "requested": None},
    ],
)
def test_a_run_that_may(fields: dict[str, object]) -> None:
    assert refusal(make_run(**fields)) is None


def test_a_fallback_counts_for_the_active_and_not_the_requested_dispatcher() -> None:
    run = make_run("7", "alltoall", requested="deepep")
    sentences = fallbacks([run])
    assert [(item.run, item.dispatcher, item.sentence) for item in sentences] == [
        ("7", "deepep", "deepep was requested, but alltoall ran")
    ]
    standings = rank_stack([run, *make_runs("hybridep", [300])])
    assert standings.fallbacks == sentences
    assert {entry.dispatcher for entry in standings.boards_at("screen")[0].entries} == {"alltoall", "hybridep"}


def test_a_dispatcher_that_ran_in_the_stack_is_not_missing() -> None:
    failed = make_run("1", None, 0.0, requested="deepep", missing=("deepep",), outcome="failed", window=0)
    assert rank_stack([failed, make_run("2", "deepep", hour=1)]).missing == ()


def test_a_model_of_another_shape_is_excluded_under_any_name() -> None:
    runs = [
        make_run("1", shape=("24", "2048", ""), hour=0),
        make_run("2", shape=("48", "2048", ""), hour=1),
        make_run("3", shape=(), hour=2),
        make_run("4", shape=("", "", "32"), hour=3),
    ]
    assert [shape.run for shape in other_shapes(runs)] == ["1"]
    standings = rank_stack(runs)
    assert [(item.run, item.why) for item in standings.refused] == [("1", "other_shape")]


def test_standings_wait_for_figures_of_other_definitions() -> None:
    old = make_run("1", definition_version=DEFINITION_VERSION - 1)
    assert rank_stack([old, make_run("2", hour=1)]).partial
    assert not rank_stack([make_run("2", hour=1)]).partial


def test_a_thousand_refused_runs_are_counted() -> None:
    standings = rank_stack([make_run(str(i), outcome="failed", hour=i) for i in range(60)])
    assert (standings.refused_count, len(standings.refused), standings.refused[0].run) == (60, 50, "59")
    board = standings.board("screen", "dropless", "training_equivalent")
    assert board is not None
    assert (board.reading, board.entries, board.is_ranking) == ("nothing_ranked", (), False)
    assert board.sentence.endswith("Newest run: the job failed.")


# --- One family for all spellings of a model, one address for each.


QWEN: dict[str, Value] = {
    "num_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_experts": 128,
    "topk": 8,
}


@pytest.mark.parametrize(
    ("model", "shape", "name", "address"),
    [
        ("Qwen/Qwen3_30B-a3b", {}, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen3_30B_a3B", QWEN, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        (None, QWEN, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("", QWEN, "Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("DSV3", {}, "DeepSeek-V3", "deepseek-v3"),
        ("DeepSeekV3", {}, "DeepSeek-V3", "deepseek-v3"),
        ("DeepSeek-V3", {"num_layers": 16}, "DeepSeek-V3 (other shape)", "deepseek-v3-other-shape"),
        ("our model", {}, "our model", "our-model"),
        ("24L-h1024-8e-top2", {}, "24L-h1024-8e-top2", "24l-h1024-8e-top2"),
        (None, {}, "unknown model", "unknown-model"),
        ("  ", {}, "unknown model", "unknown-model"),
    ],
)
def test_families(model: str | None, shape: dict[str, Value], name: str, address: str) -> None:
    assert (family_of(model, shape).name, family_of(model, shape).slug) == (name, address)


@pytest.mark.parametrize(
    ("gpu", "address"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("GB200", "gb200"), ("our ASIC", "our-asic"), (None, "unknown-gpu")],
)
def test_hardware(gpu: str | None, address: str) -> None:
    assert hardware_of(gpu).slug == address


def test_an_address_is_safe_and_loses_no_difference() -> None:
    names = ["模型-7B", "模型-8B", "a" * 200, "a" * 201, "../../etc", "<script>"]
    slugs = [slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all(0 < len(item) <= 60 and set(item) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for item in slugs)
    assert slug("...") != ""
    assert (UNKNOWN_FAMILY.slug, UNKNOWN_HARDWARE.slug) == ("unknown-model", "unknown-gpu")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("forced-balance", "forced"),
        ("forced-biased", "forced"),
        ("dropless", "natural"),
        ("capacity-drop", "natural"),
        ("drop-and-pad", "natural"),
        ("", "unknown"),
    ],
)
def test_classes_of_routing(mode: str, expected: str) -> None:
    assert routing_class(mode) == expected
