"""Counts and ranges over stacks; nothing is averaged."""

import pytest

from app.domain.ranking.across import ClassSummary, Tally, across
from app.domain.ranking.rank import rank_runs
from app.domain.ranking.runs import RankedRun, ep_size
from app.domain.verdict.step_time import Prior
from tests.domain.ranking.runs import make_run, make_runs

QUIET = Prior(variance=0.003**2, degrees_of_freedom=4, configurations=9)


def summary(runs: list[RankedRun]) -> ClassSummary:
    found = across(rank_runs(runs, QUIET).values(), "screen")
    assert len(found) == 1
    return found[0]


def stack(name: str, alltoall: float, deepep: float, **other: object) -> list[RankedRun]:
    return [
        make_run(f"{name}1", "alltoall", alltoall, stack=name, **other),  # type: ignore[arg-type]
        make_run(f"{name}2", "deepep", deepep, stack=name, **other),  # type: ignore[arg-type]
    ]


def tally(one: ClassSummary, dispatcher: str) -> Tally:
    return next(row for row in one.overall.tallies if row.dispatcher == dispatcher)


def test_won_tied_lost_and_the_range_of_gains() -> None:
    runs = [*stack("a", 400, 320), *stack("b", 8000, 7900), *stack("c", 100, 130)]
    found = summary(runs)
    deepep, alltoall = tally(found, "deepep"), tally(found, "alltoall")
    assert (deepep.won, deepep.tied, deepep.lost) == (1, 1, 1)
    assert (alltoall.won, alltoall.tied, alltoall.lost) == (1, 1, 1)
    assert alltoall.gain is None
    assert deepep.gain is not None
    assert (deepep.gain.lowest_stack, deepep.gain.highest_stack, deepep.gain.stacks) == ("c", "a", 3)
    assert deepep.gain.lowest_pct == pytest.approx(100 * (100 / 130 - 1))
    assert deepep.gain.highest_pct == pytest.approx(25)
    assert (found.stacks, found.rankings) == (3, 3)


def test_could_not_run_alone_and_directional_are_counted_apart() -> None:
    short = {"short": True, "window": 8, "evidence_level": "screen"}
    failed = make_run("x", None, 0.0, stack="a", requested="deepep", missing=("deepep",), outcome="failed", window=0)
    runs = [make_run("a1", "alltoall", stack="a"), failed, *stack("b", 400, 300, **short)]
    found = summary(runs)
    deepep, alltoall = tally(found, "deepep"), tally(found, "alltoall")
    assert (deepep.could_not_run, deepep.directional, deepep.won, deepep.lost) == (1, 1, 0, 0)
    assert (alltoall.alone, alltoall.directional, alltoall.lost) == (1, 1, 0)
    assert deepep.gain is None
    assert (found.stacks, found.rankings) == (2, 1)


def test_a_win_over_short_runs_alone_is_directional() -> None:
    quick = make_run("q", "deepep", 500, short=True, window=8, evidence_level="screen")
    found = summary([make_run("1", "alltoall", 400), quick])
    assert tally(found, "alltoall").directional == 1
    assert tally(found, "deepep").directional == 1


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
    assert [one.stacks for one in across(rank_runs(runs, QUIET).values(), "screen")] == [1, 1, 1, 1]


def test_each_stack_counts_once() -> None:
    runs = [*stack("a", 400, 320), *make_runs("hybridep", [330, 331], stack="a")]
    for row in summary(runs).overall.tallies:
        assert row.won + row.tied + row.lost + row.directional + row.alone + row.could_not_run == len(row.stacks) == 1
