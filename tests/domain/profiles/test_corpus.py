"""Every trace of the corpus matches its sidecar to the nanosecond."""

import csv
from pathlib import Path
from typing import Any

import pytest

from app.domain.profiles.difference import compare_profiles, first_sentence
from app.domain.profiles.kernels import kernel_class, label_of_class
from tests.domain.profiles.traces import corpus, differences, document, expected, kineto, names, nsight

REAL = names("*", ".json.gz")
REAL_NSIGHT = names("*", ".sqlite.gz")
SYNTHETIC = [name for name in names("synthetic/*/*", ".json.gz") if "ranks-" not in name and "pair-" not in name]
SYNTHETIC_NSIGHT = names("synthetic/*/*", ".sqlite.gz")
SEEDS = sorted({name.split("/")[1] for name in SYNTHETIC})


def test_every_kernel_name_has_its_class() -> None:
    rows = list(csv.DictReader((corpus() / "kernel-names.csv").read_text().splitlines()))
    wrong = [
        (row["kernel_name"], row["class"], kernel_class(row["kernel_name"]))
        for row in rows
        if kernel_class(row["kernel_name"]) != row["class"]
    ]
    assert len(rows) > 90
    assert not wrong


@pytest.mark.parametrize("name", REAL)
def test_a_real_kineto_trace_has_its_expected_values(name: str) -> None:
    values = expected(name)["expected"]
    file = document(kineto(name))["files"][0]
    assert differences({key: values[key] for key in ("rank", "world_size", "events", "devices")}, file) == []


@pytest.mark.parametrize("name", REAL_NSIGHT)
def test_a_real_nsight_export_has_its_expected_values(name: str, tmp_path: Path) -> None:
    devices = document(nsight(name, tmp_path))["files"][0]["devices"]
    assert differences(expected(name)["expected"], devices) == []


def measured(truth: dict[str, Any], steps: list[dict[str, Any]]) -> list[str]:
    """Compare the steps that have an end on the device with those that the trace was built of."""
    built = {step["step"]: {k: v for k, v in step.items() if k != "class_sum_ms"} for step in truth["steps"]}
    assert [step["step"] for step in steps] == list(built)[:-1]
    return [text for step in steps for text in differences(built[step["step"]], step)]


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_generated_trace_has_the_values_it_was_generated_from(name: str) -> None:
    (device,) = document(kineto(name))["files"][0]["devices"].values()
    assert measured(expected(name, ".truth.json"), device["steps"]) == []


@pytest.mark.parametrize("name", [name for name in SYNTHETIC_NSIGHT if name.endswith("nsys-ranges")])
def test_both_ranks_of_an_export_give_the_values_they_were_built_of(name: str, tmp_path: Path) -> None:
    devices = document(nsight(name, tmp_path))["files"][0]["devices"]
    for truth, device in zip(expected(name, ".truth.json")["ranks"], devices.values(), strict=True):
        assert measured(truth, device["steps"]) == []


@pytest.mark.parametrize("name", [name for name in SYNTHETIC_NSIGHT if name.endswith("nsys-no-ranges")])
def test_the_optimizer_separates_steps_that_no_range_names(name: str, tmp_path: Path) -> None:
    devices = document(nsight(name, tmp_path))["files"][0]["devices"]
    for truth, device in zip(expected(name, ".truth.json")["ranks"], devices.values(), strict=True):
        assert device["step_source"] == "optimizer"
        inner = [{k: v for k, v in step.items() if k not in ("step", "class_sum_ms")} for step in truth["steps"][1:-1]]
        assert differences(inner, device["steps"]) == []


@pytest.mark.parametrize("name", [name for name in SYNTHETIC_NSIGHT if name.endswith("nsys-whole-graph")])
def test_whole_graphs_count_as_computation_and_hide_what_they_contain(name: str, tmp_path: Path) -> None:
    profile = document(nsight(name, tmp_path))
    assert profile["quality"]["graphs"] == "whole"
    assert profile["facts"]["exposed_comm_frac"] is None
    for truth, device in zip(
        expected(name, ".truth.json")["ranks"], profile["files"][0]["devices"].values(), strict=True
    ):
        for built, step in zip(truth["steps"], device["steps"], strict=False):
            assert step["window_ms"] == pytest.approx(built["window_ms"], abs=1e-6)
            assert step["exposed_comm_ms"] is None
            assert step["launch_starved_frac"] == pytest.approx(built["launch_starved_frac"], abs=2e-6)
            # Gaps inside a graph are not visible any more, so they count as busy.
            gaps = built["compute_absent_split_ms"]["issued_other"] - step["compute_absent_split_ms"]["issued_other"]
            assert step["compute_ms"] == pytest.approx(built["compute_ms"] + gaps, abs=2e-6)


