"""Results for two sides, as tables: kind, winner, and the shown sentences."""

import re
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
    density_reach,
    distribution,
    window_step_times,
)
from app.domain.verdict.comparison_words import comparison_text
from app.domain.verdict.record import RunRecord
from app.domain.verdict.special import t_quantile
from app.domain.verdict.step_time import (
    DEFAULT_PRIOR,
    Prior,
    RunsNeeded,
    StepTimeChange,
    compare_step_time,
    select_baseline,
)
from app.domain.verdict.upgrade import discoveries, doubt
from tests.builders import WARM_UP, step_times
from tests.domain.verdict.matching_runs import make_record
from tests.domain.verdict.runs import make_run, make_runs

QUIET = Prior(variance=0.003**2, degrees_of_freedom=8, configurations=9)
"""Launches of this family vary by 0.3 %, so that 5 % is a difference."""

Fields = dict[str, Value | EllipsisType]


def record(run: str, fields: Fields | None = None, **other: object) -> RunRecord:
    return make_record(run, fields, **({"commit": "0f3c2a9d"} | other))


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
def test_the_contract_decides_what_may_be_concluded(
    fields: Fields, slower: float, kind: str, winner: str, attributed_to: str | None
) -> None:
    comparison = compared(record("1"), record("2", fields, slower=slower))
    assert (comparison.kind, comparison.winner, comparison.attributed_to) == (kind, winner, attributed_to)
    assert (comparison.measured is None) == (kind == "incomparable")


@pytest.mark.parametrize("slower", [-0.2, 0.2])
def test_turned_around_the_other_side_wins(slower: float) -> None:
    a, b = record("1"), record("2", {"ep_overlap": False}, slower=slower)
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
    comparison = compared(record("1"), record("2", slower=0.2, **changes))
    assert comparison.winner == ""
    assert any(says in reason for reason in comparison.no_winner), comparison.no_winner
    assert comparison_text(comparison).result.startswith("No winner: ")


def test_forced_balance_against_natural_routing_has_no_winner() -> None:
    comparison = compared(record("1", {"routing_mode": "forced-balance"}), record("2"))
    assert comparison.winner == ""
    assert any("A balances" in reason for reason in comparison.no_winner)


def test_made_up_data_promise_nothing_for_training() -> None:
    b = replace(record("2", slower=-0.2), semantic_class="benchmark_only")
    comparison = compared(record("1"), b)
    assert (comparison.winner, len(comparison.no_winner)) == ("", 1)


def test_a_gain_at_the_cost_of_memory_or_loss_is_not_a_win() -> None:
    a, b = of(record("1"), peak_memory_bytes=60e9, loss=2.0), record("2", slower=-0.1)
    assert compared(a, of(b, peak_memory_bytes=60e9, loss=2.0)).winner == "b"
    heavy, dull = of(b, peak_memory_bytes=66e9, loss=2.0), of(b, peak_memory_bytes=60e9, loss=2.2)
    assert "it needs 10.0\u202f% more memory" in comparison_text(compared(a, heavy)).result
    assert "it has a 10.0\u202f% worse loss" in comparison_text(compared(a, dull)).result
    # Turned around, the price is still that of the faster side in percent of the other, and the headline names it.
    assert "A needs 10.0\u202f% more memory" in comparison_text(compared(heavy, a)).result
    assert "A has a 10.0\u202f% worse loss" in comparison_text(compared(dull, a)).result
    assert " but needs 10.0\u202f% more memory: no winner." in comparison_text(compared(a, heavy)).lead
    assert compared(a, of(b, peak_memory_bytes=60e9, loss=2.0)).paid_with == ""
    for price, other in (("memory", heavy), ("loss", dull)):
        for faster, sides in (("B", (a, other)), ("A", (other, a))):
            sentence = compared(*sides).paid_with
            assert (sentence.startswith(f"{faster} is faster"), price in sentence) == (True, True)
    for other in (heavy, dull):
        assert (compared(a, other).winner, compared(other, a).winner) == ("", "")


def test_more_memory_costs_nothing_while_most_of_the_gpu_is_free() -> None:
    a, b = of(record("1"), peak_memory_bytes=10e9), of(record("2", slower=-0.1), peak_memory_bytes=20e9)
    for sides, faster in (((a, b), "b"), ((b, a), "a")):
        comparison = compared(*sides)
        assert (comparison.winner, comparison.paid_with) == (faster, "")
        assert "memory" not in comparison_text(comparison).lead


