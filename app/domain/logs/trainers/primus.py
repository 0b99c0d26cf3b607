"""What AMD's trainers add to Megatron-LM's iteration line: pairs current/average, and the memory that is in use.

Primus: `elapsed time per iteration (ms): 16601.3/17219.3`, `compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1)`,
`hip mem usage/free/total/usage_ratio: 253.38GB/2.60GB/255.98GB/98.98%`. Its average skips iterations and starts anew
now and then, so the first number is the one to compare. Its GB are 2^30 bytes, and it is what the device has in use,
not what PyTorch allocated. ROCm's Megatron-LM prints `mem usages: 0.7494`, a fraction.
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
"""The last one is that of the rank which uses most; its number stands in front of the name."""

_LOGGER = re.compile(rb"\[\d{8} [\d:]{8}\]\[rank-\d{1,7}/\d{1,7}\]")
_OWN = frozenset(NAMES) - {b"tokens per GPU (tokens/s/GPU)"}


def trainer(prefix: bytes, names: Sequence[bytes]) -> str | None:
    """The name of the family when a line's prefix or fields are one of AMD's."""
    if _LOGGER.search(prefix) or not _OWN.isdisjoint(names):
        return PRIMUS
    return ROCM if b"mem usages" in names else None
