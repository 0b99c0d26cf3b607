"""The full shapes of known models, as contract values: what their FLOPs, their parameters and their memory follow from.

Sources: the public configurations, as restated in `docs/rules.md`; a test compares their FLOPs with published figures.
"""

from collections.abc import Mapping
from functools import cache

from app.domain.contract.values import KnownModel, canonical_model, known_model
from app.domain.performance.model_shape import ModelShape, read_shape
from app.domain.run import Value

_LATENT: Mapping[str, Value] = {
    "multi_latent_attention": True,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
}
_WINDOWED: Mapping[str, Value] = {
    "num_query_groups": 8,
    "kv_channels": 64,
    "window_size": "127,0",
    "window_attn_skip_freq": 2,
}


def _hybrid(mamba: int, attention: int, experts: int, heads: int) -> Mapping[str, Value]:
    """Return the fields of a hybrid model; the order of its layers does not matter here."""
    return {
        "swiglu": False,
        "hybrid_layer_pattern": "M" * mamba + "*" * attention + "E" * experts,
        "num_query_groups": 2,
        "kv_channels": 128,
        "mamba_num_heads": heads,
        "mamba_state_dim": 128,
        "mamba_num_groups": 8,
    }


def _dense_first(dense: int, layers: int) -> tuple[int, ...]:
    return (0,) * dense + (1,) * (layers - dense)


_SHAPES: Mapping[str, Mapping[str, Value]] = {
    "DeepSeek-V3": {
        **_LATENT, "q_lora_rank": 1536, "ffn_hidden_size": 18432, "moe_layer_freq": _dense_first(3, 61),
        "moe_shared_expert_intermediate_size": 2048,
    },
    "DeepSeek-V2": {
        **_LATENT, "q_lora_rank": 1536, "ffn_hidden_size": 12288, "moe_layer_freq": _dense_first(1, 60),
        "moe_shared_expert_intermediate_size": 3072,
    },
    "DeepSeek-V2-Lite": {
        **_LATENT, "ffn_hidden_size": 10944, "moe_layer_freq": _dense_first(1, 27),
        "moe_shared_expert_intermediate_size": 2816,
    },
    "Kimi-K2": {
        **_LATENT, "q_lora_rank": 1536, "ffn_hidden_size": 18432, "moe_layer_freq": _dense_first(1, 61),
        "moe_shared_expert_intermediate_size": 2048,
    },
    "Qwen3-30B-A3B": {"num_query_groups": 4, "kv_channels": 128, "qk_layernorm": True},
    "Qwen3-235B-A22B": {"num_query_groups": 4, "kv_channels": 128, "qk_layernorm": True},
    "Qwen3-Next-80B-A3B": {
        "num_query_groups": 2, "kv_channels": 256, "attention_output_gate": True, "qk_layernorm": True,
        "moe_shared_expert_intermediate_size": 512, "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_value_head_dim": 128, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4,
    },
    "GPT-OSS-120B": _WINDOWED,
    "GPT-OSS-20B": _WINDOWED,
    "Mixtral-8x7B": {"num_query_groups": 8},
    "Mixtral-8x22B": {"num_query_groups": 8},
    "Nemotron-3-Nano-30B-A3B": {
        **_hybrid(23, 6, 23, 64), "moe_shared_expert_intermediate_size": 3712,
    },
    "Nemotron-3-Super-120B-A12B": {
        **_hybrid(40, 8, 40, 128), "moe_shared_expert_intermediate_size": 5376, "moe_latent_size": 1024,
    },
}  # fmt: skip


def known_shape(name: str, *, mtp: int = 0) -> ModelShape | None:
    """Return the shape of a known model; None for any other name. `mtp`: layers of multi-token prediction."""
    return _known_shape(canonical_model(name), mtp)


@cache
def _known_shape(name: str, mtp: int) -> ModelShape | None:
    model = known_model(name)
    if model is None or name not in _SHAPES:
        return None
    values: dict[str, Value] = {**_outline(model), **_SHAPES[name], "mtp": mtp}
    pattern = values.get("hybrid_layer_pattern")
    if isinstance(pattern, str) and mtp:
        values["hybrid_layer_pattern"] = pattern + "/" + "*E" * mtp
    return read_shape(values).shape


def known_values(name: str) -> Mapping[str, Value]:
    """Return the contract values of a known model's shape; empty for any other name."""
    model = known_model(canonical_model(name))
    return {**_outline(model), **_SHAPES[model.name]} if model is not None and model.name in _SHAPES else {}


def _outline(model: KnownModel) -> dict[str, Value]:
    return {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_experts": model.experts,
        "topk": model.topk,
        "moe_ffn_hidden_size": model.expert_width,
        "vocab_size": model.vocabulary,
        "swiglu": True,
    }
