"""The outline of a model as far as its layout depends on it: layers, heads, experts, and where its parameters lie."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.contract.model_names import KNOWN_MODELS, KnownModel, canonical_model, known_model
from app.domain.rules import models
from app.domain.run import Value

_KV_GROUPS: Mapping[str, int] = {
    "Qwen3-30B-A3B": 4,
    "Qwen3-235B-A22B": 4,
    "Qwen3-Next-80B-A3B": 2,
    "GPT-OSS-120B": 8,
    "GPT-OSS-20B": 8,
    "Mixtral-8x7B": 8,
    "Mixtral-8x22B": 8,
    "Nemotron-3-Nano-30B-A3B": 2,
    "Nemotron-3-Super-120B-A12B": 2,
    "Nemotron-3-Ultra-550B-A55B": 2,
}
"""Key and value heads of the public configurations; models of latent attention have none."""
_HYBRID = ("Nemotron-3-Nano-30B-A3B", "Nemotron-3-Super-120B-A12B", "Nemotron-3-Ultra-550B-A55B")
"""Their layers are a pattern of several kinds, which holds the pipeline stages itself."""
_MATRICES = 3
"""Of a gated expert; the experts of hybrid models, which have two, are left out."""
_SIZES = dict(models.RULES)

SHAPE = ("num_layers", "num_attention_heads", "num_query_groups", "num_experts", "hidden_size")
"""Contract fields that describe a model which is not known by name, or overrule one that is."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """`kv_groups` None: as many as heads, or latent attention. `experts` None: a dense model. `hybrid`: layers of
    several kinds by a pattern. Sizes are in billions of parameters, without multi-token prediction; None: unknown.
    """

    name: str
    layers: int
    heads: int
    kv_groups: int | None = None
    experts: int | None = None
    mtp: int = 0
    hidden: int | None = None
    hybrid: bool = False
    total_billions: float | None = None
    expert_billions: float | None = None
    active_billions: float | None = None


def named_models() -> tuple[str, ...]:
    """Names that stand for a whole shape, in the order of the registry."""
    return tuple(model.name for model in KNOWN_MODELS)


def planned_model(values: Mapping[str, Value]) -> tuple[PlannedModel | None, dict[str, str]]:
    """The model that contract values describe: a known name, a shape, or a known name with some of its shape changed.

    The second part says what is missing or wrong, by field; the model is None then.
    """
    name = canonical_model(str(values.get("model") or ""))
    known = known_model(name)
    shape = _known_shape(known) if known is not None else {}
    stated = {field: values[field] for field in SHAPE if field in values}
    changed = any(shape.get(field) != value for field, value in stated.items() if field in shape)
    shape |= stated
    missing = {
        field: "is required for a model that is not known by name"
        for field in ("num_layers", "num_attention_heads")
        if not shape.get(field)
    }
    if missing:
        if name:
            missing["model"] = f"is none of {', '.join(named_models())}; state its shape"
        return None, missing
    experts = _count(shape, "num_experts")
    sizes = _sizes(known) if known is not None and not changed else (None, None, None)
    model = PlannedModel(
        name=name or "a model of this shape",
        layers=_count(shape, "num_layers") or 1,
        heads=_count(shape, "num_attention_heads") or 1,
        kv_groups=_count(shape, "num_query_groups"),
        experts=experts if experts and experts > 1 else None,
        mtp=_count(values, "mtp") or 0,
        hidden=_count(shape, "hidden_size"),
        hybrid=name in _HYBRID,
        total_billions=sizes[0],
        expert_billions=sizes[1],
        active_billions=sizes[2],
    )
    return model, {}


def _known_shape(known: KnownModel) -> dict[str, Value]:
    return {
        "num_layers": known.layers,
        "num_attention_heads": known.heads,
        "num_query_groups": _KV_GROUPS.get(known.name),
        "num_experts": known.experts,
        "hidden_size": known.hidden,
    }


def _count(values: Mapping[str, Value], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sizes(known: KnownModel) -> tuple[float | None, float | None, float | None]:
    """Total, in routed experts, and active for a token; the experts by their matrices."""
    name: Mapping[str, object] = {"model": known.name}
    total, active = _SIZES["total_billions"](name), _SIZES["active_billions"](name)
    dense = _SIZES["dense_layers"](name)
    known_total = total if isinstance(total, float) else None
    known_active = active if isinstance(active, float) else None
    if known.name in _HYBRID or not isinstance(dense, int):
        return known_total, None, known_active
    layers = known.layers - dense
    experts = _MATRICES * known.hidden * known.expert_width * known.experts * layers / 1e9
    return known_total, experts, known_active
