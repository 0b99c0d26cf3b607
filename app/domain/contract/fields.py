"""The contract fields: what each one means, its role in the keys, and the values that it accepts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.domain.flags import FLAGS, NO_NAMES, TrainerNames

PREFIX = "env."
"""Starts the names of fields that are environment variables."""

Role = Literal["stack", "config", "info"]
"""`stack`: must be equal before two runs may be ranked. `config`: a knob of the run. `info`: shown, not compared."""

Kind = Literal["count", "whole", "number", "flag", "choice", "words", "counts", "text", "name", "layers"]
"""The values that a field accepts.

count   an integer of at least 1          choice  one of `choices`
whole   an integer of at least 0          words   a set of words (from `choices` where given), in any order
number  a finite real number              counts  a list of integers of at least 1, in order
flag    true or false                     layers  an integer of at least 1, or a list of 0 and 1, one a layer
text    one line of text, compared as it is written
name    one line of text, compared without regard to case
"""


@dataclass(frozen=True, slots=True)
class ContractField:
    """One row of the registry.

    `aliases` maps other spellings of a choice to the canonical one. `also`: other names that users give the field, used
    only for "did you mean" questions.
    """

    name: str
    group: str
    role: Role
    kind: Kind
    meaning: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    @property
    def names(self) -> TrainerNames:
        """Return the field's names in the trainers; none for environment variables and fields outside the table."""
        return FLAGS.get(self.name, NO_NAMES)

    @property
    def megatron_lm(self) -> str:
        """Megatron-LM's names for users and for search."""
        return self.name.removeprefix(PREFIX) if self.name.startswith(PREFIX) else self.names.megatron_text

    @property
    def bridge(self) -> str:
        """Megatron-Bridge's names for users and for search."""
        if self.name.startswith(PREFIX):
            return f"env_vars.{self.name.removeprefix(PREFIX)}"
        return self.names.bridge_text


@dataclass(frozen=True, slots=True)
class MetricField:
    """One headline figure. `decides`: the judgements that it decides."""

    name: str
    label: str
    unit: str
    less_is_better: bool
    meaning: str
    decides: str


# --- Workload, hardware and software.

WHAT = "Workload"
WHERE = "Hardware"
SOFTWARE = "Software"

