"""Published test vectors: GFLOP per token, to the digits in which they are published (`docs/metrics.md`)."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from app.domain.contract.values import (
    canonical_model,
    differences,
    known_model,
    outline_name,
    recognise,
    values_in_name,
)
from app.domain.logs import parse_log, parse_text
from app.domain.logs.merge import merge_logs
from app.domain.performance.failures import KINDS
from app.domain.performance.flops import Inputs, explain_difference, flops_per_step, flops_per_token
from app.domain.performance.health import explain_failures
from app.domain.performance.model_shape import (
    Experts,
    GatedDeltaNet,
    GroupedQueryAttention,
    HybridLayers,
    LatentAttention,
    ModelShape,
    pad_vocabulary,
    read_shape,
    window_tokens,
)
from app.domain.run import Failure, LogEvent, LogPart, Value
from tests.domain.builders import QWEN3_30B, make_log
from tests.shared_papers import shared_folder

MLA_128 = LatentAttention(128, 1536, 512, 128, 64, 128)


def qwen3_30b() -> ModelShape:
    return ModelShape(48, 2048, 151936, 0, True, GroupedQueryAttention(32, 4, 128), Experts(8, 768, (1,) * 48))


def qwen3_235b() -> ModelShape:
    return ModelShape(94, 4096, 151936, 0, True, GroupedQueryAttention(64, 4, 128), Experts(8, 1536, (1,) * 94))


def deepseek_v3(mtp: int) -> ModelShape:
    return ModelShape(61, 7168, 129280, 18432, True, MLA_128, Experts(8, 2048, (0,) * 3 + (1,) * 58, 2048), mtp)


def deepseek_v2() -> ModelShape:
    return ModelShape(60, 5120, 102400, 12288, True, MLA_128, Experts(6, 1536, (0,) + (1,) * 59, 3072))


def deepseek_v2_lite() -> ModelShape:
    attention = LatentAttention(16, None, 512, 128, 64, 128)
    return ModelShape(27, 2048, 102400, 10944, True, attention, Experts(6, 1408, (0,) + (1,) * 26, 2816))


def kimi_k2() -> ModelShape:
    attention = LatentAttention(64, 1536, 512, 128, 64, 128)
    return ModelShape(61, 7168, 163840, 18432, True, attention, Experts(8, 2048, (0,) + (1,) * 60, 2048))


def gpt_oss_120b() -> ModelShape:
    attention = GroupedQueryAttention(64, 8, 64, window=128, full_every=2)
    return ModelShape(36, 2880, 201088, 0, True, attention, Experts(4, 2880, (1,) * 36))


def gpt_oss_20b() -> ModelShape:
    attention = GroupedQueryAttention(64, 8, 64, window=128, full_every=2)
    return ModelShape(24, 2880, 201088, 0, True, attention, Experts(4, 2880, (1,) * 24))


def mixtral_8x7b() -> ModelShape:
    return ModelShape(32, 4096, 32000, 0, True, GroupedQueryAttention(32, 8, 128), Experts(2, 14336, (1,) * 32))


def mixtral_8x22b() -> ModelShape:
    return ModelShape(56, 6144, 32768, 0, True, GroupedQueryAttention(48, 8, 128), Experts(2, 16384, (1,) * 56))


def qwen3_next() -> ModelShape:
    attention = GroupedQueryAttention(16, 2, 256, output_gate=True)
    linear = GatedDeltaNet(37, 128, 16, 128, 32, 4)
    return ModelShape(48, 2048, 151936, 0, True, attention, Experts(10, 512, (1,) * 48, 512), 1, linear)


def nemotron_3_nano() -> ModelShape:
    hybrid = HybridLayers(23, 6, 23, 0, mamba_heads=64, mamba_state=128, mamba_groups=8)
    experts = Experts(6, 1856, (1,) * 52, 3712)
    return ModelShape(52, 2688, 131072, 0, False, GroupedQueryAttention(32, 2, 128), experts, hybrid=hybrid)


def nemotron_3_super() -> ModelShape:
    hybrid = HybridLayers(40, 8 + 2, 40 + 2, 0, mamba_heads=128, mamba_state=128, mamba_groups=8)
    experts = Experts(22, 2688, (1,) * 88, 5376, latent_width=1024)
    return ModelShape(88, 4096, 131072, 0, False, GroupedQueryAttention(32, 2, 128), experts, 2, hybrid=hybrid)


VECTORS = [
    ("Qwen3-30B-A3B", qwen3_30b(), 4096, False, "23.006"),
    ("Qwen3-235B-A22B", qwen3_235b(), 4096, False, "148.035"),
    ("DeepSeek-V3 with one MTP layer", deepseek_v3(1), 4096, False, "259.993"),
    ("DeepSeek-V3", deepseek_v3(0), 4096, False, "249.812"),
    ("DeepSeek-V2", deepseek_v2(), 4096, False, "155.01"),
    ("DeepSeek-V2-Lite", deepseek_v2_lite(), 4096, False, "16.39"),
    ("GPT-OSS-120B, windows discounted", gpt_oss_120b(), 4096, True, "32.630"),
    ("GPT-OSS-120B, as Megatron-LM counts", gpt_oss_120b(), 4096, False, "34.33"),
    ("GPT-OSS-20B, as Megatron-LM counts", gpt_oss_20b(), 4096, False, "24.05"),
    ("Kimi-K2", kimi_k2(), 4096, False, "204.477"),
    ("Mixtral-8x7B", mixtral_8x7b(), 4096, False, "79.71"),
    ("Mixtral-8x22B", mixtral_8x22b(), 4096, False, "242.20"),
    ("Qwen3-Next-80B-A3B with one MTP layer", qwen3_next(), 4096, False, "25.08"),
    ("Nemotron-3-Nano", nemotron_3_nano(), 8192, False, "22.278"),
    ("Nemotron-3-Super with two MTP layers", nemotron_3_super(), 8192, False, "84.727"),
]


@pytest.mark.parametrize(("name", "shape", "seq_len", "window", "gflop"), VECTORS, ids=[row[0] for row in VECTORS])
def test_gflop_per_token_equals_the_published_vector(
    name: str, shape: ModelShape, seq_len: int, window: bool, gflop: str
) -> None:
    digits = len(gflop.partition(".")[2])
    assert f"{flops_per_token(shape, seq_len, discount_window=window) / 1e9:.{digits}f}" == gflop


def test_a_published_run_reproduces_its_published_tflops() -> None:
    # Qwen3-30B-A3B on 16 H100, 1024 sequences of 4096 tokens in 20.14729 s: 299.34 TFLOP/s/GPU
    flops = flops_per_step(qwen3_30b(), 1024, 4096, discount_window=False)
    assert f"{flops / (20.14729 * 16 * 1e12):.2f}" == "299.34"


def test_a_window_longer_than_the_sequence_discounts_nothing() -> None:
    shape = gpt_oss_120b()
    assert flops_per_token(shape, 128, discount_window=True) == flops_per_token(shape, 128, discount_window=False)


def test_a_dense_model_by_hand() -> None:
    # one layer, h=4, one head of 4, ffn 8 with two matrices, vocabulary 10, two tokens:
    # attention 4*(4+4+4) + 4*4 = 64, core 4 * 2 = 8, feed-forward 4*8*2 = 64, logits 40: 176 products x 6
    shape = ModelShape(1, 4, 10, 8, False, GroupedQueryAttention(1, 1, 4))
    assert flops_per_token(shape, 2, discount_window=False) == 6 * 176
    assert flops_per_step(shape, 3, 2, discount_window=False) == 6 * 6 * 176


@pytest.mark.parametrize(("sequences", "seq_len"), [(0, 4096), (8, 0), (-1, 1)])
def test_an_empty_step_is_refused(sequences: int, seq_len: int) -> None:
    with pytest.raises(ValueError, match="a step needs"):
        flops_per_step(qwen3_30b(), sequences, seq_len, discount_window=False)


# --- Gaps between printed and computed TFLOP/s, and their explanations.


QWEN = Inputs(qwen3_30b(), 4096, discount_window=False)
DEEPSEEK = Inputs(deepseek_v3(1), 4096, discount_window=False)
GPT_OSS = Inputs(gpt_oss_120b(), 4096, discount_window=False)
NANO = Inputs(nemotron_3_nano(), 8192, discount_window=False)


def flops(inputs: Inputs) -> float:
    """FLOPs of one sequence."""
    return inputs.seq_len * flops_per_token(inputs.shape, inputs.seq_len, discount_window=inputs.discount_window)


def no_shared(inputs: Inputs) -> Inputs:
    experts = inputs.shape.experts
    assert experts is not None
    return replace(inputs, shape=replace(inputs.shape, experts=replace(experts, shared_width=0)))


@pytest.mark.parametrize(
    ("stated", "real", "explanation"),
    [
        (DEEPSEEK, replace(DEEPSEEK, shape=deepseek_v3(0)), "`mtp` is 0"),
        (replace(DEEPSEEK, shape=deepseek_v3(0)), DEEPSEEK, "`mtp` is 1"),
        (DEEPSEEK, no_shared(DEEPSEEK), "shared experts are not counted"),
        (GPT_OSS, replace(GPT_OSS, discount_window=True), "sliding windows are counted by their window"),
        (replace(GPT_OSS, discount_window=True), GPT_OSS, "sliding windows are counted in full"),
        (QWEN, replace(QWEN, seq_len=8192), "`seq_len` is 8192"),
        (QWEN, replace(QWEN, seq_len=2048), "`seq_len` is 2048"),
        (QWEN, replace(QWEN, shape=replace(QWEN.shape, gated=False)), "`swiglu` is off"),
        (NANO, replace(NANO, shape=replace(NANO.shape, hybrid=None)), "as in a plain transformer"),
    ],
)
def test_the_input_that_is_wrong_is_named(stated: Inputs, real: Inputs, explanation: str) -> None:
    sentence = explain_difference(flops(real) / 1e12, flops(stated) / 1e12, stated, digit=0.0)
    assert sentence is not None
    assert explanation in sentence


@pytest.mark.parametrize(("factor", "words"), [(2.0, "`gpus` is half, or `gbs` double"), (0.25, "`gpus` is four")])
def test_a_wrong_number_of_gpus_is_named(factor: float, words: str) -> None:
    sentence = explain_difference(100 * factor, 100.0, QWEN, digit=0.05)
    assert sentence is not None
    assert words in sentence


def test_padding_of_a_small_model_s_vocabulary_is_named() -> None:
    small = ModelShape(1, 256, 10000, 256, False, GroupedQueryAttention(2, 2, 64))
    stated = Inputs(small, 64, discount_window=False, tp=4)
    real = replace(stated, shape=replace(small, vocabulary=pad_vocabulary(10000, 128, 4)))
    sentence = explain_difference(flops(real), flops(stated), stated, digit=0.0)
    assert sentence is not None
    assert "`vocab_size` is 10240" in sentence


def test_two_wrong_inputs_are_found_together() -> None:
    real = replace(no_shared(DEEPSEEK), seq_len=8192)
    sentence = explain_difference(flops(real) / 1e12, flops(DEEPSEEK) / 1e12, DEEPSEEK, digit=0.0)
    assert sentence is not None
    assert "`seq_len` is 8192 and shared experts" in sentence


def test_nothing_is_named_where_nothing_fits() -> None:
    sentence = explain_difference(1000.0, 0.9, QWEN, digit=0.0)
    assert sentence is not None
    assert "Neither one nor two inputs" in sentence


@pytest.mark.parametrize(
    ("printed", "computed", "digit"), [(100.0, 100.4, 0.05), (1.0, 1.04, 0.05), (192.6, 192.62, 0.0)]
)
def test_half_a_per_cent_and_a_rounded_digit_need_no_explanation(printed: float, computed: float, digit: float) -> None:
    assert explain_difference(printed, computed, QWEN, digit=digit) is None


# --- Failures as users read them, from events and columns; the texts are from real logs and the programs' sources.


DOCS = " ".join((Path(__file__).resolve().parents[3] / "docs" / "failures.md").read_text().split())
NAN = math.nan

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.02 GiB is free."
)
DEEPEP = (
    "ImportError: DeepEP is not installed. Please install DeepEP package from https://github.com/deepseek-ai/deepep."
)
WATCHDOG = (
    "[Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, "
    "NumelOut=1, Timeout(ms)=600000) ran for 600024 milliseconds before timing out."
)
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
SLURM = "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-05-11T03:00:00"


def event(kind: str, line: int, text: str, rank: int | None = None, file: int = 0) -> LogEvent:
    return LogEvent(kind, line, text, rank, file=file)


def failures(*events: LogEvent, total: int = 20) -> tuple[Failure, ...]:
    """Iterations 1 to 10 are on lines 101 to 110."""
    return explain_failures(make_log([100.0] * 10, events=events, total_iterations=total))


@pytest.mark.parametrize(
    ("events", "kind", "says"),
    [
        ([event("out_of_memory", 120, OOM, 3)], "out_of_memory", "1.50 GiB with 1.02 GiB of 79.11 GiB free"),
        ([event("out_of_memory", 120, OOM, 3), event("out_of_memory", 121, OOM, 1)], "out_of_memory", "2 ranks report"),
        ([event("deepep_missing", 120, DEEPEP), event("process_failed", 130, CHILD)], "deepep_missing", "package"),
        ([event("error", 120, "ModuleNotFoundError: No module named 'apex'")], "import_error", "Missing: apex."),
        ([event("nccl_timeout", 120, WATCHDOG, 5)], "nccl_timeout", "ALLREDUCE; time limit: 600 s"),
        ([event("deepep_timeout", 120, "RuntimeError: DeepEP error: timeout (dispatch CPU)", 428)], "deepep_timeout",
         "tokens"),
        ([event("nccl_error", 119, "NCCL error"), event("out_of_memory", 120, OOM)], "out_of_memory", "1.50 GiB"),
        ([event("exit_code", 121, "exitcode  : -9 (pid: 7)"), event("process_failed", 120, CHILD)], "process_failed",
         "Exit code -9 (SIGKILL)."),
        ([event("error", 120, "AssertionError: disable full recomputation when enabling "
          "overlap_moe_expert_parallel_comm")], "overlap_refused", ""),
        ([event("error", 120, "ValueError: fused_permute_with_probs is not available. Please install TE >= 2.1.0.")],
         "permute_failed", "fused permutation"),
        ([event("error", 120, "KeyError: 'x'")], "exception", ""),
        ([event("scheduler", 120, f"{SLURM} DUE TO TIME LIMIT ***")], "time_limit", ""),
        ([event("scheduler", 120, f"{SLURM} DUE TO PREEMPTION ***")], "preempted", ""),
        ([event("scheduler", 120, f"{SLURM} DUE TO NODE FAILURE ***")], "node_failure", ""),
        ([event("scheduler", 120, f"{SLURM} ***")], "cancelled", ""),
        ([event("scheduler", 120, "SignalException: Process 76 got signal: 15")], "cancelled", ""),
        ([event("scheduler", 120, "srun: error: node1: task 3: Out Of Memory")], "host_out_of_memory", ""),
        ([event("scheduler", 120, "srun: error: node1: task 3: Exited with exit code 1")], "scheduler", ""),
        ([event("scheduler", 120, f"{SLURM} DUE TO TIME LIMIT ***"), event("nccl_error", 125, "NCCL error")],
         "time_limit", ""),
        ([event("nccl_timeout", 118, WATCHDOG), event("scheduler", 120, f"{SLURM} ***")], "nccl_timeout", ""),
        ([event("exit_duration", 120, "[exiting program after 690.01 minutes] datetime: x")], "time_limit", ""),
        ([event("exit_signal", 120, "[exiting program after receiving SIGTERM.] datetime: x")], "signal", ""),
        ([], "truncated", "The last iteration is 10 of 20."),
    ],
)  # fmt: skip
def test_how_a_run_ended(events: list[LogEvent], kind: str, says: str) -> None:
    (failure,) = failures(*events)
    assert failure.kind == kind
    assert says in failure.explanation
    assert failure.iteration == 10
    assert failure.evidence


def test_a_chain_is_one_failure_with_its_cause_first() -> None:
    (failure,) = failures(
        event("nccl_error", 118, "torch.distributed.DistBackendError: NCCL error in: x"),
        event("deepep_missing", 120, DEEPEP, 2),
        event("deepep_missing", 121, DEEPEP, 3),
        event("process_failed", 130, CHILD),
        event("exit_code", 133, "exitcode  : 1 (pid: 7)"),
    )
    assert (failure.kind, failure.rank) == ("deepep_missing", 2)
    assert [line.line for line in failure.evidence] == [120, 121, 118, 130, 133]


@pytest.mark.parametrize(
    "events",
    [
        [event("error", 105, "ConnectionError: tried again"), event("training_done", 120, "[after training is done]")],
        [event("training_done", 120, "[after training is done]"), event("nccl_error", 125, "NCCL error")],
        [event("exit_iteration", 120, "[exiting program at iteration 10]")],
    ],
)
def test_a_run_that_ended_well_has_no_failure(events: list[LogEvent]) -> None:
    assert failures(*events) == ()


def test_a_failure_before_a_restart_is_labelled_as_such() -> None:
    events = (event("out_of_memory", 50, OOM, 1), event("training_started", 90, "x"), event("training_done", 120, "y"))
    (failure,) = failures(*events)
    assert failure.kind == "out_of_memory"
    assert failure.explanation.startswith("Before a restart: ")
    assert failure.iteration is None


def test_skipped_steps_and_lost_losses_are_shown_with_their_iterations() -> None:
    log = make_log(
        [100.0] * 4,
        columns={"lm_loss": [NAN, NAN, 2.0, NAN], "skipped_iterations": [1.0, 1.0, 0.0, 0.0],
                 "nan_iterations": [0.0, 1.0, 0.0, 0.0], "grad_norm": [NAN, NAN, 1.0, NAN]},
        total_iterations=4,
    )  # fmt: skip
    failures = {failure.kind: failure for failure in explain_failures(log)}
    assert set(failures) == {"loss_not_finite", "skipped_iterations", "nan_iterations"}
    assert failures["loss_not_finite"].iteration == 4
    assert failures["skipped_iterations"].explanation.endswith("Here: 2 between iterations 1 and 2.")
    assert failures["nan_iterations"].evidence[0].line == 102
    assert failures["loss_not_finite"].evidence[0].text == (
        "iteration 4, lm_loss not a number, grad_norm not a number, skipped_iterations 0, nan_iterations 0"
    )


def test_the_failure_of_one_rank_counts_though_another_file_has_the_iterations() -> None:
    rows = make_log([100.0] * 10, total_iterations=20)
    other = make_log(events=[event("out_of_memory", 7, OOM, 3)])
    (failure,) = explain_failures(merge_logs([LogPart("last.log", rows), LogPart("rank3.log", other)]))
    assert (failure.kind, failure.rank, failure.iteration) == ("out_of_memory", 3, 10)
    assert failure.evidence[0].file == 1


def test_an_optional_import_that_fails_on_rank_zero_before_training_ends_nothing() -> None:
    rank0 = parse_text(
        "ImportError: No module named 'optional'\n[before the start of training step] datetime: 2026-05-11 03:00:00 \n"
    )
    rows = make_log([100.0] * 10, total_iterations=20)
    assert [failure.kind for failure in explain_failures(merge_logs([LogPart("a", rows), LogPart("b", rank0)]))] == [
        "truncated"
    ]


@pytest.mark.parametrize(
    ("name", "kind", "iteration", "rank"),
    [
        ("real-excerpts/bridge-deepep-timeout-traceback", "deepep_timeout", None, 428),
        ("real-excerpts/megatron-nan-rerun-state-machine", "not_finite", 3, 3),
        ("real-excerpts/megatron-deepspeed-nan-gradnorm-no-loss", "loss_not_finite", 5426, None),
        ("real-full/dsv4-p22-turbo-crash", "process_failed", None, 6),
    ],
)
def test_failures_of_real_logs(name: str, kind: str, iteration: int | None, rank: int | None) -> None:
    path = shared_folder("corpus") / "logs" / f"{name}.log"
    failure = explain_failures(parse_log([path.read_bytes()]))[0]
    assert (failure.kind, failure.iteration, failure.rank) == (kind, iteration, rank)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("First rerun: unexpected result is reproducible within the tolerance (nan = nan).", "gave the same result"),
        ("First rerun: unexpected result is not reproducible within the tolerance", "gave another result when"),
        ("Second rerun: unexpected result is not reproducible on a different GPU, therefore", "suspect the first"),
        ("Second rerun: unexpected result is reproducible on a different GPU, therefore", "suspect data"),
    ],
)
def test_a_stop_by_the_nan_checks_says_what_repeating_the_step_showed(line: str, says: str) -> None:
    start = "ERROR:megatron.core.rerun_state_machine:"
    text = f"{start}Unexpected result nan on rank 3 at iteration #7 invocation #2\n{start}{line}\n"
    (failure,) = explain_failures(parse_text(text))
    assert (failure.kind, failure.rank, failure.iteration, len(failure.evidence)) == ("not_finite", 3, 7, 2)
    assert failure.explanation.count("gave") == 1
    assert says in failure.explanation


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_in_the_document_with_its_texts(kind: str) -> None:
    assert f"| `{kind}` |" in DOCS
    assert f"`{kind}`. {KINDS[kind].explanation}" in DOCS
    assert f"*What to do:* {KINDS[kind].advice}" in DOCS


# --- The shape of a model.

DEEPSEEK_V3: dict[str, Value] = {
    "num_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "vocab_size": 129280,
    "swiglu": True,
    "ffn_hidden_size": 18432,
    "num_experts": 256,
    "topk": 8,
    "moe_ffn_hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 2048,
    "moe_layer_freq": (0,) * 3 + (1,) * 58,
    "multi_latent_attention": True,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "mtp": 1,
}
QWEN3_NEXT: dict[str, Value] = QWEN3_30B | {
    "num_attention_heads": 16,
    "num_query_groups": 2,
    "kv_channels": 256,
    "attention_output_gate": True,
    "num_experts": 512,
    "topk": 10,
    "moe_ffn_hidden_size": 512,
    "moe_shared_expert_intermediate_size": 512,
    "mtp": 1,
    "experimental_attention_variant": "gated_delta_net",
    "linear_attention_freq": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_conv_kernel_dim": 4,
}
NEMOTRON_NANO: dict[str, Value] = {
    "num_layers": 52,
    "hidden_size": 2688,
    "num_attention_heads": 32,
    "num_query_groups": 2,
    "kv_channels": 128,
    "vocab_size": 131072,
    "swiglu": False,
    "num_experts": 128,
    "topk": 6,
    "moe_ffn_hidden_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "hybrid_layer_pattern": "M" * 23 + "|" + "E" * 23 + "*" * 6,
    "mamba_num_heads": 64,
    "mamba_state_dim": 128,
    "mamba_num_groups": 8,
}


@pytest.mark.parametrize(
    ("values", "seq_len", "gflop"),
    [
        (QWEN3_30B, 4096, "23.006"),
        (DEEPSEEK_V3, 4096, "259.993"),
        (QWEN3_NEXT, 4096, "25.080"),
        (NEMOTRON_NANO, 8192, "22.278"),
    ],
)
def test_contract_values_give_the_published_flops(values: dict[str, Value], seq_len: int, gflop: str) -> None:
    reading = read_shape(values)
    assert reading.missing == ()
    assert reading.shape is not None
    assert f"{flops_per_token(reading.shape, seq_len, discount_window=False) / 1e9:.3f}" == gflop


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        (["vocab_size"], ("vocab_size",)),
        (["hidden_size", "topk"], ("hidden_size", "topk")),
        (["swiglu"], ("swiglu",)),
        (["num_experts"], ("num_experts", "ffn_hidden_size")),
        (["kv_channels", "num_query_groups"], ()),
    ],
)
def test_missing_inputs_are_named(without: list[str], missing: tuple[str, ...]) -> None:
    values = {name: value for name, value in QWEN3_30B.items() if name not in without}
    assert set(read_shape(values).missing) == set(missing)


def test_latent_attention_needs_its_widths() -> None:
    values = {name: value for name, value in DEEPSEEK_V3.items() if name not in {"v_head_dim", "q_lora_rank"}}
    assert read_shape(values).missing == ("v_head_dim",)


def test_an_attention_without_a_formula_is_named() -> None:
    reading = read_shape(QWEN3_30B | {"experimental_attention_variant": "dsa"})
    assert reading.missing == ("a FLOPs formula for dsa attention",)


def test_unset_means_the_default_of_the_trainer() -> None:
    shape = read_shape(QWEN3_30B | {"num_query_groups": None, "kv_channels": None, "num_experts": None,
                                    "ffn_hidden_size": 8192}).shape  # fmt: skip
    assert shape is not None
    assert shape.attention == GroupedQueryAttention(32, 32, 64)
    assert shape.experts is None


def test_an_moe_layer_every_second_layer_begins_with_the_first() -> None:
    shape = read_shape(QWEN3_30B | {"num_layers": 5, "moe_layer_freq": 2, "ffn_hidden_size": 8}).shape
    assert shape is not None
    assert shape.experts is not None
    assert shape.experts.pattern == (1, 0, 1, 0, 1)


def test_a_layer_list_of_another_length_is_refused() -> None:
    reading = read_shape(QWEN3_30B | {"moe_layer_freq": (0, 1), "ffn_hidden_size": 8})
    assert reading.missing == ("moe_layer_freq (one entry per layer)",)


def test_latent_attention_is_read() -> None:
    shape = read_shape(DEEPSEEK_V3).shape
    assert shape is not None
    assert shape.attention == LatentAttention(128, 1536, 512, 128, 64, 128)


@pytest.mark.parametrize(
    ("stated", "tokens"),
    [(None, None), ("127,0", 128), ("(127, 0)", 128), ("128", 128), ("-1,-1", None), ("64,63", 128)],
)
def test_windows(stated: Value, tokens: int | None) -> None:
    assert window_tokens(stated) == tokens


@pytest.mark.parametrize(
    ("entries", "divisible_by", "tp", "padded"),
    [(151643, 128, 1, 151680), (32000, 128, 2, 32000), (50257, 128, 8, 51200)],
)
def test_vocabulary_padding(entries: int, divisible_by: int, tp: int, padded: int) -> None:
    assert pad_vocabulary(entries, divisible_by, tp) == padded


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Qwen/Qwen3-30B-A3B", "Qwen3-30B-A3B"),
        ("qwen3_30b_a3b", "Qwen3-30B-A3B"),
        ("DSV3", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-V2-Lite", "DeepSeek-V2-Lite"),
        ("my own model", "my own model"),
    ],
)
def test_known_models_have_one_spelling(spelling: str, name: str) -> None:
    assert canonical_model(spelling) == name


@pytest.mark.parametrize(
    ("file_name", "values"),
    [
        ("bridge-dsv3-16l-gb200x64-mnnvl2.log", ("DeepSeek-V3-16L", "GB200", "64")),
        ("qwen3-235b-a22b_128xH100_bf16.log.gz", ("Qwen3-235B-A22B", "H100", "128")),
        ("megatron-mixtral8x7b-16xh100.log", ("Mixtral-8x7B", "H100", "16")),
        ("primus-64gpu-cur-avg.log", (None, None, "64")),
        ("qwen3-30b-2x8xh100.log", ("Qwen3-30B-A3B", "H100", None)),  # of nodes, or of GPUs
        ("deepseek_v3_proxy--dgx_h100--2026-05-30.log", (None, "H100", None)),
        ("train-200.log", (None, None, None)),
    ],
)
def test_a_file_name_proposes_model_and_gpus(file_name: str, values: tuple[str | None, ...]) -> None:
    shown = values_in_name(file_name)
    assert tuple(shown.get(name) for name in ("model", "gpu", "gpus")) == values


def test_a_model_is_recognised_by_its_shape_only_when_all_of_it_fits() -> None:
    model = recognise(QWEN3_30B)
    assert model is not None
    assert model.name == "Qwen3-30B-A3B"
    assert recognise(QWEN3_30B | {"num_layers": 16}) is None
    assert recognise({"num_layers": 48}) is None


def test_a_contradicted_shape_is_explained_in_words() -> None:
    model = known_model("DeepSeek-V3")
    assert model is not None
    assert differences(model, DEEPSEEK_V3 | {"num_layers": 16}) == ("num_layers is 16, DeepSeek-V3 has 61",)


def test_an_unknown_model_is_named_by_its_outline() -> None:
    assert outline_name({"num_layers": 24, "hidden_size": 1024, "num_experts": 8, "topk": 2}) == "24L-h1024-8e-top2"
    assert outline_name({"num_layers": 24, "hidden_size": 1024, "num_experts": None}) == "24L-h1024-dense"
    assert outline_name({"num_layers": 24, "hidden_size": 1024}) is None