@pytest.mark.parametrize(
    ("b", "lead", "rule", "note"),
    [
        ({"fields": {"ep_overlap": False}}, "One knob: `ep_overlap`.", "so a difference is evidence about it.", ""),
        (
            {"fields": {"ep_overlap": False}, "commit": "77aa01bc"},
            "`ep_overlap` and `commit` differ.",
            "`ep_overlap` is the only knob that differs, but the code differs too",
            "Provisional, because the sides also differ in commit (0f3c2a9d → 77aa01bc).",
        ),
        (
            {"fields": {"tp": 4}, "job": "other"},
            "`tp` and `job` differ.",
            "`tp` is the only knob that differs, but the runs are of two jobs",
            "",
        ),
        (
            {"fields": {"container": "train:2026.10", "optimizer": ..., "nan_checks": ...}},
            "Not ranked: `container` differs; 2 unknown.",
            "More than one field may explain the difference: `container` differs; 2 unknown.",
            "Provisional: some fields are not stated on both sides",
        ),
        (
            {"fields": {"container": "train:2026.10", "optimizer": ...}},
            "Not ranked: `container` differs; `optimizer` unknown.",
            "More than one field may explain the difference: `container` differs; `optimizer` unknown.",
            "Provisional: some fields are not stated on both sides",
        ),
        (
            {"fields": {"container": "train:2026.10"}, "commit": "77aa01bc"},
            "Not ranked: `container` and `commit` differ.",
            "More than `container` may explain the difference: the code changed as well.",
            "",
        ),
        (
            {"fields": {"container": "train:2026.10"}, "job": "other"},
            "Not ranked: `container` and `job` differ.",
            "More than `container` may explain the difference: the runs are of two jobs.",
            "",
        ),
        (
            {"fields": {"ep_overlap": ...}},
            "`ep_overlap` may differ.",
            "several knobs differ or may differ",
            "Provisional",
        ),
    ],
)
def test_the_words_count_what_differs_apart_from_what_is_unknown(
    b: dict[str, object], lead: str, rule: str, note: str
) -> None:
    text = comparison_text(compared(record("1", job="job"), record("2", **({"job": "job", "slower": 0.05} | b))))
    assert lead in text.lead
    assert rule in text.rule
    assert any(note in line for line in text.notes) if note else "Provisional" not in " ".join(text.notes)
    assert "None" not in text.rule


def test_short_runs_give_a_direction_and_say_on_how_many_iterations() -> None:
    a, b = (
        of(record(run, slower=slower), short=True, window_length=n) for run, slower, n in (("1", 0, 6), ("2", -0.2, 8))
    )
    comparison = compared(a, b)
    assert comparison.directional
    assert comparison.winner == "b"
    assert re.findall(r"\d+ (?:iterations )?of [AB]", comparison_text(comparison).result) == [
        "6 iterations of A",
        "8 of B",
    ]


def test_a_candidate_that_never_settled_is_measured_as_in_its_verdict_but_wins_nothing() -> None:
    comparison = compared(record("1"), record("2", steady=False, slower=0.3))
    assert comparison.measured is not None
    assert comparison.measured.decision == "regression"
    assert (comparison.winner, comparison.left_out) == ("", ())
    assert comparison.no_winner == ("#2 is not steady: rerun it before you act.",)


def test_a_baseline_that_never_settled_gets_no_speed() -> None:
    comparison = compared(record("1", steady=False), record("2", slower=0.3))
    assert comparison.measured is None
    assert "#1: not steady" in comparison_text(comparison).result


def test_the_run_is_the_sample() -> None:
    """Three reruns are three values; a failed one does not count and is named."""
    a = [record("1"), record("2", slower=0.002)]
    b = [record("3", slower=0.05), record("4", slower=0.052), record("5", slower=2.0, outcome="failed")]
    comparison = compared(a, b)
    assert comparison.measured is not None
    assert (comparison.measured.baseline_used, comparison.measured.candidates_used) == (("1", "2"), ("3", "4"))
    assert [left.run for left in comparison.left_out] == ["5"]
    assert comparison.winner == "a"
    assert any(note.startswith("#5 is left out") for note in comparison_text(comparison).notes)


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
    comparison = compared(record("1"), [record("2", **second), record("3", slower=0.05)])
    assert (comparison.kind, comparison.measured is not None) == (kind, measured)
    assert comparison.sets[1].fields == fields
    assert comparison.sets[1].reruns == (not fields)
    if fields:
        assert any(
            word in " ".join((comparison_text(comparison).result, *comparison_text(comparison).notes))
            for word in (fields[0], "commit")
        )
    assert not (comparison.winner and not measured)


