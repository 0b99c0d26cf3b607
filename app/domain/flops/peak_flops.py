"""Peak dense TFLOP/s of one GPU by precision, each with its source. What no source states stays unknown: no guesses."""

from dataclasses import dataclass
from typing import Literal

Format = Literal["BF16", "FP8", "NVFP4"]

SOURCE = 'NVIDIA/dgxc-benchmarking README.md, "Peak Theoretical Throughput" (841f546, 2026-07-30)'

PEAKS: dict[str, dict[Format, float]] = {
    "H100": {"BF16": 989, "FP8": 1979},
    "B200": {"BF16": 2250, "FP8": 4500, "NVFP4": 9000},
    "B300": {"BF16": 2250, "FP8": 4500, "NVFP4": 13500},
    "GB200": {"BF16": 2450, "FP8": 4900, "NVFP4": 9800},
    "GB300": {"BF16": 2450, "FP8": 4900, "NVFP4": 14700},
}

_FORMATS: dict[str, Format] = {
    "bf16": "BF16",
    "fp16": "BF16",  # the same peak on every GPU of the table
    "fp8_ds": "FP8",
    "fp8_cs": "FP8",
    "fp8_sc": "FP8",
    "fp8_mx": "FP8",
    "nvfp4": "NVFP4",
}


@dataclass(frozen=True, slots=True)
class Peak:
    """A GPU's dense peak, and who says so."""

    tflops: float
    gpu: str
    format: Format
    source: str = SOURCE


def peak_flops(gpu: str, precision: str) -> Peak | None:
    """The peak of a GPU (SKU) at a precision (canonical value); None where the sources state none."""
    number_format = _FORMATS.get(precision)
    if number_format is None:
        return None
    peak = PEAKS.get(gpu, {}).get(number_format)
    return None if peak is None else Peak(peak, gpu, number_format)