IDENTITY_FIELDS = (
    ContractField("model", WHAT, "stack", "name",
        "The model's name. Recognised from its shape when it is not stated.",
        also=("model_name", "arch", "architecture")),
    ContractField("task", WHAT, "stack", "choice", "What the job does with the model.",
        choices=("pretrain", "sft", "peft", "rl", "distillation"),
        aliases={"pretraining": "pretrain", "finetune": "sft", "fine-tune": "sft", "lora": "peft"}),
    ContractField("data_mode", WHAT, "stack", "choice",
        "Whether the tokens are real or generated. Mock data makes a run benchmark-only.", choices=("mock", "real"),
        aliases={"synthetic": "mock", "production": "real"}, also=("data", "data_kind", "mock_data", "dataset")),
    ContractField("seq_len", WHAT, "stack", "count", "Tokens of one sequence.", unit="tokens",
        also=("seq_length", "sequence_length", "context_length")),
    ContractField("gbs", WHAT, "stack", "count",
        "Sequences per optimizer step over all GPUs. Unset: the trainer uses mbs x dp.", unit="sequences",
        also=("global_batch_size",)),
    ContractField("mbs", WHAT, "stack", "count", "Sequences that one model replica processes at once.",
        unit="sequences", also=("micro_batch_size",)),
    ContractField("gpu", WHERE, "stack", "name", "GPU model (SKU), for example H100 or GB200.",
        also=("sku", "gpu_type", "gpu_model", "gpu_sku", "hardware")),
    ContractField("gpus", WHERE, "stack", "count", "GPUs of the job: the world size.", unit="GPUs",
        also=("world_size", "num_gpus", "n_gpus", "gpu_count", "ngpus")),
    ContractField("gpus_per_node", WHERE, "config", "count",
        "GPUs per node: 8 on HGX boards, 4 on GB200 and GB300 trays.", unit="GPUs"),
    ContractField("host_memory_gib", WHERE, "info", "count", "Memory of a node's hosts, which offloading uses.",
        unit="GiB"),
    ContractField("cluster", WHERE, "stack", "name",
        "Cluster of the job. Clusters with the same GPU differ by 7-15 %."),
    ContractField("driver", WHERE, "info", "text", "Version of the GPU driver."),
    ContractField("nodes", WHERE, "info", "text", "Nodes of the job, in Slurm's notation.",
        also=("nodelist", "hosts", "hostfile")),
    ContractField("container", SOFTWARE, "stack", "text",
        "Container image with its tag, for example nvcr.io/nvidia/nemo:26.06.",
        also=("image", "docker_image", "container_image")),
    ContractField("container_digest", SOFTWARE, "info", "text", "Digest of the container image (sha256:...)."),
    ContractField("bridge_commit", SOFTWARE, "info", "text", "Commit of Megatron-Bridge."),
    ContractField("mcore_commit", SOFTWARE, "info", "text", "Commit of Megatron-LM (Megatron Core)."),
    ContractField("mcore_version", SOFTWARE, "info", "text",
        "Release of Megatron Core, for example 0.16.1. It decides the defaults of flags that a launch omits.",
        also=("megatron_core_version", "megatron_version")),
    ContractField("te_version", SOFTWARE, "info", "text", "Version of Transformer Engine.", also=("te",)),
    ContractField("pytorch_version", SOFTWARE, "info", "text", "Version of PyTorch.", also=("torch", "pytorch")),
    ContractField("cuda_version", SOFTWARE, "info", "text", "Version of CUDA.", also=("cuda",)),
    ContractField("nccl_version", SOFTWARE, "info", "text", "Version of NCCL.", also=("nccl",)),
    ContractField("cudnn_version", SOFTWARE, "info", "text", "Version of cuDNN.", also=("cudnn",)),
    ContractField("triton_version", SOFTWARE, "info", "text", "Version of Triton.", also=("triton",)),
    ContractField("deepep_build", SOFTWARE, "info", "text", "Build of DeepEP or HybridEP.", also=("deepep_version",)),
)  # fmt: skip


# --- Parallelism: how the model is distributed over the GPUs.

_PARALLELISM = "Parallelism"

