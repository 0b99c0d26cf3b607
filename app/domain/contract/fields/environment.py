"""Environment variables that change results, one field each: `env.NAME`.

`meta` states them as one mapping, `"env": {"NCCL_NVLS_ENABLE": "0"}`. A variable of this list that it leaves out is
unknown, unless the mapping is a whole environment (it has `PATH` and `PWD`): then it was unset.
"""

from app.domain.contract.fields.field import ContractField

GROUP = "Environment"
PREFIX = "env."

VARIABLES = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "Hardware queues between host and GPU: 1, 8 or 32 in published recipes.",
    "PYTORCH_CUDA_ALLOC_CONF": "Settings of PyTorch's memory allocator.",
    "NCCL_GRAPH_REGISTER": "NCCL registers buffers of captured graphs; 0 with expandable segments.",
    "NCCL_NVLS_ENABLE": "NCCL uses the reductions inside NVLink switches.",
    "NCCL_NET_GDR_LEVEL": "How far from a GPU its network card may be for direct access (NCCL up to 2.25).",
    "NCCL_NET_GDR_C2C": "Direct network access over the chip-to-chip link (NCCL from 2.26).",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "PyTorch frees communication buffers early.",
    "TORCH_NCCL_HIGH_PRIORITY": "Collectives run on high-priority streams.",
    "NVTE_FWD_LAYERNORM_SM_MARGIN": "SMs that forward normalisation leaves to communication.",
    "NVTE_BWD_LAYERNORM_SM_MARGIN": "SMs that backward normalisation leaves to communication.",
    "NVTE_NORM_FWD_USE_CUDNN": "Forward normalisation by cuDNN.",
    "NVTE_NORM_BWD_USE_CUDNN": "Backward normalisation by cuDNN.",
    "NVTE_FUSED_ATTN": "Transformer Engine may use cuDNN's fused attention.",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "Faster kernels whose sums are not repeatable are allowed.",
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "HybridEP: ranks that share an NVLink domain.",
    "NVLINK_DOMAIN_SIZE": "HybridEP: GPUs of an NVLink domain.",
    "USE_MNNVL": "HybridEP: NVLink spans nodes.",
    "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "HybridEP: tokens of one chunk when results return, 64 or 128.",
    "NVSHMEM_IB_ENABLE_IBGDA": "DeepEP: GPUs start network transfers themselves.",
    "NVSHMEM_ENABLE_NIC_PE_MAPPING": "DeepEP: each GPU has its own network card.",
    "DEEP_EP_DEVICE_TO_HCA_MAPPING": "DeepEP: which network card serves which GPU.",
    "CUDA_GRAPHS_USE_NODE_PRIORITY": "CUDA graphs keep the priority of their kernels.",
}

FIELDS = tuple(
    ContractField(PREFIX + name, GROUP, "config", "text", meaning, megatron_lm=name, bridge=f"env_vars.{name}")
    for name, meaning in VARIABLES.items()
)
