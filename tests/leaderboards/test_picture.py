"""The sentence above the picture of a ranking."""

import pytest

from app.domain.ranking.rank import rank_stack
from app.domain.ranking.standings import Board
from app.domain.verdict.step_time import Prior
from app.leaderboards.picture import lead_sentence
from tests.domain.ranking.runs import make_runs

QUIET = Prior(variance=0.003**2, degrees_of_freedom=4, configurations=9)


def board_of(**times: float) -> Board:
    runs = [run for dispatcher, time in times.items() for run in make_runs(dispatcher, [time] * 3)]
    (board,) = rank_stack(runs, QUIET).boards_at("screen")
    return board


@pytest.mark.parametrize(
    ("hybridep", "alltoall", "sentence"),
    [
        (404, 408, "deepep and hybridep tie, deepep 2.0 % faster than alltoall: 400.0 ms per step"),
        (
            401,
            500,
            "deepep and hybridep tie, deepep 20.0 % and hybridep 19.8 % faster than alltoall: 400.0 ms per step",
        ),
        (401, 402, "deepep, hybridep and alltoall tie: 400.0 ms per step"),
    ],
)
def test_of_tied_leaders_only_those_that_beat_alltoall_claim_a_gain(
    hybridep: float, alltoall: float, sentence: str
) -> None:
    board = board_of(deepep=400, hybridep=hybridep, alltoall=alltoall)
    assert board.reading == "tie"
    assert lead_sentence(board).replace("\u202f", " ").replace("\xa0", " ") == sentence
