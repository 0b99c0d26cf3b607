"""Shapes read from contract values, and the inputs that are named when there is none."""

import pytest

from app.domain.contract.values import canonical_model, differences, known_model, outline_name, recognise
from app.domain.performance.flops import flops_per_token
from app.domain.performance.model_shape import (
    GroupedQueryAttention,
    LatentAttention,
    pad_vocabulary,
    read_shape,
    window_tokens,
)
from app.domain.run import Value

QWEN3_30B: dict[str, Value] = {
    "num_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_query_groups": 4,
    "kv_channels": 128,
    "vocab_size": 151936,
    "swiglu": True,
    "num_experts": 128,
    "topk": 8,
    "moe_ffn_hidden_size": 768,
}
DEEPSEEK_V3: dict[str, Value] = {
    "num_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "vocab_size": 129280,
    "swiglu": True,
    "ffn_hidden_size": 18432,
    "num_experts": 256,
    "topk": 8,
    "moe_ffn_hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 2048,
    "moe_layer_freq": (0,) * 3 + (1,) * 58,
    "multi_latent_attention": True,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "mtp": 1,
}
QWEN3_NEXT: dict[str, Value] = QWEN3_30B | {
    "num_attention_heads": 16,
    "num_query_groups": 2,
    "kv_channels": 256,
    "attention_output_gate": True,
    "num_experts": 512,
    "topk": 10,
    "moe_ffn_hidden_size": 512,
    "moe_shared_expert_intermediate_size": 512,
    "mtp": 1,
    "experimental_attention_variant": "gated_delta_net",
    "linear_attention_freq": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "linear_num_value_heads": 32,
    "linear_conv_kernel_dim": 4,
}
NEMOTRON_NANO: dict[str, Value] = {
    "num_layers": 52,
    "hidden_size": 2688,
    "num_attention_heads": 32,
    "num_query_groups": 2,
    "kv_channels": 128,
    "vocab_size": 131072,
    "swiglu": False,
    "num_experts": 128,
    "topk": 6,
    "moe_ffn_hidden_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "hybrid_layer_pattern": "M" * 23 + "|" + "E" * 23 + "*" * 6,
    "mamba_num_heads": 64,
    "mamba_state_dim": 128,
    "mamba_num_groups": 8,
}


@pytest.mark.parametrize(
    ("values", "seq_len", "gflop"),
    [
        (QWEN3_30B, 4096, "23.006"),
        (DEEPSEEK_V3, 4096, "259.993"),
        (QWEN3_NEXT, 4096, "25.080"),
        (NEMOTRON_NANO, 8192, "22.278"),
    ],
)
def test_contract_values_give_the_published_flops(values: dict[str, Value], seq_len: int, gflop: str) -> None:
    reading = read_shape(values)
    assert reading.missing == ()
    assert reading.shape is not None
    assert f"{flops_per_token(reading.shape, seq_len, discount_window=False) / 1e9:.3f}" == gflop


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        (["vocab_size"], ("vocab_size",)),
        (["hidden_size", "topk"], ("hidden_size", "topk")),
        (["swiglu"], ("swiglu",)),
        (["num_experts"], ("num_experts", "ffn_hidden_size")),
        (["kv_channels", "num_query_groups"], ()),
    ],
)
def test_missing_inputs_are_named(without: list[str], missing: tuple[str, ...]) -> None:
    values = {name: value for name, value in QWEN3_30B.items() if name not in without}
    assert set(read_shape(values).missing) == set(missing)


def test_latent_attention_needs_its_widths() -> None:
    values = {name: value for name, value in DEEPSEEK_V3.items() if name not in {"v_head_dim", "q_lora_rank"}}
    assert read_shape(values).missing == ("v_head_dim",)


def test_an_attention_without_a_formula_is_named() -> None:
    reading = read_shape(QWEN3_30B | {"experimental_attention_variant": "dsa"})
    assert reading.missing == ("a FLOPs formula for dsa attention",)


def test_unset_means_what_the_trainer_takes() -> None:
    shape = read_shape(QWEN3_30B | {"num_query_groups": None, "kv_channels": None, "num_experts": None,
                                    "ffn_hidden_size": 8192}).shape  # fmt: skip
    assert shape is not None
    assert shape.attention == GroupedQueryAttention(32, 32, 64)
    assert shape.experts is None


def test_an_moe_layer_every_second_layer_begins_with_the_first() -> None:
    shape = read_shape(QWEN3_30B | {"num_layers": 5, "moe_layer_freq": 2, "ffn_hidden_size": 8}).shape
    assert shape is not None
    assert shape.experts is not None
    assert shape.experts.pattern == (1, 0, 1, 0, 1)


def test_a_layer_list_of_another_length_is_refused() -> None:
    reading = read_shape(QWEN3_30B | {"moe_layer_freq": (0, 1), "ffn_hidden_size": 8})
    assert reading.missing == ("moe_layer_freq (one entry a layer)",)


def test_latent_attention_is_read() -> None:
    shape = read_shape(DEEPSEEK_V3).shape
    assert shape is not None
    assert shape.attention == LatentAttention(128, 1536, 512, 128, 64, 128)


@pytest.mark.parametrize(
    ("stated", "tokens"),
    [(None, None), ("127,0", 128), ("(127, 0)", 128), ("128", 128), ("-1,-1", None), ("64,63", 128)],
)
def test_windows(stated: Value, tokens: int | None) -> None:
    assert window_tokens(stated) == tokens


@pytest.mark.parametrize(
    ("entries", "divisible_by", "tp", "padded"),
    [(151643, 128, 1, 151680), (32000, 128, 2, 32000), (50257, 128, 8, 51200)],
)
def test_vocabulary_padding(entries: int, divisible_by: int, tp: int, padded: int) -> None:
    assert pad_vocabulary(entries, divisible_by, tp) == padded


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Qwen/Qwen3-30B-A3B", "Qwen3-30B-A3B"),
        ("qwen3_30b_a3b", "Qwen3-30B-A3B"),
        ("DSV3", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-V2-Lite", "DeepSeek-V2-Lite"),
        ("my own model", "my own model"),
    ],
)
def test_known_models_have_one_spelling(spelling: str, name: str) -> None:
    assert canonical_model(spelling) == name


def test_a_model_is_recognised_by_its_shape_only_when_all_of_it_fits() -> None:
    model = recognise(QWEN3_30B)
    assert model is not None
    assert model.name == "Qwen3-30B-A3B"
    assert recognise(QWEN3_30B | {"num_layers": 16}) is None
    assert recognise({"num_layers": 48}) is None


def test_a_contradicted_shape_is_told_in_words() -> None:
    model = known_model("DeepSeek-V3")
    assert model is not None
    assert differences(model, DEEPSEEK_V3 | {"num_layers": 16}) == ("num_layers is 16, DeepSeek-V3 has 61",)


def test_an_unknown_model_is_named_by_its_outline() -> None:
    assert outline_name({"num_layers": 24, "hidden_size": 1024, "num_experts": 8, "topk": 2}) == "24L-h1024-8e-top2"
    assert outline_name({"num_layers": 24, "hidden_size": 1024, "num_experts": None}) == "24L-h1024-dense"
    assert outline_name({"num_layers": 24, "hidden_size": 1024}) is None
