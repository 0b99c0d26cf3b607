"""One layout: its degrees, and what follows from them. Attention uses the mesh TP x CP x DP x PP, experts ETP x EP x
EDP x PP. Both meshes cover the same GPUs and share PP (Parallel Folding).
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from app.domain.contract.values import stages
from app.domain.planning.request import PlanRequest

SHARD_FLOOR, SHARD_CEILING = 4096, 8192
"""Tokens of a sequence per CP x TP rank: the range that sources state for long sequences."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`vpp` 1: no virtual pipeline. `account`: what counts as a layer in an even split."""

    tp: int
    cp: int
    pp: int
    ep: int = 1
    etp: int = 1
    vpp: int = 1
    account: tuple[str, ...] = ()
    pp_layout: str | None = None

    @property
    def degrees(self) -> tuple[int, ...]:
        """Return TP, CP, PP, EP and ETP: a layout without its split into stages."""
        return self.tp, self.cp, self.pp, self.ep, self.etp

    @property
    def attention(self) -> int:
        """Return the GPUs of one replica of the attention."""
        return self.tp * self.cp * self.pp

    @property
    def experts(self) -> int:
        """Return the GPUs of one replica of the experts."""
        return self.etp * self.ep * self.pp

    @property
    def expert_group(self) -> int:
        """Ranks among which tokens are dispatched."""
        return self.ep * self.etp

    @property
    def min_gpus(self) -> int:
        return self.pp * max(self.tp * self.cp, self.ep * self.etp)

    def dp(self, request: PlanRequest) -> int | None:
        return quotient(request.gpus, self.attention)

    def edp(self, request: PlanRequest) -> int | None:
        return quotient(request.gpus, self.experts)

    def ga(self, request: PlanRequest) -> int | None:
        """Return the micro-batches per step and replica; None when the batch is undecided or not divisible."""
        dp = self.dp(request)
        return None if dp is None or request.gbs is None else quotient(request.gbs, request.mbs * dp)


def degrees_text(layout: Layout, *, experts: bool) -> str:
    """Format the degrees: `TP1 PP8 VPP4 CP1 EP32 ETP1`."""
    vpp = f" VPP{layout.vpp}" if layout.vpp > 1 else ""
    expert_degrees = f" EP{layout.ep} ETP{layout.etp}" if experts else ""
    return f"TP{layout.tp} PP{layout.pp}{vpp} CP{layout.cp}{expert_degrees}"


def quotient(whole: int, part: int) -> int | None:
    """Return the quotient if it is a whole number, else None."""
    return whole // part if whole % part == 0 else None


def stage_shares(layers: int, layout: Layout) -> tuple[float, float]:
    """Return the shares of the layers that the largest pipeline stage and the last stage hold."""
    parts = stages(layout.pp_layout) if layout.pp_layout is not None else None
    if parts and len(parts) % layout.pp == 0:
        layers_of = [sum(part.count("t") for part in parts[rank :: layout.pp]) for rank in range(layout.pp)]
        return max(layers_of) / layers, layers_of[-1] / layers
    each = (layers + len(layout.account)) / layout.pp
    return min(each / layers, 1.0), max(each - ("loss" in layout.account), 0.0) / layers


def first_cp(seq_len: int) -> int:
    """Return a first guess of CP: a rank per 4096 tokens, as the nearest power of two."""
    return 1 << max(0, round(math.log2(seq_len / SHARD_FLOOR)))


# --- Memory of weights, gradients and optimizer states per GPU, by Megatron-LM's formula on both meshes.
#
# Megatron-LM `megatron/training/theoretical_memory_usage.py`: 6 bytes per parameter for BF16 weights and FP32
# gradients, and 12 for FP32 weights and moments, which the distributed optimizer shares between ranks with the same
# weights: 6 + 12 / (DP x CP), and 6 + 12 / EDP for routed experts, which lie on the expert mesh. Activations, buffers
# of the dispatcher and kernels, graphs and fragmentation are not included: no source gives a formula for them.

SOURCE = "Megatron-LM code: theoretical_memory_usage.py"
SOURCE_URL = (
    "https://github.com/NVIDIA/Megatron-LM/blob/00caa53af30912914981c86f39db123961678bbd/"
    "megatron/training/theoretical_memory_usage.py"
)
REPLICATED, SHARED = 6.0, 12.0
STATIC_SHARE = 0.75
"""Layouts with a larger static share come after the others: the rest is for activations and buffers. Our own default.
The published DeepSeek-V3 layout on 256 H100 (TP1 PP8 EP32) has 0.74."""

Number = TypeVar("Number", float, npt.NDArray[np.float64])


def static_gb(
    request: PlanRequest, shards: Number, replicas: Number, expert_mesh: Number, edp: Number
) -> Number | None:
    """Return GB (1e9 bytes) per GPU of the mean stage; None when the parameters are unknown.

    `shards`: TP x PP, `replicas`: DP x CP, `expert_mesh`: PP x EP x ETP.
    """
    total, experts = request.model.total_billions, request.model.expert_billions
    if total is None or experts is None:
        return None
    rest = (total - experts) / shards
    return rest * (REPLICATED + SHARED / replicas) + experts / expert_mesh * (REPLICATED + SHARED / edp)
