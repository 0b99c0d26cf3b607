"""Who leads, who ties, what is only directional; gains, memory and evidence of one board."""

import math

import pytest

from app.domain.ranking.rank import rank_runs, rank_stack
from app.domain.ranking.runs import RankedRun
from app.domain.ranking.standings import Board
from app.domain.run import Stated
from app.domain.verdict.step_time import Prior
from tests.domain.ranking.runs import make_run, make_runs

QUIET = Prior(variance=0.003**2, degrees_of_freedom=4, configurations=9)


def board_of(runs: list[RankedRun], floor: str = "screen", **other: object) -> Board:
    boards = rank_stack(runs, QUIET, **other).boards_at(floor)  # type: ignore[arg-type]
    assert len(boards) == 1
    return boards[0]


def places_of(board: Board) -> dict[str, str]:
    return {entry.dispatcher: entry.place.text for entry in board.entries if entry.place}


def test_a_clear_winner_leads() -> None:
    board = board_of([*make_runs("alltoall", [400, 401, 402]), *make_runs("deepep", [340, 341, 342])])
    assert (board.reading, board.leaders) == ("leader", ("deepep",))
    assert places_of(board) == {"deepep": "1", "alltoall": "2"}
    assert board.sentence == "deepep is faster than alltoall, beyond run-to-run variation."
    gain = board.entries[0].gain
    assert gain is not None
    assert gain.duel.gain_pct == pytest.approx(100 * (401 / 341 - 1), abs=0.01)
    assert gain.duel.low_pct is not None
    assert gain.duel.high_pct is not None
    assert gain.duel.low_pct < gain.duel.gain_pct < gain.duel.high_pct


@pytest.mark.parametrize(
    ("deepep", "outcome", "text"),
    [
        ([400, 401, 402], "equal", "are equally fast, within 2 %"),
        ([389, 395, 402], "undecided", "cannot be told apart yet"),
    ],
)
def test_ties_are_ties(deepep: list[float], outcome: str, text: str) -> None:
    board = board_of([*make_runs("alltoall", [400, 401, 402]), *make_runs("deepep", deepep)])
    assert board.reading == "tie"
    assert set(board.leaders) == {"alltoall", "deepep"}
    assert places_of(board) == {"alltoall": "1–2", "deepep": "1–2"}
    (duel,) = board.duels
    assert duel.outcome == outcome
    assert text in board.sentence
    if outcome == "equal":  # the interval that is told is the one that says so
        assert duel.decides_low_pct is not None
        assert duel.decides_high_pct is not None
        assert -2.03 < duel.decides_low_pct < duel.decides_high_pct < 2.03
        assert "by two one-sided tests" in board.sentence


def test_each_dispatcher_that_was_seen_has_a_row() -> None:
    runs = [
        *make_runs("alltoall", [400, 401, 402]),
        make_run("5", "deepep", 300, not_finite=3, hour=5),
        make_run("6", "hybridep", 300, quarantined="bad node", hour=6),
    ]
    board = board_of(runs)
    assert [(one.dispatcher, one.run, one.why) for one in board.unranked] == [
        ("deepep", "5", "not_finite"),
        ("hybridep", "6", "quarantined"),
    ]
    assert "alltoall is the only dispatcher of this stack with a result" in board.sentence
    assert "deepep and hybridep ran, but without a run that is eligible here" in board.sentence


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
    assert board.sentence.startswith("Direction only: the runs of deepep and alltoall are too short")
    assert all(entry.directional for entry in board.entries)


def test_a_short_run_counts_only_where_there_is_no_longer_one() -> None:
    short = make_run("quick", "alltoall", 300, short=True, window=8, evidence_level="screen", hour=9)
    board = board_of([*make_runs("alltoall", [400, 401]), short, *make_runs("deepep", [390, 391])])
    entry = board.entry("alltoall")
    assert entry is not None
    assert (entry.runs, entry.directional) == (("alltoall-0", "alltoall-1"), False)
    assert [(one.run, one.why) for one in entry.left_out] == [
        ("quick", "short, while this configuration has longer runs")
    ]


def test_a_short_configuration_never_stands_before_a_full_one() -> None:
    quick = make_run("quick", "alltoall", 300, config="quick", short=True, window=8, evidence_level="screen")
    board = board_of([*make_runs("alltoall", [400, 401]), quick, *make_runs("deepep", [390, 391])])
    entry = board.entry("alltoall")
    assert entry is not None
    assert [one.config_key for one in entry.configurations] == ["stack alltoall", "quick"]
    assert board.reading != "directional"


def test_a_declared_window_after_fifty_steps_counts_in_full() -> None:
    runs = make_runs("alltoall", [400], short=True, window=10) + make_runs("deepep", [340], short=True, window=10)
    assert board_of(runs).reading == "leader"


