"""What weights, gradients and optimizer states take on each GPU, by Megatron-LM's own formula on both meshes.

Megatron-LM `megatron/training/theoretical_memory_usage.py`: 6 bytes a parameter for BF16 weights and FP32 gradients,
and 12 for FP32 weights and moments, which the distributed optimizer shares between ranks with the same weights:
6 + 12 / (DP x CP), and 6 + 12 / EDP for routed experts, which lie on the expert mesh. Activations, buffers of the
dispatcher and kernels, graphs and fragmentation are not in it, and no source gives a formula for them.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from app.domain.planning.request import PlanRequest
from app.domain.rules.hardware import FACTS

SOURCE = "Megatron-LM code: theoretical_memory_usage.py"
SOURCE_URL = (
    "https://github.com/NVIDIA/Megatron-LM/blob/00caa53af30912914981c86f39db123961678bbd/"
    "megatron/training/theoretical_memory_usage.py"
)
HELD, SHARED = 6.0, 12.0
STATIC_SHARE = 0.75
"""A layout whose static part is larger comes after those whose is not: the rest is for activations and buffers. Our own
default. The published DeepSeek-V3 layout on 256 H100 (TP1 PP8 EP32) has 0.74."""

Number = TypeVar("Number", float, npt.NDArray[np.float64])


def static_gb(
    request: PlanRequest, shards: Number, replicas: Number, expert_mesh: Number, edp: Number
) -> Number | None:
    """GB (1e9 bytes) for each GPU, of the mean stage. `shards`: TP x PP, `replicas`: DP x CP,
    `expert_mesh`: PP x EP x ETP. None: parameters are unknown."""
    total, experts = request.model.total_billions, request.model.expert_billions
    if total is None or experts is None:
        return None
    rest = (total - experts) / shards
    return rest * (HELD + SHARED / replicas) + experts / expert_mesh * (HELD + SHARED / edp)


def gpu_memory_gb(request: PlanRequest) -> float | None:
    found = FACTS["hbm_gb"](request.gpu)
    return found if isinstance(found, float) else None
