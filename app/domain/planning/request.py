"""A planning request: model, GPUs, work of a step, and fixed degrees."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import KNOWN_MODELS, canonical_model, known_model, read_value
from app.domain.performance.model_shape import ModelShape, known_shape, known_values, read_shape
from app.domain.planning.costs import model_costs
from app.domain.rules import derive
from app.domain.rules.facts import SETTINGS
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
_BIASED = ("GPT-OSS-120B", "GPT-OSS-20B")
"""Models whose experts have biases."""
_SIZES = dict(derive.MODEL_RULES)

SHAPE = ("num_layers", "num_attention_heads", "num_query_groups", "num_experts", "hidden_size")
"""Contract fields that describe an unknown model, or override a known one."""
WIDTHS = (
    "topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "ffn_hidden_size", "moe_layer_freq",
    "vocab_size", "kv_channels", "swiglu", "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim",
    "qk_pos_emb_head_dim", "v_head_dim",
)  # fmt: skip
"""Further fields of a shape. With them memory and step time of a model without a known name are predicted too."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model for planning.

    `kv_groups` None: as many as heads, or latent attention. `experts` None: a dense model. `hybrid`: layers of several
    kinds in a pattern. Sizes are in billions of parameters, without multi-token prediction; None: unknown. `shape`:
    all widths, None when some are unknown; then neither memory nor step time is predicted. `biased`: experts have
    biases.
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
    shape: ModelShape | None = None
    qk_norm: bool = False
    biased: bool = False


def named_models() -> tuple[str, ...]:
    """Names that stand for a whole shape, in the order of the registry."""
    return tuple(model.name for model in KNOWN_MODELS)


def planned_model(values: Mapping[str, Value]) -> tuple[PlannedModel | None, dict[str, str]]:
    """Return the model that contract values describe, else None and the missing or wrong fields.

    The values may be a known name, a shape, or a known name with some of its shape changed.
    """
    name = canonical_model(str(values.get("model") or ""))
    outline = known_model(name)
    shape: dict[str, Value] = {}
    if outline is not None:
        shape = {
            "num_layers": outline.layers,
            "num_attention_heads": outline.heads,
            "num_query_groups": _KV_GROUPS.get(outline.name),
            "num_experts": outline.experts,
            "hidden_size": outline.hidden,
        }
    stated = {field: values[field] for field in SHAPE if field in values}
    changed = any(shape.get(field) != value for field, value in stated.items() if field in shape)
    shape |= stated
    missing = {
        field: "must be stated for a model without a known name"
        for field in ("num_layers", "num_attention_heads")
        if not shape.get(field)
    }
    if missing:
        if name:
            missing["model"] = f"is not one of {', '.join(named_models())}; state its shape"
        return None, missing
    experts = _count(shape, "num_experts")
    mtp = _count(values, "mtp") or 0
    experts = experts if experts and experts > 1 else None
    widths = _full_shape(name, values, mtp, changed=changed)
    qk_norm = bool(known_values(name).get("qk_layernorm"))
    total, in_experts = _sizes(widths, experts, qk_norm=qk_norm)
    model = PlannedModel(
        name=name or "a model of this shape",
        layers=_count(shape, "num_layers") or 1,
        heads=_count(shape, "num_attention_heads") or 1,
        kv_groups=_count(shape, "num_query_groups"),
        experts=experts,
        mtp=mtp,
        hidden=_count(shape, "hidden_size"),
        hybrid=name in _HYBRID,
        total_billions=total,
        expert_billions=in_experts,
        active_billions=_active(name) if not changed else None,
        shape=widths,
        qk_norm=qk_norm,
        biased=name in _BIASED,
    )
    return model, {}


