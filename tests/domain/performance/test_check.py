"""Gaps between printed and computed TFLOP/s, and what explains them."""

from dataclasses import replace

import pytest

from app.domain.performance.flops import Inputs, explain_difference, flops_per_token
from app.domain.performance.model_shape import GroupedQueryAttention, ModelShape, pad_vocabulary
from tests.domain.performance.test_model_flops import deepseek_v3, gpt_oss_120b, nemotron_3_nano, qwen3_30b

QWEN = Inputs(qwen3_30b(), 4096, discount_window=False)
DEEPSEEK = Inputs(deepseek_v3(1), 4096, discount_window=False)
GPT_OSS = Inputs(gpt_oss_120b(), 4096, discount_window=False)
NANO = Inputs(nemotron_3_nano(), 8192, discount_window=False)


def flops(inputs: Inputs) -> float:
    """FLOPs of one sequence."""
    return inputs.seq_len * flops_per_token(inputs.shape, inputs.seq_len, discount_window=inputs.discount_window)


def no_shared(inputs: Inputs) -> Inputs:
    experts = inputs.shape.experts
    assert experts is not None
    return replace(inputs, shape=replace(inputs.shape, experts=replace(experts, shared_width=0)))


@pytest.mark.parametrize(
    ("told", "real", "explanation"),
    [
        (DEEPSEEK, replace(DEEPSEEK, shape=deepseek_v3(0)), "`mtp` is 0"),
        (replace(DEEPSEEK, shape=deepseek_v3(0)), DEEPSEEK, "`mtp` is 1"),
        (DEEPSEEK, no_shared(DEEPSEEK), "shared experts are not counted"),
        (GPT_OSS, replace(GPT_OSS, discount_window=True), "sliding windows are counted by their window"),
        (replace(GPT_OSS, discount_window=True), GPT_OSS, "sliding windows are counted in full"),
        (QWEN, replace(QWEN, seq_len=8192), "`seq_len` is 8192"),
        (QWEN, replace(QWEN, seq_len=2048), "`seq_len` is 2048"),
        (QWEN, replace(QWEN, shape=replace(QWEN.shape, gated=False)), "`swiglu` is off"),
        (NANO, replace(NANO, shape=replace(NANO.shape, hybrid=None)), "as those of a plain transformer"),
    ],
)
def test_the_input_that_is_wrong_is_named(told: Inputs, real: Inputs, explanation: str) -> None:
    sentence = explain_difference(flops(real) / 1e12, flops(told) / 1e12, told, digit=0.0)
    assert sentence is not None
    assert explanation in sentence


@pytest.mark.parametrize(("factor", "words"), [(2.0, "`gpus` is half, or `gbs` double"), (0.25, "`gpus` is four")])
def test_a_wrong_number_of_gpus_is_named(factor: float, words: str) -> None:
    sentence = explain_difference(100 * factor, 100.0, QWEN, digit=0.05)
    assert sentence is not None
    assert words in sentence


def test_padding_of_a_small_model_s_vocabulary_is_named() -> None:
    small = ModelShape(1, 256, 10000, 256, False, GroupedQueryAttention(2, 2, 64))
    told = Inputs(small, 64, discount_window=False, tp=4)
    real = replace(told, shape=replace(small, vocabulary=pad_vocabulary(10000, 128, 4)))
    sentence = explain_difference(flops(real), flops(told), told, digit=0.0)
    assert sentence is not None
    assert "`vocab_size` is 10240 (padded to 128 x" in sentence


def test_two_wrong_inputs_are_found_together() -> None:
    real = replace(no_shared(DEEPSEEK), seq_len=8192)
    sentence = explain_difference(flops(real) / 1e12, flops(DEEPSEEK) / 1e12, DEEPSEEK, digit=0.0)
    assert sentence is not None
    assert "`seq_len` is 8192 and shared experts are not counted" in sentence


def test_nothing_is_named_where_nothing_fits() -> None:
    sentence = explain_difference(1000.0, 0.9, QWEN, digit=0.0)
    assert sentence is not None
    assert "No one or two inputs explain it" in sentence


@pytest.mark.parametrize(
    ("printed", "computed", "digit"), [(100.0, 100.4, 0.05), (1.0, 1.04, 0.05), (192.6, 192.62, 0.0)]
)
def test_half_a_per_cent_and_a_rounded_digit_need_no_explanation(printed: float, computed: float, digit: float) -> None:
    assert explain_difference(printed, computed, QWEN, digit=digit) is None
