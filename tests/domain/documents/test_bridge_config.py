import pytest

from app.domain.documents.bridge_config import read_bridge_config

# From NVIDIA-NeMo/Megatron-Bridge a9497c6b, scripts/performance/dryrun_configs/qwen/
# qwen3_235b_a22b_pretrain_gb200_nvfp4_v2.yaml, shortened; env_vars added
QWEN3_235B = """\
_target_: megatron.bridge.training.config.ConfigContainer
comm_overlap:
  _target_: megatron.bridge.training.comm_overlap.CommOverlapConfig
  delay_wgrad_compute: null
  overlap_grad_reduce: null
  overlap_moe_expert_parallel_comm: null
  overlap_param_gather: null
  tp_comm_overlap: true
dataset:
  _target_: megatron.bridge.training.config.GPTDatasetConfig
  blend: null
  blend_per_split: null
  data_path: null
  mock: false
  sequence_length: 4096
ddp:
  _target_: megatron.core.distributed.distributed_data_parallel_config.DistributedDataParallelConfig
  check_for_nan_in_grad: false
  overlap_grad_reduce: true
  overlap_param_gather: true
  use_distributed_optimizer: true
  use_megatron_fsdp: false
dist:
  use_megatron_fsdp: false
  use_torch_fsdp2: false
mixed_precision:
  bf16: true
  fp16: false
  fp4: e2m1
  fp4_recipe: nvfp4
  fp8: null
  fp8_param_gather: false
  fp8_recipe: null
  params_dtype:
    _call_: false
    _target_: torch.bfloat16
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  account_for_embedding_in_pipeline_split: true
  account_for_loss_in_pipeline_split: true
  bf16: true
  context_parallel_size: 1
  cuda_graph_impl: transformer_engine
  cuda_graph_scope:
  - attn
  - moe_router
  - moe_preprocess
  cuda_graph_warmup_steps: 3
  delay_wgrad_compute: false
  expert_model_parallel_size: 32
  expert_tensor_parallel_size: 1
  fp4: null
  fp8: null
  fp8_recipe: delayed
  gated_linear_unit: true
  hf_model_id: Qwen/Qwen3-235B-A22B
  hidden_size: 4096
  make_vocab_size_divisible_by: 128
  moe_deepep_num_sms: 20
  moe_expert_capacity_factor: null
  moe_ffn_hidden_size: 1536
  moe_flex_dispatcher_backend: hybridep
  moe_grouped_gemm: true
  moe_hybridep_num_sms: 32
  moe_permute_fusion: true
  moe_router_force_load_balancing: true
  moe_router_load_balancing_type: aux_loss
  moe_router_topk: 8
  moe_shared_expert_overlap: false
  moe_token_dispatcher_type: flex
  num_attention_heads: 64
  num_layers: 94
  num_moe_experts: 128
  num_query_groups: 4
  overlap_moe_expert_parallel_comm: false
  pipeline_model_parallel_size: 8
  recompute_granularity: null
  seq_length: 4096
  sequence_parallel: false
  should_pad_vocab: false
  tensor_model_parallel_size: 1
  tp_comm_overlap: false
  use_te_rng_tracker: true
  virtual_pipeline_model_parallel_size: null
  vocab_size: 151936
optimizer:
  optimizer_cpu_offload: false
  optimizer_offload_fraction: 0.0
  use_distributed_optimizer: true
peft: null
rerun_state_machine:
  check_for_nan_in_loss: false
rng:
  te_rng_tracker: true
train:
  exit_signal:
    _args_:
    - 15
    _call_: true
    _name_: SIGTERM
    _target_: signal.Signals
  global_batch_size: 8192
  manual_gc: true
  manual_gc_interval: 100
  micro_batch_size: 1
  train_iters: 50
env_vars:
  NCCL_GRAPH_REGISTER: 0
  HF_TOKEN: hf_abcdefghijklmnop
"""

EXPECTED = {
    "model": "Qwen3-235B-A22B",
    "task": "pretrain",
    "data_mode": "mock",
    "seq_len": 4096,
    "gbs": 8192,
    "mbs": 1,
    "tp": 1,
    "pp": 8,
    "vpp": None,
    "pp_account": ("embedding", "loss"),
    "cp": 1,
    "ep": 32,
    "etp": 1,
    "sp": False,
    "dist_opt": True,
    "fsdp": "none",
    "dispatcher": "hybridep",
    "dispatcher_type": "flex",
    "flex_backend": "hybridep",
    "dispatch_sms": 32,
    "routing_mode": "forced-balance",
    "force_balance": True,
    "lb_type": ("aux_loss",),
    "grouped_gemm": True,
    "permute_fusion": True,
    "ep_overlap": False,
    "delay_wgrad": False,
    "shared_overlap": False,
    "dp_overlap": ("grad_reduce", "param_gather"),
    "tp_overlap": True,
    "precision": "nvfp4",
    "recompute_granularity": "none",
    "graph_impl": "transformer_engine",
    "graph_modules": ("attn", "moe_preprocess", "moe_router"),
    "graph_warmup": 3,
    "te_rng": True,
    "opt_offload": False,
    "manual_gc": True,
    "manual_gc_interval": 100,
    "nan_checks": False,
    "num_layers": 94,
    "num_experts": 128,
    "topk": 8,
    "swiglu": True,
    "vocab_size": 151936,
    "env.NCCL_GRAPH_REGISTER": "0",
}


