"""What may be said of two sides, as tables: kind, winner, and the sentences that a person reads."""

from dataclasses import replace
from types import EllipsisType

import numpy as np
import pytest

from app.domain.performance.steady_state import steady_state
from app.domain.run import Value
from app.domain.verdict.comparison import (
    SideComparison,
    compare_sides,
    density,
    distribution,
    paid_with,
    window_step_times,
)
from app.domain.verdict.comparison_words import comparison_text
from app.domain.verdict.record import RunRecord
from app.domain.verdict.step_time import Prior
from tests.builders import WARM_UP, step_times
from tests.domain.verdict.matching_runs import make_record

QUIET = Prior(variance=0.003**2, degrees_of_freedom=8, configurations=9)
"""Launches of this family vary by 0.3 %, so that 5 % is a difference."""

Fields = dict[str, Value | EllipsisType]


def one(run: str, fields: Fields | None = None, **other: object) -> RunRecord:
    return make_record(run, fields, **({"commit": "0f3c2a9d"} | other))  # type: ignore[arg-type]


def compared(a: RunRecord | list[RunRecord], b: RunRecord | list[RunRecord]) -> SideComparison:
    sides = [side if isinstance(side, list) else [side] for side in (a, b)]
    return compare_sides(*sides, QUIET)


def of(run: RunRecord, **changes: object) -> RunRecord:
    """The run with another estimate."""
    return replace(run, estimate=replace(run.estimate, **changes))


@pytest.mark.parametrize(
    ("fields", "slower", "kind", "winner", "attributed_to"),
    [
        ({}, 0.05, "verdict", "a", None),
        ({}, -0.05, "verdict", "b", None),
        ({}, 0.002, "verdict", "", None),
        ({"ep_overlap": False}, -0.2, "matched_ab", "b", "ep_overlap"),
        ({"ep_overlap": False, "tp": 4}, -0.2, "side_by_side", "b", None),
        ({"container": "train:2026.10"}, 0.2, "contrast", "", "container"),
        ({"container": "train:2026.10", "ep_overlap": False}, 0.2, "contrast", "", None),
        ({"routing_mode": "forced-balance"}, -0.2, "contrast", "", "routing_mode"),
        ({"container": "train:2026.10", "gpus": 16}, 0.2, "incomparable", "", None),
        ({"container": ...}, 0.2, "incomparable", "", None),
        ({"ep_overlap": ...}, 0.2, "side_by_side", "a", None),
    ],
)
def test_the_contract_decides_what_may_be_said(
    fields: Fields, slower: float, kind: str, winner: str, attributed_to: str | None
) -> None:
    found = compared(one("1"), one("2", fields, slower=slower))
    assert (found.kind, found.winner, found.attributed_to) == (kind, winner, attributed_to)
    assert (found.measured is None) == (kind == "incomparable")


@pytest.mark.parametrize("slower", [-0.2, 0.2])
def test_turned_around_the_other_side_wins(slower: float) -> None:
    a, b = one("1"), one("2", {"ep_overlap": False}, slower=slower)
    assert {compared(a, b).winner, compared(b, a).winner} == {"a", "b"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"outcome": "out_of_memory"}, "#2 failed (the job ran out of memory)"),
        ({"outcome": "truncated"}, "#2 did not finish: its log ends before the training does."),
        ({"quarantined": "a node was hot"}, "#2 is quarantined: a node was hot"),
        ({"definition_version": 2}, "different versions of the definitions"),
        ({"fair_for_timing": False}, "Only some of the runs were slowed down by timer barriers."),
    ],
)
def test_no_winner_is_named_and_the_sentence_says_why(changes: dict[str, object], says: str) -> None:
    found = compared(one("1"), one("2", slower=0.2, **changes))
    assert found.winner == ""
    assert any(says in reason for reason in found.no_winner), found.no_winner
    assert comparison_text(found).result.startswith("No winner: ")


def test_forced_balance_against_natural_routing_is_said_in_these_words() -> None:
    found = compared(one("1", {"routing_mode": "forced-balance"}), one("2"))
    assert comparison_text(found).result.startswith("No winner: forced balance against natural routing: A balances")


def test_made_up_data_promise_nothing_for_training() -> None:
    b = replace(one("2", slower=-0.2), semantic_class="benchmark_only")
    assert comparison_text(compared(one("1"), b)).result.startswith("No winner: B is benchmark only")


def test_what_is_paid_with_memory_or_loss_is_no_win() -> None:
    a, b = of(one("1"), peak_memory_bytes=60e9, loss=2.0), one("2", slower=-0.1)
    assert compared(a, of(b, peak_memory_bytes=60e9, loss=2.0)).winner == "b"
    heavy, dull = of(b, peak_memory_bytes=66e9, loss=2.0), of(b, peak_memory_bytes=60e9, loss=2.2)
    assert "it needs 10.0\u202f% more memory" in comparison_text(compared(a, heavy)).result
    assert "its loss is 10.0\u202f% worse" in comparison_text(compared(a, dull)).result
    assert paid_with(compared(a, of(b, peak_memory_bytes=60e9, loss=2.0)).measured) == ""
    assert paid_with(compared(a, heavy).measured) == "B is faster than A, but needs clearly more memory."
    assert paid_with(compared(a, dull).measured) == "B is faster than A, but has a worse loss."
    assert paid_with(compared(heavy, a).measured) == "A is faster than B, but needs clearly more memory."
    assert paid_with(compared(dull, a).measured) == "A is faster than B, but has a worse loss."
    for other in (heavy, dull):
        assert (compared(a, other).winner, compared(other, a).winner) == ("", "")


