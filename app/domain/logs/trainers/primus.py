"""Names that AMD's trainers add to Megatron-LM's iteration line: current/average pairs and memory in use.

Primus: `elapsed time per iteration (ms): 16601.3/17219.3`, `compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1)`,
`hip mem usage/free/total/usage_ratio: 253.38GB/2.60GB/255.98GB/98.98%`. The average skips iterations and restarts now
and then, so the first number is the one to compare. GB are 2^30 bytes of the device's memory in use, not of PyTorch's
allocations. ROCm's Megatron-LM prints `mem usages: 0.7494`, a fraction.
"""

import re
from collections.abc import Sequence

PRIMUS = "Primus"
ROCM = "ROCm Megatron-LM"

NAMES: dict[bytes, tuple[str, float]] = {
    b"compute per GPU (TFLOP/s/GPU)": ("tflops_per_gpu", 1.0),
    b"tokens per GPU (tokens/s/GPU)": ("tokens_per_s_per_gpu", 1.0),
    b"tokens/s/GPU inst/harmonic mean": ("tokens_per_s_per_gpu", 1.0),
    b"hip mem usage/free/total/usage_ratio": ("hip_mem_used_bytes", 1.0),
    b"rocm mem usage/free/total/usage_ratio": ("rocm_mem_used_bytes", 1.0),
    b"rocm max mem usage/usage_ratio": ("rocm_max_mem_used_bytes", 1.0),
}
"""The last one is of the rank with the highest use, whose number precedes the name."""

_LOGGER = re.compile(rb"\[\d{8} [\d:]{8}\]\[rank-\d{1,7}/\d{1,7}\]")
_OWN = frozenset(NAMES) - {b"tokens per GPU (tokens/s/GPU)"}


def trainer(prefix: bytes, names: Sequence[bytes]) -> str | None:
    """Return the family of a line with AMD's prefix or fields, else None."""
    if _LOGGER.search(prefix) or not _OWN.isdisjoint(names):
        return PRIMUS
    return ROCM if b"mem usages" in names else None
