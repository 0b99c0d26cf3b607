import json
import math
import struct

import numpy as np
import pytest

from app.domain.documents.scalars import read_golden_values
from app.domain.documents.tensorboard import (
    BATCH_BYTES,
    masked_crc32c,
    masked_crc32c_rows,
    read_event,
    read_tensorboard,
)
from tests.domain.documents.event_files import crc32c, event, event_file, frame, header, masked, simple, tensor, text
from tests.shared_papers import shared_folder

# Megatron-LM golden run gpt3_moe_mcore_te_tp4_ep2_etp2_pp2_scoped_cudagraph, 2026-07-25, dgx_h100: iterations 2 to 6
STEP_TIMES_S = [29.93393, 1.98973, 5.35658, 1.20635, 1.19444]
LOSSES = [10.95659, 10.95273, 10.97295, 10.95542]


def run_file(*more: bytes) -> bytes:
    times = [event(step, simple("iteration-time", time)) for step, time in enumerate(STEP_TIMES_S, start=2)]
    losses = [event(step, simple("lm loss", loss)) for step, loss in enumerate(LOSSES, start=1)]
    return event_file(*losses, *times, *more)


def column(data: bytes, name: str) -> list[float]:
    return [round(float(value), 3) for value in read_tensorboard([data]).columns[name]]


def test_checksum_is_that_of_the_standard():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert struct.pack("<I", masked_crc32c(b"123456789")) == masked(b"123456789")
    assert masked_crc32c_rows(np.frombuffer(b"123456789", np.uint8)[None])[0] == masked_crc32c(b"123456789")


def test_step_times_are_milliseconds_by_iteration():
    document = read_tensorboard([run_file()])
    assert document.columns["iteration"].tolist() == [1, 2, 3, 4, 5, 6]
    assert column(run_file(), "step_time_ms")[1:] == [29933.929, 1989.73, 5356.58, 1206.35, 1194.44]
    assert math.isnan(document.columns["step_time_ms"][0])
    assert document.problems == ()


def test_the_first_recorded_time_spans_two_iterations_and_has_no_true_value():
    true = read_tensorboard([run_file()]).columns["step_time_true_ms"]
    assert np.flatnonzero(np.isnan(true)).tolist() == [0, 1]


def test_a_run_that_records_its_first_iteration_keeps_it():
    data = event_file(*(event(step, simple("iteration-time", 2.0 / step)) for step in (1, 2, 3)))
    assert column(data, "step_time_true_ms") == [2000.0, 1000.0, 666.667]


def test_an_interval_of_several_iterations_is_not_an_artefact():
    losses = [event(step, simple("lm loss", 10.0)) for step in range(1, 11)]
    data = event_file(*losses, event(5, simple("iteration-time", 4.0)), event(10, simple("iteration-time", 1.0)))
    true = read_tensorboard([data]).columns["step_time_true_ms"]
    assert true[[4, 9]].tolist() == [4000.0, 1000.0]


@pytest.mark.parametrize(
    ("tag", "name", "factor"),
    [
        ("iteration-time", "step_time_ms", 1000),
        ("throughput", "tflops_per_gpu", 1),
        ("throughput/tflops/device", "tflops_per_gpu", 1),
        ("learning-rate", "learning_rate", 1),
        ("batch-size", "global_batch_size", 1),
        ("loss-scale", "loss_scale", 1),
        ("grad-norm", "grad_norm", 1),
        ("num-zeros", "num_zeros", 1),
        ("params-norm", "params_norm", 1),
        ("mem-max-allocated-bytes", "peak_memory_bytes", 1),
        ("mem-max-allocated-gigabytes", "peak_memory_bytes", 1e9),
        ("mem-reserved-bytes", "reserved_memory_bytes", 1),
        ("iter-energy/gpu", "energy_j_per_gpu", 1),
        ("power/gpu", "power_w_per_gpu", 1),
        ("load_balancing_loss", "load_balancing_loss", 1),
        ("mtp_1 loss", "mtp_1_loss", 1),
        ("forward-backward-time", "forward_backward_time_ms", 1000),
        ("max_attention_logit", "max_attention_logit", 1),
    ],
)
@pytest.mark.parametrize("written", [simple, tensor])
def test_scalar_names(tag, name, factor, written):
    data = event_file(event(1, written(tag, 0.5)))
    assert read_tensorboard([data]).columns[name].tolist() == [0.5 * factor]


