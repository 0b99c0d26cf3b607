"""The shape of a model, as far as its FLOPs depend on it, and how it is read from a contract.

A shape that cannot be known is not guessed: `read_shape` then names the inputs that are missing.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from app.domain.contract.values import KnownModel, canonical_model, known_model
from app.domain.run import Value

MAX_LAYERS = 10_000
"""Fifty times the deepest published model. Layers are expanded one by one, so an absurd count would fill the memory."""


@dataclass(frozen=True, slots=True)
class GroupedQueryAttention:
    """Attention with `query_groups` key and value heads (as many as `heads`: multi-head attention).

    `window`: tokens that a windowed layer sees, including the token itself; None without windows. `full_every`: every
    n-th layer sees everything; 0 when all layers are windowed.
    """

    heads: int
    query_groups: int
    head_width: int
    output_gate: bool = False
    window: int | None = None
    full_every: int = 0


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA). `query_rank` None: a full query projection."""

    heads: int
    query_rank: int | None
    key_value_rank: int
    head_width: int
    rotary_width: int
    value_width: int


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention; `linear_layers` of all layers (multi-token prediction included) use it."""

    linear_layers: int
    key_width: int
    key_heads: int
    value_width: int
    value_heads: int
    convolution: int


@dataclass(frozen=True, slots=True)
class Experts:
    """The MoE layers. `pattern`: 1 for an MoE layer, 0 for a dense one, without multi-token prediction."""

    topk: int
    width: int
    pattern: tuple[int, ...]
    shared_width: int = 0
    latent_width: int | None = None


@dataclass(frozen=True, slots=True)
class HybridLayers:
    """Layers of a hybrid model by kind, multi-token-prediction layers included; and the Mamba widths."""

    mamba: int
    attention: int
    experts: int
    dense: int
    mamba_heads: int
    mamba_state: int
    mamba_groups: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """`layers` do not include the `mtp_layers`; `vocabulary` is padded; `ffn_width`: of dense layers."""

    layers: int
    hidden: int
    vocabulary: int
    ffn_width: int
    gated: bool
    attention: GroupedQueryAttention | LatentAttention
    experts: Experts | None = None
    mtp_layers: int = 0
    linear: GatedDeltaNet | None = None
    hybrid: HybridLayers | None = None


@dataclass(frozen=True, slots=True)
class ShapeReading:
    """A shape, or the names of missing fields (or a sentence on why there is none)."""

    shape: ModelShape | None
    missing: tuple[str, ...] = ()


def read_shape(values: Mapping[str, Value]) -> ShapeReading:
    """Return the shape stated by contract values (canonical names).

    Omitted optional fields mean the trainers' defaults.
    """
    reader = _ShapeReader(values)
    variant = values.get("experimental_attention_variant")
    if variant not in (None, "gated_delta_net"):
        return ShapeReading(None, (f"a FLOPs formula for {variant} attention",))
    layers, hidden = reader.count("num_layers"), reader.count("hidden_size")
    if layers > MAX_LAYERS:
        return ShapeReading(None, (f"num_layers of at most {MAX_LAYERS}",))
    vocabulary, heads = reader.count("vocab_size"), reader.count("num_attention_heads")
    gated = reader.flag("swiglu")
    mtp = int(reader.number("mtp") or 0)
    experts = _read_experts(reader, layers)
    attention = _read_attention(reader, heads, hidden)
    hybrid = _read_hybrid(reader)
    linear = _read_linear(reader, layers + mtp) if variant else None
    needs_dense = hybrid.dense > 0 if hybrid else experts is None or 0 in experts.pattern
    ffn_width = reader.count("ffn_hidden_size") if needs_dense else 0
    if reader.missing:
        return ShapeReading(None, tuple(dict.fromkeys(reader.missing)))
    shape = ModelShape(layers, hidden, vocabulary, ffn_width, gated, attention, experts, mtp, linear, hybrid)
    return ShapeReading(shape)


class _ShapeReader:
    """Reads values by name and collects the missing ones, so that one message names them all."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values
        self.missing: list[str] = []

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, name: str, default: int | None = None) -> int:
        value = self.number(name)
        value = default if value is None else value
        if value is None:
            self.missing.append(name)
            return 1
        return value

    def flag(self, name: str) -> bool:
        if name not in self.values:
            self.missing.append(name)
        return bool(self.values.get(name))