def test_short_runs_give_a_direction_and_say_on_how_many_iterations() -> None:
    a, b = (
        of(one(run, slower=slower), short=True, window_length=n) for run, slower, n in (("1", 0, 6), ("2", -0.2, 8))
    )
    found = compared(a, b)
    assert found.directional
    assert found.winner == "b"
    assert "from 6 iterations of A and 8 of B" in comparison_text(found).result


def test_a_run_that_never_settled_gets_no_speed() -> None:
    found = compared(one("1"), one("2", steady=False, slower=0.3))
    assert found.measured is None
    assert comparison_text(found).result == "Their speeds cannot be compared: no run of B is usable (#2: not steady)."


def test_the_run_is_the_sample() -> None:
    """Three reruns are three values; one of them that failed counts for nothing, and is named."""
    a = [one("1"), one("2", slower=0.002)]
    b = [one("3", slower=0.05), one("4", slower=0.052), one("5", slower=2.0, outcome="failed")]
    found = compared(a, b)
    assert found.measured is not None
    assert (found.measured.baseline_used, found.measured.candidates_used) == (("1", "2"), ("3", "4"))
    assert [left.run for left in found.left_out] == ["5"]
    assert found.winner == "a"
    assert "#5 is left out: the job failed." in comparison_text(found).notes


@pytest.mark.parametrize(
    ("second", "kind", "measured", "fields"),
    [
        ({}, "verdict", True, ()),
        ({"commit": "77aa01bc"}, "verdict", True, ("commit",)),
        ({"commit": ""}, "verdict", True, ("commit",)),
        ({"fields": {"ep_overlap": False}}, "side_by_side", False, ("ep_overlap",)),
        ({"fields": {"container": "train:2026.10"}}, "incomparable", False, ("container",)),
    ],
)
def test_a_set_is_compared_as_far_as_is_honest(
    second: dict[str, object], kind: str, measured: bool, fields: tuple[str, ...]
) -> None:
    found = compared(one("1"), [one("2", **second), one("3", slower=0.05)])  # type: ignore[arg-type]
    assert (found.kind, found.measured is not None) == (kind, measured)
    assert found.sets[1].fields == fields
    assert found.sets[1].reruns == (not fields)
    if fields:
        assert any(
            word in " ".join((comparison_text(found).result, *comparison_text(found).notes))
            for word in (fields[0], "commit")
        )
    assert not (found.winner and not measured)


def test_nothing_differs_is_said_with_what_no_key_holds() -> None:
    words = comparison_text(compared(one("1"), one("2", commit="77aa01bc")))
    assert words.differs == "No known contract field differs; outside the contract: commit (0f3c2a9d -> 77aa01bc)."
    assert words.rule == "Same configuration: any difference comes from code, environment or noise."


def test_an_undecided_comparison_says_what_would_decide() -> None:
    found = compare_sides([one("1")], [one("2", slower=0.03)])
    assert found.winner == ""
    assert "too uncertain to call" in comparison_text(found).result
    assert any("would decide" in note or "Not even 20" in note for note in comparison_text(found).notes)
    assert any(note.startswith("1 run in A; run-to-run variation assumed") for note in comparison_text(found).notes)


# --- The window of a run as a distribution.


def test_only_the_window_counts_and_spikes_are_part_of_it() -> None:
    times = step_times(400.0, 50)
    iterations = np.arange(1.0, 51.0)
    steady = steady_state(iterations, times)
    values = window_step_times({"iteration": iterations, "step_time_ms": times}, steady)
    found = distribution(values, steady)
    assert found is not None
    assert found.n == 50 - WARM_UP
    assert found.median_ms == pytest.approx(400, rel=0.01)
    assert found.spike_share == pytest.approx(3 / 46)
    assert found.highest_ms == pytest.approx(508, rel=0.03)
    assert list(found.quantiles) == sorted(found.quantiles)


@pytest.mark.parametrize("columns", [{}, {"iteration": np.arange(3.0)}])
def test_a_run_without_a_window_has_no_distribution(columns: dict[str, np.ndarray]) -> None:
    assert distribution(window_step_times(columns, None), None) is None


@pytest.mark.parametrize("values", [np.full(30, 5.0), np.random.default_rng(1).normal(5, 0.1, 10_000), np.empty(0)])
def test_a_density_is_finite_and_has_its_top_where_the_values_are(values: np.ndarray) -> None:
    places, heights = density(values, 4.0, 6.0)
    assert np.isfinite(heights).all()
    if len(values):
        assert heights.max() == 1
        assert abs(places[heights.argmax()] - 5) < 0.05
