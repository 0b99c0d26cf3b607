"""The published figures that come with the service, each with its source."""

from functools import cache

from app.domain.references.point import ReferencePoint, read_rows

# --- Megatron-Bridge's pre-training tables of MoE models, releases 25.11 to 26.06.01, restated row by row.
#
# Measured by NVIDIA with forced balance and without dropping tokens: ceilings, not what a real router reaches. Layers
# of multi-token prediction are stated only where a row says them, the dispatcher and the graphs nowhere. Release
# 25.09 is left out: its rows do not say their precision.

_URL = (
    "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df03b8355b03192d88d70f1709fedf51a/"
    "docs/performance-summary-archive.md"
)
_COLUMNS = "model gpu gpus precision seq_len gbs mbs tp pp vpp ep mtp tokens_per_s_per_gpu tflops_per_gpu note"
_NOTES = {
    "cudnn": "The publisher calls this figure a known regression (NVIDIA/cudnn-frontend issue 256).",
    "nvfp4": "The publisher expects more: the mapping was not the one used for MXFP8.",
}
_RELEASE = "release"


def bridge_release_points() -> tuple[ReferencePoint, ...]:
    points: list[ReferencePoint] = []
    for block in BRIDGE_RELEASES.strip().split(f"{_RELEASE} ")[1:]:
        head, _, rows = block.partition("\n")
        release, date = head.split()
        points += read_rows(
            rows,
            _COLUMNS,
            notes=_NOTES,
            measured_by="NVIDIA",
            kind="release_table",
            source=f"Megatron-Bridge performance summary, release {release}",
            url=_URL,
            date=date,
            container=f"nvcr.io/nvidia/nemo:{release}",
            cp=1,
            task="pretrain",
            routing_mode="forced-balance",
        )
    return tuple(points)


