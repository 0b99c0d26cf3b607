"""What is to be planned: a model, the GPUs, the work of a step, and what is fixed already."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import KNOWN_MODELS, KnownModel, canonical_model, known_model, read_value
from app.domain.rules import derive
from app.domain.run import Value
from app.domain.text import InvalidFields

# --- The properties of a model that its layout depends on: layers, heads, experts, and where its parameters lie.

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
"""Key and value heads of the public configurations; models with latent attention have none."""
_HYBRID = ("Nemotron-3-Nano-30B-A3B", "Nemotron-3-Super-120B-A12B", "Nemotron-3-Ultra-550B-A55B")
"""Models whose layers follow a pattern of several kinds, which contains the pipeline stages."""
_MATRICES = 3
"""Matrices of a gated expert; experts of hybrid models have two and are not covered."""
_SIZES = dict(derive.MODEL_RULES)

SHAPE = ("num_layers", "num_attention_heads", "num_query_groups", "num_experts", "hidden_size")
"""Contract fields that describe an unknown model, or override a known one."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model for planning.

    `kv_groups` None: as many as heads, or latent attention. `experts` None: a dense model. `hybrid`: layers of several
    kinds in a pattern. Sizes are in billions of parameters, without multi-token prediction; None: unknown.
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
    """Return the model that contract values describe, else None and the missing or wrong fields.

    The values may be a known name, a shape, or a known name with some of its shape changed.
    """
    name = canonical_model(str(values.get("model") or ""))
    known_shape = known_model(name)
    shape = _known_shape(known_shape) if known_shape is not None else {}
    stated = {field: values[field] for field in SHAPE if field in values}
    changed = any(shape.get(field) != value for field, value in stated.items() if field in shape)
    shape |= stated
    missing = {
        field: "is required for a model without a known name"
        for field in ("num_layers", "num_attention_heads")
        if not shape.get(field)
    }
    if missing:
        if name:
            missing["model"] = f"is not one of {', '.join(named_models())}; state its shape"
        return None, missing
    experts = _count(shape, "num_experts")
    sizes = _sizes(known_shape) if known_shape is not None and not changed else (None, None, None)
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


def _known_shape(model: KnownModel) -> dict[str, Value]:
    return {
        "num_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_query_groups": _KV_GROUPS.get(model.name),
        "num_experts": model.experts,
        "hidden_size": model.hidden,
    }


