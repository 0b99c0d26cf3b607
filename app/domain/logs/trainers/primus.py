"""Names that AMD's trainers add to Megatron-LM's iteration line: current/average pairs and memory in use.

Primus: `elapsed time per iteration (ms): 16601.3/17219.3`, `compute per GPU (TFLOP/s/GPU): 496.3 (avg 496.1)`,
`hip mem usage/free/total/usage_ratio: 253.38GB/2.60GB/255.98GB/98.98%`. The average skips iterations and restarts now
and then, so the first number is the one to compare. GB are 2^30 bytes of the device's memory in use, not of PyTorch's
allocations. ROCm's Megatron-LM prints `mem usages: 0.7494`, a fraction.
"""

import math
import re
from collections.abc import Sequence

from app.domain.run import Stated

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
"""The last one belongs to the rank with the highest use, whose number precedes the name."""

_LOGGER = re.compile(rb"\[\d{8} [\d:]{8}\]\[rank-\d{1,7}/\d{1,7}\]")
_OWN = frozenset(NAMES) - {b"tokens per GPU (tokens/s/GPU)"}


def trainer(prefix: bytes, names: Sequence[bytes]) -> str | None:
    """Return the family of a line with AMD's prefix or fields, else None."""
    if _LOGGER.search(prefix) or not _OWN.isdisjoint(names):
        return PRIMUS
    return ROCM if b"mem usages" in names else None


# --- The GPU, which no line states: by the name of the node, else by the folder of the configuration, else by the
# memory of the device.
#
# `[NODE-0(mi355-gpu-12)] [INFO] ...`, `--config examples/megatron/configs/MI355X/deepseek_v4_flash-BF16-pretrain.yaml`.
# A node outranks a folder, because a configuration may run on another GPU. `mi300` is left out: it may be X or A.
# 192 and 256 GiB belong to one product each; 288 GiB may be an MI350X or an MI355X, so it states nothing.

_NODE = re.compile(rb"NODE-[\d?]{1,6}\((mi(?:325|350|355)x?)(?=[-.\d)])")
_FOLDER = re.compile(rb"/configs/(MI\d{3}X)/")
_MEMORY_KEY = b"hip mem usage/free/total/"
_MEMORY = re.compile(rb"usage_ratio: [\d.]{1,9}GB/[\d.]{1,9}GB/([\d.]{1,9})GB")
_OF_MEMORY = {192: "MI300X", 256: "MI325X"}
_REACH = 40
"""Bytes around the key that contain the name."""


class GpuReader:
    """Keeps the first node, folder and memory, because every rank repeats them."""

    keys: Sequence[bytes] = (b"(mi3", b"/configs/MI", _MEMORY_KEY)

    def __init__(self) -> None:
        self._of_node: Stated | None = None
        self._of_folder: Stated | None = None
        self._of_memory: Stated | None = None

    @property
    def stated(self) -> dict[str, Stated]:
        gpu = self._of_node or self._of_folder or self._of_memory
        return {} if gpu is None else {"gpu": gpu}

    def block(self, data: bytes) -> None: ...

    def read(self, data: bytes, start: int, end: int, hit: int, line: int) -> int:
        if data.endswith(_MEMORY_KEY, start, hit):
            if self._of_memory is None and (match := _MEMORY.match(data, hit, end)):
                self._of_memory = _by_memory(match[1], line)
            return hit
        begin, stop = max(start, hit - _REACH), min(end, hit + _REACH)
        if match := _NODE.search(data, begin, stop):
            self._of_node = self._of_node or _gpu(match[1], f"node {match[1].decode()}", line)
        elif match := _FOLDER.search(data, begin, stop):
            self._of_folder = self._of_folder or _gpu(match[1], f"configuration in {match[1].decode()}", line)
        return hit


def _by_memory(total: bytes, line: int) -> Stated | None:
    try:
        gib = float(total)
    except ValueError:
        return None
    sku = _OF_MEMORY.get(math.ceil(gib)) if math.ceil(gib) - gib < 0.5 else None
    return None if sku is None else Stated(sku, "log line", f"line {line}: memory of {gib:g} GiB", line=line)


def _gpu(name: bytes, where: str, line: int) -> Stated:
    sku = name.decode().upper().removesuffix("X") + "X"
    return Stated(sku, "log line", f"line {line}: {where}", line=line)
