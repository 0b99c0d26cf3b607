"""Trainers: Megatron Bridge, families of logs, and their versions."""

import pytest

from app.domain.logs import parse_text
from app.domain.run import ParsedLog
from tests.domain.logs.lines import column, iteration

RULE = "=" * 70 + "\n"


def step(seconds: float, tflops: float) -> str:
    return f"Step Time : {seconds:.2f}s GPU utilization: {tflops}MODEL_TFLOP/s/GPU\n"


def summary(body: str, prefix: str = "") -> str:
    text = f"\n{RULE}Configuration Summary (Non-Default Values vs Megatron Core)\n{RULE}\n{body}\n{RULE}"
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("before", [True, False])
def test_step_lines_give_tflops_to_their_iteration_lines(before: bool) -> None:
    pairs = [(step(2.26, 1156.2), iteration(1, 2261.0)), (step(3.54, 738.3), iteration(2, 3538.4))]
    log = parse_text("".join(a + b if before else b + a for a, b in pairs))
    assert column(log, "tflops_per_gpu") == [1156.2, 738.3]
    assert column(log, "step_time_ms") == [2261.0, 3538.4]
    assert log.trainer == "Megatron-Bridge"


def test_a_missing_step_line_leaves_a_gap() -> None:
    log = parse_text(
        iteration(1, 1000.0) + iteration(2, 2000.0) + step(2.0, 20.0) + iteration(3, 3000.0) + step(3, 30.0)
    )
    assert column(log, "tflops_per_gpu") == [None, 20.0, 30.0]


def test_a_printed_throughput_is_not_replaced() -> None:
    line = iteration(1, 1000.0, tail="throughput per GPU (TFLOP/s/GPU): 500.5")
    assert column(parse_text(line + step(1.0, 400.0)), "tflops_per_gpu") == [500.5]


def test_step_lines_alone_are_counted_with_a_remark() -> None:
    # Megatron-Bridge on 64 GB200, with its author's comments
    log = parse_text(
        "Step Time : 125.37s GPU utilization: 20.9MODEL_TFLOP/s/GPU    # iter 1, JIT warmup\n"
        "Step Time : 6.13s GPU utilization: 426.6MODEL_TFLOP/s/GPU\n"
    )
    assert column(log, "iteration") == [1, 2]
    assert column(log, "step_time_ms") == [125370.0, 6130.0]
    assert column(log, "tflops_per_gpu") == [20.9, 426.6]
    assert [problem.kind for problem in log.problems] == ["no iteration lines"]


def values(log: ParsedLog, *names: str) -> dict[str, object]:
    return {name: (log.stated[name].value, log.stated[name].source) for name in names}


MODEL = """\
[model] Non-default values (vs Mcore MLATransformerConfig):
  bf16: True  (Mcore default: False)
  moe_flex_dispatcher_backend: 'hybridep'  (Mcore default: 'deepep')
  moe_token_dispatcher_type: 'flex'  (Mcore default: 'allgather')
  num_moe_experts: 128  (Mcore default: None)
  cuda_graph_impl: 'transformer_engine'  (Mcore default: 'none')
  cuda_graph_modules: [<CudaGraphModule.attn: 1>, <CudaGraphModule.moe_router: 4>]  (Mcore default: None)
  tensor_model_parallel_size: 2  (Mcore default: 1)

----------------------------------------------------------------------
Other Configuration Values:
----------------------------------------------------------------------

[train]:
  global_batch_size: 512

[logger]:
  log_interval: 5
"""


@pytest.mark.parametrize("prefix", ["", "[default0]:", " 0: ", "2026-04-14T17:50:00.281177123Z stdout F "])
def test_the_summary_states_what_it_lists_and_implies_the_defaults(prefix: str) -> None:
    log = parse_text(summary(MODEL, prefix))
    assert values(log, "tp", "pp", "ep", "num_experts", "dispatcher", "gbs", "graph_modules", "lb_type", "etp") == {
        "tp": (2, "arguments"),
        "pp": (1, "default"),
        "ep": (1, "default"),
        "num_experts": (128, "arguments"),
        "dispatcher": ("hybridep", "derived"),
        "gbs": (512, "arguments"),
        "graph_modules": (("attn", "moe_router"), "arguments"),
        "lb_type": (("aux_loss",), "default"),
        "etp": (2, "derived"),
    }
    assert log.arguments["log_interval"] == 5
    assert "gpus" not in log.stated
    assert "dist_opt" not in log.stated  # there is no [ddp] section, so its absence there has no meaning