def _count(values: Mapping[str, Value], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sizes(model: KnownModel) -> tuple[float | None, float | None, float | None]:
    """Return billions of parameters: total, in routed experts, and active per token; experts by their matrices."""
    name: Mapping[str, object] = {"model": model.name}
    total, active = _SIZES["total_billions"](name), _SIZES["active_billions"](name)
    dense = _SIZES["dense_layers"](name)
    known_total = total if isinstance(total, float) else None
    known_active = active if isinstance(active, float) else None
    if model.name in _HYBRID or not isinstance(dense, int):
        return known_total, None, known_active
    layers = model.layers - dense
    experts = _MATRICES * model.hidden * model.expert_width * model.experts * layers / 1e9
    return known_total, experts, known_active


WORK = ("model", "gpu", "gpus", "seq_len", "gbs", "mbs", "precision")
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp")
SPLIT = ("pp_layout", "pp_account", "mtp")
INPUTS = (*WORK, *DEGREES, *SPLIT, *SHAPE)
"""Contract fields that a plan takes, in the order of the form."""
REQUIRED = ("gpu", "gpus", "seq_len")
LARGEST: Mapping[str, int] = {
    "gpus": 2**17,
    "seq_len": 2**27,
    "gbs": 10**8,
    "mbs": 10**5,
    "num_layers": 1000,
    "num_attention_heads": 4096,
    "num_query_groups": 4096,
    "num_experts": 8192,
    "mtp": 100,
}
"""Larger than anything built today, and small enough to try every layout quickly."""
LEAST: Mapping[str, int] = {"count": 1, "whole": 0}
"""By the kind of the field."""


class InvalidPlan(InvalidFields):
    """The fields of a planning request are invalid."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """`gbs` None: undecided, so nothing that depends on it is checked.

    `fixed`: fixed degrees; a `vpp` of 1 means no virtual pipeline. `account` None: embedding and loss may count as
    layers or not.
    """

    model: PlannedModel
    gpu: str
    gpus: int
    seq_len: int
    gbs: int | None = None
    mbs: int = 1
    precision: str = "bf16"
    fixed: Mapping[str, int] | None = None
    pp_layout: str | None = None
    account: tuple[str, ...] | None = None

    def fix(self, name: str) -> int | None:
        return (self.fixed or {}).get(name)

    @property
    def is_complete(self) -> bool:
        """Return whether all degrees of one layout are stated; those of experts only for models with experts."""
        wanted = ("tp", "pp", "cp", "ep") if self.model.experts else ("tp", "pp", "cp")
        return all(self.fix(name) for name in wanted)


def read_request(stated: Mapping[str, str]) -> PlanRequest:
    """Parse a request from texts by field name; blanks are undecided. Raises InvalidPlan."""
    wrong = {name: "is not known to the planner" for name in stated if name not in INPUTS}
    values: dict[str, Value] = {}
    for name in INPUTS:
        text = stated.get(name, "").strip()
        if not text:
            continue
        try:
            value = read_value(name, text)
        except ValueError as error:
            wrong[name] = _within(name) if FIELDS[name].kind in LEAST else str(error)
            continue
        if isinstance(value, int) and value > _largest(name):
            wrong[name] = _within(name)
        values[name] = value
    for name in REQUIRED:
        if values.get(name) is None:
            wrong.setdefault(name, f"is required. {FIELDS[name].meaning}")
    model, missing = planned_model(values)
    if model is None and "model" not in values and not any(name in values for name in SHAPE):
        missing = {"model": "is required: a known name, or the layers and heads of your own shape"}
    if wrong or missing or model is None:
        raise InvalidPlan(missing | wrong)
    return PlanRequest(
        model=model,
        gpu=str(values["gpu"]),
        gpus=_int(values["gpus"]),
        seq_len=_int(values["seq_len"]),
        gbs=_int(values["gbs"]) if values.get("gbs") else None,
        mbs=_int(values.get("mbs") or 1),
        precision=str(values.get("precision") or "bf16"),
        fixed={name: _int(value) for name in DEGREES if (value := values.get(name))} | _no_vpp(values),
        pp_layout=str(values["pp_layout"]) if values.get("pp_layout") else None,
        account=_words(values["pp_account"]) if "pp_account" in values else None,
    )


def _largest(name: str) -> int:
    return LARGEST.get(name, LARGEST["gpus"])


def _within(name: str) -> str:
    return f"must be a whole number from {LEAST[FIELDS[name].kind]} to {_largest(name):,}"


def _int(value: Value) -> int:
    assert isinstance(value, int)  # noqa: S101  # the registry reads these fields as whole numbers
    return value


def _no_vpp(values: Mapping[str, Value]) -> dict[str, int]:
    """Set a virtual pipeline that is stated as unset to 1."""
    return {"vpp": 1} if "vpp" in values and values["vpp"] is None else {}


def _words(value: Value) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, tuple) else ()


# --- The address of the planner, filled in with what a contract states.

PATH = "/plan"


def plan_address(values: Mapping[str, Value], *, free: tuple[str, ...] = ()) -> str:
    """Return the planner's address for contract values, without the fields in `free`. A known model needs no shape."""
    shape = () if known_model(str(values.get("model"))) else SHAPE
    names = [name for name in INPUTS if name not in free and (name not in SHAPE or name in shape)]
    texts = {name: _text(values[name]) for name in names if name in values}
    texts |= {"vpp": "1"} if values.get("pp_layout") is None and "vpp" in texts and not texts["vpp"] else {}
    if values.get("pp_layout"):
        texts = {name: text for name, text in texts.items() if name not in ("vpp", "pp_account")}
    query = urlencode({name: text for name, text in texts.items() if text})
    return f"{PATH}?{query}" if query else PATH


def _text(value: Value) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return "" if value is None else str(value)