PARALLELISM_FIELDS = (
    ContractField("tp", _PARALLELISM, "config", "count", "Tensor parallelism: GPUs that share each layer.",
        also=("tensor_parallel", "tensor_model_parallel_size")),
    ContractField("pp", _PARALLELISM, "stack", "count",
        "Pipeline parallelism: stages into which the layers are divided.",
        also=("pipeline_parallel", "pipeline_model_parallel_size")),
    ContractField("vpp", _PARALLELISM, "stack", "count", "Virtual pipeline chunks per stage. 1 is the same as unset.",
        also=("vp", "virtual_pipeline", "virtual_pipeline_model_parallel_size")),
    ContractField("pp_layout", _PARALLELISM, "stack", "text",
        "Assignment of layers to pipeline stages, for example Et*3|(tt|)*29m|L. Unset: an even split.",
        also=("pipeline_layout", "pipeline_model_parallel_layout")),
    ContractField("pp_account", _PARALLELISM, "stack", "words",
        "Parts that count as separate layers in an even split.", choices=("embedding", "loss")),
    ContractField("mtp", _PARALLELISM, "config", "whole",
        "Multi-token-prediction layers. They add FLOPs and appear in the layout.", also=("mtp_num_layers",)),
    ContractField("cp", _PARALLELISM, "config", "count", "Context parallelism: GPUs that share each sequence.",
        also=("context_parallel", "context_parallel_size")),
    ContractField("cp_comm", _PARALLELISM, "config", "text",
        "How context-parallel ranks exchange keys and values: p2p, all_gather, a2a or a2a+p2p, or one per layer.",
        also=("cp_comm_type",)),
    ContractField("hcp_sizes", _PARALLELISM, "config", "counts",
        "Group sizes of hierarchical context parallelism; their product is cp."),
    ContractField("ep", _PARALLELISM, "config", "count",
        "Expert parallelism: GPUs that share the experts of each MoE layer.",
        also=("expert_parallel", "expert_model_parallel_size")),
    ContractField("etp", _PARALLELISM, "config", "count",
        "Tensor parallelism inside the experts. Unset: the trainer uses tp.",
        also=("expert_tensor_parallel", "expert_tensor_parallel_size")),
    ContractField("dp", _PARALLELISM, "info", "count", "Data parallelism: gpus / (tp x pp x cp).",
        also=("data_parallel", "data_parallel_size")),
    ContractField("edp", _PARALLELISM, "info", "count", "Data parallelism of the experts: gpus / (pp x ep x etp)."),
    ContractField("ga", _PARALLELISM, "info", "count", "Micro-batches per optimizer step: gbs / (mbs x dp).",
        also=("gradient_accumulation", "num_microbatches")),
    ContractField("sp", _PARALLELISM, "config", "flag",
        "Sequence parallelism inside the tensor-parallel group. Off when tp is 1.", also=("sequence_parallel",)),
    ContractField("dist_opt", _PARALLELISM, "config", "flag",
        "Optimizer state is sharded over the data-parallel ranks.", also=("use_distributed_optimizer",)),
    ContractField("fsdp", _PARALLELISM, "config", "choice", "Implementation of fully sharded data parallelism.",
        choices=("none", "megatron_fsdp", "torch_fsdp2")),
)  # fmt: skip


# --- Routing and dispatch of tokens to experts.

_MOE = "Experts and routing"
LB_TYPES = ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "quantile_balancing", "none")

MOE_FIELDS = (
    ContractField("dispatcher", _MOE, "config", "choice",
        "How tokens reach their experts. Derived: the backend of a flex dispatcher, the type of any other.",
        choices=("allgather", "alltoall", "deepep", "hybridep", "ncclep")),
    ContractField("dispatcher_type", _MOE, "info", "choice", "Type of the dispatcher; flex delegates to its backend.",
        choices=("allgather", "alltoall", "flex"), aliases={"alltoall_seq": "alltoall"},
        also=("moe_token_dispatcher_type",)),
    ContractField("flex_backend", _MOE, "info", "choice", "Backend of the flex dispatcher; unused for other types.",
        choices=("deepep", "hybridep", "ncclep"), also=("moe_flex_dispatcher_backend",)),
    ContractField("dispatch_sms", _MOE, "config", "count", "Streaming multiprocessors for the flex dispatcher.",
        unit="SMs"),
    ContractField("hybridep_preproc_sms", _MOE, "config", "count",
        "Streaming multiprocessors for HybridEP's preprocessing.", unit="SMs"),
    ContractField("hybridep_permute_fused", _MOE, "config", "flag", "The token permutation is fused into HybridEP."),
    ContractField("routing_mode", _MOE, "stack", "choice",
        "How tokens are assigned to experts. Forced modes are benchmark-only and not comparable with other modes.",
        choices=("forced-balance", "forced-biased", "drop-and-pad", "capacity-drop", "dropless"),
        aliases={"forced_balance": "forced-balance", "natural": "dropless"}, also=("routing",)),
    ContractField("force_balance", _MOE, "info", "flag",
        "Random, even routing replaces the router (benchmark switch).",
        also=("forced_balance", "moe_router_force_load_balancing")),
    ContractField("lb_type", _MOE, "config", "words", "Load-balancing method of the router.", choices=LB_TYPES),
    ContractField("capacity", _MOE, "config", "number",
        "Capacity factor per expert; tokens beyond it are dropped. Negative is the same as unset."),
    ContractField("pad_to_capacity", _MOE, "info", "flag",
        "Expert inputs are padded to the capacity (routing mode drop-and-pad)."),
    ContractField("rank_capacity", _MOE, "config", "number", "Capacity factor per rank (HybridEP and NCCL EP only)."),
    ContractField("router_dtype", _MOE, "config", "choice", "Data type of the router. The flex backends expect fp32.",
        choices=("fp32", "fp64")),
    ContractField("expert_bias", _MOE, "config", "flag", "The router balances load with a bias per expert."),
    ContractField("grouped_gemm", _MOE, "config", "flag", "The experts of a rank run as one grouped GEMM."),
    ContractField("permute_fusion", _MOE, "config", "flag", "The token permutation is one fused kernel."),
    ContractField("router_fusion", _MOE, "config", "flag", "The router is one fused kernel."),
)  # fmt: skip