BRIDGE_RELEASES = """
release 26.06.01 2026-07-21
DeepSeek-V3 GB300 256 fp8_mx 4096 4096 1 1 2 8 32 - 6304 1640
DeepSeek-V3 GB200 256 fp8_mx 4096 4096 1 1 4 4 64 - 4928 1280
GPT-OSS-120B GB300 64 fp8_mx 4096 1280 4 1 1 - 16 - 20288 661 cudnn
GPT-OSS-120B GB200 64 fp8_mx 4096 1280 4 1 1 - 64 - 18304 597 cudnn
Qwen3-30B-A3B GB300 8 fp8_mx 4096 512 8 1 1 - 8 - 44544 1029
Qwen3-30B-A3B GB200 8 fp8_mx 4096 512 4 1 1 - 8 - 40960 937
Qwen3-235B-A22B GB300 256 fp8_mx 4096 8192 2 1 4 12 32 - 9008 1333
Qwen3-235B-A22B GB200 256 fp8_mx 4096 8192 1 1 8 3 32 - 7360 1089
Nemotron-3-Nano-30B-A3B GB300 8 fp8_mx 8192 512 4 1 1 - 8 - 40960 905
Nemotron-3-Nano-30B-A3B GB200 8 fp8_mx 8192 512 2 1 1 - 8 - 34816 776
Nemotron-3-Super-120B-A12B GB300 64 fp8_mx 8192 512 1 1 1 - 64 - 9728 827
Nemotron-3-Super-120B-A12B GB300 64 nvfp4 8192 512 1 1 1 - 64 - 9984 845
Nemotron-3-Super-120B-A12B GB200 64 fp8_mx 8192 512 1 2 1 - 64 - 7040 598
Nemotron-3-Super-120B-A12B GB200 64 nvfp4 8192 512 1 2 1 - 64 - 7040 598
release 26.06 2026-06-15
DeepSeek-V3 GB300 256 fp8_mx 4096 4096 1 1 2 8 32 - 6338 1648
DeepSeek-V3 GB300 256 fp8_mx 4096 15360 1 1 2 8 32 - 6422 1670
DeepSeek-V3 GB200 256 fp8_mx 4096 4096 1 1 4 4 64 - 4969 1292
DeepSeek-V3 B300 256 fp8_mx 4096 4096 2 1 8 - 8 - 3541 920
GPT-OSS-120B GB300 64 fp8_mx 4096 1280 4 1 1 - 16 - 33166 1081
GPT-OSS-120B GB200 64 fp8_mx 4096 1280 4 1 1 - 64 - 28947 943
GPT-OSS-120B B300 64 fp8_mx 4096 1280 4 1 1 - 8 - 18534 604
Qwen3-30B-A3B GB300 8 fp8_mx 4096 512 8 1 1 - 8 - 45275 1041
Qwen3-30B-A3B GB200 8 fp8_mx 4096 512 4 1 1 - 8 - 40706 936
Qwen3-30B-A3B B300 8 fp8_mx 4096 512 8 1 1 - 8 - 40769 938
Qwen3-30B-A3B H100 16 fp8 4096 1024 1 1 1 - 16 - 8826 203
Qwen3-235B-A22B GB300 256 fp8_mx 4096 8192 2 1 4 12 32 - 9015 1335
Qwen3-235B-A22B GB200 256 fp8_mx 4096 8192 1 1 8 3 32 - 7376 1092
Kimi-K2 GB300 256 fp8_mx 4096 4096 2 1 4 4 64 - 5372 1099
Nemotron-3-Nano-30B-A3B GB300 8 fp8_mx 8192 512 4 1 1 - 8 - 39749 885
Nemotron-3-Nano-30B-A3B GB200 8 fp8_mx 8192 512 2 1 1 - 8 - 33522 747
Nemotron-3-Nano-30B-A3B B300 8 fp8_mx 8192 512 4 1 1 - 8 - 37316 831
Nemotron-3-Nano-30B-A3B H100 16 fp8 8192 1024 1 1 1 - 8 - 14719 328
Nemotron-3-Super-120B-A12B GB300 64 fp8_mx 8192 512 1 1 1 - 64 - 9652 817
Nemotron-3-Super-120B-A12B GB300 64 nvfp4 8192 512 1 1 1 - 64 - 9900 839
Nemotron-3-Super-120B-A12B GB200 64 fp8_mx 8192 512 1 2 1 - 64 - 6742 571
Nemotron-3-Super-120B-A12B GB200 64 nvfp4 8192 512 1 2 1 - 64 - 6928 587
Nemotron-3-Super-120B-A12B B300 64 fp8_mx 8192 512 1 1 1 - 8 - 7867 667
Nemotron-3-Super-120B-A12B B300 64 nvfp4 8192 512 1 1 1 - 8 - 8131 689
release 26.04.01 2026-05-16
DeepSeek-V3 GB300 256 fp8_mx 4096 4096 2 1 2 8 32 - 4992 1298
DeepSeek-V3 GB200 256 fp8_mx 4096 4096 1 1 4 4 64 - 4256 1106
DeepSeek-V3 B300 256 fp8_mx 4096 4096 2 1 8 - 8 - 3456 898
DeepSeek-V3 B200 256 fp8_mx 4096 4096 1 1 8 2 32 - 3328 864
GPT-OSS-120B GB300 64 bf16 4096 1280 4 1 1 - 64 - 19200 523
GPT-OSS-120B GB200 64 bf16 4096 1280 4 1 1 - 64 - 16640 452
GPT-OSS-120B B300 64 bf16 4096 1280 4 1 1 - 8 - 15232 414
GPT-OSS-120B B200 64 bf16 4096 1280 4 1 1 - 8 - 13568 369
GPT-OSS-120B H100 64 bf16 4096 1280 1 1 4 - 8 - 5824 158
Qwen3-30B-A3B GB300 8 fp8_mx 4096 512 8 1 1 - 8 - 31744 729
Qwen3-30B-A3B GB200 8 fp8_mx 4096 512 4 1 1 - 8 - 26112 599
Qwen3-30B-A3B B300 8 fp8_mx 4096 512 8 1 1 - 8 - 30720 704
Qwen3-30B-A3B B200 8 fp8_mx 4096 512 4 1 1 - 8 - 27136 619
Qwen3-30B-A3B H100 16 fp8 4096 1024 1 1 1 - 16 - 8960 206
Qwen3-235B-A22B GB300 256 fp8_mx 4096 8192 2 1 4 12 32 - 6944 1029
Qwen3-235B-A22B GB200 256 fp8_mx 4096 8192 1 1 8 3 32 - 5680 840
Qwen3-235B-A22B B300 256 fp8_mx 4096 8192 2 1 8 - 8 - 5936 878
Qwen3-235B-A22B B200 256 fp8_mx 4096 8192 1 1 8 - 8 - 3776 560
Qwen3-235B-A22B H100 256 fp8 4096 8192 1 2 8 4 32 - 1712 253
Kimi-K2 GB300 256 fp8_mx 4096 4096 2 1 4 4 64 - 5328 1088
Nemotron-3-Nano-30B-A3B GB300 8 fp8_mx 8192 512 4 1 1 - 8 - 37888 845
Nemotron-3-Nano-30B-A3B GB200 8 fp8_mx 8192 512 2 1 1 - 8 - 32768 725
Nemotron-3-Nano-30B-A3B B300 8 fp8_mx 8192 512 4 1 1 - 8 - 35840 794
Nemotron-3-Nano-30B-A3B B200 8 fp8_mx 8192 512 2 1 1 - 8 - 32768 726
Nemotron-3-Nano-30B-A3B H100 16 fp8 8192 1024 1 1 1 - 8 - 14336 321
Nemotron-3-Super-120B-A12B GB300 64 fp8_mx 8192 512 1 1 1 - 64 - 9344 795
Nemotron-3-Super-120B-A12B GB300 64 nvfp4 8192 512 1 1 1 - 64 - 9600 817
Nemotron-3-Super-120B-A12B GB200 64 fp8_mx 8192 512 1 2 1 - 64 - 6656 564
Nemotron-3-Super-120B-A12B GB200 64 nvfp4 8192 512 1 2 1 - 64 - 6784 574
Nemotron-3-Super-120B-A12B B300 64 fp8_mx 8192 512 1 1 1 - 8 - 7296 623
Nemotron-3-Super-120B-A12B B300 64 nvfp4 8192 512 1 1 1 - 8 - 7424 634
Nemotron-3-Super-120B-A12B B200 64 fp8_mx 8192 512 1 1 1 - 64 - 6400 542
Nemotron-3-Super-120B-A12B B200 64 nvfp4 8192 512 1 2 1 - 64 - 5632 475 nvfp4
release 26.04 2026-04-17
DeepSeek-V3 GB300 256 fp8_mx 4096 4096 2 1 2 8 32 - 4965 1290
DeepSeek-V3 GB200 256 fp8_mx 4096 4096 1 1 4 4 64 - 4193 1090
DeepSeek-V3 B300 256 fp8_mx 4096 4096 1 1 16 - 8 - 3131 814
DeepSeek-V3 B200 256 fp8_mx 4096 4096 1 1 16 - 8 - 2815 732
GPT-OSS-120B GB300 64 bf16 4096 1280 4 1 1 - 64 - 19275 524
GPT-OSS-120B GB200 64 bf16 4096 1280 4 1 1 - 64 - 15938 433
GPT-OSS-120B B300 64 bf16 4096 1280 4 1 1 - 8 - 15114 410
GPT-OSS-120B B200 64 bf16 4096 1280 4 1 1 - 8 - 13045 355
GPT-OSS-120B H100 64 bf16 4096 1280 1 1 4 - 8 - 5810 158
Qwen3-30B-A3B GB300 8 fp8_mx 4096 512 8 1 1 - 8 - 31470 724
Qwen3-30B-A3B GB200 8 fp8_mx 4096 512 4 1 1 - 8 - 26032 599
Qwen3-30B-A3B B300 8 fp8_mx 4096 512 8 1 1 - 8 - 30553 703
Qwen3-30B-A3B B200 8 fp8_mx 4096 512 4 1 1 - 8 - 26859 618
Qwen3-30B-A3B H100 16 fp8 4096 1024 1 1 1 - 16 - 8901 205
Qwen3-235B-A22B GB300 256 fp8_mx 4096 8192 2 1 4 12 32 - 6994 1035
Qwen3-235B-A22B GB200 256 fp8_mx 4096 8192 1 1 8 3 32 - 5672 840
Qwen3-235B-A22B B300 256 fp8_mx 4096 8192 2 1 8 - 8 - 4865 720
Qwen3-235B-A22B H100 256 fp8 4096 8192 1 2 8 4 32 - 1686 250
Nemotron-3-Nano-30B-A3B GB300 8 fp8_mx 8192 512 4 1 1 - 8 - 38102 849
Nemotron-3-Nano-30B-A3B GB200 8 fp8_mx 8192 512 2 1 1 - 8 - 32727 729
Nemotron-3-Nano-30B-A3B B300 8 fp8_mx 8192 512 4 1 1 - 8 - 35282 786
Nemotron-3-Nano-30B-A3B H100 16 fp8 8192 1024 1 1 1 - 8 - 14507 323
Nemotron-3-Super-120B-A12B GB300 64 nvfp4 8192 512 1 1 1 - 64 - 9623 815
Nemotron-3-Super-120B-A12B GB200 64 nvfp4 8192 512 1 2 1 - 64 - 6777 574
Nemotron-3-Super-120B-A12B B300 64 nvfp4 8192 512 1 1 1 - 8 - 7047 597
Nemotron-3-Super-120B-A12B B200 64 nvfp4 8192 512 1 2 1 - 64 - 5606 475
Nemotron-3-Super-120B-A12B GB300 64 fp8_mx 8192 512 1 1 1 - 64 - 9243 783
Nemotron-3-Super-120B-A12B GB200 64 fp8_mx 8192 512 1 2 1 - 64 - 6674 565
Nemotron-3-Super-120B-A12B B300 64 fp8_mx 8192 512 1 1 1 - 8 - 7009 594
Nemotron-3-Super-120B-A12B B200 64 fp8_mx 8192 512 1 1 1 - 64 - 6302 534
Kimi-K2 GB300 256 fp8_mx 4096 4096 2 1 4 4 64 - 5332 1090
release 26.02.01 2026-03-21
DeepSeek-V3 GB300 256 fp8_mx 4096 4096 2 1 2 8 32 - 4691 1219
DeepSeek-V3 GB200 256 fp8_mx 4096 4096 1 1 4 4 64 - 4021 1046
DeepSeek-V3 B300 256 fp8_mx 4096 4096 1 1 16 - 8 - 3099 806
DeepSeek-V3 B200 256 fp8_mx 4096 4096 1 1 16 - 8 - 2790 725
GPT-OSS-120B GB300 64 bf16 4096 1280 4 1 1 - 64 - 19366 526
GPT-OSS-120B GB200 64 bf16 4096 1280 4 1 1 - 64 - 15754 428
GPT-OSS-120B B300 64 bf16 4096 1280 4 1 1 - 8 - 15031 412
GPT-OSS-120B B200 64 bf16 4096 1280 4 1 1 - 8 - 13722 373
GPT-OSS-120B H100 64 bf16 4096 1280 1 1 4 - 8 - 5984 163
Qwen3-30B-A3B GB300 8 fp8_mx 4096 512 8 1 1 - 8 - 30411 700
Qwen3-30B-A3B GB200 8 fp8_mx 4096 512 4 1 1 - 8 - 26373 607
Qwen3-30B-A3B B300 8 fp8_mx 4096 512 8 1 1 - 8 - 29454 678
Qwen3-30B-A3B B200 8 fp8_mx 4096 512 4 1 1 - 8 - 26695 614
Qwen3-30B-A3B H100 16 fp8 4096 1024 1 1 2 12 8 - 9058 208
Qwen3-235B-A22B GB300 256 fp8_mx 4096 8192 2 1 4 - 32 - 6583 974
Qwen3-235B-A22B GB200 256 fp8_mx 4096 8192 1 1 8 - 32 - 5530 819
Qwen3-235B-A22B B300 256 fp8_mx 4096 8192 1 1 8 4 8 - 2644 391
Qwen3-235B-A22B H100 256 fp8 4096 8192 1 2 8 4 32 - 1611 238
Nemotron-3-Nano-30B-A3B GB300 8 fp8_mx 8192 512 4 1 1 - 8 - 37664 839
Nemotron-3-Nano-30B-A3B GB200 8 fp8_mx 8192 512 2 1 1 - 8 - 33934 756
Nemotron-3-Nano-30B-A3B B300 8 fp8_mx 8192 512 4 1 1 - 8 - 35861 798
Nemotron-3-Nano-30B-A3B H100 16 fp8 8192 1024 1 1 1 - 8 - 14890 331
Kimi-K2 GB300 256 fp8_mx 4096 4096 2 1 4 4 64 - 5072 1037
release 26.02 2026-02-25
DeepSeek-V3 GB300 256 fp8_mx 4096 4096 2 1 2 8 32 - 4612 1199
DeepSeek-V3 GB200 256 fp8_mx 4096 4096 1 1 4 4 64 - 3955 1028
DeepSeek-V3 B300 256 fp8_mx 4096 4096 1 1 16 - 8 - 2983 776
DeepSeek-V3 B200 256 fp8_mx 4096 4096 1 1 16 - 8 - 2689 699
GPT-OSS-120B GB300 64 bf16 4096 1280 4 1 1 - 64 - 19412 527
GPT-OSS-120B GB200 64 bf16 4096 1280 4 1 1 - 64 - 15784 428
GPT-OSS-120B B300 64 bf16 4096 1280 4 1 1 - 64 - 8359 228
GPT-OSS-120B B200 64 bf16 4096 1280 4 1 1 - 64 - 8047 219
GPT-OSS-120B H100 64 bf16 4096 1280 1 1 4 - 8 - 5993 163
Qwen3-30B-A3B GB300 8 fp8_mx 4096 512 8 1 1 - 8 - 30376 699
Qwen3-30B-A3B GB200 8 fp8_mx 4096 512 4 1 1 - 8 - 26084 600
Qwen3-30B-A3B B300 8 fp8_mx 4096 512 8 1 1 - 8 - 29521 679
Qwen3-30B-A3B B200 8 fp8_mx 4096 512 1 1 1 - 8 - 9691 223
Qwen3-30B-A3B H100 16 fp8 4096 1024 1 1 2 12 8 - 5113 118
Qwen3-235B-A22B GB300 256 fp8_mx 4096 8192 2 1 4 - 32 - 6583 974
Qwen3-235B-A22B GB200 256 fp8_mx 4096 8192 1 1 8 - 32 - 5448 806
Qwen3-235B-A22B B300 256 fp8_mx 4096 8192 1 1 8 4 8 - 2691 399
Qwen3-235B-A22B B200 256 fp8_mx 4096 8192 1 1 8 - 8 - 3805 563
Qwen3-235B-A22B H100 256 fp8 4096 8192 1 2 8 4 32 - 1633 242
release 25.11 2025-12-04
DeepSeek-V3 GB300 256 bf16 4096 4096 1 1 2 4 32 0 3848 961
DeepSeek-V3 GB300 256 fp8_mx 4096 4096 1 1 2 4 32 0 4357 1088
GPT-OSS-120B GB300 64 bf16 8192 1280 2 1 1 - 64 - 18347 565
Qwen3-30B-A3B GB300 8 fp8_mx 4096 512 4 1 1 - 8 - 28934 666
Qwen3-235B-A22B GB300 256 bf16 4096 8192 2 1 4 12 16 - 6131 907
DeepSeek-V3 GB200 256 bf16 4096 4096 1 1 4 4 64 0 3139 782
DeepSeek-V3 GB200 256 fp8_mx 4096 4096 1 1 8 4 32 0 4018 1003
GPT-OSS-120B GB200 64 bf16 8192 1280 1 1 1 - 64 - 15876 488
Qwen3-30B-A3B GB200 8 fp8_mx 4096 512 4 1 1 - 8 - 23766 547
Qwen3-235B-A22B GB200 256 bf16 4096 8192 1 1 8 3 32 - 4916 728
DeepSeek-V3 B200 256 fp8_mx 4096 2048 1 1 16 - 8 1 2139 557
GPT-OSS-120B B200 64 bf16 4096 512 4 1 1 - 8 - 8213 223
Qwen3-30B-A3B B200 8 fp8_mx 4096 512 1 1 1 - 8 - 9299 214
Qwen3-235B-A22B B200 64 fp8_mx 4096 1024 1 1 8 2 8 - 3269 484
GPT-OSS-120B H100 64 bf16 4096 512 4 1 4 - 8 - 5630 153
Qwen3-30B-A3B H100 16 fp8_cs 4096 512 2 1 2 24 8 - 5275 121
Qwen3-235B-A22B H100 256 fp8_cs 4096 2048 1 2 8 4 32 - 1575 233
"""


