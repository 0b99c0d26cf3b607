"""What conditions need to know of a GPU model (NVIDIA/dgxc-benchmarking README, 2026-07-30; CUDA's table of
architectures). What no source states stays unknown."""

from collections.abc import Callable, Mapping

from app.domain.contract.hardware import GPUS_PER_NODE
from app.domain.flops.peak_flops import peak_flops

_ARCH = {
    "V100": 70,
    **dict.fromkeys(("A100", "A800"), 80),
    **dict.fromkeys(("H100", "H200", "H800", "H20"), 90),
    **dict.fromkeys(("B200", "GB200"), 100),
    **dict.fromkeys(("B300", "GB300"), 103),
}
_HBM_GB = {"H100": 80.0, "B200": 180.0, "B300": 270.0, "GB200": 186.0, "GB300": 279.0}
_NVL72 = ("GB200", "GB300", "VR200")


def _arch(gpu: object) -> str | None:
    number = _ARCH.get(str(gpu))
    return None if number is None else f"sm{number}"


def _generation(first: int, last: int) -> Callable[[object], bool | None]:
    def rule(gpu: object) -> bool | None:
        number = _ARCH.get(str(gpu))
        return None if number is None else first <= number <= last

    return rule


def _known(gpu: object) -> bool:
    return str(gpu) in _ARCH or str(gpu) in _NVL72


FACTS: Mapping[str, Callable[[object], object]] = {
    "arch": _arch,
    "arch_number": lambda gpu: _ARCH.get(str(gpu)),
    "hopper": _generation(90, 90),
    "blackwell": _generation(100, 109),
    "nvl72": lambda gpu: str(gpu) in _NVL72 if _known(gpu) else None,
    "nvlink_domain": lambda gpu: (72 if str(gpu) in _NVL72 else 8) if _known(gpu) else None,
    "hbm_gb": lambda gpu: _HBM_GB.get(str(gpu)),
    "grace": lambda gpu: str(gpu).startswith("GB") if _known(gpu) else None,
}


def gpus_per_node(gpu: object) -> int | None:
    """Usual GPUs of a node."""
    return GPUS_PER_NODE.get(str(gpu))


def mfu(values: Mapping[str, object]) -> float | None:
    """Model FLOPs utilisation against the peak of the precision in use."""
    tflops = values.get("tflops_gpu")
    peak = peak_flops(str(values.get("gpu")), str(values.get("precision")))
    return tflops / peak.tflops if isinstance(tflops, float) and peak is not None else None