# --- Overlap, recomputation, CUDA graphs, precision, offloading and the host: the tuning knobs.

OVERLAP = "Overlap"
MEMORY = "Memory"
GRAPHS = "CUDA graphs"
NUMBERS = "Kernels and precision"
HOST = "Host"

RECOMPUTE_MODULES = (
    "core_attn",
    "mla_up_proj",
    "layernorm",
    "moe_act",
    "mlp",
    "moe",
    "shared_experts",
    "gdn_norm_out",
    "gdp_in_proj",
    "gdp_qkv",
    "mhc",
)
FLEX_BACKENDS = ("deepep", "hybridep", "ncclep")
"""Dispatchers that are backends of Megatron Core's flex dispatcher."""
PRECISIONS = ("bf16", "fp16", "fp8_ds", "fp8_cs", "fp8_sc", "fp8_mx", "nvfp4")
"""ds: delayed scaling, cs: current (tensorwise) scaling, sc: sub-channel (blockwise) scaling, mx: MXFP8."""

PERFORMANCE_FIELDS = (
    ContractField("ep_overlap", OVERLAP, "config", "flag",
        "Expert communication overlaps with computation (A2A overlap, 1F1B overlap).",
        also=("moe_a2a_overlap", "a2a_overlap")),
    ContractField("delay_wgrad", OVERLAP, "config", "flag",
        "Weight gradients are delayed to overlap with communication."),
    ContractField("shared_overlap", OVERLAP, "config", "flag", "Shared experts overlap with the token dispatch."),
    ContractField("dp_overlap", OVERLAP, "config", "words",
        "Data-parallel collectives that overlap with computation.", choices=("grad_reduce", "param_gather")),
    ContractField("tp_overlap", OVERLAP, "config", "flag",
        "Tensor-parallel communication overlaps with computation."),
    ContractField("pp_overlap", OVERLAP, "config", "flag", "Pipeline sends and receives overlap with computation."),
    ContractField("attention", NUMBERS, "config", "choice", "Attention kernels.",
        choices=("auto", "flash", "fused", "unfused", "local"), aliases={"te_fused": "fused"},
        also=("attention_backend",)),
    ContractField("precision", NUMBERS, "stack", "choice", "Data type of the matrix multiplications.",
        choices=PRECISIONS,
        aliases={
            "bfloat16": "bf16",
            "float16": "fp16",
            "bf16_mixed": "bf16",
            "fp16_mixed": "fp16",
            "fp8_delayed": "fp8_ds",
            "fp8_tensorwise": "fp8_cs",
            "fp8_current": "fp8_cs",
            "fp8_blockwise": "fp8_sc",
            "fp8_subchannel": "fp8_sc",
            "mxfp8": "fp8_mx",
            "fp8_mxfp8": "fp8_mx",
            "bf16_with_fp8_delayed_scaling_mixed": "fp8_ds",
            "bf16_with_fp8_current_scaling_mixed": "fp8_cs",
            "bf16_with_fp8_subchannel_scaling_mixed": "fp8_sc",
            "bf16_with_mxfp8_mixed": "fp8_mx",
            "bf16_with_nvfp4_mixed": "nvfp4",
            "fp4": "nvfp4",
        }),
    ContractField("param_gather_lp", NUMBERS, "config", "flag",
        "Parameters are gathered in the low-precision format."),
    ContractField("recompute_granularity", MEMORY, "config", "choice",
        "How much of the forward pass is recomputed in the backward pass.", choices=("none", "selective", "full"),
        also=("recompute",)),
    ContractField("recompute_modules", MEMORY, "config", "words",
        "Parts of a layer that selective recomputation covers. Unset: the trainer uses core_attn.",
        choices=RECOMPUTE_MODULES, aliases={"up_proj": "mla_up_proj", "norm": "layernorm", "act": "moe_act"}),
    ContractField("recompute_method", MEMORY, "config", "choice", "How full recomputation chooses layers.",
        choices=("uniform", "block")),
    ContractField("recompute_layers", MEMORY, "config", "whole", "Layers that full recomputation handles at a time.",
        unit="layers"),
    ContractField("opt_offload", MEMORY, "config", "flag", "Optimizer state is in host memory."),
    ContractField("opt_offload_fraction", MEMORY, "config", "number",
        "Fraction of the optimizer state in host memory, 0 to 1."),
    ContractField("act_offload", MEMORY, "config", "flag",
        "Activations of whole layers are offloaded to host memory."),
    ContractField("act_offload_layers", MEMORY, "config", "whole",
        "Layers whose activations are offloaded to host memory.", unit="layers"),
    ContractField("fine_offload", MEMORY, "config", "words",
        "Parts of a layer whose activations are offloaded to host memory. Empty: none."),
    ContractField("graph_impl", GRAPHS, "stack", "choice", "Implementation that captures CUDA graphs.",
        choices=("none", "local", "transformer_engine", "full_iteration"), aliases={"te": "transformer_engine"},
        also=("cuda_graph_impl",)),
    ContractField("graph_modules", GRAPHS, "stack", "words",
        "CUDA-graph scope: the captured parts. Empty with an implementation: whole layers.",
        choices=("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full", "full_iteration"),
        also=("cuda_graph_scope", "cuda_graph_modules", "graph_scope")),
    ContractField("graph_warmup", GRAPHS, "config", "whole", "Steps before graph capture.", unit="steps"),
    ContractField("te_rng", GRAPHS, "config", "flag",
        "Transformer Engine's random-number tracker, which CUDA graphs require."),
    ContractField("manual_gc", HOST, "config", "flag", "Python's garbage collector runs only at fixed steps."),
    ContractField("manual_gc_interval", HOST, "config", "whole", "Steps between garbage collections.", unit="steps"),
    ContractField("optimizer", HOST, "config", "name", "Optimizer, for example adam or muon."),
    ContractField("dist_opt_instances", HOST, "config", "count",
        "Copies of the sharded optimizer state: instances of the distributed optimizer.",
        also=("num_distributed_optimizer_instances",)),
    ContractField("deterministic", HOST, "config", "flag", "Only deterministic kernels, which are slower.",
        also=("deterministic_mode",)),
    ContractField("nan_checks", HOST, "config", "flag",
        "Loss and gradients are checked for NaN. Without checks a run is benchmark-only."),
)  # fmt: skip


