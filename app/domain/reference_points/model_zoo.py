"""Results of the Megatron MoE model zoo for Qwen3-235B-A22B, restated row by row.

The long-context rows state the same job twice, with forced balance and with a real router that drops nothing: the only
published pairs of the two.
"""

from app.domain.reference_points.point import ReferencePoint
from app.domain.reference_points.table import read_rows

_URL = (
    "https://github.com/yanring/Megatron-MoE-ModelZoo/blob/e8650517d60d71ab73fc6b3b0388cac4ba435181/"
    "best_practice/qwen3/readme.md"
)
_COLUMNS = (
    "model gpu gpus precision seq_len gbs mbs tp pp vpp cp ep dispatcher routing_mode step_time_ms tflops_per_gpu note"
)
_NOTES = {
    "offload": "Needs activation offloading.",
    "long": "Recomputes layernorm and the MoE layers.",
    "overlap": "With overlapped expert-parallel communication.",
    "full": "With FSDP and full recomputation.",
}


def points() -> tuple[ReferencePoint, ...]:
    return tuple(
        read_rows(
            TABLE,
            _COLUMNS,
            notes=_NOTES,
            measured_by="Megatron MoE model zoo",
            kind="model_zoo",
            source="Megatron MoE model zoo, Qwen3 best practice",
            url=_URL,
            date="2026-05",
            task="pretrain",
        )
    )


TABLE = """
Qwen3-235B-A22B H100 256 bf16 16384 256 - 4 8 4 1 8 deepep forced-balance - 295 long
Qwen3-235B-A22B H100 256 bf16 16384 256 - 4 8 4 1 8 deepep dropless - 237 long
Qwen3-235B-A22B H100 256 bf16 32768 256 - 4 8 4 2 8 deepep forced-balance - 335 long
Qwen3-235B-A22B H100 256 bf16 32768 256 - 4 8 4 2 8 deepep dropless - 277 long
Qwen3-235B-A22B H100 256 bf16 65536 256 - 4 8 4 4 8 deepep forced-balance - 368 long
Qwen3-235B-A22B H100 256 bf16 65536 256 - 4 8 4 4 8 deepep dropless - 320 long
Qwen3-235B-A22B H100 256 bf16 131072 256 - 4 8 4 8 8 deepep forced-balance - 389 long
Qwen3-235B-A22B H100 256 bf16 131072 256 - 4 8 4 8 8 deepep dropless - 357 long
Qwen3-235B-A22B H100 256 bf16 4096 2048 - 2 8 4 - 32 deepep - 19700 245
Qwen3-235B-A22B H100 256 bf16 4096 2048 - 2 8 4 - 32 deepep - 17600 276 overlap
Qwen3-235B-A22B H100 256 bf16 4096 2048 4 - - - - 8 - - 17600 276 full
Qwen3-235B-A22B H100 256 bf16 4096 2048 - - 32 - - 8 alltoall - 24200 200
Qwen3-235B-A22B H100 256 bf16 4096 2048 - 4 - - - 8 - - 29000 167
Qwen3-235B-A22B GB200 256 bf16 4096 8192 1 1 8 - 1 8 hybridep - - 750
Qwen3-235B-A22B GB200 256 fp8_mx 4096 3072 3 1 4 6 1 64 hybridep - - 919 offload
Qwen3-235B-A22B GB200 128 fp8_mx 131072 1024 1 4 4 12 4 32 hybridep - - 1150
Qwen3-235B-A22B GB300 64 fp8_mx 4096 8192 1 1 1 - 1 64 hybridep - - 1055
"""
