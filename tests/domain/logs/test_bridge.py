"""Megatron-Bridge's step lines and configuration summary."""

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


def test_step_lines_alone_are_counted_and_that_is_said() -> None:
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
    assert "dist_opt" not in log.stated  # there is no [ddp] section whose absence of it would mean something


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
