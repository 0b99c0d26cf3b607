"""Data of GPUs for the planner: peaks, bandwidths and memory. Values without a source stay unknown."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.contract.values import GB_PER_GIB, GPU_MEMORY_GIB
from app.domain.performance.flops import PEAKS, peak_flops
from app.domain.rules.derive import FACTS

# Bandwidths in GB/s (1e9 bytes). NVLink and network: README of NVIDIA/dgxc-benchmarking, which states both directions
# of NVLink per GPU and the adapters of a node. HBM and host links: NVIDIA's data sheets of the products. AMD: the data
# sheets of MI300X, MI325X and MI355X (seven Infinity Fabric links of 128 or 153.6 GB/s in both directions, PCIe 5);
# network: one 400 Gb/s adapter per GPU, as in Azure's ND MI300X v5.

_HBM: Mapping[str, float] = {
    "A100": 2039, "H100": 3350, "H200": 4800, "B200": 8000, "B300": 8000, "GB200": 8000, "GB300": 8000,
    "MI300X": 5300, "MI325X": 6000, "MI355X": 8000,
}  # fmt: skip
_NVLINK: Mapping[str, float] = {"A100": 300, "H100": 450, "H200": 450} | dict.fromkeys(
    ("B200", "B300", "GB200", "GB300"), 900
) | {"MI300X": 448, "MI325X": 448, "MI355X": 537.6}  # fmt: skip
_NETWORK: Mapping[str, float] = {
    "A100": 25, "H100": 50, "H200": 50, "B200": 50, "B300": 100, "GB200": 50, "GB300": 100,
    "MI300X": 50, "MI325X": 50, "MI355X": 50,
}  # fmt: skip
_HOST: Mapping[str, float] = {
    "A100": 32, "H100": 64, "H200": 64, "B200": 64, "B300": 64, "GB200": 225, "GB300": 225,
    "MI300X": 64, "MI325X": 64, "MI355X": 64,
}  # fmt: skip
"""PCIe 4 and 5 in one direction; NVLink-C2C of a Grace superchip, divided by its two GPUs."""

AMD = ("MI300X", "MI325X", "MI355X")


@dataclass(frozen=True, slots=True)
class Hardware:
    """Bandwidths in bytes per second, one direction, per GPU; peaks in FLOP/s. `nvlink`: or Infinity Fabric.

    `nvlink_domain`: the GPUs that it joins.
    """

    gpu: str
    memory_gb: float
    hbm: float
    nvlink: float
    network: float
    host: float
    nvlink_domain: int
    peak_bf16: float
    peak: float

    @property
    def is_amd(self) -> bool:
        return self.gpu in AMD


def gpu_memory_gb(gpu: object) -> float | None:
    """Return the nominal memory of a GPU in GB (1e9 bytes); None for an unknown GPU."""
    memory = GPU_MEMORY_GIB.get(str(gpu))
    return None if memory is None else memory * GB_PER_GIB


def in_gib(gb: float) -> float:
    """Convert GB (1e9 bytes), the unit of the planner, to GiB, the unit of pages."""
    return gb / GB_PER_GIB


def hardware_of(gpu: str, precision: str) -> Hardware | None:
    """Return the known figures of a GPU at a precision; None when a figure that a prediction needs is unknown."""
    memory, domain = gpu_memory_gb(gpu), FACTS["nvlink_domain"](gpu)
    peak = peak_flops(gpu, precision)
    if memory is None or not isinstance(domain, int) or peak is None or gpu not in _HBM:
        return None
    return Hardware(
        gpu=gpu,
        memory_gb=memory,
        hbm=_HBM[gpu] * 1e9,
        nvlink=_NVLINK[gpu] * 1e9,
        network=_NETWORK[gpu] * 1e9,
        host=_HOST[gpu] * 1e9,
        nvlink_domain=domain,
        peak_bf16=PEAKS[gpu]["BF16"] * 1e12,
        peak=peak.tflops * 1e12,
    )
