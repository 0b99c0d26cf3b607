"""What a demo job trains, on what, and with which knobs: the one model whose smokes were published.

Shape of Qwen3-30B-A3B: its published configuration. Published figures: Megatron-Bridge's guides on MoE communication
overlap and dispatcher selection, and its model verification card of 2026-07.
"""

from dataclasses import dataclass
from typing import Literal

from app.domain.flops.model_flops import flops_per_step
from app.domain.flops.model_shape import Experts, GroupedQueryAttention, ModelShape

GPU = "H100"
GPUS = 16
GPUS_PER_NODE = 8
TOKENS_PER_STEP = 4096 * 1024

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
    """Qwen3-30B-A3B in BF16 on H100, expert parallel over 16 of them. Defaults: the founding smokes' settings.

    A step has the same number of tokens whatever the sequence length: `share` times that of the smokes.
    """

    dispatcher: Dispatcher = "alltoall"
    ep_overlap: bool = False
    delay_wgrad: bool = False
    cuda_graphs: bool = False
    permute_fusion: bool = False
    micro_batch_size: int = 1
    iterations: int = 8
    sequence_length: int = 4096
    gpus: int = GPUS
    share: int = 1
    context_parallel: int = 1

    @property
    def global_batch_size(self) -> int:
        return self.share * TOKENS_PER_STEP // self.sequence_length

    @property
    def data_parallel(self) -> int:
        return self.gpus // self.context_parallel


_SHAPE = ModelShape(
    layers=LAYERS,
    hidden=HIDDEN,
    vocabulary=VOCABULARY,
    ffn_width=0,
    gated=True,
    attention=GroupedQueryAttention(HEADS, KV_GROUPS, HEAD_CHANNELS),
    experts=Experts(TOP_K, EXPERT_FFN, pattern=(1,) * LAYERS),
)


def tflops_per_gpu(step_time_ms: float, workload: Workload | None = None) -> float:
    """TFLOP/s/GPU of one step of this workload, as a trainer logs it."""
    workload = workload or Workload()
    return model_flops(workload) / workload.gpus / step_time_ms / 1e9


def model_flops(workload: Workload) -> float:
    """Of one step."""
    return flops_per_step(_SHAPE, workload.global_batch_size, workload.sequence_length, discount_window=False)