# --- The model's shape, from which FLOPs are computed. It is not part of any key: `model` is.

_SHAPE = "Model shape"


def _shape(name: str, kind: Kind, meaning: str, *, also: tuple[str, ...] = ()) -> ContractField:
    return ContractField(name, _SHAPE, "info", kind, meaning, also=also)


SHAPE_FIELDS = (
    _shape("num_layers", "count", "Transformer layers, without multi-token-prediction layers.", also=("layers",)),
    _shape("hidden_size", "count", "Width of the residual stream."),
    _shape("ffn_hidden_size", "count", "Inner width of a dense feed-forward block."),
    _shape("num_attention_heads", "count", "Attention heads."),
    _shape("num_query_groups", "count", "Key and value heads. Unset: as many as attention heads."),
    _shape("kv_channels", "count", "Width of one head. Unset: hidden_size / num_attention_heads."),
    _shape("attention_output_gate", "flag", "Attention output is gated by an additional projection."),
    _shape("vocab_size", "count", "Entries of the vocabulary, after padding.", also=("padded_vocab_size",)),
    _shape("swiglu", "flag", "Feed-forward blocks are gated: three matrices instead of two."),
    ContractField("num_experts", _SHAPE, "info", "count", "Routed experts of an MoE layer. Unset: a dense model.",
        also=("num_moe_experts", "experts")),
    ContractField("topk", _SHAPE, "info", "count", "Experts per token.", also=("moe_router_topk", "top_k")),
    _shape("moe_ffn_hidden_size", "count", "Inner width of an expert. Unset: ffn_hidden_size.", also=("moe_ffn",)),
    _shape("moe_shared_expert_intermediate_size", "whole", "Total inner width of the shared experts. Unset: none.",
        also=("moe_shared_ffn",)),
    _shape("moe_layer_freq", "layers", "MoE layers: every n-th, or a list of 0 and 1."),
    _shape("moe_latent_size", "count", "Width of the routed experts when it differs from hidden_size."),
    _shape("multi_latent_attention", "flag", "Multi-head latent attention (MLA)."),
    _shape("q_lora_rank", "count", "MLA: rank of the query projection. Unset: a full projection."),
    _shape("kv_lora_rank", "count", "MLA: rank of the key and value projection."),
    _shape("qk_head_dim", "count", "MLA: width of a head without position."),
    _shape("qk_pos_emb_head_dim", "whole", "MLA: width of a head's rotary part."),
    _shape("v_head_dim", "count", "MLA: width of a value head."),
    ContractField("window_size", _SHAPE, "info", "text",
        "Sliding-window attention: visible tokens to the left and to the right, for example 127,0."),
    _shape("window_attn_skip_freq", "layers", "Layers with full attention: every n-th. Unset: none."),
    _shape("experimental_attention_variant", "name", "Alternative attention, for example gated_delta_net."),
    _shape("linear_attention_freq", "layers", "Layers with full instead of linear attention: every n-th."),
    _shape("linear_key_head_dim", "count", "Linear attention: width of a key head."),
    _shape("linear_num_key_heads", "count", "Linear attention: key heads."),
    _shape("linear_value_head_dim", "count", "Linear attention: width of a value head."),
    _shape("linear_num_value_heads", "count", "Linear attention: value heads."),
    _shape("linear_conv_kernel_dim", "count", "Linear attention: width of the convolution."),
    _shape("hybrid_layer_pattern", "text",
        "Hybrid models, one letter per layer: M mamba, * attention, E experts, - dense."),
    _shape("mamba_num_heads", "count", "Mamba heads."),
    _shape("mamba_state_dim", "count", "Mamba state width."),
    _shape("mamba_num_groups", "count", "Mamba groups."),
)  # fmt: skip


