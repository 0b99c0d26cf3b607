"""What a result rests on: how many runs, which configuration, whose loss, and why two of them tie."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from app.domain.ranking.across import across
from app.domain.ranking.rank import rank_stack
from app.domain.ranking.runs import RankedRun
from app.domain.ranking.standings import Board
from app.domain.verdict.record import Losses
from app.domain.verdict.step_time import Prior
from tests.domain.ranking.runs import make_run, make_runs
from tests.domain.ranking.test_boards import QUIET, board_of

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
    assert [one.config_key for one in entry.configurations] == ["usual", "tried once"]


def test_a_single_run_stands_where_it_is_clearly_faster() -> None:
    often = make_runs("hybridep", [402, 398, 400, 401], config="usual")
    fast = make_run("fast", "hybridep", 300, config="tried once")
    entry = board_of([*make_runs("alltoall", [450, 451]), *often, fast]).entry("hybridep")
    assert entry is not None
    assert entry.config_key == "tried once"


def test_of_well_evidenced_configurations_that_tie_the_faster_one_stands() -> None:
    more = make_runs("hybridep", [401, 400, 402] * 4, config="more")
    fewer = [
        make_run(f"f{i}", "hybridep", ms, config="fewer", hour=i) for i, ms in enumerate([399, 400, 399, 400, 399])
    ]
    entry = board_of([*more, *fewer]).entry("hybridep")
    assert entry is not None
    assert entry.config_key == "fewer"


def test_a_tie_beyond_its_interval_names_the_rule() -> None:
    """Sure to 99.5 % and not to 99.8 %: the interval leaves zero out, and it is a tie."""
    runs = [make_run("a", "alltoall", 1113), make_run("b", "deepep", 1000)]
    (board,) = rank_stack(runs, NOISY).boards_at("screen")
    (duel,) = board.duels
    assert duel.tie
    assert duel.low_pct is not None
    assert duel.decides_low_pct is not None
    assert duel.decides_low_pct < 0 < duel.low_pct
    assert duel.tie_because.startswith("an improvement needs 99.8 % certainty, at which the gain is")
    gain = board.entries[0].gain
    assert gain is not None
    assert "needs 99.8 % certainty" in gain.sentence


def test_a_difference_under_one_percent_says_so() -> None:
    quiet = Prior(variance=0.0005**2, degrees_of_freedom=12, configurations=9)
    runs = [*make_runs("alltoall", [1006] * 4, se=0.0001), *make_runs("deepep", [1000] * 4, se=0.0001)]
    (board,) = rank_stack(runs, quiet).boards_at("screen")
    assert board.duels[0].tie
    assert board.duels[0].tie_because == "differences under 1 % do not count, however certain they are"


def test_an_interval_that_holds_zero_needs_no_further_reason() -> None:
    board = board_of([*make_runs("alltoall", [400, 401]), *make_runs("deepep", [399, 402])])
    assert board.duels[0].tie
    assert board.duels[0].tie_because == ""


@pytest.mark.parametrize("slower", ["alltoall", "deepep"])
def test_a_faster_dispatcher_with_a_worse_loss_leads_nothing(slower: str) -> None:
    faster = "deepep" if slower == "alltoall" else "alltoall"
    runs = [*make_runs(slower, [400, 401, 402]), *make_runs(faster, [340, 341, 342])]
    board = _with_losses(runs, {slower: 2.0, faster: 2.1})
    assert (board.reading, set(board.leaders)) == ("tie", {slower, faster})
    assert board.duels[0].worse_loss == faster
    assert board.duels[0].loss_delta_pct == pytest.approx(5)
    assert f"{faster} is faster than {slower}, but its loss is 5.0" in board.sentence
    entry = board.entry(faster)
    assert entry is not None
    assert entry.worse_loss_than == (slower,)
    assert _with_losses(runs, {slower: 2.1, faster: 2.0}).reading == "leader"
    assert _with_losses(runs, {slower: 2.0, faster: 2.01}).leaders == (faster,)
    assert _with_losses(runs, {slower: 2.0}).leaders == (faster,)


def _with_losses(runs: list[RankedRun], typical: Mapping[str, float]) -> Board:
    def read(names: Sequence[str]) -> dict[str, Losses]:
        found = {name: typical.get(name.split("-")[0]) for name in names}
        steps = np.arange(1.0, 51.0)
        return {name: Losses(steps, np.full(50, loss)) for name, loss in found.items() if loss is not None}

    (board,) = rank_stack(runs, QUIET, losses=read).boards_at("screen")
    return board


def test_what_one_run_of_a_stack_states_of_expert_parallelism_holds_for_the_others() -> None:
    failed = make_run("f", None, 0.0, requested="deepep", outcome="failed", missing=("deepep",), ep=None, window=0)
    standings = rank_stack([failed, make_run("a", "alltoall", 400, ep=16)], QUIET)
    assert standings.missing[0].ep == 16
    (summary,) = across([standings], "screen")
    assert {group.ep_size for group in summary.groups} == {"medium"}
    several = [make_run("a", "alltoall", ep=16), make_run("b", "hybridep", ep=8, hour=1), failed]
    assert rank_stack(several, QUIET).missing[0].ep is None


def test_a_direction_without_a_rival_is_counted_as_one() -> None:
    short = make_run("a", "alltoall", 400, short=True, window=8, evidence_level="screen")
    (summary,) = across([rank_stack([short], QUIET)], "screen")
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
