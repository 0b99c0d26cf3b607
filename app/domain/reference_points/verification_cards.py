"""Megatron-Bridge's model verification cards: MoE pre-training, means over the last ten steps, restated row by row.

Performance items run 50 steps of made-up data with forced balance where the card says so; `pretrain` items of 100 steps
check that real training works, and their speed is not tuned.
"""

from app.domain.reference_points.point import ReferencePoint
from app.domain.reference_points.table import read_rows

_TREE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df03b8355b03192d88d70f1709fedf51a/"
_COLUMNS = (
    "card date container model gpu gpus precision seq_len gbs mbs tp pp vpp cp ep dispatcher routing_mode data_mode "
    "step_time_ms tokens_per_s_per_gpu tflops_per_gpu note"
)
_NOTES = {
    "performance": "Performance recipe, 50 steps.",
    "weak": "A point of a weak-scaling series with 64 sequences a GPU.",
    "natural": "A check of real training over 100 steps, not tuned for speed.",
    "functional": "A functional recipe: safety checks stay on.",
}
_WINDOWS = {"performance": "41 to 50 of 50", "weak": "41 to 50 of 50", "natural": "91 to 100 of 100"}


def points() -> tuple[ReferencePoint, ...]:
    found: list[ReferencePoint] = []
    for line in TABLE.strip().splitlines():
        card, date, tag, row = line.split(maxsplit=3)
        found += read_rows(
            row,
            " ".join(_COLUMNS.split()[3:]),
            notes=_NOTES,
            measured_by="NVIDIA",
            kind="verification_card",
            source=f"Megatron-Bridge model verification card {card}",
            url=f"{_TREE}examples/model_verification_cards/{card}/card.yaml",
            date=date,
            container=f"nvcr.io/nvidia/nemo:{tag}",
            task="pretrain",
            window=_WINDOWS.get(row.split()[-1], "41 to 50 of 50"),
        )
    return tuple(found)


TABLE = """
deepseek-v3 2026-08-15 26.08.rc5 DeepSeek-V3 H100 1024 bf16 4096 16384 1 2 8 4 1 64 - forced-balance mock 61756.13 1061.206 276.03 performance
deepseek-v3 2026-08-14 26.08.rc5 DeepSeek-V3 GB200 256 fp8_mx 4096 4096 1 1 4 4 1 64 - forced-balance mock 13841.18 4734.856 1231.04 performance
deepseek-v3 2026-08-14 26.08.rc5 DeepSeek-V3 GB300 256 fp8_mx 4096 4096 1 1 2 8 1 32 - forced-balance mock 10667.3 6143.635 1597.31 performance
gpt-oss-120b 2026-08-17 26.06 GPT-OSS-120B GB200 64 bf16 4096 1280 4 1 1 - 1 64 - forced-balance mock 4995.63 16398.332 535.23 performance
gpt-oss-120b 2026-08-19 26.06 GPT-OSS-120B GB300 64 fp8_mx 4096 1280 4 1 1 - 1 16 - - mock 2481.14 33017.081 1077.35 performance
gpt-oss-120b 2026-08-11 26.06 GPT-OSS-120B H100 64 bf16 4096 - - - - - - - - dropless real 16664.93 1966.285 58.42 natural
gpt-oss-20b 2026-08-09 26.06 GPT-OSS-20B H100 16 bf16 4096 - - - - - - - - - - 22400.88 5851.199 117.01 natural
qwen3-235b-a22b 2026-08-17 26.08 Qwen3-235B-A22B GB300 256 fp8_mx 4096 8192 2 1 4 - 1 32 - - mock 14920.84 8784.492 1300.44 performance
qwen3-235b-a22b 2026-08-19 26.08 Qwen3-235B-A22B GB200 256 fp8_mx 4096 8192 1 1 8 3 1 32 - - mock 17905.34 7320.274 1083.66 performance
qwen3-30b-a3b 2026-07-19 26.06 Qwen3-30B-A3B H100 16 bf16 4096 1024 1 1 1 - 1 16 hybridep dropless real 30289.55 8654.602 199.12 natural
qwen3-30b-a3b 2026-07-23 26.06 Qwen3-30B-A3B GB200 8 fp8_mx 4096 512 4 1 1 - 1 8 hybridep dropless real 12362.34 21205.047 487.88 natural
qwen3-30b-a3b 2026-07-27 26.06 Qwen3-30B-A3B H100 16 bf16 4096 1024 1 1 1 - 1 16 hybridep forced-balance mock 20147.29 13011.378 299.352 performance
qwen3-30b-a3b 2026-07-23 26.06 Qwen3-30B-A3B GB200 8 fp8_mx 4096 512 4 1 1 - 1 8 hybridep forced-balance mock 6501.12 40322.898 927.68 performance
qwen3-30b-a3b 2026-08-18 26.06 Qwen3-30B-A3B GB300 8 fp8_mx 4096 512 8 1 1 - 1 8 - - mock 5854.91 44773.361 1030.07 performance
qwen3-30b-a3b 2026-08-15 26.06 Qwen3-30B-A3B GB300 8 fp8_mx 4096 512 8 1 1 - 1 8 - - mock 5889.42 44511.004 1024.02 weak
qwen3-30b-a3b 2026-08-15 26.06 Qwen3-30B-A3B GB300 32 fp8_mx 4096 2048 8 1 1 - 1 8 - - mock 5814.29 45086.158 1037.27 weak
qwen3-30b-a3b 2026-08-15 26.06 Qwen3-30B-A3B GB300 128 fp8_mx 4096 8192 8 1 1 - 1 8 - - mock 5831.72 44951.404 1034.18 weak
qwen3-30b-a3b 2026-08-15 26.06 Qwen3-30B-A3B GB300 256 fp8_mx 4096 16384 8 1 1 - 1 8 - - mock 5818.62 45052.607 1036.49 weak
qwen3.6-35b-a3b 2026-08-05 26.06 Qwen3.6-35B-A3B H100 16 bf16 - 512 1 1 2 - 1 8 hybridep - - 22271.22 5885.264 135.61 functional
qwen3.6-35b-a3b 2026-07-30 26.06 Qwen3.6-35B-A3B GB200 8 fp8_mx - 480 3 1 1 - 1 8 hybridep forced-balance - 26880.42 9142.714 210.36 performance
"""  # noqa: E501  # a table reads best with a row a line
