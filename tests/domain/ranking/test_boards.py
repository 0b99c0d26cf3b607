"""Leaders, ties and directional results; gains, memory and evidence of one board."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from app.domain.ranking.pools import Segments
from app.domain.ranking.rank import heads_of, rank_stack
from app.domain.ranking.runs import RankedRun
from app.domain.ranking.standings import Board
from app.domain.run import Stated
from app.domain.verdict.record import Losses
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior
from tests.domain.ranking.runs import across, make_run, make_runs, rank_runs

QUIET = Prior(variance=0.003**2, degrees_of_freedom=4, configurations=9)


def board_of(runs: list[RankedRun], floor: str = "screen", **other: object) -> Board:
    boards = rank_stack(runs, QUIET, **other).boards_at(floor)
    assert len(boards) == 1
    return boards[0]


def places_of(board: Board) -> dict[str, str]:
    return {entry.dispatcher: entry.place.text for entry in board.entries if entry.place}


def test_a_clear_winner_leads() -> None:
    board = board_of([*make_runs("alltoall", [400, 401, 402]), *make_runs("deepep", [340, 341, 342])])
    assert (board.reading, board.leaders) == ("leader", ("deepep",))
    assert places_of(board) == {"deepep": "1", "alltoall": "2"}
    gain = board.entries[0].gain
    assert gain is not None
    assert gain.comparison.gain_pct == pytest.approx(100 * (401 / 341 - 1), abs=0.01)
    assert gain.comparison.low_pct is not None
    assert gain.comparison.high_pct is not None
    assert gain.comparison.low_pct < gain.comparison.gain_pct < gain.comparison.high_pct


@pytest.mark.parametrize(
    ("deepep", "outcome", "text"),
    [
        ([400, 401, 402], "equal", "are equally fast, within 2 %"),
        ([389, 395, 402], "undecided", "cannot be distinguished yet"),
    ],
)
def test_ties_are_ties(deepep: list[float], outcome: str, text: str) -> None:
    board = board_of([*make_runs("alltoall", [400, 401, 402]), *make_runs("deepep", deepep)])
    assert board.reading == "tie"
    assert set(board.leaders) == {"alltoall", "deepep"}
    assert places_of(board) == {"alltoall": "1–2", "deepep": "1–2"}
    (comparison,) = board.comparisons
    assert comparison.outcome == outcome
    assert text in board.sentence
    if outcome == "equal":  # the stated interval is the deciding one
        assert comparison.low_pct is not None
        assert comparison.high_pct is not None
        assert -2.03 < comparison.low_pct < comparison.high_pct < 2.03
        assert "by two one-sided tests" in board.sentence


def test_each_dispatcher_that_was_seen_has_a_row() -> None:
    runs = [
        *make_runs("alltoall", [400, 401, 402]),
        make_run("5", "deepep", 300, not_finite=3, hour=5),
        make_run("6", "hybridep", 300, quarantined="bad node", hour=6),
    ]
    board = board_of(runs)
    assert [(item.dispatcher, item.run, item.why) for item in board.unranked] == [
        ("deepep", "5", "not_finite"),
        ("hybridep", "6", "quarantined"),
    ]
    assert (board.reading, [entry.dispatcher for entry in board.entries]) == ("only_measurement", ["alltoall"])
    assert all(dispatcher in board.sentence for dispatcher in ("alltoall", "deepep", "hybridep"))


def test_a_tie_does_not_pass_on() -> None:
    """A ties with B and B with C, and A is clearly better than C: each has the places that the tests leave open."""
    runs = [
        *make_runs("deepep", [400] * 3),
        *make_runs("hybridep", [404] * 3),
        *make_runs("alltoall", [408] * 3),
    ]
    board = board_of(runs)
    assert [entry.dispatcher for entry in board.entries] == ["deepep", "hybridep", "alltoall"]
    assert places_of(board) == {"deepep": "1–2", "hybridep": "1–3", "alltoall": "2–3"}
    assert board.leaders == ("deepep", "hybridep")


def test_an_uncertain_result_has_a_wide_range_and_not_the_first_place() -> None:
    runs = [
        *make_runs("deepep", [380] * 5),
        *make_runs("alltoall", [400] * 5),
        *make_runs("hybridep", [404], se=0.03),
    ]
    board = board_of(runs)
    assert places_of(board) == {"deepep": "1–2", "alltoall": "2–3", "hybridep": "1–3"}
    assert board.entries[-1].dispatcher == "hybridep"


def test_short_runs_make_a_ranking_directional() -> None:
    short = {"short": True, "window": 8, "evidence_level": "screen"}
    board = board_of([*make_runs("alltoall", [400], **short), *make_runs("deepep", [300], **short)])
    assert board.reading == "directional"
    assert all(entry.directional for entry in board.entries)


def test_a_short_run_counts_only_without_a_longer_one() -> None:
    short = make_run("quick", "alltoall", 300, short=True, window=8, evidence_level="screen", hour=9)
    board = board_of([*make_runs("alltoall", [400, 401]), short, *make_runs("deepep", [390, 391])])
    entry = board.entry("alltoall")
    assert entry is not None
    assert (entry.runs, entry.directional) == (("alltoall-0", "alltoall-1"), False)
    assert [(item.run, item.why.startswith("short")) for item in entry.left_out] == [("quick", True)]


def test_a_short_configuration_never_precedes_a_full_one() -> None:
    quick = make_run("quick", "alltoall", 300, config="quick", short=True, window=8, evidence_level="screen")
    board = board_of([*make_runs("alltoall", [400, 401]), quick, *make_runs("deepep", [390, 391])])
    entry = board.entry("alltoall")
    assert entry is not None
    assert [configuration.config_key for configuration in entry.configurations] == ["stack alltoall", "quick"]
    assert board.reading != "directional"


def test_a_declared_window_after_fifty_steps_counts_in_full() -> None:
    runs = make_runs("alltoall", [400], short=True, window=10) + make_runs("deepep", [340], short=True, window=10)
    assert board_of(runs).reading == "leader"


def test_the_best_configuration_represents_its_dispatcher() -> None:
    slow, fast = make_run("a", "deepep", 380, config="sms 20"), make_run("b", "deepep", 340, config="sms 32")
    board = board_of([*make_runs("alltoall", [400]), slow, fast])
    entry = board.entry("deepep")
    assert entry is not None
    assert (entry.config_key, entry.runs) == ("sms 32", ("b",))
    assert [configuration.config_key for configuration in entry.configurations] == ["sms 32", "sms 20"]
    assert entry.configurations[1].comparison is not None
    assert entry.configurations[1].comparison.winner == "sms 32"


def test_the_run_is_the_sample() -> None:
    """More iterations do not narrow the interval of a result; more runs do."""
    step_time_ms = board_of(make_runs("alltoall", [400], window=50)).entries[0].step_time_ms
    long = board_of(make_runs("alltoall", [400], window=5000)).entries[0].step_time_ms
    many = board_of(make_runs("alltoall", [400] * 8)).entries[0].step_time_ms
    assert (step_time_ms.low, step_time_ms.high) == (long.low, long.high)
    assert step_time_ms.low is not None
    assert many.low is not None
    assert step_time_ms.low < many.low < 400


def test_only_the_current_level_of_a_configuration_counts() -> None:
    board = board_of(make_runs("alltoall", [440.0] * 8 + [400.0] * 8))
    assert board.entries[0].runs == tuple(f"alltoall-{i}" for i in range(8, 16))


def test_throughput_is_a_constant_over_the_step_time() -> None:
    entry = board_of(make_runs("alltoall", [400, 404, 408])).entries[0]
    assert entry.tokens_per_s_per_gpu is not None
    work = entry.tokens_per_s_per_gpu.value * entry.step_time_ms.value
    assert work == pytest.approx(1024 * 4096 * 1000 / 16)
    assert entry.step_time_ms.high is not None
    assert entry.tokens_per_s_per_gpu.low == pytest.approx(work / entry.step_time_ms.high)


def test_tflops_of_other_work_must_not_order_the_board() -> None:
    same = [make_run("a", "alltoall", 400, tflops_per_gpu=200.0), make_run("b", "deepep", 320, tflops_per_gpu=250.0)]
    assert not board_of(same).flops_differ
    other = [same[0], make_run("b", "deepep", 320, tflops_per_gpu=260.0)]
    assert board_of(other).flops_differ


@pytest.mark.parametrize(
    ("deepep_ms", "deepep_gib", "sentence_end"),
    [
        (340.0, 67.2, "), but needs 12.0 % more memory."),
        (340.0, 54.0, "), and needs 10.0 % less memory."),
        (480.0, 54.0, "), but needs 10.0 % less memory."),
        (480.0, 67.2, "), and needs 12.0 % more memory."),
        (340.0, 60.01, ")."),
    ],
)
def test_speed_and_memory_are_reported_together(deepep_ms: float, deepep_gib: float, sentence_end: str) -> None:
    runs = [*make_runs("alltoall", [400] * 3), *make_runs("deepep", [deepep_ms] * 3, memory_gib=deepep_gib)]
    entry = board_of(runs).entry("deepep")
    assert entry is not None
    assert entry.gain is not None
    sentence = entry.gain.sentence.replace("\u202f", " ")
    assert sentence.startswith(f"deepep is {'15.0 % faster' if deepep_ms < 400 else '20.0 % slower'} than alltoall")
    assert sentence.endswith(sentence_end)


def test_ranking_by_memory_headroom() -> None:
    runs = [*make_runs("alltoall", [400], memory_gib=60.0), *make_runs("deepep", [340], memory_gib=66.0)]
    board = board_of(runs)
    assert [(place.name, place.text) for place in board.by_memory] == [("alltoall", "1"), ("deepep", "2")]
    assert [entry.memory_headroom_pct for entry in board.entries] == pytest.approx([17.5, 25.0])
    unknown = [*runs[:1], *make_runs("deepep", [340], memory_gib=None)]
    assert board_of(unknown).by_memory == ()


def contract(dispatcher: str, **other: object) -> dict[str, Stated]:
    return {name: Stated(value, "metadata") for name, value in {"dispatcher": dispatcher, **other}.items()}


SCREENED = {"evidence_level": "screen", "window": 20}


@pytest.mark.parametrize(
    ("other", "kind", "differs_in", "level"),
    [
        ({"ep": 16}, "matched_ab", (), "matched_ab"),
        ({"ep": 8}, "side_by_side", ("ep",), "screen"),
        (None, "unknown", (), "screen"),
    ],
)
def test_a_matched_ab_takes_two_results_that_differ_in_the_dispatcher_alone(
    other: dict[str, object] | None, kind: str, differs_in: tuple[str, ...], level: str
) -> None:
    runs = [*make_runs("alltoall", [400], **SCREENED), *make_runs("deepep", [340], **SCREENED)]
    contracts = {"stack alltoall": contract("alltoall", ep=16)}
    if other is not None:
        contracts["stack deepep"] = contract("deepep", **other)
    entry = board_of(runs, contracts=contracts).entry("deepep")
    assert entry is not None
    assert entry.gain is not None
    assert (entry.gain.kind, entry.gain.differs_in, entry.level) == (kind, differs_in, level)
    ranked = [item for item in rank_stack(runs, QUIET, contracts).boards_at("matched_ab") if item.is_ranking]
    assert bool(ranked) == (level == "matched_ab")


def test_short_runs_make_no_matched_ab() -> None:
    short = {"evidence_level": "screen", "window": 8, "short": True}
    runs = [*make_runs("alltoall", [400], **short), *make_runs("deepep", [340], **short)]
    contracts = {"stack alltoall": contract("alltoall"), "stack deepep": contract("deepep")}
    assert {entry.level for entry in board_of(runs, contracts=contracts).entries} == {"screen"}


@pytest.mark.parametrize(
    ("floor", "ranked"),
    [("smoke", {"alltoall", "deepep", "hybridep"}), ("screen", {"alltoall", "deepep"}), ("validated", {"alltoall"})],
)
def test_the_floor_of_evidence_decides_who_is_ranked(floor: str, ranked: set[str]) -> None:
    runs = [
        *make_runs("alltoall", [400, 401]),
        *make_runs("deepep", [340], evidence_level="screen"),
        *make_runs("hybridep", [330], evidence_level="smoke", window=5, short=True),
    ]
    board = board_of(runs, floor)
    assert {entry.dispatcher for entry in board.entries} == ranked
    assert {unranked_result.dispatcher for unranked_result in board.unranked_results} == {
        "alltoall",
        "deepep",
        "hybridep",
    } - ranked
    assert board.below_floor == 3 - len(ranked)


def test_a_result_has_the_level_that_half_of_its_runs_reach() -> None:
    runs = make_runs("alltoall", [400, 401, 402])
    weak = make_runs("alltoall", [400, 401, 402, 403], evidence_level="screen")[3:]
    entry = board_of(runs + weak).entries[0]
    assert (entry.level, entry.validated_runs, len(entry.runs)) == ("validated", 3, 4)


def test_classes_never_meet_even_in_one_stack() -> None:
    runs = [
        make_run("1", "alltoall", 400),
        make_run("2", "deepep", 300, semantic_class="benchmark_only"),
        make_run("3", "hybridep", 200, routing_mode="forced-balance", semantic_class="benchmark_only"),
    ]
    boards = rank_stack(runs).boards_at("screen")
    assert [(board.routing_mode, board.semantic_class, [e.dispatcher for e in board.entries]) for board in boards] == [
        ("dropless", "benchmark_only", ["deepep"]),
        ("dropless", "training_equivalent", ["alltoall"]),
        ("forced-balance", "benchmark_only", ["hybridep"]),
    ]
    assert all(board.reading == "only_measurement" for board in boards)


def test_runs_of_two_stacks_are_refused_together_and_ranked_apart() -> None:
    runs = [make_run("1", stack="a"), make_run("2", "deepep", stack="b")]
    with pytest.raises(ValueError, match="2"):
        rank_stack(runs)
    with pytest.raises(ValueError, match="0"):
        rank_stack([])
    assert list(rank_runs(runs)) == ["a", "b"]


def test_more_runs_that_would_decide_are_counted() -> None:
    board = board_of([*make_runs("alltoall", [405, 405.4]), *make_runs("deepep", [400, 400.4])])
    assert board.comparisons[0].outcome == "undecided"
    assert board.comparisons[0].more_runs is not None
    assert 1 <= board.comparisons[0].more_runs <= 20
    gain = board.entries[0].gain
    assert gain is not None
    assert "of each would decide" in gain.sentence


def test_the_gain_turns_over() -> None:
    comparison = board_of([*make_runs("alltoall", [400]), *make_runs("deepep", [320])]).comparisons[0]
    back = comparison.turned()
    assert (comparison.outcome, back.outcome, back.winner) == ("first", "second", "deepep")
    assert comparison.gain_pct == pytest.approx(25)
    assert back.gain_pct == pytest.approx(-20)
    assert back.low_pct is not None
    assert back.high_pct is not None
    assert back.low_pct < back.gain_pct < back.high_pct
    assert math.isclose(back.turned().gain_pct, comparison.gain_pct)


# --- The basis of a result: number of runs, configuration, loss, and the reason for a tie.


NOISY = Prior(variance=0.015**2, degrees_of_freedom=4)


def test_one_run_validates_nothing_and_its_interval_is_the_familys() -> None:
    board = board_of([*make_runs("alltoall", [400]), *make_runs("deepep", [340, 341])])
    levels = {entry.dispatcher: (entry.level, entry.from_prior) for entry in board.entries}
    assert levels == {"alltoall": ("screen", True), "deepep": ("validated", False)}


def test_a_lucky_single_run_does_not_stand_before_a_configuration_that_ties_with_it() -> None:
    often = make_runs("hybridep", [402, 398, 400, 401], config="usual")
    lucky = make_run("lucky", "hybridep", 397, config="tried once")
    entry = board_of([*make_runs("alltoall", [450, 451]), *often, lucky]).entry("hybridep")
    assert entry is not None
    assert (entry.config_key, len(entry.runs)) == ("usual", 4)
    assert [configuration.config_key for configuration in entry.configurations] == ["usual", "tried once"]


def test_a_single_run_represents_its_dispatcher_if_clearly_faster() -> None:
    often = make_runs("hybridep", [402, 398, 400, 401], config="usual")
    fast = make_run("fast", "hybridep", 300, config="tried once")
    entry = board_of([*make_runs("alltoall", [450, 451]), *often, fast]).entry("hybridep")
    assert entry is not None
    assert entry.config_key == "tried once"


def test_of_tied_well_evidenced_configurations_the_faster_one_represents() -> None:
    more = make_runs("hybridep", [401, 400, 402] * 4, config="more")
    fewer = [
        make_run(f"f{i}", "hybridep", ms, config="fewer", hour=i) for i, ms in enumerate([399, 400, 399, 400, 399])
    ]
    entry = board_of([*more, *fewer]).entry("hybridep")
    assert entry is not None
    assert entry.config_key == "fewer"


@pytest.mark.parametrize(("alltoall_ms", "outcome"), [(1113, "undecided"), (1160, "second")])
def test_the_interval_is_that_of_the_test_that_decides(alltoall_ms: float, outcome: str) -> None:
    """1113 ms are slower with 99.5 % certainty and not with the 99.8 % that an improvement needs."""
    runs = [make_run("a", "alltoall", alltoall_ms), make_run("b", "deepep", 1000)]
    (board,) = rank_stack(runs, NOISY).boards_at("screen")
    (comparison,) = board.comparisons
    seen = comparison if comparison.first == "alltoall" else comparison.turned()
    assert seen.outcome == outcome
    assert seen.low_pct is not None
    assert seen.high_pct is not None
    assert (seen.low_pct < 0 < seen.high_pct) == (outcome == "undecided")
    assert seen.tie_because == ""


def test_a_difference_under_one_percent_says_so() -> None:
    quiet = Prior(variance=0.0005**2, degrees_of_freedom=12, configurations=9)
    runs = [*make_runs("alltoall", [1006] * 4, se=0.0001), *make_runs("deepep", [1000] * 4, se=0.0001)]
    (board,) = rank_stack(runs, quiet).boards_at("screen")
    assert board.comparisons[0].tie
    assert "1 %" in board.comparisons[0].tie_because


def test_an_interval_that_includes_zero_needs_no_further_reason() -> None:
    board = board_of([*make_runs("alltoall", [400, 401]), *make_runs("deepep", [399, 402])])
    assert board.comparisons[0].tie
    assert board.comparisons[0].tie_because == ""


@pytest.mark.parametrize("slower", ["alltoall", "deepep"])
def test_a_faster_dispatcher_with_a_worse_loss_leads_nothing(slower: str) -> None:
    faster = "deepep" if slower == "alltoall" else "alltoall"
    runs = [*make_runs(slower, [400, 401, 402]), *make_runs(faster, [340, 341, 342])]
    board = _with_losses(runs, {slower: 2.0, faster: 2.1})
    assert (board.reading, set(board.leaders)) == ("tie", {slower, faster})
    assert board.comparisons[0].worse_loss == faster
    assert board.comparisons[0].loss_delta_pct == pytest.approx(5)
    assert f"{faster} is faster than {slower}" in board.sentence
    entry = board.entry(faster)
    assert entry is not None
    assert entry.worse_loss_than == (slower,)
    assert _with_losses(runs, {slower: 2.1, faster: 2.0}).reading == "leader"
    assert _with_losses(runs, {slower: 2.0, faster: 2.01}).leaders == (faster,)
    assert _with_losses(runs, {slower: 2.0}).leaders == (faster,)


def _with_losses(runs: list[RankedRun], typical: Mapping[str, float]) -> Board:
    def read(names: Sequence[str]) -> dict[str, Losses]:
        result = {name: typical.get(name.split("-")[0]) for name in names}
        steps = np.arange(1.0, 51.0)
        return {name: Losses(steps, np.full(50, loss)) for name, loss in result.items() if loss is not None}

    (board,) = rank_stack(runs, QUIET, losses=read).boards_at("screen")
    return board


def test_expert_parallelism_stated_by_one_run_applies_to_the_others_of_its_stack() -> None:
    failed = make_run("f", None, 0.0, requested="deepep", outcome="failed", missing=("deepep",), ep=None, window=0)
    standings = rank_stack([failed, make_run("a", "alltoall", 400, ep=16)], QUIET)
    assert standings.missing[0].ep == 16
    (summary,) = across([standings])
    assert {group.ep_size for group in summary.groups} == {"medium"}
    several = [make_run("a", "alltoall", ep=16), make_run("b", "hybridep", ep=8, hour=1), failed]
    assert rank_stack(several, QUIET).missing[0].ep is None


def test_a_direction_without_a_rival_is_counted_as_one() -> None:
    short = make_run("a", "alltoall", 400, short=True, window=8, evidence_level="screen")
    (summary,) = across([rank_stack([short], QUIET)])
    (tally,) = summary.overall.tallies
    assert (tally.directional, tally.alone) == (1, 0)


def test_a_result_whose_dispatcher_is_only_inferred_says_so() -> None:
    runs = [make_run("a", "deepep", 340, inferred=True), make_run("b", "alltoall", 400)]
    board = board_of(runs)
    assert {entry.dispatcher: entry.inferred for entry in board.entries} == {"deepep": True, "alltoall": False}
    proven = make_run("c", "deepep", 341, hour=1)
    entry = board_of([*runs, proven]).entry("deepep")
    assert entry is not None
    assert not entry.inferred


# --- The measurements of the founding documents, interpreted only as far as those documents allow.


SHORT: dict[str, Any] = {"short": True, "semantic_class": "benchmark_only", "routing_mode": "dropless"}


def only_board(runs: list[RankedRun], floor: str) -> Board:
    boards = rank_stack(runs).boards_at(floor)
    assert len(boards) == 1
    return boards[0]


def smoke_of_dispatchers() -> list[RankedRun]:
    """2026-05-17: alltoall did five steps of 45.65 s; DeepEP and HybridEP failed before the first, not installed."""
    failed: dict[str, Any] = {"outcome": "failed", "step_time_ms": 0.0, "window": 0, "evidence_level": "smoke"}
    return [
        make_run("1", "alltoall", 45_650, window=4, is_steady=False, evidence_level="smoke", **SHORT),
        make_run("2", None, requested="deepep", missing=("deepep",), **failed, **SHORT),
        make_run("3", None, requested="hybridep", missing=("hybridep",), **failed, **SHORT),
    ]


def test_the_fallback_is_the_only_measurement_and_not_a_ranking() -> None:
    for floor in ("smoke", "screen"):
        board = only_board(smoke_of_dispatchers(), floor)
        assert board.reading == "only_measurement"
        assert not board.is_ranking
        assert board.leaders == ()
        assert board.entries == ()
        assert [(unranked_result.dispatcher, unranked_result.run) for unranked_result in board.unranked_results] == [
            ("alltoall", "1")
        ]
        assert "only 4 steady iterations" in board.sentence


def test_a_failed_import_is_a_fact_about_the_container() -> None:
    standings = rank_stack(smoke_of_dispatchers())
    assert [(item.dispatcher, item.runs) for item in standings.missing] == [("deepep", ("2",)), ("hybridep", ("3",))]
    failed = [item for item in standings.refused if item.why == "import_failed"]
    assert [(item.run, item.dispatcher, item.step_time_ms) for item in failed] == [
        ("3", "hybridep", None),
        ("2", "deepep", None),
    ]


def overlap() -> list[RankedRun]:
    """2026-05-18: alltoall, iterations 3 to 8: without overlap, with it, and with delayed weight gradients as well."""
    screen: dict[str, Any] = {"window": 6, "evidence_level": "screen", **SHORT}
    return [
        make_run("1", "alltoall", 41_250, config="none", **screen),
        make_run("2", "alltoall", 31_310, config="overlap", **screen),
        make_run("3", "alltoall", 31_200, config="overlap and delayed wgrad", **screen),
    ]


def test_the_overlap_case_is_directional_and_ranks_no_dispatcher() -> None:
    board = only_board(overlap(), "screen")
    assert board.reading == "only_measurement"
    assert board.entries[0].place is None
    assert (board.is_ranking, board.entries[0].directional) == (False, True)


def test_overlap_helps_and_delayed_weight_gradients_are_not_a_separate_win() -> None:
    best, second, third = only_board(overlap(), "screen").entries[0].configurations
    assert best.config_key == "overlap and delayed wgrad"
    assert second.comparison is not None
    assert (second.config_key, second.comparison.tie) == ("overlap", True)
    assert third.comparison is not None
    assert (third.config_key, third.comparison.outcome, third.comparison.directional) == ("none", "second", True)
    assert round(third.comparison.turned().gain_pct, 1) == 32.2


def test_a_slow_success_never_wins_over_a_failed_import() -> None:
    runs = [
        *overlap(),
        make_run("9", None, 0.0, requested="deepep", missing=("deepep",), outcome="failed", window=0, **SHORT),
    ]
    board = only_board(runs, "screen")
    assert board.leaders == ()
    assert "deepep could not run" in board.sentence


# --- A change of the stack's code between runs of two dispatchers is no difference between the dispatchers.


FAST, SLOW = [21_000.0, 21_040.0, 20_960.0], [22_300.0, 22_340.0, 22_280.0]
MATCHED = {f"stack {name}": contract(name) for name in ("alltoall", "hybridep", "deepep")}


def nights(dispatcher: str, times: Sequence[float], first: int = 0) -> list[RankedRun]:
    return [make_run(f"{dispatcher}-{day}", dispatcher, ms, hour=24 * day) for day, ms in enumerate(times, start=first)]


def board_of_segments(runs: list[RankedRun], floor: str = "screen") -> Board:
    (board,) = rank_stack(runs, QUIET, MATCHED).boards_at(floor)
    return board


def nightly(slow_down: int = 1, repaired: int = 1) -> list[RankedRun]:
    """HybridEP every night: four weeks at 21.0 s, then that many nights three times slower, then as before."""
    return nights("hybridep", FAST * 4 + SLOW * slow_down + FAST * repaired)


def test_an_ab_counts_on_the_code_that_both_ran() -> None:
    """The alltoall run of one night is compared with nights of the same code, whatever happened to the code later."""
    runs = [*nightly(), make_run("ab", "alltoall", 23_615, hour=24 * 10)]
    board = board_of_segments(runs)
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
    assert {item.why.partition(":")[0] for item in hybridep.left_out} == {"in another segment"}


def test_a_change_of_the_code_does_not_change_the_leader() -> None:
    ab = make_run("ab", "alltoall", 22_150, hour=24 * 10)
    history = nightly()
    heads = {heads_of(rank_stack([*history[:count], ab], QUIET, MATCHED)) for count in range(8, len(history) + 1)}
    assert {head.dispatchers for head in next(iter(heads))} == {("hybridep",)}
    assert len(heads) == 1


def test_dispatchers_on_other_code_are_listed_outside_the_board() -> None:
    """Alltoall and DeepEP run today's code; allgather ran with alltoall before a slowdown, never with DeepEP."""
    alltoall, deepep = nights("alltoall", [23_600.0] * 3 + [25_100.0] * 3), nights("deepep", FAST, first=4)
    board = board_of_segments([*alltoall, *deepep, *nights("allgather", [30_000.0])])
    assert {entry.dispatcher for entry in board.entries} == {"alltoall", "deepep"}
    (outside,) = board.outside
    assert (outside.dispatcher, outside.changes, outside.before) == ("allgather", 1, True)
    assert (outside.beaten_by, outside.never_met) == (("alltoall",), ("deepep",))
    assert board.reading == "not_compared"
    assert board.leaders == ("deepep",)
    assert "6 days" in board.sentence


