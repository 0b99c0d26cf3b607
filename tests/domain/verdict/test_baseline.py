"""Which runs are the baseline, and where its centre is."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from app.domain.documents.scalars import read_golden_values
from app.domain.logs import parse_log
from app.domain.performance.summary import summarise, with_documents
from app.domain.run import Metadata, RunSummary
from app.domain.verdict.assess import assess
from app.domain.verdict.baseline import (
    AFTER_BRANCH_POINT,
    BEYOND_NEWEST,
    OLDER_SEGMENT,
    OTHER_CELL,
    UNCONFIRMED,
    BaselineRules,
    choose_baseline,
    nearest_misses,
)
from app.domain.verdict.baseline import select_baseline as select_runs
from app.domain.verdict.decide import judge
from app.domain.verdict.record import RunFacts, confirmed_level, current_level, shared_losses
from app.domain.verdict.step_time import DEFAULT_PRIOR, Prior, RunEstimate, centre, select_baseline
from tests.domain.verdict.matching_runs import make_record
from tests.domain.verdict.runs import make_run, make_runs

VARIANCE = 0.006**2


@pytest.mark.parametrize(
    ("slower", "dropped"),
    [
        ([0, 0.2], []),  # with two, it is unknown which is the bad one
        ([0, 0.001, 0.2], ["run 2"]),
        ([0, 0.001, 0.049], []),  # within the floor of 5 %
        ([0, 0.001, -0.06], ["run 2"]),
        ([0.0] * 9 + [0.051], ["run 9"]),  # MAD 0: the floor alone decides
        ([-0.03, -0.02, -0.01, 0, 0.01, 0.02, 0.12], []),  # 6 MAD = 0.178 of these
    ],
)
def test_runs_far_off_the_others_are_left_out(slower: list[float], dropped: list[str]) -> None:
    assert [d.run for d in select_baseline(make_runs(slower), VARIANCE).dropped] == dropped


def test_a_family_that_varies_more_keeps_more() -> None:
    runs = make_runs([0, 0.001, 0.07])
    assert len(select_baseline(runs, 0.006**2).used) == 2
    assert len(select_baseline(runs, 0.015**2).used) == 3


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (make_run("bad", window_length=4), "only 4 steady iterations, 5 are needed"),
        (make_run("bad", is_steady=False), "not steady"),
        (make_run("bad", is_steady=False, not_steady_reasons=("two speeds", "drift")), "not steady: two speeds; drift"),
        (make_run("bad", short=True), "too short to show that warm-up was over"),
        (make_run("bad", not_finite_iterations=2), "the loss was not finite in 2 iterations"),
        (RunEstimate.from_steady_state("bad", None), "only 0 steady iterations, 5 are needed"),
    ],
)
def test_a_run_without_a_stated_branch_is_not_a_baseline(run: RunEstimate, why: str) -> None:
    baseline = select_baseline([*make_runs([0, 0.001]), run], VARIANCE)
    assert [r.run for r in baseline.used] == ["run 0", "run 1"]
    assert [(d.run, d.why) for d in baseline.dropped] == [("bad", why)]


def test_the_newest_twenty_usable_runs_count() -> None:
    runs = [*make_runs([0.0] * 25), make_run("unsteady", is_steady=False)]
    assert [r.run for r in select_baseline(runs, VARIANCE).used] == [f"run {i}" for i in range(5, 25)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0, 6.0], 3.0),  # with fewer than five runs, the plain mean
        ([0, 0, 0, 0, 1], 0.0),  # MAD 0: the median
        # median 3, MAD 1.4826, clip at 3.7065: the deviations are -2, -1, 0, 1, 3.7065
        ([1, 2, 3, 4, 100], 3 + 1.7065 / 5),
        ([1, 2, 3, 4, 5], 3.0),
    ],
)
def test_centre(values: list[float], expected: float) -> None:
    assert centre(np.array(values, dtype=float)) == pytest.approx(expected)


# --- Which earlier runs are the baseline, and the reasons for the others.


MAIN = BaselineRules(branch="main")


def names(runs: Sequence[RunFacts]) -> list[str]:
    return [run.run for run in runs]


def test_runs_of_the_same_configuration_come_before_newer_ones_of_another() -> None:
    earlier = [make_record("a"), make_record("b"), make_record("other knobs", {"tp": 4})]
    choice = choose_baseline(make_record(), earlier, MAIN)
    assert (choice.kind, names(choice.runs)) == ("same_config", ["a", "b"])
    assert [(out.run, out.why) for out in choice.left_out] == [("other knobs", "different configuration: `tp`")]


def test_without_them_the_configuration_that_the_stack_used_last_counts() -> None:
    earlier = [
        make_record("old", {"tp": 2}),
        make_record("last", {"tp": 4}),
        make_record("older", {"tp": 2}),
        make_record("newest", {"tp": 4}),
    ]
    choice = choose_baseline(make_record(), earlier, MAIN)
    assert (choice.kind, names(choice.runs)) == ("last_config", ["last", "newest"])
    assert choice.comparability is not None
    assert choice.comparability.attributed_to == "tp"


CELLS = [
    # The commits of the earlier runs and of this run, which has a third configuration.
    ({"commit": "new"}, [("a", "old"), ("b", "new")]),
    ({"commit": "new"}, [("a", "old"), ("b", "old")]),
    ({"commit": "new", "branch": "topic"}, [("a", "old"), ("b", "old")]),
    ({"commit": "new", "purpose": "release"}, [("a", "old"), ("b", "old")]),
    ({"commit": ""}, [("a", "old")]),
    ({"commit": "new"}, [("a", "")]),
]


@pytest.mark.parametrize(("columns", "ran"), CELLS)
def test_configurations_of_one_commit_are_cells_and_not_baselines(
    columns: dict[str, str], ran: list[tuple[str, str]]
) -> None:
    earlier = [make_record(f"{config} at {commit}", {"dispatcher": config}, commit=commit) for config, commit in ran]
    choice = choose_baseline(make_record(fields={"ep": 2}, **columns), earlier, MAIN)
    assert (choice.kind, choice.comparability) == ("none", None)
    assert {(out.run, out.why) for out in choice.left_out} == {(run.run, OTHER_CELL) for run in earlier}


@pytest.mark.parametrize(
    "other", [{"outcome": "failed"}, {"purpose": "experiment"}, {"job": "another"}, {"quarantined": "bad node"}]
)
def test_a_failed_run_or_an_experiment_of_the_same_commit_is_not_a_cell(other: dict[str, str]) -> None:
    earlier = [make_record("a", {"tp": 4}, job="nightly"), make_record("b", {"tp": 2}, commit="new", **other)]
    choice = choose_baseline(make_record(commit="new", job="nightly"), earlier, MAIN)
    assert (choice.kind, names(choice.runs)) == ("last_config", ["a"])


def test_a_cell_that_comes_after_the_run_counts() -> None:
    later = make_record("later", {"tp": 2}, commit="new")
    run, earlier = make_record(commit="new"), [make_record("a", {"tp": 4})]
    assert select_runs(run, earlier, MAIN).kind == "last_config"
    assert select_runs(run, earlier, MAIN, of_commit=[later]).kind == "none"


def test_an_experiment_is_measured_against_what_ran_last() -> None:
    earlier = [make_record("a", {"tp": 4}, commit="c"), make_record("b", {"tp": 2}, commit="c")]
    choice = choose_baseline(make_record(commit="c", purpose="experiment"), earlier, MAIN)
    assert (choice.kind, names(choice.runs)) == ("last_config", ["b"])


def test_a_pinned_run_comes_first_with_the_reruns_of_its_commit() -> None:
    earlier = [
        make_record("golden", {"tp": 4}, commit="c0ffee", branch="release", purpose="release"),
        make_record("its rerun", {"tp": 4}, commit="c0ffee"),
        make_record("newer"),
    ]
    choice = choose_baseline(make_record(), earlier, BaselineRules("main", frozenset({"golden"})))
    assert (choice.kind, names(choice.runs)) == ("golden", ["golden", "its rerun"])


def test_the_newest_pinned_run_counts_for_any_job_and_branch_point() -> None:
    earlier = [make_record("old"), make_record("new", job="other", commit="c0ffee"), make_record("plain")]
    rules = BaselineRules("main", frozenset({"old", "new"}), after_it=frozenset({"new", "plain"}))
    choice = choose_baseline(make_record(job="nightly"), earlier, rules)
    assert (choice.kind, names(choice.runs)) == ("golden", ["new"])
    assert {out.run: out.why for out in choice.left_out}["plain"] == AFTER_BRANCH_POINT


NEVER = [
    ({"quarantined": "bad node"}, "quarantined: bad node"),
    ({"outcome": "failed"}, "the job failed"),
    ({"outcome": "out_of_memory"}, "the job ran out of memory"),
    ({"outcome": "not_finite"}, "the loss or the gradient was not finite"),
    ({"outcome": "truncated"}, "its log ends before the training does"),
    ({"outcome": "stopped"}, "it was stopped by a time limit or a signal"),
    ({"short": True}, "too short to show that warm-up was over"),
    ({"steady": False}, "not steady"),
    ({"purpose": "experiment"}, "purpose experiment, not ci"),
    ({"branch": "topic"}, "not on branch main"),
    ({"definition_version": 2}, "figures of another version of the definitions"),
    ({"fair_for_timing": False}, "timer barriers slowed only one of the two runs"),
    ({"fields": {"nan_checks": False}}, "benchmark only, but this run is training equivalent"),
    ({"fields": {"num_layers": 24}}, "another model shape"),
]


@pytest.mark.parametrize(("facts", "why"), NEVER)
def test_some_runs_are_never_a_baseline(facts: dict[str, object], why: str) -> None:
    choice = choose_baseline(make_record(), [make_record("a"), make_record("bad", **facts)], MAIN)
    assert names(choice.runs) == ["a"]
    assert [(out.run, out.why) for out in choice.left_out] == [("bad", why)]


@pytest.mark.parametrize("bad", [facts for facts, _ in NEVER[:8]])
def test_a_pin_does_not_make_a_bad_run_good(bad: dict[str, object]) -> None:
    choice = choose_baseline(make_record(), [make_record("bad", **bad)], BaselineRules(None, frozenset({"bad"})))
    assert choice.kind == "none"


@pytest.mark.parametrize("fields", [{"routing_mode": "forced-balance"}, {"data_mode": "mock"}, {"data_mode": ...}])
def test_forced_balance_and_generated_data_are_not_a_baseline_for_natural_routing(fields: dict[str, str]) -> None:
    bench = make_record("bench", fields)
    assert choose_baseline(make_record(), [bench], MAIN).kind == "none"
    assert choose_baseline(bench, [make_record()], MAIN).kind == "none"


def test_only_the_newest_20_runs_of_the_current_level_count() -> None:
    slow = [make_record(f"slow {i}", slower=0.2 + i % 3 * 0.001) for i in range(30)]
    fast = [make_record(f"fast {i}", slower=i % 3 * 0.001) for i in range(25)]
    choice = choose_baseline(make_record(), [*slow, *fast], MAIN)
    assert names(choice.runs) == [f"fast {i}" for i in range(5, 25)]
    assert len(choice.left_out) == 35


def test_a_run_is_not_its_own_baseline() -> None:
    assert choose_baseline(make_record("a"), [make_record("a")], MAIN).kind == "none"


def test_near_misses_differ_in_the_fewest_fields_and_are_one_a_stack() -> None:
    earlier = [
        make_record("old container", {"container": "old"}),
        make_record("old container, other knobs", {"container": "old", "tp": 4}),
        make_record("old container again", {"container": "old"}),
        make_record("elsewhere", {"container": "old", "cluster": "east"}),
        make_record("cut", outcome="truncated"),
        make_record("far", {"container": "old", "cluster": "east", "gpus": 64}),
    ]
    misses = nearest_misses(make_record(), earlier)
    assert [(miss.run, miss.fields, miss.alike) for miss in misses] == [
        ("cut", (), 1),
        ("old container again", ("container",), 2),
        ("elsewhere", ("cluster", "container"), 1),
    ]
    assert "log ends" in misses[0].never_a_baseline_because


@pytest.mark.parametrize(
    ("columns", "is_cell"), [({"job": "a"}, True), ({"job": "b"}, False), ({"job": "a", "outcome": "truncated"}, False)]
)
def test_a_near_miss_is_another_cell_if_only_knobs_of_the_job_differ(columns: dict[str, str], is_cell: bool) -> None:
    (miss,) = nearest_misses(make_record(job="a"), [make_record("other", {"tp": 4}, **columns)])
    assert miss.is_other_cell == is_cell


def test_a_near_miss_of_the_same_model_comes_before_closer_ones_of_another() -> None:
    earlier = [
        make_record("same model", {"container": "old", "cluster": "east", "gpus": 64}),
        make_record("unnamed model", {"model": ...}),
        make_record("another model", {"model": "Mixtral-8x7B"}),
    ]
    misses = nearest_misses(make_record(), earlier)
    assert [miss.run for miss in misses] == ["same model", "unnamed model", "another model"]


def test_a_slow_run_is_judged_and_its_knob_is_the_first_suspect() -> None:
    earlier = [make_record(f"run {i}", {"tp": 4}, slower=i % 3 * 0.001) for i in range(6)]
    assessment = assess([make_record(slower=0.1)], earlier, rules=MAIN)
    assert (assessment.choice.kind, assessment.verdict.decision) == ("last_config", "regression")
    assert not assessment.raises_regression  # an A/B against other knobs is no regression of the code
    assert assessment.verdict.step_time is not None
    assert [(suspect.axis, suspect.field) for suspect in assessment.suspects] == [("recipe", "tp"), ("code", "commit")]


def test_jobs_with_the_same_flags_are_histories_of_their_own() -> None:
    muon = [make_record(f"muon {i}", slower=i % 3 * 0.001, job="muon") for i in range(6)]
    adam = [make_record(f"adam {i}", slower=0.2 + i % 3 * 0.001, job="adam") for i in range(6)]
    earlier = [run for pair in zip(muon, adam, strict=True) for run in pair]
    assessment = assess([make_record(slower=0.2, job="adam")], earlier, rules=MAIN)
    assert [run.run for run in assessment.choice.runs] == [run.run for run in adam]
    assert assessment.choice.left_out[0].why == "of another job: muon"
    assert assess([make_record(slower=0.2, job="sgd")], earlier, rules=MAIN).verdict.decision == "no_baseline"
    on_a_branch = choose_baseline(make_record(job="adam", branch="a-change"), earlier, MAIN)
    assert {run.job for run in on_a_branch.runs} == {"adam"}


def test_a_change_is_judged_against_main_though_its_job_has_another_name() -> None:
    earlier = [make_record(f"run {i}", slower=i % 3 * 0.001, job="nightly/perf") for i in range(6)]
    assessment = assess([make_record(slower=0.1, job="changes/perf", branch="a-change")], earlier, rules=MAIN)
    assert (assessment.verdict.decision, assessment.raises_regression) == ("regression", False)


def test_an_experiment_raises_no_regression() -> None:
    earlier = [make_record(f"run {i}", {"tp": 4}, slower=i % 3 * 0.001) for i in range(6)]
    assessment = assess([make_record(slower=0.1, purpose="experiment")], earlier, rules=MAIN)
    assert (assessment.verdict.decision, assessment.raises_regression) == ("regression", False)


def test_a_new_container_is_measured_against_the_old_one_without_a_verdict() -> None:
    earlier = [make_record(f"run {i}", {"container": "old"}, slower=i % 3 * 0.001) for i in range(6)]
    assessment = assess([make_record(slower=0.1)], earlier, rules=MAIN)
    assert assessment.verdict.decision == "no_baseline"
    assert assessment.contrast is not None
    assert assessment.contrast.comparability.attributed_to == "container"
    assert assessment.contrast.measured.step_time is not None
    assert assessment.contrast.measured.step_time.decision == "regression"
    assert len(assessment.contrast.runs) == 6


@pytest.mark.parametrize("field", ["gpus", "gbs", "mbs", "seq_len"])
def test_other_work_or_hardware_is_the_closest_run_and_not_measured(field: str) -> None:
    """A run on half the GPUs is not `589 % slower`."""
    earlier = [make_record(f"run {number}", job="train") for number in range(6)]
    assessment = assess([make_record(fields={field: 4}, slower=2.0, job="train")], earlier)
    assert assessment.contrast is None
    assert assessment.misses[0].fields == (field,)


def test_a_contrast_without_other_knobs_is_taken_before_a_newer_one_with() -> None:
    earlier = [make_record("a", {"container": "old"}), make_record("b", {"container": "old", "tp": 4})]
    contrast = assess([make_record()], earlier, rules=MAIN).contrast
    assert contrast is not None
    assert names(contrast.runs) == ["a"]


def test_a_failed_run_gets_no_speed_and_one_failed_rerun_is_left_out() -> None:
    earlier = [make_record("a"), make_record("b")]
    failed = make_record("failed", outcome="out_of_memory")
    alone = assess([failed], earlier, rules=MAIN).verdict
    assert (alone.decision, alone.step_time) == ("failed", None)
    pooled = assess([failed, make_record(slower=0.2)], earlier, rules=MAIN).verdict
    assert pooled.decision == "regression"
    assert [(out.run, "memory" in out.why) for out in pooled.dropped] == [("failed", True)]


def test_where_nothing_is_known_to_differ_the_nodes_are_suspected() -> None:
    assessment = assess([make_record(commit="same")], [make_record("a", commit="same")], rules=MAIN)
    assert [(suspect.axis, suspect.field) for suspect in assessment.suspects] == [("place", "")]


def test_a_container_that_was_pushed_again_is_a_suspect() -> None:
    old, new = {"container_digest": "sha256:a"}, {"container_digest": "sha256:b"}
    assessment = assess([make_record(fields=new, commit="c")], [make_record("a", old, commit="c")], rules=MAIN)
    assert [(suspect.axis, suspect.field) for suspect in assessment.suspects] == [("container", "container_digest")]


def test_losses_are_compared_over_iterations_that_all_runs_have() -> None:
    long = {"iteration": np.arange(1.0, 101), "lm_loss": 10 - np.arange(1.0, 101) / 50}
    short = {"iteration": np.arange(1.0, 51), "lm_loss": 10 - np.arange(1.0, 51) / 50}
    silent = {"iteration": np.arange(1.0, 51)}
    first, second, third = shared_losses([long, short, silent])
    assert first == second == pytest.approx(10 - 45.5 / 50)
    assert third is None
    assert shared_losses([silent]) == [None]


def test_one_or_two_outliers_are_not_a_baseline_until_a_third_confirms_them() -> None:
    usual = [make_record(f"usual {i}", slower=i % 3 * 0.001) for i in range(14)]
    slow = [make_record(f"slow {i}", slower=0.08 + i % 2 * 0.001) for i in range(3)]
    for many in (1, 2):
        choice = choose_baseline(make_record(), [*usual, *slow[:many]], MAIN)
        assert names(choice.runs) == names(tuple(usual))
        assert {out.why for out in choice.left_out} == {UNCONFIRMED}
    assert names(choose_baseline(make_record(), [*usual, *slow], MAIN).runs) == names(tuple(slow))


def test_an_odd_run_counts_again_when_the_next_one_is_as_usual() -> None:
    earlier = [make_record(f"run {i}", slower=0.08 if i == 8 else i % 3 * 0.001) for i in range(10)]
    assert "run 8" in names(choose_baseline(make_record(), earlier, MAIN).runs)


def test_an_unstated_branch_is_not_the_baseline_branch() -> None:
    choice = choose_baseline(make_record(), [make_record("a", branch="")], MAIN)
    assert ["no branch" in out.why for out in choice.left_out] == [True]


NEAREST_CASES = [
    # Fewest knobs first, then the newest; also short ones and experiments.
    ([("a", {"tp": 4}, {}), ("b", {"tp": 4, "cp": 2}, {})], ["a"]),
    ([("a", {"tp": 4}, {}), ("b", {"tp": 2}, {"short": True})], ["b"]),
    ([("a", {"tp": 4}, {"commit": "c"}), ("b", {"tp": 4}, {"commit": "c"})], ["a", "b"]),
    ([("a", {}, {"quarantined": "bad node"}), ("b", {"tp": 2}, {})], ["b"]),
    ([("a", {}, {"outcome": "failed"}), ("b", {}, {"steady": False}), ("c", {}, {"definition_version": 2})], []),
    ([("a", {"container": "old"}, {})], []),
]


@pytest.mark.parametrize(("earlier", "chosen"), NEAREST_CASES)
def test_an_experiment_without_a_baseline_takes_the_nearest_run(
    earlier: list[tuple[str, dict[str, object], dict[str, object]]], chosen: list[str]
) -> None:
    runs = [make_record(name, fields, purpose="experiment", **facts) for name, fields, facts in earlier]
    choice = choose_baseline(make_record(purpose="experiment"), runs, MAIN)
    assert (choice.kind, names(choice.runs)) == ("nearest" if chosen else "none", chosen)
    assert choose_baseline(make_record(), runs, MAIN).kind == "none"


def test_an_experiment_prefers_a_ci_run_with_more_other_knobs() -> None:
    earlier = [make_record("ci", {"tp": 4, "cp": 2}), make_record("near", {"tp": 4}, purpose="experiment")]
    assert names(choose_baseline(make_record(purpose="experiment"), earlier, MAIN).runs) == ["ci"]


@pytest.mark.parametrize(("short", "rests_on"), [((True, True), 50), ((True, False), 50), ((False, False), None)])
def test_an_ab_on_short_runs_is_a_direction(short: tuple[bool, bool], rests_on: int | None) -> None:
    other = make_record("other", {"tp": 4}, purpose="experiment", short=short[0])
    assessment = assess([make_record(purpose="experiment", short=short[1], slower=0.3)], [other], rules=MAIN)
    assert (assessment.rests_on, assessment.raises_regression, assessment.verdict.decision) == (
        rests_on,
        False,
        "regression",
    )


def test_a_quarantined_run_is_judged_and_raises_nothing() -> None:
    earlier = [make_record(f"run {i}", slower=i % 3 * 0.001) for i in range(6)]
    assessment = assess([make_record(slower=0.1, quarantined="bad node")], earlier, rules=MAIN)
    assert (assessment.verdict.decision, assessment.raises_regression) == ("regression", False)


def test_an_upgrade_is_measured_against_the_same_job_before_it() -> None:
    earlier = [make_record("before", {"container": "old"}), make_record("larger", {"gpus": 64})]
    contrast = assess([make_record()], earlier, rules=MAIN).contrast
    assert contrast is not None
    assert names(contrast.runs) == ["before"]


PASSED_OVER = [
    # Older runs, the pin, and a single reason for the first of them.
    ([0.2] * 14 + [0.0] * 14, frozenset(), OLDER_SEGMENT),
    ([0.0] * 30, frozenset(), BEYOND_NEWEST),
    ([0.0] * 30, frozenset({"20"}), "run 20 is pinned as golden baseline"),
    ([0.2] * 14 + [0.0] * 14, frozenset({"20"}), "run 20 is pinned as golden baseline"),
]


@pytest.mark.parametrize(("shifts", "pinned", "why"), PASSED_OVER)
def test_a_run_that_was_passed_over_has_the_reason_that_is_true(
    shifts: list[float], pinned: frozenset[str], why: str
) -> None:
    earlier = [make_record(str(k), slower=shift + k % 3 * 0.001) for k, shift in enumerate(shifts)]
    choice = choose_baseline(make_record(), earlier, BaselineRules("main", pinned))
    assert choice.left_out[0].why == why
    if pinned:
        assert {run.why for run in choice.left_out} == {why}


# --- Runs that cannot be a reference, and what a run with skipped steps or a lost loss can show.


FAMILY = Prior(0.006**2, 5, 8)
GIB = 2**30


def test_a_second_run_with_more_memory_is_a_regression_like_the_first() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)], peak_memory_bytes=60.0 * GIB)
    odd = make_run("odd", peak_memory_bytes=66.0 * GIB)
    for earlier in (baseline, [*baseline, odd]):
        verdict = judge([make_run("slow", peak_memory_bytes=66.0 * GIB)], earlier, FAMILY)
        assert verdict.decision == "regression"
        assert verdict.memory is not None
        assert verdict.memory.alarm_pct == 1.0


def test_three_runs_with_more_memory_are_a_level() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)], peak_memory_bytes=60.0 * GIB)
    level = [make_run(f"new {run}", peak_memory_bytes=66.0 * GIB) for run in range(3)]
    assert judge([make_run("next", peak_memory_bytes=66.0 * GIB)], [*baseline, *level], FAMILY).decision != "regression"


def test_a_run_with_a_worse_loss_is_not_a_reference() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)], loss=2.0)
    verdict = judge([make_run("next", loss=2.0)], [*baseline, make_run("bad", loss=2.4)], FAMILY)
    assert "bad" not in verdict.baseline_used
    assert any(dropped.why.startswith("its loss is 20.0") for dropped in verdict.dropped)


@pytest.mark.parametrize(
    ("before", "candidate", "since"),
    [((), 2.4, ""), ((2.4,), 2.4, "bad 0"), ((2.4, 2.41), 2.4, "bad 0"), ((2.8, 2.4), 2.4, "bad 1"), ((2.4,), 2.8, "")],
)
def test_a_worse_loss_names_the_first_run_in_a_row_that_had_it(
    before: tuple[float, ...], candidate: float, since: str
) -> None:
    usual = make_runs([0.001 * (run % 3) for run in range(8)], loss=2.0)
    bad = [make_run(f"bad {index}", loss=loss) for index, loss in enumerate(before)]
    verdict = judge([make_run("next", loss=candidate)], [*usual, *bad], FAMILY)
    assert verdict.loss is not None
    assert (verdict.loss.decision, verdict.loss.since) == ("worse", since)


def test_a_loss_far_below_its_reference_warns() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)], loss=2.0)
    verdict = judge([make_run("odd", loss=1.2)], baseline, FAMILY)
    assert any("40.0 % lower" in note for note in verdict.notes)


def test_a_run_that_skipped_steps_is_marked_and_not_an_improvement() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)])
    verdict = judge([make_run("fast", -0.2, skipped_share=0.04)], baseline, FAMILY)
    assert verdict.decision == "inconclusive"
    assert "skipped 4.0 %" in verdict.notes[0]
    skipping = make_runs([0.001 * (run % 3) for run in range(8)], skipped_share=0.04)
    assert judge([make_run("fast", -0.2, skipped_share=0.04)], skipping, FAMILY).decision == "improvement"


def test_a_run_that_skipped_many_steps_is_not_a_reference() -> None:
    baseline = make_runs([0.001 * (run % 3) for run in range(8)])
    verdict = judge([make_run("next")], [*baseline, make_run("skips", skipped_share=0.5)], FAMILY)
    assert "skips" not in verdict.baseline_used


def golden(losses: list[float | None], times: list[float | None]) -> RunSummary:
    series = {"iteration-time": times, "lm loss": losses}
    document = read_golden_values(
        json.dumps({name: {"start_step": 1, "step_interval": 1, "values": values} for name, values in series.items()})
    )
    return summarise(with_documents(parse_log([]), [document]), Metadata(), [document], {})


@pytest.mark.parametrize(
    ("losses", "times", "finite"),
    [
        ([3.0] * 30, [0.5] * 30, True),
        ([3.0] * 29 + [None], [0.5] * 30, False),  # null is a loss that was not finite
        ([None] * 10 + [3.0] * 20, [None] * 10 + [0.5] * 20, True),  # steps before a resume, which this job did not run
    ],
)
def test_a_null_loss_of_a_step_that_was_made_is_lost(
    losses: list[float | None], times: list[float | None], finite: bool
) -> None:
    assert golden(losses, times).health["loss_finite"] is finite


def test_the_step_time_is_that_of_steps_that_did_their_work() -> None:
    lines = [
        f" iteration {n:8d}/      50 | elapsed time per iteration (ms): {50.0 if n % 4 == 0 else 400.0 + n % 3} | "
        f"lm loss: 3.0E+00 | number of skipped iterations: {int(n % 4 == 0):3d} | number of nan iterations:   0 |"
        for n in range(1, 51)
    ]
    summary = summarise(parse_log([line.encode() for line in lines]), Metadata(), [], {})
    assert summary.steady_state is not None
    assert np.isclose(summary.steady_state.step_time_ms, 401, atol=1)


# --- The level that a run is compared with in histories too young for change points: never two levels.


LEARNED = Prior(variance=0.006**2, degrees_of_freedom=5, configurations=7)
F, S = 0.0, 0.08
"""Two levels, 8 % apart."""

# The shifts of earlier runs; positions of those that the next run is compared with.
YOUNG = [
    ([F, F, F, F], [0, 1, 2, 3]),
    ([F, F, F, F, S], [0, 1, 2, 3]),
    ([F, F, F, F, S, S], [0, 1, 2, 3]),
    ([F, F, F, F, S, S, S], [4, 5, 6]),
    ([F, F, F, F, S, S, S, S], [4, 5, 6, 7]),
    ([F, F, F, F, S, S, S, S + 0.015], [4, 5, 6, 7]),  # 1 % off the others is no news
    ([F, F, F, F, S, S, S, S, S, S, S, S, S], [4, 5, 6, 7, 8, 9, 10, 11, 12]),
    ([F, F, F, F, S, S, S, F], [4, 5, 6]),  # back once: not confirmed either
    ([F, F, F, F, S, S, S, F, F, F], [7, 8, 9]),
    ([F, F, F, F, S, F, F], [0, 1, 2, 3, 4, 5, 6]),  # an odd run, which the verdict leaves out or weighs down
    ([F, F, F, F, -S, -S, -S], [4, 5, 6]),
    ([F, S], [0]),
    ([F, S, S, S], [1, 2, 3]),
    ([F, F, S, S, S, S], [2, 3, 4, 5]),
    ([F, F, F, F, S, S, S, 2 * S, 2 * S], [4, 5, 6]),
    ([F, F, F, F, S, S, S, 2 * S, 2 * S, 2 * S], [7, 8, 9]),
    ([F, F, F, F, 0.012, S, S], [0, 1, 2, 3, 4]),  # the first of them belongs to neither level
]


@pytest.mark.parametrize(("shifts", "chosen"), YOUNG)
def test_a_young_history_has_levels_of_three(shifts: list[float], chosen: list[int]) -> None:
    runs = [make_record(str(place), slower=shift + place % 3 * 0.001) for place, shift in enumerate(shifts)]
    assert [int(run.run) for run in confirmed_level(runs, LEARNED)] == chosen


@pytest.mark.parametrize("prior", [LEARNED, DEFAULT_PRIOR])
@pytest.mark.parametrize("before", [3, 4, 6, 9, 14, 40])
def test_the_baseline_is_of_one_level_at_every_run_of_a_change(before: int, prior: Prior) -> None:
    """12 % is called by both priors in a single run."""
    chance = np.random.default_rng(before)
    shifts = [chance.normal(0.12 * (place >= before), 0.004) for place in range(before + 12)]
    runs = [make_record(str(place), slower=shift) for place, shift in enumerate(shifts)]
    for seen in range(before, len(runs)):
        chosen = {int(run.run) >= before for run in confirmed_level(runs[:seen], prior)}
        assert chosen == {seen - before >= 3}, seen


def test_a_confirmed_regression_does_not_turn_inconclusive_by_a_mixed_baseline() -> None:
    runs = [make_record(str(k), slower=shift + k % 2 * 0.002) for k, shift in enumerate([F] * 4 + [S] * 7)]
    verdicts = [assess([run], runs[:place], prior=LEARNED).verdict for place, run in enumerate(runs)]
    assert [verdict.decision for verdict in verdicts[4:7]] == ["regression"] * 3
    assert all(abs(verdict.step_time.delta_pct) < 0.5 for verdict in verdicts[7:] if verdict.step_time)
    assert all(verdict.baseline_used[0] == "4" for verdict in verdicts[7:])


def test_a_measured_contrast_rests_on_one_level_too() -> None:
    runs = [make_record(str(place), slower=shift) for place, shift in enumerate([F] * 4 + [S] * 4)]
    assert [run.run for run in current_level(runs, LEARNED)] == ["4", "5", "6", "7"]


def test_noise_makes_no_level() -> None:
    chance = np.random.default_rng(7)
    cut = 0
    for _ in range(60):
        runs = [make_record(str(k), slower=chance.normal(0, 0.006)) for k in range(10)]
        cut += len(confirmed_level(runs, LEARNED)) < 7
    assert cut <= 2


def test_reruns_of_one_commit_begin_no_segment_and_three_commits_do() -> None:
    usual = [make_record(f"u{k}", slower=0.001 * (k % 3)) for k in range(5)]
    reruns = [make_record(f"r{k}", slower=S + 0.001 * k, commit="slow") for k in range(4)]
    assert [run.run for run in confirmed_level([*usual, *reruns], LEARNED)] == [run.run for run in usual]
    commits = [*reruns, make_record("x", slower=S), make_record("y", slower=S)]
    level = confirmed_level([*usual, *commits], LEARNED)
    assert [run.run for run in level] == ["r0", "r1", "r2", "r3", "x", "y"]