def test_equal_contracts_still_name_differences_outside_the_keys() -> None:
    comparison = compared(record("1"), record("2", commit="77aa01bc"))
    assert comparison.comparability.kind == "verdict"
    assert "commit (0f3c2a9d → 77aa01bc)" in comparison_text(comparison).differs
    assert "comes from code, environment or noise" in comparison_text(comparison).rule


def test_runs_of_one_commit_differ_by_environment_or_noise() -> None:
    rule = comparison_text(compared(record("1"), record("2"))).rule
    assert rule == "Same configuration and commit: any difference comes from environment or noise."


@pytest.mark.parametrize("commits", [["0f3c2a9d"], ["0f3c2a9d", "77aa01bc"]])
def test_more_runs_decide_nothing_where_only_noise_can_differ(commits: list[str]) -> None:
    b = [record(f"{number}", slower=0.03, commit=commit) for number, commit in enumerate(reversed(commits), 2)]
    comparison = compare_sides([record("1")], b)
    assert comparison.measured is not None
    assert comparison.measured.decision == "inconclusive"
    text, is_one = comparison_text(comparison), len(commits) == 1
    assert (comparison.is_within_noise, text.needs == "") == (is_one, is_one)
    assert (text.lead.startswith("Same commit and configuration: "), "within noise" in text.lead) == (is_one, is_one)
    assert len(text.lead.split()) <= 16


def test_an_undecided_comparison_says_what_would_decide() -> None:
    comparison = compare_sides([record("1")], [record("2", slower=0.03, commit="77aa01bc")])
    assert comparison.winner == ""
    assert "too uncertain to call" in comparison_text(comparison).result
    text = comparison_text(comparison)
    assert comparison.measured is not None
    assert comparison.measured.step_time is not None
    assert comparison.measured.step_time.alternative == RunsNeeded(reruns=3, baseline_runs=7)
    assert text.needs == "6 more runs of A and 3 more runs of B would decide."
    assert text.needs in text.notes
    assert any(note.startswith("1 run in A;") for note in comparison_text(comparison).notes)


# --- The window of a run as a distribution.


def test_only_the_window_counts_and_spikes_are_part_of_it() -> None:
    times = step_times(400.0, 50)
    iterations = np.arange(1.0, 51.0)
    steady = steady_state(iterations, times)
    values = window_step_times({"iteration": iterations, "step_time_ms": times}, steady)
    shares = distribution(values, steady)
    assert shares is not None
    assert shares.n == 50 - WARM_UP
    assert shares.median_ms == pytest.approx(400, rel=0.01)
    assert shares.spike_share == pytest.approx(3 / 46)
    assert list(shares.quantiles) == sorted(shares.quantiles)


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


def test_a_density_ends_low_where_its_reach_ends() -> None:
    values = np.random.default_rng(1).normal(5, 0.1, 50)
    _, heights = density(values, values.min() - density_reach(values), values.max() + density_reach(values))
    assert max(heights[0], heights[-1]) < 0.05


# --- False discoveries among many stacks.

DF = 10.0


def change(p: float) -> StepTimeChange:
    """Return a called slowdown with this two-sided p-value."""
    baseline = select_baseline(make_runs([0.0, 0.001, 0.002]), DEFAULT_PRIOR.variance)
    measured = compare_step_time([make_run(slower=0.1)], baseline, DEFAULT_PRIOR)
    assert measured.decision == "regression"
    return replace(measured, shift=0.01 * t_quantile(1 - p / 2, DF), standard_error=0.01, degrees_of_freedom=DF)


def test_q_values_are_those_of_benjamini_and_hochberg() -> None:
    """The example of their paper, 1995, section 3.1: of 15 tests, four are significant at 5 %."""
    p_values = [
        *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344),
        *(0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 0.9999),
    ]
    significant = [discovery for discovery in discoveries([change(p) for p in reversed(p_values)]) if discovery][::-1]
    assert [discovery.p_value for discovery in significant] == pytest.approx(p_values, rel=1e-6)
    assert sum(not discovery.may_be_chance for discovery in significant) == 4
    assert significant[3].q_value == pytest.approx(0.0095 * 15 / 4)
    assert [discovery.q_value for discovery in significant] == sorted(discovery.q_value for discovery in significant)


def test_a_change_that_is_clear_alone_may_be_chance_among_many() -> None:
    alone, without = change(0.004), None
    assert doubt([alone]) == ""
    many = [alone, without, *(replace(change(0.5), decision="no_change") for _ in range(39))]
    assert re.findall(r"\d+", doubt(many)) == ["1", "40"]
    assert discoveries(many)[1] is None
