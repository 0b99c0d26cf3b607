"""`threewalls compare` as a CI job meets it: the first lines, the exit codes, the JSON."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from app.demo.story import CI_WORKLOAD
from tests.analysis.commands import PLACE, setting, threewalls, write_logs
from tests.shared_papers import shared_folder

CASE = "gpt3_moe_mcore_te_tp2_pp2_ep4_etp1_no_mtp_no_a2a_ovlp_fine_grained_offloading--dgx_h100"
BASELINE, CANDIDATE = f"{CASE}--2026-03-06--acfa1b02.mlm.log", f"{CASE}--2026-04-14--7a7c3bde.mlm.log"


@pytest.fixture
def rendered() -> Path:
    """Runs of real CI jobs as Megatron-LM would have printed them."""
    return shared_folder("corpus") / "logs" / "rendered"


@pytest.fixture
def baseline(tmp_path: Path) -> list[Path]:
    return write_logs(tmp_path, range(8))


def test_two_real_runs_of_one_test_case_are_judged(rendered: Path) -> None:
    answer = threewalls("compare", *setting(PLACE), "--baseline", rendered / BASELINE, "--", rendered / CANDIDATE)
    # One baseline run cannot show more: 1,935.0 and 1,934.6 ms, run-to-run variation unknown.
    assert answer.code == 5
    assert answer.lines[0].startswith("inconclusive · ")
    assert answer.lines[1].startswith(f"baseline: 1 run ({BASELINE}), same configuration")
    assert "6 baseline runs (now 1)" in answer.output
    assert "not stated: pp_overlap" in answer.output


def test_another_container_is_not_a_baseline_and_the_field_is_named(rendered: Path) -> None:
    sides = ["--baseline-set", "container=pytorch:26.02", "--candidate-set", "container=pytorch:26.04"]
    answer = threewalls("compare", *sides, "--baseline", rendered / BASELINE, "--", rendered / CANDIDATE)
    assert answer.code == 4
    assert "with container pytorch:26.02" in answer.lines[0]
    assert answer.lines[1].endswith("container (pytorch:26.02 → pytorch:26.04)")
    assert "difference to container" in answer.output
    assert "regression" not in answer.output


def test_runs_of_two_test_cases_are_incomparable_and_the_fields_are_named(rendered: Path) -> None:
    other = "mixtral_8x7b_alltoall_tp2pp4ep4_release_sm--dgx_h100--2025-06-27--a80c1540.mlm.log"
    answer = threewalls("compare", "--json", "--baseline", rendered / other, "--", rendered / CANDIDATE)
    document = answer.document
    assert (answer.code, document["verdict"], document["contrast"]) == (4, "no_baseline", None)
    assert {"model", "pp", "gbs"} <= set(document["nearest_misses"][0]["fields"])


def test_a_slow_down_is_a_regression(baseline: list[Path], tmp_path: Path) -> None:
    slow = write_logs(tmp_path, [100, 101], "slow", slower=1.08)
    commits = ["--baseline-set", "commit=0f3c2a9d11", "--candidate-set", "commit=77aa01bc22"]
    answer = threewalls("compare", *setting(PLACE), *commits, "--baseline", *baseline, "--", *slow)
    assert answer.code == 1, answer.output
    assert answer.lines[0].startswith("regression · 5.9")
    parts = ("8 runs", "base-0.log", "4 more", "commit (0f3c2a9d → 77aa01bc)")
    assert [part for part in parts if part not in answer.lines[1]] == []
    table = [line.split("  ")[0] for line in answer.lines[3:8]]
    assert table == ["figure", "Step time", "Tokens, tokens/s/GPU", "Model FLOPs, TFLOP/s/GPU", "MFU"]
    assert "commit (0f3c2a9d → 77aa01bc): " in answer.output


def test_options_may_follow_the_run_to_judge(baseline: list[Path], tmp_path: Path) -> None:
    slow = write_logs(tmp_path, [100, 101], "slow", slower=1.08)
    answer = threewalls("compare", "--baseline", *baseline, "--", *slow, *setting(PLACE), "--looks", 2, "--json")
    document = answer.document
    assert (answer.code, document["verdict"], document["exit_code"]) == (1, "regression", 1)
    assert document["looks"] == 2
    assert document["candidate"]["used"] == ["slow-100.log", "slow-101.log"]
    change = document["metrics"]["step_time_ms"]
    assert change["ci_low_pct"] < change["delta_pct"] < change["ci_high_pct"]
    assert change["delta_pct"] == pytest.approx(100 * (change["candidate"] / change["baseline"] - 1))
    throughput = document["metrics"]["tokens_per_s_per_gpu"]
    assert 1 + throughput["delta_pct"] / 100 == pytest.approx(1 / (1 + change["delta_pct"] / 100), rel=1e-6)
    assert document["metrics"]["peak_memory_gib"]["decision"] == "no_change"
    assert not document["provisional"]


def test_runs_that_are_alike_are_fine(tmp_path: Path) -> None:
    """The same twenty under other names: with 1.4 % between launches, showing equality within 2 % takes that many."""
    many = write_logs(tmp_path, range(20), "many")
    again = write_logs(tmp_path, range(20), "again")
    answer = threewalls("compare", *setting(PLACE), "--baseline", *many, "--", *again)
    assert answer.code == 0, answer.output
    assert answer.lines[0].startswith("no change · ")
    assert "No figure changed." in answer.output


def test_more_memory_is_a_regression_of_even_a_faster_run(baseline: list[Path], tmp_path: Path) -> None:
    hungry = write_logs(tmp_path, [100], "hungry", memory=1.05)
    answer = threewalls("compare", *setting(PLACE), "--baseline", *baseline, "--", *hungry)
    assert answer.code == 1
    assert answer.lines[0].startswith("more memory · 5.0 %")


def test_a_knob_that_was_turned_is_the_first_suspect(baseline: list[Path], tmp_path: Path) -> None:
    workload = replace(CI_WORKLOAD, dispatcher="alltoall")
    slow = write_logs(tmp_path, [100, 101], "slow", slower=1.1, workload=workload)
    answer = threewalls("compare", *setting(PLACE), "--baseline", *baseline, "--", *slow)
    assert answer.code == 0, answer.output  # an A/B, not a regression of one job
    assert "dispatcher (hybridep → alltoall) (matched A/B" in answer.lines[1]
    document = threewalls("compare", "--json", *setting(PLACE), "--baseline", *baseline, "--", *slow).document
    assert (document["suspects"][0]["field"], document["comparability"]["attributed_to"]) == (
        "dispatcher",
        "dispatcher",
    )


def test_an_experiment_is_an_a_b_and_no_regression(baseline: list[Path], tmp_path: Path) -> None:
    workload = replace(CI_WORKLOAD, ep_overlap=False)
    slow = write_logs(tmp_path, [100, 101], "slow", slower=1.1, workload=workload)
    stated = [*setting(PLACE), "--candidate-set", "purpose=experiment"]
    answer = threewalls("compare", *stated, "--baseline", *baseline, "--", *slow)
    assert answer.code == 0
    assert answer.lines[0].startswith("A/B slower · ")


def test_a_run_that_failed_has_no_speed(baseline: list[Path], tmp_path: Path) -> None:
    failed = write_logs(tmp_path, [100], "failed", failure="out of memory", iterations=30)
    answer = threewalls("compare", *setting(PLACE), "--baseline", *baseline, "--", *failed)
    assert answer.code == 3
    assert answer.lines[0].startswith("failed · ")


def test_a_log_without_iterations_says_what_failed(baseline: list[Path], tmp_path: Path) -> None:
    broken = write_logs(tmp_path, [100], "broken", failure="deepep missing")
    answer = threewalls("compare", *setting(PLACE), "--baseline", *baseline, "--", *broken)
    assert (answer.code, answer.output) == (3, "")
    assert "DeepEP is not installed" in answer.errors


def test_a_bad_run_among_the_baseline_is_left_out_by_name(baseline: list[Path], tmp_path: Path) -> None:
    bad = write_logs(tmp_path, [50], "bad", failure="out of memory", iterations=30)
    bad += write_logs(tmp_path, [51], "other-batch", workload=replace(CI_WORKLOAD, micro_batch_size=2))
    slow = write_logs(tmp_path, [100, 101], "slow", slower=1.08)
    answer = threewalls("compare", *setting(PLACE), "--baseline", *baseline, *bad, "--", *slow)
    assert answer.code == 1
    assert "bad-50.log: " in answer.output
    assert re.search(r"other-batch-51\.log: .*`mbs`", answer.output)


def test_forced_balance_is_never_judged_against_natural_routing(baseline: list[Path], tmp_path: Path) -> None:
    natural = write_logs(tmp_path, [100], "natural")
    sides = ["--candidate-set", "routing_mode=dropless"]
    answer = threewalls("compare", *setting(PLACE), *sides, "--baseline", *baseline, "--", *natural)
    assert answer.code == 4
    assert "routing_mode (forced-balance → dropless)" in answer.lines[1]


def test_a_folder_is_one_run_of_several_files(baseline: list[Path], tmp_path: Path) -> None:
    lines = baseline[0].read_text().splitlines(keepends=True)
    folder = tmp_path / "sliced"
    folder.mkdir()
    (folder / "0.log").write_text("".join(lines[:150]))
    (folder / "1.log").write_text("".join(lines[150:]))
    answer = threewalls("compare", *setting(PLACE), "--json", "--baseline", *baseline[1:], "--", folder)
    assert answer.document["candidate"]["used"] == ["sliced"]


WRONG = [
    (["compare", "--baseline", "A", "--", "A"], "A is given twice"),
    (["compare", "--baseline", "A", "--set", "sku", "--", "B"], "KEY=VALUE"),
    (["compare", "--baseline", "A", "--set", "containr=x", "--", "B"], "Did you mean `container`?"),
    (["compare", "--baseline", "A", "--set", "gpus=many", "--", "B"], "meta.gpus"),
    (["compare", "--baseline", "A", "--meta", "missing.json", "--", "B"], "missing.json cannot be read"),
    (["compare", "--baseline", "A"], "--candidate"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_a_usage_error_is_reported_and_exits_with_2(arguments: list[str], message: str) -> None:
    answer = threewalls(*arguments)
    assert (answer.code, answer.output) == (2, "")
    assert message in answer.errors


def test_runs_that_are_not_reruns_are_not_pooled(baseline: list[Path], tmp_path: Path) -> None:
    other = write_logs(tmp_path, [100], "other", workload=replace(CI_WORKLOAD, ep_overlap=False))
    answer = threewalls("compare", "--baseline", *baseline[2:], "--", baseline[0], *other)
    assert answer.code == 2
    assert "ep_overlap" in answer.errors