# --- Environment variables that change results, one field each: `env.NAME`.
#
# `meta` states them as one mapping, `"env": {"NCCL_NVLS_ENABLE": "0"}`. A variable that is missing from it is unknown,
# or unset when the mapping is a complete environment (it has `PATH` and `PWD`).

_ENVIRONMENT = "Environment"

VARIABLES = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "Hardware queues between host and GPU: 1, 8 or 32 in published recipes.",
    "PYTORCH_CUDA_ALLOC_CONF": "Settings of PyTorch's memory allocator.",
    "NCCL_GRAPH_REGISTER": "NCCL registers buffers of captured graphs; 0 with expandable segments.",
    "NCCL_NVLS_ENABLE": "NCCL uses in-switch reductions of NVLink.",
    "NCCL_NET_GDR_LEVEL": "Maximum distance between GPU and network card for direct access (NCCL up to 2.25).",
    "NCCL_NET_GDR_C2C": "Direct network access over the chip-to-chip link (NCCL from 2.26).",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "PyTorch frees communication buffers early.",
    "TORCH_NCCL_HIGH_PRIORITY": "Collectives run on high-priority streams.",
    "NVTE_FWD_LAYERNORM_SM_MARGIN": "SMs that forward normalisation leaves to communication.",
    "NVTE_BWD_LAYERNORM_SM_MARGIN": "SMs that backward normalisation leaves to communication.",
    "NVTE_NORM_FWD_USE_CUDNN": "Forward normalisation by cuDNN.",
    "NVTE_NORM_BWD_USE_CUDNN": "Backward normalisation by cuDNN.",
    "NVTE_FUSED_ATTN": "Transformer Engine may use cuDNN's fused attention.",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "Allows faster, non-deterministic kernels.",
    "NCCL_ALGO": "Algorithm of NCCL's collectives; Ring makes them deterministic.",
    "CUBLAS_WORKSPACE_CONFIG": "Workspace of cuBLAS; :4096:8 makes it deterministic.",
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "HybridEP: ranks that share an NVLink domain.",
    "NVLINK_DOMAIN_SIZE": "HybridEP: GPUs of an NVLink domain.",
    "USE_MNNVL": "HybridEP: NVLink spans nodes.",
    "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "HybridEP: tokens per chunk of the combine step, 64 or 128.",
    "NVSHMEM_IB_ENABLE_IBGDA": "DeepEP: GPUs initiate network transfers.",
    "NVSHMEM_ENABLE_NIC_PE_MAPPING": "DeepEP: each GPU has its own network card.",
    "DEEP_EP_DEVICE_TO_HCA_MAPPING": "DeepEP: which network card serves which GPU.",
    "CUDA_GRAPHS_USE_NODE_PRIORITY": "CUDA graphs keep the priority of their kernels.",
}