def test_a_leader_keeps_its_wins_on_older_code() -> None:
    runs = [
        *nights("hybridep", [*FAST, *SLOW]),
        *nights("alltoall", [23_600.0] * 2),
        *nights("deepep", [25_000.0] * 2, 3),
    ]
    board = board_of_segments(runs)
    assert [item.beaten_by for item in board.outside] == [("hybridep",)]
    assert (board.reading, board.leaders) == ("leader", ("hybridep",))


def test_two_dispatchers_that_never_ran_the_same_code_are_not_ranked() -> None:
    runs = [make_run("ab", "alltoall", 23_615, hour=24 * 2), *nights("hybridep", [*SLOW, *FAST], first=3)]
    # Alltoall ran before the slow nights. Whether on their code or the earlier code is unknown, so it counts to their
    # side.
    assert board_of_segments(runs).reading == "leader"
    between = [*nights("hybridep", SLOW), make_run("ab", "alltoall", 23_615, hour=24 * 3), *nights("hybridep", FAST, 4)]
    board = board_of_segments(between)
    assert (board.reading, board.is_ranking, board.leaders) == ("not_compared", False, ())
    assert [entry.dispatcher for entry in board.entries] == ["hybridep"]
    assert [(item.dispatcher, item.runs, item.never_met) for item in board.outside] == [
        ("alltoall", ("ab",), ("hybridep",))
    ]
    assert board.entries[0].level == "validated"
    assert board.entries[0].gain is None
    assert "3 days" in board.sentence
    assert board_of_segments(between, "matched_ab").reading in ("not_compared", "only_measurement")