def test_the_rank_that_comes_late_makes_the_other_wait() -> None:
    profile = document(kineto("megatron-tp2-rank0"), kineto("megatron-tp2-rank1"))
    assert differences(expected("megatron-tp2", ".ranks.json"), profile["ranks"]["rows"]) == []
    assert profile["ranks"]["late_rank"] == profile["facts"]["straggler_rank"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_waiting_is_distinguished_from_transfer_without_clocks(seed: str) -> None:
    truth = expected(f"synthetic/{seed}/ranks", ".truth.json")
    profile = document(*(kineto(f"synthetic/{seed}/ranks-{rank}") for rank in range(4)))
    assert profile["ranks"]["matched"] == len(truth["instances"])
    assert profile["ranks"]["straggler_rank"] == truth["late_rank"]
    shares = [row["wait_ms"] / row["comm_ms"] for row in profile["ranks"]["rows"]]
    assert shares == pytest.approx(truth["wait_share_of_comm"], abs=2e-6)
    transfers = sum(instance["transfer_ms"] for instance in truth["instances"])
    assert [row["transfer_ms"] for row in profile["ranks"]["rows"]] == pytest.approx([transfers] * 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rows_of_two_profiles_add_up_to_the_difference_of_the_step(seed: str) -> None:
    truth = expected(f"synthetic/{seed}/pair", ".truth.json")
    sides = [document(kineto(f"synthetic/{seed}/pair-{side}")) for side in ("before", "after")]
    difference = compare_profiles(*sides)
    assert difference is not None
    assert sum(row.difference_ms for row in difference.rows) == pytest.approx(difference.difference_ms, abs=1e-9)
    rows = {row.name: row for row in difference.rows}
    changed = rows[truth["changed_class"]]
    assert changed.after_ms / changed.before_ms == pytest.approx(
        truth["factor"], abs=2e-3
    )  # the durations of its kernels are whole microseconds
    assert rows["idle.launch_starved"].difference_ms == pytest.approx(-truth["gap_removed_ms_per_step"])
    for row in difference.rows:
        by_kernels = sum(kernel.calls_ms + kernel.per_call_ms for kernel in row.kernels)
        work = sum(kernel.work_ms[1] - kernel.work_ms[0] for kernel in row.kernels)
        assert by_kernels == pytest.approx(work, abs=1e-9)
    assert label_of_class(truth["changed_class"]) in first_sentence(difference)


def test_windows_without_steps_are_compared_by_launches_of_a_kernel(tmp_path: Path) -> None:
    sides = [document(nsight(f"nsys-sp2-{side}", tmp_path)) for side in ("before", "after")]
    difference = compare_profiles(*sides)
    assert difference is not None
    assert "flash_fwd_kernel" in difference.anchor
    devices = [side["facts_from"]["device"] for side in sides]
    ranks = expected("nsys-sp2", ".pair.json")["ranks"]
    before = next(rank["window_ms"][0] for rank in ranks if rank["before"] == devices[0])
    after = next(rank["window_ms"][1] for rank in ranks if rank["after"] == devices[1])
    assert (difference.before_ms, difference.after_ms) == pytest.approx((before, after), abs=2e-6)
    assert sum(row.difference_ms for row in difference.rows) == pytest.approx(difference.difference_ms, abs=1e-9)


@pytest.mark.parametrize("name", [*REAL, *SYNTHETIC])
def test_the_parts_of_every_window_add_up(name: str) -> None:
    profile = document(kineto(name))
    assert profile["facts"]["budget_residual_ms"] == 0
    view = profile["view"]
    assert sum(view["credited_ms"].values()) == pytest.approx(view["step_ms"], abs=1e-4)
