"""Figures of tuning guides, which round them, and of short runs that they call directional. Restated row by row."""

from app.domain.reference_points.point import ReferencePoint
from app.domain.reference_points.table import read_rows

_TREE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df03b8355b03192d88d70f1709fedf51a/skills/"
_COLUMNS = "model gpu gpus precision seq_len gbs mbs tp pp vpp cp ep mtp dispatcher tflops_per_gpu"
_SMOKE_COLUMNS = "date gpus gbs ep dispatcher ep_overlap delay_wgrad step_time_ms tflops_per_gpu window note"
_SMOKE_NOTES = {
    "fallback": "A smoke run of five steps; the fallback was the only measurement. Not a ranking.",
    "overlap": "A short run: directional, not release-grade.",
}


def points() -> tuple[ReferencePoint, ...]:
    hardware = read_rows(
        HARDWARE,
        _COLUMNS,
        measured_by="NVIDIA",
        kind="guide",
        source="Megatron-Bridge guide to MoE hardware configurations",
        url=f"{_TREE}nemo-mbridge-perf-moe-hardware-configs/card.yaml",
        date="2026-07",
        task="pretrain",
    )
    long_context = read_rows(
        LONG_CONTEXT,
        _COLUMNS,
        measured_by="NVIDIA",
        kind="guide",
        source="Megatron-Bridge guide to MoE long context",
        url=f"{_TREE}nemo-mbridge-perf-moe-long-context/card.yaml",
        date="2026-04",
        task="pretrain",
    )
    return (*hardware, *long_context, *_smokes())


def _smokes() -> list[ReferencePoint]:
    """Qwen3-30B-A3B on 16 H100, made-up data, windows of a few iterations."""
    found: list[ReferencePoint] = []
    for name, rows in SMOKES.items():
        for line in rows.strip().splitlines():
            date, row = line.split(maxsplit=1)
            found += read_rows(
                row,
                " ".join(_SMOKE_COLUMNS.split()[1:]),
                notes=_SMOKE_NOTES,
                measured_by="NVIDIA",
                kind="founding_document",
                source=f"Megatron-Bridge guide to {name}",
                url="",
                date=date,
                model="Qwen3-30B-A3B",
                gpu="H100",
                precision="bf16",
                task="pretrain",
                permute_fusion=False,
            )
    return found


HARDWARE = """
DeepSeek-V3 H100 1024 fp8_sc - 8192 - 2 8 4 - 64 1 deepep ~370
DeepSeek-V3 B200 256 bf16 - - - 1 8 4 - 32 1 deepep ~520
DeepSeek-V3 B200 256 fp8_mx - - - 1 8 2 - 32 1 deepep ~800
DeepSeek-V3 GB200 256 fp8_mx - - - 1 8 4 - 32 0 hybridep ~1000
DeepSeek-V3 GB200 256 fp8_mx - - - 1 4 4 - 64 - hybridep ~1100
DeepSeek-V3 GB300 256 fp8_mx - - - 1 4 4 - 64 - hybridep ~1200
Qwen3-30B-A3B H100 32 bf16 - 256 4 1 - - - 8 - deepep ~210
Qwen3-235B-A22B GB200 128 bf16 - 1024 - 1 4 12 - 32 - hybridep ~700
Qwen3-235B-A22B B200 128 bf16 - 2048 2 2 4 12 - 16 - deepep ~590
Qwen3-Next-80B-A3B GB200 64 bf16 - 1024 2 - 2 4 - 32 - hybridep ~330
Qwen3.5-397B-A17B GB200 128 bf16 - 4096 - - 4 4 - 32 - hybridep ~550
"""

LONG_CONTEXT = """
DeepSeek-V3 H100 256 fp8_sc 4096 - - 1 8 4 1 32 1 deepep ~300
DeepSeek-V3 H100 256 fp8_sc 16384 - - 1 8 4 4 32 1 deepep ~320
DeepSeek-V3 H100 256 fp8_sc 32768 - - 1 8 4 8 32 1 deepep ~320
DeepSeek-V3 H100 256 fp8_sc 65536 - - 1 8 4 16 32 1 deepep ~310
DeepSeek-V3 H100 256 fp8_sc 131072 - - 1 8 4 32 32 1 deepep ~300
DeepSeek-V3 H100 512 fp8_sc 262144 - - 1 8 4 64 32 1 deepep ~300
Qwen3-Next-80B-A3B GB200 32 bf16 8192 - - - - - 1 - - hybridep ~270
Qwen3-Next-80B-A3B GB200 32 bf16 32768 - - - - - 4 - - hybridep ~230
Qwen3-Next-80B-A3B GB200 32 bf16 65536 - - - - - 16 - - hybridep ~100
"""

SMOKES = {
    "MoE dispatchers": """
2026-05-17 16 - 16 alltoall - - 45650 132.9 - fallback
""",
    "MoE communication overlap": """
2026-05-18 16 1024 16 alltoall false false 41250 - 3-8 overlap
2026-05-18 16 1024 16 alltoall true false 31310 - 3-8 overlap
2026-05-18 16 1024 16 alltoall true true 31200 - 3-8 overlap
""",
}