def _read_experts(reader: _ShapeReader, layers: int) -> Experts | None:
    if "num_experts" not in reader.values:
        reader.missing.append("num_experts")
    if not reader.number("num_experts"):
        return None
    return Experts(
        topk=reader.count("topk"),
        width=reader.count("moe_ffn_hidden_size", reader.number("ffn_hidden_size")),
        pattern=_moe_pattern(reader, layers),
        shared_width=reader.number("moe_shared_expert_intermediate_size") or 0,
        latent_width=reader.number("moe_latent_size"),
    )


def _moe_pattern(reader: _ShapeReader, layers: int) -> tuple[int, ...]:
    """Return one flag per layer. A frequency n means every n-th layer, starting with the first (Megatron-LM's rule)."""
    stated = reader.values.get("moe_layer_freq")
    if not isinstance(stated, tuple):
        every = reader.number("moe_layer_freq") or 1
        return tuple(int(i % every == 0) for i in range(layers))
    if len(stated) != layers:
        reader.missing.append("moe_layer_freq (one entry per layer)")
    return tuple(int(flag) for flag in stated)


def _read_attention(reader: _ShapeReader, heads: int, hidden: int) -> GroupedQueryAttention | LatentAttention:
    if reader.values.get("multi_latent_attention"):
        return LatentAttention(
            heads=heads,
            query_rank=reader.number("q_lora_rank"),
            key_value_rank=reader.count("kv_lora_rank"),
            head_width=reader.count("qk_head_dim"),
            rotary_width=reader.count("qk_pos_emb_head_dim"),
            value_width=reader.count("v_head_dim"),
        )
    return GroupedQueryAttention(
        heads=heads,
        query_groups=reader.number("num_query_groups") or heads,
        head_width=reader.number("kv_channels") or hidden // heads,
        output_gate=bool(reader.values.get("attention_output_gate")),
        window=window_tokens(reader.values.get("window_size")),
        full_every=reader.number("window_attn_skip_freq") or 0,
    )


def window_tokens(stated: Value) -> int | None:
    """Return the tokens that a windowed layer sees: left + right + itself from `127,0` or `(127, 0)`, or a number."""
    if stated is None:
        return None
    numbers = [int(word) for word in re.findall(r"-?\d+", str(stated))]
    if len(numbers) == 1:
        return numbers[0]
    return sum(numbers) + 1 if len(numbers) == 2 and min(numbers) >= 0 else None


def _read_linear(reader: _ShapeReader, layers: int) -> GatedDeltaNet:
    stated = reader.values.get("linear_attention_freq")
    if isinstance(stated, tuple):
        linear_layers = sum(int(flag) for flag in stated)
    else:
        every = reader.count("linear_attention_freq")
        linear_layers = layers - layers // every  # every n-th layer keeps full attention
    return GatedDeltaNet(
        linear_layers=linear_layers,
        key_width=reader.count("linear_key_head_dim"),
        key_heads=reader.count("linear_num_key_heads"),
        value_width=reader.count("linear_value_head_dim"),
        value_heads=reader.count("linear_num_value_heads"),
        convolution=reader.count("linear_conv_kernel_dim"),
    )


def _read_hybrid(reader: _ShapeReader) -> HybridLayers | None:
    """Count the letters of a pattern. `|` separates pipeline stages; after `/` come multi-token-prediction layers."""
    pattern = reader.values.get("hybrid_layer_pattern")
    if not isinstance(pattern, str):
        return None
    if "G" in pattern:
        reader.missing.append("a FLOPs formula for hybrid models with gated delta net layers")
    return HybridLayers(
        mamba=pattern.count("M"),
        attention=pattern.count("*"),
        experts=pattern.count("E"),
        dense=pattern.count("-"),
        mamba_heads=_when("M" in pattern, reader.count, "mamba_num_heads"),
        mamba_state=_when("M" in pattern, reader.count, "mamba_state_dim"),
        mamba_groups=_when("M" in pattern, reader.count, "mamba_num_groups"),
    )


def _when(wanted: bool, read: Callable[[str], int], name: str) -> int:
    return read(name) if wanted else 0


def pad_vocabulary(entries: int, divisible_by: int, tp: int) -> int:
    """Return the entries after padding to a multiple of `divisible_by` x `tp`, as in trainers."""
    multiple = divisible_by * tp
    return -(-entries // multiple) * multiple


# --- The full shapes of known models, as contract values: what their FLOPs, their parameters and their memory follow
# from. Sources: the public configurations, as restated in `docs/rules.md`; a test compares their FLOPs with published
# figures.

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