ENVIRONMENT_FIELDS = tuple(
    ContractField(
        PREFIX + name,
        _ENVIRONMENT,
        "config",
        "text",
        meaning,
    )
    for name, meaning in VARIABLES.items()
)


# --- The headline figures of a run, in display order.

_METRICS = (
    MetricField(
        "step_time_ms", "Step time", "ms", True, "Median time of one optimizer step over the steady window.",
        "verdicts and rankings",
    ),
    MetricField(
        "tokens_per_s_per_gpu", "Tokens", "tokens/s/GPU", False, "Tokens of a step over steady step time and GPUs.",
        "nothing: the step time decides",
    ),
    MetricField(
        "tflops_per_gpu", "Model FLOPs", "TFLOP/s/GPU", False, "Model FLOPs of a step over steady step time and GPUs.",
        "nothing: the step time decides",
    ),
    MetricField(
        "mfu_pct", "MFU", "%", False, "Model FLOP/s as a share of the GPU's dense peak for this precision.",
        "nothing: the step time decides",
    ),
    MetricField(
        "peak_memory_gib", "Peak memory", "GiB", True, "Most memory that any rank had allocated.",
        "verdicts, if it grows clearly",
    ),
)  # fmt: skip
METRICS = {metric.name: metric for metric in _METRICS}


FIELDS: dict[str, ContractField] = {
    field.name: field
    for field in (
        *IDENTITY_FIELDS,
        *PARALLELISM_FIELDS,
        *MOE_FIELDS,
        *PERFORMANCE_FIELDS,
        *ENVIRONMENT_FIELDS,
        *SHAPE_FIELDS,
    )
}

FIELD_GROUPS = {
    group: tuple(name for name, field in FIELDS.items() if field.group == group)
    for group in dict.fromkeys(field.group for field in FIELDS.values())
}
"""The names of the fields by group."""

STACK_FIELDS = tuple(name for name, field in FIELDS.items() if field.role == "stack")
"""Members of the stack key, in addition to the project."""

CONFIG_FIELDS = tuple(name for name, field in FIELDS.items() if field.role == "config")
"""Members that the config key adds to the stack key."""
