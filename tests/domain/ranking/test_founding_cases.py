"""The founding documents' measurements, read as those documents say they may be read, and no further."""

from typing import Any

from app.domain.ranking.rank import rank_stack
from app.domain.ranking.runs import RankedRun
from app.domain.ranking.standings import Board
from tests.domain.ranking.runs import make_run

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
        assert [(one.dispatcher, one.run) for one in board.glimpses] == [("alltoall", "1")]
        assert board.sentence == (
            "alltoall is the only measured fallback of this stack. This is not a ranking. Its run is not "
            "eligible: only 4 steady iterations, 5 are needed. deepep and hybridep could not run because the packages "
            "are not in the container. This says nothing about their speed."
        )


def test_a_failed_import_is_a_fact_about_the_container() -> None:
    standings = rank_stack(smoke_of_dispatchers())
    assert [(one.dispatcher, one.runs) for one in standings.missing] == [("deepep", ("2",)), ("hybridep", ("3",))]
    failed = [one for one in standings.refused if one.why == "import_failed"]
    assert [(one.run, one.dispatcher, one.step_time_ms) for one in failed] == [
        ("3", "hybridep", None),
        ("2", "deepep", None),
    ]


def overlap() -> list[RankedRun]:
    """2026-05-18: alltoall, iterations 3 to 8: without overlap, with it, and with delayed weight gradients, too."""
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
    assert board.sentence == (
        "alltoall is the only measured dispatcher of this stack. This is not a ranking. Direction only: its "
        "runs are too short to show whether warm-up was over."
    )


def test_overlap_helps_and_delayed_weight_gradients_are_not_a_separate_win() -> None:
    best, second, third = only_board(overlap(), "screen").entries[0].configurations
    assert best.config_key == "overlap and delayed wgrad"
    assert second.duel is not None
    assert (second.config_key, second.duel.tie) == ("overlap", True)
    assert third.duel is not None
    assert (third.config_key, third.duel.outcome, third.duel.directional) == ("none", "second", True)
    assert round(third.duel.turned().gain_pct, 1) == 32.2


def test_a_slow_success_never_wins_over_a_failed_import() -> None:
    runs = [
        *overlap(),
        make_run("9", None, 0.0, requested="deepep", missing=("deepep",), outcome="failed", window=0, **SHORT),
    ]
    board = only_board(runs, "screen")
    assert board.leaders == ()
    assert "deepep could not run" in board.sentence
