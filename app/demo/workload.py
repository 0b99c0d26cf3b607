"""What a demo job trains, on what, and with which knobs: the one model whose smokes were published.

Shape of Qwen3-30B-A3B: its published configuration. Published figures: Megatron-Bridge's guides on MoE communication
overlap and dispatcher selection, and its model verification card of 2026-07.
"""

from dataclasses import dataclass
from typing import Literal

GPU = "H100"
GPUS = 16
GPUS_PER_NODE = 8
SEQUENCE_LENGTH = 4096
GLOBAL_BATCH_SIZE = 1024

LAYERS = 48
HIDDEN = 2048
HEADS = 32
KV_GROUPS = 4
HEAD_CHANNELS = 128
EXPERTS = 128
TOP_K = 8
EXPERT_FFN = 768
VOCABULARY = 151936

Dispatcher = Literal["alltoall", "deepep", "hybridep"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Qwen3-30B-A3B in BF16 on 16 H100, expert parallel over all of them. Defaults: the founding smokes' settings."""

    dispatcher: Dispatcher = "alltoall"
    ep_overlap: bool = False
    delay_wgrad: bool = False
    cuda_graphs: bool = False
    permute_fusion: bool = False
    micro_batch_size: int = 1
    iterations: int = 8


def flops_per_step() -> float:
    """Model FLOPs of one optimizer step, counted as Megatron-LM's `num_floating_point_operations` does.

    Six per multiply-add (forward and backward); attention halved for causality; SwiGLU has three matrices.
    """
    query, key = HEAD_CHANNELS * HEADS, HEAD_CHANNELS * KV_GROUPS
    experts = HIDDEN * EXPERT_FFN * TOP_K * 3 * LAYERS
    projections = (HIDDEN * (query + 2 * key) + query * HIDDEN) * LAYERS
    attention = SEQUENCE_LENGTH * query * LAYERS
    return 6.0 * (experts + projections + HIDDEN * VOCABULARY + attention) * GLOBAL_BATCH_SIZE * SEQUENCE_LENGTH


def tflops_per_gpu(step_time_ms: float) -> float:
    """TFLOP/s/GPU of one step of this workload."""
    return flops_per_step() / GPUS / step_time_ms / 1e9