def _count(values: Mapping[str, Value], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _full_shape(name: str, values: Mapping[str, Value], mtp: int, *, changed: bool) -> ModelShape | None:
    """Return all widths: those of a known model, or those that the values state; None when some are missing."""
    if not changed and not any(field in values for field in WIDTHS):
        return known_shape(name, mtp=mtp)
    return read_shape({"swiglu": True, **known_values(name), **values, "mtp": mtp}).shape


def _sizes(shape: ModelShape | None, experts: int | None, *, qk_norm: bool) -> tuple[float | None, float | None]:
    """Return billions of parameters without multi-token prediction: total, and in routed experts."""
    if shape is None:
        return None, None
    costs = model_costs(shape, experts or 0, 1, qk_norm=qk_norm)
    total = costs.expert_parameters + costs.other_parameters + 2 * costs.embedding_parameters
    return total / 1e9, costs.expert_parameters / 1e9


def _active(name: str) -> float | None:
    active = _SIZES["active_billions"]({"model": name})
    return active if isinstance(active, float) else None


WORK = ("model", "gpu", "gpus", "seq_len", "gbs", "mbs", "precision")
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp")
SPLIT = ("pp_layout", "pp_account", "mtp")
RECIPE = (
    "recompute_granularity", "recompute_modules", "opt_offload_fraction", "dispatcher", "ep_overlap", "dist_opt",
    "graph_impl",
)  # fmt: skip
"""What else decides memory and step time; what is not stated is chosen: the least recomputation that fits."""
INPUTS = (*WORK, "host_memory_gib", *DEGREES, *SPLIT, *SHAPE, *WIDTHS, *RECIPE)


"""Contract fields that a plan takes, in the order of the form."""
REQUIRED = ("gpu", "gpus", "seq_len")
LARGEST: Mapping[str, int] = {
    "gpus": 2**17,
    "host_memory_gib": 2**17,
    "seq_len": 2**27,
    "gbs": 10**8,
    "mbs": 10**5,
    "num_layers": 1000,
    "num_attention_heads": 4096,
    "num_query_groups": 4096,
    "num_experts": 8192,
    "mtp": 100,
    "vocab_size": 10**7,
    "ffn_hidden_size": 10**6,
}
"""Larger than anything built today, and small enough to try every layout quickly."""
LEAST: Mapping[str, int] = {"count": 1, "whole": 0}
"""By the kind of the field."""


class InvalidPlan(InvalidFields):
    """The fields of a planning request are invalid."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How measured runs of the same model on the same GPU correct a prediction; without any, nothing is corrected.

    `time` and `memory`: measured over predicted step time, and memory next to the static part. `spread`: factor that
    encloses the step time, never less than assumed for two layouts; `measured_spread`: that of the records, None with
    fewer than two. `floor`: fewest GPU-seconds that a record needs for a token; 0.0 without one.
    """

    time: float = 1.0
    spread: float = 1.5
    memory: float = 1.0
    floor: float = 0.0
    time_records: int = 0
    memory_records: int = 0
    measured_spread: float | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """`gbs` None: undecided, so nothing that depends on it is checked.

    `fixed`: fixed degrees; a `vpp` of 1 means no virtual pipeline. `account` None: embedding and loss may count as
    layers or not. `recompute`: stated modules, with "full" for whole layers; None: the least that fits. `offload`: the
    share of optimizer states in host memory; None: as needed. `graphs`: any CUDA graphs; None: as an own run of
    the work had them, else without. `fastest_dispatcher`: the one that own runs showed to be faster than another; it
    replaces an unstated one. `host_memory_gib`: of a node; None: unlimited. `headroom`: the threshold `T_headroom`.
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
    recompute: frozenset[str] | None = None
    offload: float | None = None
    dispatcher: str | None = None
    ep_overlap: bool | None = None
    dist_opt: bool = True
    graphs: bool | None = None
    calibration: Calibration = Calibration()
    fastest_dispatcher: str | None = None
    host_memory_gib: int | None = None
    headroom: float = SETTINGS["T_headroom"]

    def fix(self, name: str) -> int | None:
        return (self.fixed or {}).get(name)

    @property
    def is_complete(self) -> bool:
        """Return whether all degrees of one layout are stated; those of experts only for models with experts."""
        wanted = ("tp", "pp", "cp", "ep") if self.model.experts else ("tp", "pp", "cp")
        return all(self.fix(name) for name in wanted)


def input_text(value: object) -> str:
    """Return a value as `read_request` takes it: items of a list separated by commas."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


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
            wrong.setdefault(name, "must be stated")
    model, missing = planned_model(values)
    if model is None and "model" not in values and not any(name in values for name in SHAPE):
        missing = {"model": "must be stated: a known name, or the layers and heads of your own shape"}
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
        recompute=_recompute(values),
        offload=_share(values.get("opt_offload_fraction")),
        dispatcher=str(values["dispatcher"]) if values.get("dispatcher") else None,
        dist_opt=values.get("dist_opt") is not False,
        host_memory_gib=_int(values["host_memory_gib"]) if values.get("host_memory_gib") else None,
        graphs=values["graph_impl"] != "none" if values.get("graph_impl") else None,
        ep_overlap=bool(values["ep_overlap"]) if values.get("ep_overlap") is not None else None,
    )


def _recompute(values: Mapping[str, Value]) -> frozenset[str] | None:
    """Return the stated modules. A granularity of none recomputes nothing, regardless of the modules."""
    granularity = values.get("recompute_granularity")
    if granularity == "full":
        return frozenset({"full"})
    if granularity == "none":
        return frozenset()
    modules = values.get("recompute_modules")
    return frozenset(_words(modules)) if modules is not None else None


def _share(value: Value) -> float | None:
    return min(max(float(value), 0.0), 1.0) if isinstance(value, int | float) else None


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
    shape = () if known_model(str(values.get("model"))) else (*SHAPE, *WIDTHS)
    names = [name for name in INPUTS if name not in free and (name not in (*SHAPE, *WIDTHS) or name in shape)]
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
