"""What conditions need to know of a model by its name or its shape. What no source states stays unknown.

Totals and active parameters are those of the model table in docs/rules.md: weight counts of the public configurations.
"""

from collections.abc import Callable, Mapping

from app.domain.contract.model_names import canonical_model, known_model

Values = Mapping[str, object]

FAMILIES = (
    ("deepseekv3", "deepseek-v3"),
    ("deepseek", "deepseek"),
    ("qwen330b", "qwen3-30b"),
    ("qwen3235b", "qwen3-235b"),
    ("qwen3next", "qwen3-next"),
    ("qwen35", "qwen3.5"),
    ("kimik2", "kimi-k2"),
    ("gptoss", "gpt-oss"),
    ("nemotron3", "nemotron-3"),
    ("mixtral", "mixtral"),
    ("moonlight", "moonlight"),
    ("llama", "llama"),
    ("qwen", "qwen"),
)
"""By the beginning of a name without separators, the longer first."""

_BILLIONS = {
    "DeepSeek-V3": (671.0, 37.6),
    "DeepSeek-V2": (235.7, 21.4),
    "DeepSeek-V2-Lite": (15.7, 2.7),
    "Kimi-K2": (1026.0, 32.9),
    "Qwen3-30B-A3B": (30.5, 3.35),
    "Qwen3-235B-A22B": (235.1, 22.2),
    "Qwen3-Next-80B-A3B": (79.7, 3.9),
    "GPT-OSS-120B": (116.8, 5.7),
    "GPT-OSS-20B": (20.9, 4.2),
    "Mixtral-8x7B": (46.7, 12.9),
    "Mixtral-8x22B": (140.6, 39.2),
    "Nemotron-3-Nano-30B-A3B": (30.0, 3.5),
    "Nemotron-3-Super-120B-A12B": (120.0, 12.0),
    "Moonlight-16B": (16.0, 3.0),
}
_GFLOP_PER_TOKEN = {
    ("DeepSeek-V3", 4096, 1): 259.993,
    ("DeepSeek-V3", 4096, 0): 249.812,
    ("Qwen3-30B-A3B", 4096, 0): 23.006,
    ("Qwen3-235B-A22B", 4096, 0): 148.035,
    ("GPT-OSS-120B", 4096, 0): 32.630,
    ("Kimi-K2", 4096, 0): 204.477,
    ("Nemotron-3-Nano-30B-A3B", 8192, 0): 22.278,
    ("Nemotron-3-Super-120B-A12B", 8192, 2): 84.727,
}
_DENSE_LAYERS = {
    "DeepSeek-V3": 3,
    "DeepSeek-V2": 1,
    "DeepSeek-V2-Lite": 1,
    "Kimi-K2": 1,
    "Qwen3-30B-A3B": 0,
    "Qwen3-235B-A22B": 0,
    "Qwen3-Next-80B-A3B": 0,
    "GPT-OSS-120B": 0,
    "GPT-OSS-20B": 0,
    "Mixtral-8x7B": 0,
    "Mixtral-8x22B": 0,
    "Moonlight-16B": 1,
}
_MLA = ("deepseek-v3", "deepseek", "kimi-k2", "moonlight")
_SHARED = {
    **dict.fromkeys(("deepseek-v3", "deepseek", "kimi-k2", "qwen3-next", "nemotron-3"), True),
    **dict.fromkeys(("qwen3-30b", "qwen3-235b", "gpt-oss", "mixtral"), False),
}


def _folded(name: object) -> str:
    return "".join(letter for letter in str(name).rsplit("/", 1)[-1].lower() if letter.isalnum())


def _name(values: Values) -> str:
    return canonical_model(str(values["model"])) if values.get("model") else ""


def _family(values: Values) -> str | None:
    if not values.get("model"):
        return None
    folded = _folded(values["model"])
    return next((family for start, family in FAMILIES if folded.startswith(start)), "other")


def _shape(field: str) -> Callable[[Values], object]:
    def rule(values: Values) -> object:
        known = known_model(_name(values))
        return getattr(known, field) if known is not None else None

    return rule


def _mla(values: Values) -> bool | None:
    if "multi_latent_attention" in values:
        return bool(values["multi_latent_attention"])
    family = values.get("family")
    return None if family in (None, "other") else family in _MLA


def _moe(values: Values) -> bool | None:
    experts = values.get("num_experts")
    return None if "num_experts" not in values else experts is not None and int(str(experts)) > 1


def _dense_layers(values: Values) -> int | None:
    layers, frequency = values.get("num_layers"), values.get("moe_layer_freq")
    if values.get("moe") is False and isinstance(layers, int):
        return layers
    if isinstance(frequency, list) and frequency:
        return _dense_by_frequency(frequency, layers)
    return _DENSE_LAYERS.get(_name(values))


def _dense_by_frequency(frequency: list[object], layers: object) -> int | None:
    """A list of several is a flag a layer; one number n means that every n-th layer holds experts."""
    if len(frequency) > 1:
        return sum(1 for flag in frequency if flag == 0)
    every = frequency[0]
    if not isinstance(layers, int) or not isinstance(every, int) or every < 1:
        return None
    return layers - -(-layers // every)


def _shared(values: Values) -> bool | None:
    if "moe_shared_expert_intermediate_size" in values:
        return bool(values["moe_shared_expert_intermediate_size"])
    return _SHARED.get(str(values.get("family")))


def _gdn(values: Values) -> bool | None:
    if "experimental_attention_variant" in values:
        return values["experimental_attention_variant"] == "gated_delta_net"
    family = values.get("family")
    return None if family in (None, "other") else family in ("qwen3-next", "qwen3.5")


def _vlm(values: Values) -> bool | None:
    if not values.get("model"):
        return None
    words = str(values["model"]).lower().replace("_", "-").split("-")
    return "vl" in words or "vlm" in words


def _billions(place: int) -> Callable[[Values], float | None]:
    def rule(values: Values) -> float | None:
        sizes = _BILLIONS.get(_name(values))
        return None if sizes is None else sizes[place]

    return rule


def _gflop(values: Values) -> float | None:
    mtp = values.get("mtp") or 0
    return _GFLOP_PER_TOKEN.get((_name(values), values.get("seq_len"), mtp))  # type: ignore[arg-type]


RULES: tuple[tuple[str, Callable[[Values], object]], ...] = (
    ("family", _family),
    ("num_layers", _shape("layers")),
    ("hidden_size", _shape("hidden")),
    ("num_attention_heads", _shape("heads")),
    ("num_experts", _shape("experts")),
    ("topk", _shape("topk")),
    ("moe", _moe),
    ("mla", _mla),
    ("dense_layers", _dense_layers),
    ("shared_experts", _shared),
    ("gdn", _gdn),
    ("vlm", _vlm),
    ("total_billions", _billions(0)),
    ("active_billions", _billions(1)),
    ("gflop_per_token_model", _gflop),
)