def test_other_processes_in_between_do_not_disturb_a_summary() -> None:
    text = summary(MODEL, "[default0]:").replace("[train]:\n", "[train]:\n[default3]:  global_batch_size: 7\n")
    assert parse_text(text).stated["gbs"].value == 512


def test_a_summary_without_end_is_read_as_far_as_it_goes() -> None:
    log = parse_text(summary(MODEL).rstrip("=\n"))
    assert log.stated["num_experts"].value == 128
    assert [problem.kind for problem in log.problems] == ["unfinished dump"]


def test_the_same_name_in_two_sections_keeps_both_values() -> None:
    body = (
        "[model] Non-default values (vs Mcore TransformerConfig):\n  seq_length: 4096\n[dataset]:\n  seq_length: 8192\n"
    )
    log = parse_text(summary(body))
    assert log.arguments == {"seq_length": 4096, "dataset.seq_length": 8192}


def test_a_later_summary_may_leave_a_name_out() -> None:
    body = "[model] Non-default values (vs Mcore TransformerConfig):\n  num_moe_experts: 128"
    log = parse_text(summary(body) + summary(body.partition("\n")[0] + "\n  bf16: True"))
    assert "num_moe_experts" not in log.arguments


# NeMo 2 guide, 2025-08-19
NEMO_2 = (
    "retraining/0 [default0]:Training epoch 0, iteration 0/99 | lr: 9.804e-08 | global_batch_size: 4 | "
    "global_step: 0 | reduced_train_loss: 14.66 | train_step_timing in s: 5.276\n"
    "retraining/0 [default0]:Training epoch 0, iteration 1/99 | lr: 1.961e-07 | global_batch_size: 4 | "
    "global_step: 1 | reduced_train_loss: 15.07 | train_step_timing in s: 2.008 | consumed_samples: 8\n"
)
# mlc-ai/pith-train issue 7, 2026-04-01
PITH_TRAIN = (
    "2026-04-01 14:27:31 | INFO | step 00000001/00000015 | step-time 43.142 sec | cross-entropy-loss 2.4934 | "
    "tokens-per-second 48,611 | peak-gpu-memory 57.26 GB\n"
)
PRIMUS = (
    "[20251023 12:39:12][rank-63/64][INFO ] [--------trainer.py:2382] :  iteration      424/   40000 | "
    "consumed samples:        27136 | elapsed time per iteration (ms): 16601.3/17219.3 | lm loss: 4.447942E+00 |\n"
)
DEEPSPEED = (
    "[default3]: iteration       10/ 3125000 | consumed samples:          960 | elapsed time per iteration (s): "
    "7.2310 | samples per second: 13.276 | TFLOPs: 101.54 |\n"
)


def test_nemo_2_counts_from_0_and_names_the_last_index() -> None:
    log = parse_text(NEMO_2)
    assert (log.trainer, log.total_iterations, log.n) == ("NeMo 2", 99, 2)
    assert column(log, "iteration") == [0, 1]
    assert column(log, "step_time_ms") == column(log, "step_time_true_ms") == [5276.0, 2008.0]
    assert column(log, "lm_loss") == [14.66, 15.07]
    assert column(log, "consumed_samples") == [None, 8]
    assert log.stated["gbs"].value == 4


def test_nemo_1_prints_one_list_at_the_end() -> None:
    log = parse_text("[NeMo I 2025-03-10 16:24:43 perf_metrics_utils:42] train_step_timing in s: [9.9, 7.12, 7.13]\n")
    assert (log.trainer, column(log, "iteration")) == ("NeMo 1", [0, 1, 2])
    assert column(log, "step_time_ms") == [9900.0, 7120.0, 7130.0]
    assert [problem.kind for problem in log.problems] == ["list of step times"]


def test_a_list_that_was_cut_loses_its_last_number() -> None:
    log = parse_text("train_step_timing in s: [9.9, 7.12, 7.")
    assert (column(log, "step_time_ms"), log.truncated) == ([9900.0, 7120.0], True)


def test_pith_train_prints_the_tokens_of_the_job_and_memory_in_bytes() -> None:
    log = parse_text(PITH_TRAIN)
    assert (log.trainer, log.total_iterations) == ("pith-train", 15)
    assert column(log, "step_time_ms") == [43142.0]
    assert column(log, "tokens_per_second") == [48611.0]
    assert column(log, "peak_memory_bytes") == [57.26 * 2**30]


