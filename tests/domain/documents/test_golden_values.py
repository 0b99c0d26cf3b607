import json
import math

import numpy as np
import pytest

from app.domain.documents.scalars import read_golden_values
from tests.shared_papers import shared_folder

# NVIDIA/Megatron-LM, gpt3_mcore_tp2_cp2_pp2_ep2_te_4experts2parallel_dp_last, dev, dgx_gb200, 2026-01-30
UPSTREAM = {
    "lm loss": {
        "start_step": 1,
        "end_step": 4,
        "step_interval": 1,
        "values": {"1": 10.79193, "2": 10.81245, "3": 10.79181, "4": 10.78209},
    },
    "iteration-time": {
        "start_step": 1,
        "end_step": 4,
        "step_interval": 1,
        "values": {"1": "nan", "2": 7.52257, "3": 0.74502, "4": 0.74089},
    },
}
# gpt3_345m_nightly_dgx_a100_1N8G_mcore_tp..., 2024-08-14: every fifth value of a list, counted from 0
OLD = {
    "lm loss": {"start_step": 0, "end_step": 15, "step_interval": 5, "values": [10.81942, 10.86739, 10.85698]},
    "iteration-time": {"start_step": 0, "end_step": 15, "step_interval": 5, "values": [27.50931, 0.67393, 0.67532]},
    "iteration_timing_avg": 0.3671870588235294,
}


def columns(document: object) -> dict[str, list[float]]:
    read = read_golden_values(json.dumps(document))
    return {name: [round(float(value), 5) for value in values] for name, values in read.columns.items()}


def test_upstream_layout():
    read = columns(UPSTREAM)
    assert read["iteration"] == [1, 2, 3, 4]
    assert math.isnan(read["step_time_ms"][0])
    assert read["step_time_ms"][1:] == [7522.57, 745.02, 740.89]
    assert read["lm_loss"] == [10.79193, 10.81245, 10.79181, 10.78209]


def test_step_two_is_a_mean_when_step_one_is_missing():
    true = columns(UPSTREAM)["step_time_true_ms"]
    assert [math.isnan(value) for value in true] == [True, True, False, False]


def test_old_layout_counts_from_the_first_iteration():
    read = columns(OLD)
    assert read["iteration"] == [1, 6, 11]
    assert read["step_time_true_ms"] == [27509.31, 673.93, 675.32]


def test_interval_five_starts_at_one():
    values = {"1": 51.33936, "5": 1.24167, "10": 1.14623}
    read = columns({"iteration-time": {"start_step": 1, "end_step": 10, "step_interval": 5, "values": values}})
    assert read["iteration"] == [1, 5, 10]
    assert read["step_time_true_ms"] == [51339.36, 1241.67, 1146.23]


def test_steps_of_a_golden_run_are_used():
    run = {
        "schema": "golden-run/1",
        "run_id": "r1",
        "world_size": 8,
        "gpu": "H100",
        "env_vars": {"NCCL_NVLS_ENABLE": 0, "HF_TOKEN": "hf_abcdefghijklmnop"},
        "container": {"image": "nvcr.io/nvidia/pytorch:26.04-py3"},
        "launch_args": {"--tensor-model-parallel-size": 2, "--moe-token-dispatcher-type": "alltoall", "--bf16": True},
        "series": {
            "mem-max-allocated-bytes": {
                "start_step": 1,
                "step_interval": 5,
                "steps": [1, 5],
                "values": [2137625088, None],
            }
        },
    }
    document = read_golden_values(json.dumps(run))
    assert document.columns["iteration"].tolist() == [1, 5]
    assert document.columns["peak_memory_bytes"][0] == 2137625088
    values = {name: stated.value for name, stated in document.stated.items()}
    assert values["gpus"] == 8
    assert values["gpu"] == "H100"
    assert values["tp"] == 2
    assert values["dispatcher"] == "alltoall"
    assert values["precision"] == "bf16"
    assert values["container"] == "nvcr.io/nvidia/pytorch:26.04-py3"
    assert values["env.NCCL_NVLS_ENABLE"] == "0"
    assert "hf_abc" not in str(document)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"a": 1}', '{"a": {"start_step": 1}}', "not json", '{"series": {}}', "[" * 100_000, b"\xff\xfe{"],
)
def test_an_invalid_golden_file_is_refused(text):
    with pytest.raises(ValueError, match=r"\w+ .*\."):
        read_golden_values(text)


def test_entries_that_are_not_numbers_are_skipped_with_a_warning():
    values = {"1": 1.0, "x": 2.0, "-3": 3.0, "2": [4.0], "99999999999999999999": 1.0, "3": 2.5}
    document = read_golden_values(
        json.dumps({"lm loss": {"start_step": 1, "end_step": 3, "step_interval": 1, "values": values}})
    )
    assert document.columns["lm_loss"].tolist() == [1.0, 2.5]
    (problem,) = document.problems
    assert problem.startswith("lm loss: 4 values")


def test_every_golden_run_gives_its_step_times():
    """In golden-run/1, and in upstream's layout derived from it."""
    files = sorted((shared_folder("corpus") / "golden").glob("*/*.json"))
    assert len(files) == 688
    timed = 0
    for file in files:
        run = json.loads(file.read_bytes())
        read = read_golden_values(file.read_bytes())
        assert read.problems == (), file
        series = run["series"].get("iteration-time")
        if series is None:
            continue
        timed += 1
        expected = np.array([math.nan if value is None else value * 1000 for value in series["values"]])
        expected = expected[np.isfinite(expected)]
        times = read.columns["step_time_ms"]
        np.testing.assert_array_equal(times[np.isfinite(times)], expected)
        if series["start_step"] > 0:
            upstream = columns_of(upstream_layout(run["series"]))
            np.testing.assert_array_equal(upstream["iteration"], read.columns["iteration"])
            np.testing.assert_array_equal(upstream["step_time_true_ms"], read.columns["step_time_true_ms"])
    assert timed == 676


def columns_of(document: object) -> dict[str, np.ndarray]:
    return dict(read_golden_values(json.dumps(document)).columns)


def upstream_layout(series: dict) -> dict:
    layout = {}
    for name, metric in series.items():
        start, interval, values = metric["start_step"], metric["step_interval"], metric["values"]
        steps = metric.get("steps") or [start + place * interval for place in range(len(values))]
        stored = {str(step): "nan" if value is None else value for step, value in zip(steps, values, strict=True)}
        layout[name] = {"start_step": start, "end_step": steps[-1], "step_interval": interval, "values": stored}
    return layout
