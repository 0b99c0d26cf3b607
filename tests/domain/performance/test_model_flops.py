"""Published test vectors: GFLOP per token, to the digits in which they are published (`docs/metrics.md`)."""

import pytest

from app.domain.performance.flops import flops_per_step, flops_per_token
from app.domain.performance.model_shape import (
    Experts,
    GatedDeltaNet,
    GroupedQueryAttention,
    HybridLayers,
    LatentAttention,
    ModelShape,
)

MLA_128 = LatentAttention(128, 1536, 512, 128, 64, 128)


def qwen3_30b() -> ModelShape:
    return ModelShape(48, 2048, 151936, 0, True, GroupedQueryAttention(32, 4, 128), Experts(8, 768, (1,) * 48))


def qwen3_235b() -> ModelShape:
    return ModelShape(94, 4096, 151936, 0, True, GroupedQueryAttention(64, 4, 128), Experts(8, 1536, (1,) * 94))


def deepseek_v3(mtp: int) -> ModelShape:
    return ModelShape(61, 7168, 129280, 18432, True, MLA_128, Experts(8, 2048, (0,) * 3 + (1,) * 58, 2048), mtp)


def deepseek_v2() -> ModelShape:
    return ModelShape(60, 5120, 102400, 12288, True, MLA_128, Experts(6, 1536, (0,) + (1,) * 59, 3072))


def deepseek_v2_lite() -> ModelShape:
    attention = LatentAttention(16, None, 512, 128, 64, 128)
    return ModelShape(27, 2048, 102400, 10944, True, attention, Experts(6, 1408, (0,) + (1,) * 26, 2816))


def kimi_k2() -> ModelShape:
    attention = LatentAttention(64, 1536, 512, 128, 64, 128)
    return ModelShape(61, 7168, 163840, 18432, True, attention, Experts(8, 2048, (0,) + (1,) * 60, 2048))


def gpt_oss_120b() -> ModelShape:
    attention = GroupedQueryAttention(64, 8, 64, window=128, full_every=2)
    return ModelShape(36, 2880, 201088, 0, True, attention, Experts(4, 2880, (1,) * 36))


def gpt_oss_20b() -> ModelShape:
    attention = GroupedQueryAttention(64, 8, 64, window=128, full_every=2)
    return ModelShape(24, 2880, 201088, 0, True, attention, Experts(4, 2880, (1,) * 24))


def mixtral_8x7b() -> ModelShape:
    return ModelShape(32, 4096, 32000, 0, True, GroupedQueryAttention(32, 8, 128), Experts(2, 14336, (1,) * 32))


def mixtral_8x22b() -> ModelShape:
    return ModelShape(56, 6144, 32768, 0, True, GroupedQueryAttention(48, 8, 128), Experts(2, 16384, (1,) * 56))


def qwen3_next() -> ModelShape:
    attention = GroupedQueryAttention(16, 2, 256, output_gate=True)
    linear = GatedDeltaNet(37, 128, 16, 128, 32, 4)
    return ModelShape(48, 2048, 151936, 0, True, attention, Experts(10, 512, (1,) * 48, 512), 1, linear)


def nemotron_3_nano() -> ModelShape:
    hybrid = HybridLayers(23, 6, 23, 0, mamba_heads=64, mamba_state=128, mamba_groups=8)
    experts = Experts(6, 1856, (1,) * 52, 3712)
    return ModelShape(52, 2688, 131072, 0, False, GroupedQueryAttention(32, 2, 128), experts, hybrid=hybrid)


def nemotron_3_super() -> ModelShape:
    hybrid = HybridLayers(40, 8 + 2, 40 + 2, 0, mamba_heads=128, mamba_state=128, mamba_groups=8)
    experts = Experts(22, 2688, (1,) * 88, 5376, latent_width=1024)
    return ModelShape(88, 4096, 131072, 0, False, GroupedQueryAttention(32, 2, 128), experts, 2, hybrid=hybrid)


VECTORS = [
    ("Qwen3-30B-A3B", qwen3_30b(), 4096, False, "23.006"),
    ("Qwen3-235B-A22B", qwen3_235b(), 4096, False, "148.035"),
    ("DeepSeek-V3 with one MTP layer", deepseek_v3(1), 4096, False, "259.993"),
    ("DeepSeek-V3", deepseek_v3(0), 4096, False, "249.812"),
    ("DeepSeek-V2", deepseek_v2(), 4096, False, "155.01"),
    ("DeepSeek-V2-Lite", deepseek_v2_lite(), 4096, False, "16.39"),
    ("GPT-OSS-120B, windows discounted", gpt_oss_120b(), 4096, True, "32.630"),
    ("GPT-OSS-120B, as Megatron-LM counts", gpt_oss_120b(), 4096, False, "34.33"),
    ("GPT-OSS-20B, as Megatron-LM counts", gpt_oss_20b(), 4096, False, "24.05"),
    ("Kimi-K2", kimi_k2(), 4096, False, "204.477"),
    ("Mixtral-8x7B", mixtral_8x7b(), 4096, False, "79.71"),
    ("Mixtral-8x22B", mixtral_8x22b(), 4096, False, "242.20"),
    ("Qwen3-Next-80B-A3B with one MTP layer", qwen3_next(), 4096, False, "25.08"),
    ("Nemotron-3-Nano", nemotron_3_nano(), 8192, False, "22.278"),
    ("Nemotron-3-Super with two MTP layers", nemotron_3_super(), 8192, False, "84.727"),
]


@pytest.mark.parametrize(("name", "shape", "seq_len", "window", "gflop"), VECTORS, ids=[row[0] for row in VECTORS])
def test_gflop_per_token_equals_the_published_vector(
    name: str, shape: ModelShape, seq_len: int, window: bool, gflop: str
) -> None:
    digits = len(gflop.partition(".")[2])
    assert f"{flops_per_token(shape, seq_len, discount_window=window) / 1e9:.{digits}f}" == gflop


def test_a_published_run_gives_its_published_tflops() -> None:
    # Qwen3-30B-A3B on 16 H100, 1024 sequences of 4096 tokens in 20.14729 s: 299.34 TFLOP/s/GPU
    flops = flops_per_step(qwen3_30b(), 1024, 4096, discount_window=False)
    assert f"{flops / (20.14729 * 16 * 1e12):.2f}" == "299.34"


def test_a_window_longer_than_the_sequence_discounts_nothing() -> None:
    shape = gpt_oss_120b()
    assert flops_per_token(shape, 128, discount_window=True) == flops_per_token(shape, 128, discount_window=False)


def test_a_dense_model_by_hand() -> None:
    # one layer, h=4, one head of 4, ffn 8 with two matrices, vocabulary 10, two tokens:
    # attention 4*(4+4+4) + 4*4 = 64, core 4 * 2 = 8, feed-forward 4*8*2 = 64, logits 40: 176 products x 6
    shape = ModelShape(1, 4, 10, 8, False, GroupedQueryAttention(1, 1, 4))
    assert flops_per_token(shape, 2, discount_window=False) == 6 * 176
    assert flops_per_step(shape, 3, 2, discount_window=False) == 6 * 6 * 176


@pytest.mark.parametrize(("sequences", "seq_len"), [(0, 4096), (8, 0), (-1, 1)])
def test_an_empty_step_is_refused(sequences: int, seq_len: int) -> None:
    with pytest.raises(ValueError, match="a step needs"):
        flops_per_step(qwen3_30b(), sequences, seq_len, discount_window=False)