def test_the_best_configuration_stands_for_its_dispatcher() -> None:
    slow, fast = make_run("a", "deepep", 380, config="sms 20"), make_run("b", "deepep", 340, config="sms 32")
    board = board_of([*make_runs("alltoall", [400]), slow, fast])
    entry = board.entry("deepep")
    assert entry is not None
    assert (entry.config_key, entry.runs) == ("sms 32", ("b",))
    assert [one.config_key for one in entry.configurations] == ["sms 32", "sms 20"]
    assert entry.configurations[1].duel is not None
    assert entry.configurations[1].duel.winner == "sms 32"


def test_the_run_is_the_sample() -> None:
    """More iterations do not narrow the interval of a result; more runs do."""
    one = board_of(make_runs("alltoall", [400], window=50)).entries[0].step_time_ms
    long = board_of(make_runs("alltoall", [400], window=5000)).entries[0].step_time_ms
    many = board_of(make_runs("alltoall", [400] * 8)).entries[0].step_time_ms
    assert (one.low, one.high) == (long.low, long.high)
    assert one.low is not None
    assert many.low is not None
    assert one.low < many.low < 400


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
        (340.0, 67.2, "%), but needs 12.0 % more memory."),
        (340.0, 54.0, "%), and needs 10.0 % less memory."),
        (480.0, 54.0, "%), but needs 10.0 % less memory."),
        (480.0, 67.2, "%), and needs 12.0 % more memory."),
        (340.0, 60.01, "%)."),
    ],
)
def test_speed_and_memory_are_told_together(deepep_ms: float, deepep_gib: float, sentence_end: str) -> None:
    runs = [*make_runs("alltoall", [400] * 3), *make_runs("deepep", [deepep_ms] * 3, memory_gib=deepep_gib)]
    entry = board_of(runs).entry("deepep")
    assert entry is not None
    assert entry.gain is not None
    sentence = entry.gain.sentence.replace("\u202f", " ")
    assert sentence.startswith(
        f"deepep has {17.6 if deepep_ms < 400 else 16.7} % {'more' if deepep_ms < 400 else 'less'}"
    )
    assert sentence.endswith(sentence_end)


def test_ranking_by_memory_headroom() -> None:
    runs = [*make_runs("alltoall", [400], memory_gib=60.0), *make_runs("deepep", [340], memory_gib=66.0)]
    board = board_of(runs)
    assert [(place.name, place.text) for place in board.by_memory] == [("alltoall", "1"), ("deepep", "2")]
    assert [entry.memory_headroom_pct for entry in board.entries] == pytest.approx([17.5, 25.0])
    unknown = [*runs[:1], *make_runs("deepep", [340], memory_gib=None)]
    assert board_of(unknown).by_memory == ()


def contract(dispatcher: str, **other: object) -> dict[str, Stated]:
    return {name: Stated(value, "metadata") for name, value in {"dispatcher": dispatcher, **other}.items()}  # type: ignore[arg-type]


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
    ranked = [one for one in rank_stack(runs, QUIET, contracts).boards_at("matched_ab") if one.is_ranking]
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
    assert {one.dispatcher for one in board.glimpses} == {"alltoall", "deepep", "hybridep"} - ranked
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
    assert [(one.routing_mode, one.semantic_class, [e.dispatcher for e in one.entries]) for one in boards] == [
        ("dropless", "benchmark_only", ["deepep"]),
        ("dropless", "training_equivalent", ["alltoall"]),
        ("forced-balance", "benchmark_only", ["hybridep"]),
    ]
    assert all(one.reading == "only_measurement" for one in boards)


def test_runs_of_two_stacks_are_refused_together_and_ranked_apart() -> None:
    runs = [make_run("1", stack="a"), make_run("2", "deepep", stack="b")]
    with pytest.raises(ValueError, match="2"):
        rank_stack(runs)
    with pytest.raises(ValueError, match="0"):
        rank_stack([])
    assert list(rank_runs(runs)) == ["a", "b"]


def test_more_runs_that_would_decide_are_counted() -> None:
    board = board_of([*make_runs("alltoall", [405, 405.4]), *make_runs("deepep", [400, 400.4])])
    assert board.duels[0].outcome == "undecided"
    assert board.duels[0].more_runs is not None
    assert 1 <= board.duels[0].more_runs <= 20
    gain = board.entries[0].gain
    assert gain is not None
    assert "of each would decide" in gain.sentence


def test_the_gain_turns_over() -> None:
    duel = board_of([*make_runs("alltoall", [400]), *make_runs("deepep", [320])]).duels[0]
    back = duel.turned()
    assert (duel.outcome, back.outcome, back.winner) == ("first", "second", "deepep")
    assert duel.gain_pct == pytest.approx(25)
    assert back.gain_pct == pytest.approx(-20)
    assert back.low_pct is not None
    assert back.high_pct is not None
    assert back.low_pct < back.gain_pct < back.high_pct
    assert math.isclose(back.turned().gain_pct, duel.gain_pct)