# --- Figures of tuning guides, which round them, and of short runs that they call directional. Restated row by row.

_TREE = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df03b8355b03192d88d70f1709fedf51a/skills/"
_GUIDES_COLUMNS = "model gpu gpus precision seq_len gbs mbs tp pp vpp cp ep mtp dispatcher tflops_per_gpu"
_SMOKE_COLUMNS = "date gpus gbs ep dispatcher ep_overlap delay_wgrad step_time_ms tflops_per_gpu window note"
_SMOKE_NOTES = {
    "fallback": "A smoke run of five steps; the fallback was the only measurement. Not a ranking.",
    "overlap": "A short run: directional, not release-grade.",
}


def guide_points() -> tuple[ReferencePoint, ...]:
    hardware = read_rows(
        HARDWARE,
        _GUIDES_COLUMNS,
        measured_by="NVIDIA",
        kind="guide",
        source="Megatron-Bridge guide to MoE hardware configurations",
        url=f"{_TREE}nemo-mbridge-perf-moe-hardware-configs/card.yaml",
        date="2026-07",
        task="pretrain",
    )
    long_context = read_rows(
        LONG_CONTEXT,
        _GUIDES_COLUMNS,
        measured_by="NVIDIA",
        kind="guide",
        source="Megatron-Bridge guide to MoE long context",
        url=f"{_TREE}nemo-mbridge-perf-moe-long-context/card.yaml",
        date="2026-04",
        task="pretrain",
    )
    return (*hardware, *long_context, *_smokes())