def stated(text: str) -> dict[str, object]:
    return {name: field.value for name, field in read_bridge_config(text).stated.items()}


def test_a_real_container():
    fields = stated(QWEN3_235B)
    assert {name: fields.get(name, "not stated") for name in EXPECTED} == EXPECTED
    assert read_bridge_config(QWEN3_235B).problems == ()


def test_details_name_the_path():
    document = read_bridge_config(QWEN3_235B)
    assert document.stated["pp"].detail == "ConfigContainer: model.pipeline_model_parallel_size = 8"
    assert document.stated["pp"].source == "arguments"
    assert document.facts == {"train_iters": "50"}
    assert "hf_abc" not in str(document)


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("moe_token_dispatcher_type: flex", "moe_token_dispatcher_type: alltoall", "dispatcher", "alltoall"),
        ("moe_flex_dispatcher_backend: hybridep", "moe_flex_dispatcher_backend: null", "dispatcher", "alltoall"),
        ("overlap_moe_expert_parallel_comm: null", "overlap_moe_expert_parallel_comm: true", "ep_overlap", True),
        ("delay_wgrad_compute: null", "delay_wgrad_compute: true", "delay_wgrad", True),
        ("dist:\n  use_megatron_fsdp: false", "dist:\n  use_megatron_fsdp: true", "fsdp", "megatron_fsdp"),
        (
            "use_distributed_optimizer: true\n  use_megatron_fsdp: false",
            "use_megatron_fsdp: true",
            "fsdp",
            "megatron_fsdp",
        ),
        ("blend: null\n  blend_per", "blend: [[a], null]\n  blend_per", "data_mode", "real"),
        ("should_pad_vocab: false", "should_pad_vocab: true", "vocab_size", 151936),
        ("vocab_size: 151936", "vocab_size: 151937", "vocab_size", 151937),
        ("fp4: e2m1\n  fp4_recipe: nvfp4\n  fp8: null", "fp4: null\n  fp8: e4m3", "precision", "fp8_ds"),
        ("recompute_granularity: null", "recompute_granularity: full", "recompute_granularity", "full"),
        ("peft: null", "peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n  dim: 8", "task", "peft"),
        ("GPTDatasetConfig", "MockGPTDatasetConfig", "data_mode", "mock"),
        ("GPTDatasetConfig", "FinetuningDatasetConfig", "task", "sft"),
    ],
)
def test_one_changed_value(old, new, name, value):
    assert old in QWEN3_235B
    assert stated(QWEN3_235B.replace(old, new))[name] == value


def test_a_padded_vocabulary_counts_padding():
    text = QWEN3_235B.replace("should_pad_vocab: false", "should_pad_vocab: true").replace(
        "vocab_size: 151936", "vocab_size: 151937"
    )
    assert stated(text)["vocab_size"] == 152064  # the next multiple of 128


def test_precision_by_name():
    start, end = QWEN3_235B.index("mixed_precision:"), QWEN3_235B.index("model:\n")
    text = QWEN3_235B[:start] + "mixed_precision: bf16_with_mxfp8_mixed\n" + QWEN3_235B[end:]
    assert stated(text)["precision"] == "fp8_mx"


def test_contradictions_are_reported():
    text = QWEN3_235B.replace("sequence_length: 4096", "sequence_length: 8192").replace(
        "moe_flex_dispatcher_backend: hybridep", "moe_flex_dispatcher_backend: null"
    )
    lengths, dispatcher = read_bridge_config(text).problems
    assert [part in lengths for part in ("seq_length = 4096", "sequence_length = 8192")] == [True, True]
    assert [part in dispatcher for part in ("flex", "alltoall")] == [True, True]


def test_values_shared_by_an_alias_are_read():
    text = QWEN3_235B.replace("cuda_graph_scope:\n", "cuda_graph_scope: &scope\n") + "extra:\n  again: *scope\n"
    assert stated(text)["graph_modules"] == ("attn", "moe_preprocess", "moe_router")


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n- b\n",
        "model: 1\n",
        "just text",
        "a: [1, 2\n",
        "!!python/object/apply:os.system ['true']",
        "model: !!python/name:os.system\n" + QWEN3_235B,
        BOMB,
        "a: &a [*a]\n",
        "[" * 5000,
        "{" * 5000,
        "a: " + "- " * 5000,
        "\x00\x01",
        "x: 9999-99-99\n",
        "? [a]\n: b\n",
        "x" * 2_000_000,
    ],
)
def test_an_invalid_container_is_refused(text):
    with pytest.raises(ValueError, match=r"\w+ .*"):
        read_bridge_config(text)