def test_copies_over_samples_are_dropped():
    data = run_file(event(1024, simple("lm loss vs samples", 10.9)), event(512, simple("grad-norm vs samples", 1.0)))
    assert read_tensorboard([data]).columns["iteration"].max() == 6


def test_a_restart_keeps_the_later_value():
    data = event_file(
        *(event(step, simple("lm loss", value)) for step, value in [(1, 9.0), (2, 8.0), (2, 7.5), (3, 7.0)])
    )
    assert column(data, "lm_loss") == [9.0, 7.5, 7.0]


def test_arguments_written_as_text_become_fields():
    arguments = {
        "tensor_model_parallel_size": "2",
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "recompute_granularity": "selective",
        "recompute_modules": "['moe_act', 'layernorm']",
        "num_experts": "64",
    }
    texts = [event(0, text(name, value)) for name, value in arguments.items()]
    stated = read_tensorboard([event_file(*texts, event(8, simple("world-size", 16.0)))]).stated
    assert stated["tp"].value == 2
    assert stated["dispatcher"].value == "hybridep"
    assert stated["recompute_modules"].value == ("layernorm", "moe_act")
    assert stated["gpus"].value == 16
    assert stated["tp"].detail == "TensorBoard text: tensor_model_parallel_size = 2"


@pytest.mark.parametrize("cut", [1, 5, 11, 12, 30])
def test_a_cut_last_record_is_normal(cut):
    whole = run_file()
    document = read_tensorboard([whole[:-cut]])
    assert document.problems == ()
    assert np.isfinite(document.columns["step_time_ms"]).sum() == len(STEP_TIMES_S) - 1


def test_a_corrupt_record_is_skipped_with_a_warning():
    good = run_file()
    broken = bytearray(event(7, simple("iteration-time", 1.0)))
    broken[-6] ^= 0xFF
    document = read_tensorboard([good + bytes(broken) + event(8, simple("iteration-time", 1.25))])
    assert document.columns["iteration"].tolist() == [1, 2, 3, 4, 5, 6, 8]
    (problem,) = document.problems
    assert ("checksum" in problem, problem.startswith("1 record")) == (True, True)


def test_a_broken_length_is_searched_past():
    broken = bytearray(event(7, simple("iteration-time", 1.0)))
    broken[3] ^= 0x10
    document = read_tensorboard([run_file() + bytes(broken) + event(8, simple("iteration-time", 1.25))])
    assert document.columns["iteration"].tolist()[-1] == 8
    (problem,) = document.problems
    assert "damaged in 1 place" in problem


def test_long_records_are_stepped_over_in_any_chunking():
    image = frame(b"\x00" * (3 * BATCH_BYTES))
    data = header() + event(1, simple("lm loss", 2.0)) + image + event(2, simple("lm loss", 1.0))
    chunks = [data[start : start + 1000] for start in range(0, len(data), 1000)]
    assert read_tensorboard(chunks).columns["lm_loss"].tolist() == [2.0, 1.0]


def test_a_file_full_of_damage_ends_early():
    damaged = b"".join(b"\x01" * 13 + event(step, simple("lm loss", 1.0)) for step in range(300))
    problems = read_tensorboard([header() + damaged]).problems
    assert any("stopped early" in problem for problem in problems)


def test_steps_can_be_negative():
    record = event(-3, simple("lm loss", 1.0))[12:-4]
    assert read_event(record)[0].step == -3


def test_a_file_without_scalars_says_so():
    document = read_tensorboard([header()])
    assert document.columns == {}
    (problem,) = document.problems
    assert "no scalars" in problem


# ---

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


def test_every_golden_run_yields_its_step_times():
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