def test_runs_of_one_commit_are_on_one_side_of_a_change() -> None:
    """The A/B of the last fast commit arrived after its nightly run."""
    history = nights("hybridep", [*FAST, *SLOW])
    ab = make_run("z", "alltoall", 23_615, hour=24 * 2)
    stretches = Segments(sorted([*history, ab], key=lambda run: run.history_position), QUIET)
    assert stretches.number(ab) == stretches.number(history[2]) == 0
    assert stretches.number(history[3]) == 2


def test_changes_that_may_be_one_are_one() -> None:
    """Two configurations have the same slowdown, one of them runs only every third night."""
    daily = nights("hybridep", FAST * 2 + SLOW * 2)
    rare = [make_run(f"d{day}", "deepep", 21_500 if day < 6 else 23_000, hour=24 * day) for day in range(0, 18, 3)]
    stretches = Segments(sorted([*daily, *rare], key=lambda run: run.history_position), QUIET)
    assert len(stretches.changes) == 1
    assert {stretches.number(run) for run in (*daily, *rare)} == {0, 2}
    assert stretches.changes_between(0, 2) == 1


def test_short_runs_that_count_in_full_make_a_level() -> None:
    """Validated runs with a short window, which a verdict's baseline would exclude."""
    times = [400.0, 401, 402, 399, 300, 301, 302, 299]
    runs = make_runs("alltoall", times, short=True, window=12)
    assert not any(run.directional for run in runs)
    assert len(Segments(runs, DEFAULT_PRIOR).changes) == 1
