"""The models we know: one spelling for each name, and their shapes, by which an unnamed run is recognised.

Shapes: configuration files of Megatron-MoE-ModelZoo, Megatron-LM examples and Megatron-Bridge documentation (2026-08).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.run import Value


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Outline of a public model: enough of its shape to tell it from every other one. `expert_width` is moe_ffn."""

    name: str
    layers: int
    hidden: int
    heads: int
    experts: int
    topk: int
    expert_width: int
    vocabulary: int | None
    also: tuple[str, ...] = ()


KNOWN_MODELS = (
    KnownModel("DeepSeek-V3", 61, 7168, 128, 256, 8, 2048, 129280, ("DSV3", "DeepSeek-V3-671B", "DeepSeek-V3-685B")),
    KnownModel("DeepSeek-V2", 60, 5120, 128, 160, 6, 1536, 102400, ("DSV2",)),
    KnownModel("DeepSeek-V2-Lite", 27, 2048, 16, 64, 6, 1408, 102400, ("DSV2-Lite",)),
    KnownModel("Kimi-K2", 61, 7168, 64, 384, 8, 2048, 163840),
    KnownModel("Qwen3-30B-A3B", 48, 2048, 32, 128, 8, 768, 151936, ("Qwen3-30B",)),
    KnownModel("Qwen3-235B-A22B", 94, 4096, 64, 128, 8, 1536, 151936, ("Qwen3-235B",)),
    KnownModel("Qwen3-Next-80B-A3B", 48, 2048, 16, 512, 10, 512, 151936, ("Qwen3-Next", "Qwen3-Next-80B")),
    KnownModel("GPT-OSS-120B", 36, 2880, 64, 128, 4, 2880, 201088),
    KnownModel("GPT-OSS-20B", 24, 2880, 64, 32, 4, 2880, 201088),
    KnownModel("Mixtral-8x7B", 32, 4096, 32, 8, 2, 14336, 32000),
    KnownModel("Mixtral-8x22B", 56, 6144, 48, 8, 2, 16384, 32768),
    KnownModel(
        "Nemotron-3-Nano-30B-A3B", 52, 2688, 32, 128, 6, 1856, 131072, ("Nemotron-3-Nano", "Nemotron-3-Nano-30B")
    ),
    KnownModel(
        "Nemotron-3-Super-120B-A12B", 88, 4096, 32, 512, 22, 2688, 131072, ("Nemotron-3-Super", "Nemotron-3-Super-120B")
    ),
    KnownModel(
        "Nemotron-3-Ultra-550B-A55B", 108, 8192, 64, 512, 22, 5120, None, ("Nemotron-3-Ultra", "Nemotron-3-Ultra-550B")
    ),
)

OUTLINE = ("num_layers", "hidden_size", "num_attention_heads", "num_experts", "topk")
"""Fields that must be known, and equal, before a run is called by a known model's name."""


def _folded(name: str) -> str:
    """A name without its organisation, case and separators: `Qwen/Qwen3_30B-A3B` is `qwen330ba3b`."""
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())


_SPELLINGS = {_folded(spelling): model.name for model in KNOWN_MODELS for spelling in (model.name, *model.also)}
_BY_NAME = {model.name: model for model in KNOWN_MODELS}


def canonical_model(name: str) -> str:
    """The usual spelling of a known model's name; any other name as it is."""
    return _SPELLINGS.get(_folded(name), name)


def known_model(name: str) -> KnownModel | None:
    """The outline behind a canonical name."""
    return _BY_NAME.get(name)


def recognise(values: Mapping[str, Value]) -> KnownModel | None:
    """The known model that has this shape (contract values by canonical name); None when it is not one of them."""
    for model in KNOWN_MODELS:
        if not differences(model, values) and all(values.get(name) is not None for name in OUTLINE):
            return model
    return None


def differences(model: KnownModel, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Where stated shape values contradict a known model, as `num_layers is 16, DeepSeek-V3 has 61`."""
    width = values.get("moe_ffn_hidden_size") or values.get("ffn_hidden_size")
    expected = zip(OUTLINE, (model.layers, model.hidden, model.heads, model.experts, model.topk), strict=True)
    pairs = [(name, values.get(name), value) for name, value in expected]
    pairs.append(("moe_ffn_hidden_size", width, model.expert_width))
    return tuple(
        f"{name} is {stated}, {model.name} has {value}"
        for name, stated, value in pairs
        if stated is not None and stated != value
    )


def outline_name(values: Mapping[str, Value]) -> str | None:
    """A name made of the shape, for a model we do not know: `24L-h1024-8e-top2`. None when too little is known."""
    layers, hidden = values.get("num_layers"), values.get("hidden_size")
    if layers is None or hidden is None or "num_experts" not in values:
        return None
    experts = values.get("num_experts")
    routed = f"-{experts}e-top{values.get('topk') or '?'}" if experts else "-dense"
    return f"{layers}L-h{hidden}{routed}"