def test_mindspeeds_line_without_a_last_iteration_is_read() -> None:
    log = parse_text(
        "iteration: 7 | consumed samples: 56 | elapsed time per iteration (ms): 12.5 | lm loss: 2.5 |\n" * 2
    )
    assert (column(log, "iteration"), column(log, "step_time_ms"), log.total_iterations) == ([7], [12.5], None)


def test_a_fork_that_drops_a_blank_is_read() -> None:
    log = parse_text("[2024-02-27 15:45:08] iteration 13 / 118 | elapsed time per iteration(ms): 17658.3 |\n")
    assert (column(log, "step_time_ms"), log.total_iterations) == ([17658.3], 118)


@pytest.mark.parametrize(
    ("text", "trainer"),
    [
        (PRIMUS, "Primus"),
        (DEEPSPEED, "Megatron-DeepSpeed"),
        (iteration(1, 1.0, tail="mem usages: 0.75"), "ROCm Megatron-LM"),
        (iteration(1, 1.0), "Megatron-LM"),
        ("/w/FlagScale/flagscale/train/train.py:12: UserWarning: x\n" + iteration(1, 1.0), "FlagScale"),
        ("/w/mindspeed_llm/training/training.py:1: UserWarning: x\n" + iteration(1, 1.0), "MindSpeed"),
        ("/w/mindspeed_llm/training/training.py:1: UserWarning: x\n" + DEEPSPEED, "Megatron-DeepSpeed"),
        (NEMO_2 + iteration(2, 1.0), "NeMo 2"),
        (NEMO_2 + iteration(2, 1.0) + iteration(3, 1.0), "Megatron-LM"),
        ("Step Time : 2.26s GPU utilization: 1156.2MODEL_TFLOP/s/GPU\n" + iteration(1, 2260.0), "Megatron-Bridge"),
        ("no trainer at all\n", ""),
    ],
)
def test_most_lines_decide_the_family_and_the_last_lines_break_ties(text: str, trainer: str) -> None:
    assert parse_text(text).trainer == trainer


def test_all_lines_of_a_mixed_log_are_read() -> None:
    log = parse_text(NEMO_2 + iteration(2, 10.0) + PITH_TRAIN.replace("00000001/", "00000003/"))
    assert column(log, "iteration") == [0, 1, 2, 3]
    assert column(log, "step_time_ms") == [5276.0, 2008.0, 10.0, 43142.0]


def test_what_the_trainer_counts_before_it_trains_is_kept_as_stated() -> None:
    log = parse_text(
        "Number of parameters in transformer block in billions:  0.08\nTotal number of parameters in billions: 0.12\n"
        "Theoretical memory footprints: weight and optimizer=2121.85 MB, activation=2785.59 MB, total=4907.44 MB\n"
    )
    assert log.arguments == {
        "number of parameters in transformer block in billions": 0.08,
        "total number of parameters in billions": 0.12,
        "theoretical memory: weight and optimizer (MB)": 2121.85,
        "theoretical memory: activation (MB)": 2785.59,
        "theoretical memory: total (MB)": 4907.44,
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("node7:1:9 [0] NCCL INFO NCCL version 2.27.3+cuda12.9", {"nccl_version": "2.27.3", "cuda_version": "12.9"}),
        ("[default0]:NCCL version 2.21.5+cuda12.4", {"nccl_version": "2.21.5", "cuda_version": "12.4"}),
        ("NCCL version 2.27.3", {"nccl_version": "2.27.3"}),
        ("PyTorch Version 2.9.0a0+145a3a7", {"pytorch_version": "2.9.0a0+145a3a7"}),
        ("NCCL version unknown", {}),
        ("NCCL version \x1b[31m", {}),
    ],
)
def test_a_printed_version_is_stated(line: str, expected: dict[str, str]) -> None:
    stated = parse_text(f"starting\n{line}\nstarted\n").stated
    assert {name: value.value for name, value in stated.items()} == expected
    assert all(version.source == "log line" and version.detail.startswith("line 2: ") for version in stated.values())


def test_the_first_printed_version_counts() -> None:
    stated = parse_text("0: NCCL version 2.27.3+cuda12.9\n1: NCCL version 2.21.5+cuda12.4\n").stated
    assert stated["nccl_version"].value == "2.27.3"