def _smokes() -> list[ReferencePoint]:
    """Return Qwen3-30B-A3B on 16 H100, generated data, windows of a few iterations."""
    points: list[ReferencePoint] = []
    for name, rows in SMOKES.items():
        for line in rows.strip().splitlines():
            date, row = line.split(maxsplit=1)
            points += read_rows(
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
    return points


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


# --- Results of the Megatron MoE model zoo for Qwen3-235B-A22B, restated row by row.
#
# The long-context rows state the same job twice, with forced balance and with a real router that drops nothing: the
# only published pairs of the two.

_MODEL_ZOO_URL = (
    "https://github.com/yanring/Megatron-MoE-ModelZoo/blob/e8650517d60d71ab73fc6b3b0388cac4ba435181/"
    "best_practice/qwen3/readme.md"
)
_MODEL_ZOO_COLUMNS = (
    "model gpu gpus precision seq_len gbs mbs tp pp vpp cp ep dispatcher routing_mode step_time_ms tflops_per_gpu note"
)
_MODEL_ZOO_NOTES = {
    "offload": "Needs activation offloading.",
    "long": "Recomputes layernorm and the MoE layers.",
    "overlap": "With overlapped expert-parallel communication.",
    "full": "With FSDP and full recomputation.",
}


def model_zoo_points() -> tuple[ReferencePoint, ...]:
    return tuple(
        read_rows(
            MODEL_ZOO,
            _MODEL_ZOO_COLUMNS,
            notes=_MODEL_ZOO_NOTES,
            measured_by="Megatron MoE model zoo",
            kind="model_zoo",
            source="Megatron MoE model zoo, Qwen3 best practice",
            url=_MODEL_ZOO_URL,
            date="2026-05",
            task="pretrain",
        )
    )


MODEL_ZOO = """
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


# --- Megatron-Bridge's model verification cards: MoE pre-training, means over the last ten steps, restated row by row.
#
# Performance items run 50 steps of made-up data with forced balance where the card says so; `pretrain` items of 100
# steps check that real training works, and their speed is not tuned.

_VERIFICATION_CARDS_TREE = (
    "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df03b8355b03192d88d70f1709fedf51a/"
)
_VERIFICATION_CARDS_COLUMNS = (
    "card date container model gpu gpus precision seq_len gbs mbs tp pp vpp cp ep dispatcher routing_mode data_mode "
    "step_time_ms tokens_per_s_per_gpu tflops_per_gpu note"
)
_VERIFICATION_CARDS_NOTES = {
    "performance": "Performance recipe, 50 steps.",
    "weak": "A point of a weak-scaling series with 64 sequences per GPU.",
    "natural": "A check of real training over 100 steps, not tuned for speed.",
    "functional": "A functional recipe: safety checks stay on.",
}
_WINDOWS = {"performance": "41 to 50 of 50", "weak": "41 to 50 of 50", "natural": "91 to 100 of 100"}


def verification_card_points() -> tuple[ReferencePoint, ...]:
    points: list[ReferencePoint] = []
    for line in VERIFICATION_CARDS.strip().splitlines():
        card, date, tag, row = line.split(maxsplit=3)
        points += read_rows(
            row,
            " ".join(_VERIFICATION_CARDS_COLUMNS.split()[3:]),
            notes=_VERIFICATION_CARDS_NOTES,
            measured_by="NVIDIA",
            kind="verification_card",
            source=f"Megatron-Bridge model verification card {card}",
            url=f"{_VERIFICATION_CARDS_TREE}examples/model_verification_cards/{card}/card.yaml",
            date=date,
            container=f"nvcr.io/nvidia/nemo:{tag}",
            task="pretrain",
            window=_WINDOWS.get(row.split()[-1], "41 to 50 of 50"),
        )
    return tuple(points)


VERIFICATION_CARDS = """
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


@cache
def published() -> tuple[ReferencePoint, ...]:
    """Return the published points, newest first."""
    points = (*bridge_release_points(), *verification_card_points(), *model_zoo_points(), *guide_points())
    return tuple(sorted(points, key=lambda point: (point.date, point.key), reverse=True))
