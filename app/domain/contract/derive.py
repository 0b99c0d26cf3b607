"""Derives contract fields from other fields. Each rule is a small function that names its inputs or returns None."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from app.domain.contract.fields import FIELDS, FLEX_BACKENDS
from app.domain.contract.values import GPUS_PER_NODE, known_model, outline_name, recognise, shown, stages
from app.domain.run import ParsedLog, Stated, Value

# --- Defaults: a field that a complete argument dump omits has Megatron Core's default and is not unknown.
#
# A version that predates an option behaves like the option's default in later versions.

DEFAULTS: dict[str, Value] = {
    "task": "pretrain",
    "tp": 1,
    "pp": 1,
    "vpp": None,
    "pp_layout": None,
    "pp_account": (),
    "mtp": None,
    "cp": 1,
    "cp_comm": None,
    "hcp_sizes": None,
    "ep": 1,
    "etp": None,
    "sp": False,
    "dist_opt": False,
    "fsdp": "none",
    "dispatcher_type": "allgather",
    "flex_backend": None,
    "dispatch_sms": None,
    "hybridep_preproc_sms": 108,
    "hybridep_permute_fused": False,
    "force_balance": False,
    "lb_type": ("aux_loss",),
    "capacity": None,
    "pad_to_capacity": False,
    "rank_capacity": None,
    "router_dtype": None,
    "expert_bias": False,
    "grouped_gemm": False,
    "permute_fusion": False,
    "router_fusion": False,
    "ep_overlap": False,
    "delay_wgrad": False,
    "shared_overlap": False,
    "dp_overlap": (),
    "tp_overlap": False,
    "attention": "auto",
    "recompute_granularity": "none",
    "recompute_modules": None,
    "recompute_method": None,
    "recompute_layers": None,
    "param_gather_lp": False,
    "opt_offload": False,
    "act_offload": False,
    "fine_offload": (),
    "graph_impl": "none",
    "graph_modules": (),
    "graph_warmup": 3,
    "te_rng": False,
    "manual_gc": False,
    "optimizer": "adam",
    "dist_opt_instances": 1,
    "deterministic": False,
    "nan_checks": True,
    "attention_output_gate": False,
    "swiglu": False,
    "num_experts": None,
    "topk": 2,
    "moe_shared_expert_intermediate_size": None,
    "moe_layer_freq": 1,
    "moe_latent_size": None,
    "multi_latent_attention": False,
    "window_size": None,
    "experimental_attention_variant": None,
}
"""Megatron Core's defaults (`transformer_config.py`, `model_parallel_config.py`, `megatron/training/arguments.py`)."""

WITHOUT_DEFAULT = frozenset(
    {
        *("model", "gpu", "gpus", "gpus_per_node", "cluster", "container", "data_mode", "precision"),
        *("seq_len", "gbs", "mbs", "routing_mode", "dispatcher", "pp_overlap"),
        *("opt_offload_fraction", "act_offload_layers", "manual_gc_interval"),
    }
)
"""Key fields without a default: they differ by job, follow from other fields, or depend on more than one setting."""

_BRIDGE_SECTIONS = ("model.", "comm_overlap.")
"""The sections for which Megatron-Bridge's summary is complete. Fields of other sections stay unknown."""


def defaults_of_dump(log: ParsedLog) -> dict[str, Stated]:
    """Return the defaults of the fields that the log's dump may omit; empty without a complete dump of a model."""
    if ("num_layers" not in log.arguments and "hidden_size" not in log.arguments) or _is_cut(log):
        return {}
    bridge = "bridge" in log.trainer.lower()
    detail = "not in the arguments, so it has its default"
    defaults = {
        name: Stated(value, "default", detail)
        for name, value in DEFAULTS.items()
        if not bridge or FIELDS[name].bridge.startswith(_BRIDGE_SECTIONS)
    }
    return defaults | _task(log)


def _is_cut(log: ParsedLog) -> bool:
    """Return True when no dump is complete: an omitted field may have followed the cut.

    Megatron-LM prints names in order, and `world_size`, which every dump has, follows all names with a default here.
    """
    cut = any(problem.kind == "unfinished dump" for problem in log.problems)
    return cut and "world_size" not in log.arguments


def _task(log: ParsedLog) -> dict[str, Stated]:
    """Return the task of an active fine-tuning switch; empty without one, which means pre-training (the default)."""
    for name, task in (("sft", "sft"), ("perform_rl_step", "rl"), ("peft", "peft")):
        if log.arguments.get(name) not in (None, False):
            return {"task": Stated(task, "arguments", f"{name} = {log.arguments[name]}")}
    return {}


# --- Unused knobs become unset, so that meaningless defaults do not split a stack or a configuration.
#
# Each function handles one switch. `stated_value` of an unset knob is the value that a source states.

Facts = Mapping[str, Stated]


def switch_off_unused(facts: Facts) -> dict[str, Stated]:
    """Return `facts` with every knob unset that has no effect because of another field."""
    fields = dict(facts)
    for rule in _NOT_IN_USE:
        fields |= rule(fields)
    return fields


def _value(facts: Facts, name: str) -> Value:
    return facts[name].value if name in facts else None


def _unused(facts: Facts, because: str, *names: str) -> dict[str, Stated]:
    """Return `names` as unset, with the stated values."""
    return {
        name: Stated(
            None, "derived", f"not in use: {because}", in_use=False, stated_value=None if value == () else value
        )
        for name in names
        if (value := _value(facts, name)) is not None or name not in facts
    }


def _when(field: str, value: Value, because: str, *names: str) -> Callable[[Facts], dict[str, Stated]]:
    """Return a rule: `names` have no effect while `field` has this value."""

    def rule(facts: Facts) -> dict[str, Stated]:
        return _unused(facts, because, *names) if field in facts and facts[field].value == value else {}

    return rule


MOE_FIELDS = (
    "dispatcher",
    "dispatcher_type",
    "flex_backend",
    "dispatch_sms",
    "hybridep_preproc_sms",
    "hybridep_permute_fused",
    "routing_mode",
    "force_balance",
    "lb_type",
    "capacity",
    "pad_to_capacity",
    "rank_capacity",
    "router_dtype",
    "expert_bias",
    "grouped_gemm",
    "permute_fusion",
    "router_fusion",
    "ep_overlap",
    "shared_overlap",
    "etp",
    "edp",
    "topk",
)


def _without_flex(facts: Facts) -> dict[str, Stated]:
    dispatcher = _value(facts, "dispatcher")
    unused: dict[str, Stated] = {}
    if dispatcher is not None and dispatcher not in FLEX_BACKENDS:
        unused |= _unused(facts, f"the dispatcher is {dispatcher}", "flex_backend", "dispatch_sms")
    if dispatcher is not None and dispatcher != "hybridep":
        because = f"the dispatcher is {dispatcher}"
        unused |= _unused(facts, because, "hybridep_preproc_sms", "hybridep_permute_fused")
    return unused


def _without_zeros(facts: Facts) -> dict[str, Stated]:
    """Unset amounts that are stated as 0."""
    return {
        name: replace(facts[name], value=None, in_use=False, stated_value=0)
        for name in ("mtp", "recompute_layers")
        if name in facts and facts[name].value == 0
    }


def _graph_scope(facts: Facts) -> dict[str, Stated]:
    """Translate older scopes: `full` is the whole layer; `full_iteration` was a scope of the local implementation."""
    modules = facts.get("graph_modules")
    if modules is None or not isinstance(modules.value, tuple):
        return {}
    scope = tuple(word for word in modules.value if word not in ("full", "full_iteration"))
    if scope == modules.value:
        return {}
    changed = {"graph_modules": replace(modules, value=scope)}
    if "full_iteration" in modules.value and _value(facts, "graph_impl") == "local":
        changed["graph_impl"] = replace(modules, value="full_iteration")
    return changed


_NOT_LOW = "the precision is not a low one"
_NOT_IN_USE = (
    _graph_scope,
    _when("pp", 1, "pp is 1", "vpp", "pp_layout", "pp_account", "pp_overlap"),
    _when("vpp", 1, "1 chunk per stage is not a virtual pipeline", "vpp"),
    _when("tp", 1, "tp is 1", "sp", "tp_overlap"),
    _when("cp", 1, "cp is 1", "cp_comm", "hcp_sizes"),
    _when("num_experts", None, "the model is dense", *MOE_FIELDS),
    _without_flex,
    _when("recompute_granularity", "none", "recomputation is none", "recompute_modules"),
    _when("recompute_granularity", "none", "recomputation is none", "recompute_method", "recompute_layers"),
    _when("recompute_granularity", "selective", "recomputation is selective", "recompute_method", "recompute_layers"),
    _when("recompute_granularity", "full", "recomputation is full", "recompute_modules"),
    _when("graph_impl", "none", "no CUDA graphs", "graph_modules", "graph_warmup"),
    _when("graph_impl", "full_iteration", "the graph is the whole iteration", "graph_modules"),
    _when("opt_offload", False, "opt_offload is off", "opt_offload_fraction"),
    _when("act_offload", False, "act_offload is off", "act_offload_layers"),
    _when("manual_gc", False, "manual_gc is off", "manual_gc_interval"),
    _without_zeros,
    _when("precision", "bf16", _NOT_LOW, "param_gather_lp"),
    _when("precision", "fp16", _NOT_LOW, "param_gather_lp"),
)


def derive(facts: Facts) -> dict[str, Stated]:
    """Return `facts` with all derived fields that no source states. Unused knobs become unset."""
    fields = dict(facts)
    for name, rule in _RULES:
        fillable = name not in fields or (name in _FILLED_WHEN_UNSET and fields[name].value is None)
        if fillable and (derived := rule(fields)) is not None:
            fields[name] = derived
    return switch_off_unused(fields)


def _count(facts: Facts, name: str) -> int | None:
    value = _value(facts, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _quotient(facts: Facts, total: str, *parts: str) -> Stated | None:
    """Return `total` divided by the product of `parts`; None when one is unknown or the division has a remainder."""
    whole, sizes = _count(facts, total), [_count(facts, part) for part in parts]
    if whole is None or None in sizes:
        return None
    product = math.prod(size for size in sizes if size is not None)
    if whole % product:
        return None
    detail = f"{total} / ({' x '.join(parts)}) = {whole} / {product}"
    return Stated(whole // product, "derived", detail)


def _gpus(facts: Facts) -> Stated | None:
    sizes = [_count(facts, name) for name in ("tp", "pp", "cp", "dp")]
    if None in sizes:
        return None
    return Stated(math.prod(size or 1 for size in sizes), "derived", "tp x pp x cp x dp")


def _gpus_per_node(facts: Facts) -> Stated | None:
    gpu = _value(facts, "gpu")
    usual = GPUS_PER_NODE.get(gpu) if isinstance(gpu, str) else None
    if usual is None:
        return None
    gpus = _count(facts, "gpus") or usual
    return Stated(min(usual, gpus), "derived", f"{gpu} nodes have {usual} GPUs")


def _etp(facts: Facts) -> Stated | None:
    tp = _count(facts, "tp")
    return None if tp is None else Stated(tp, "derived", "unset: the trainer uses tp")


def _gbs(facts: Facts) -> Stated | None:
    """Return mbs x dp, which the trainer uses when the batch is stated as unset; an unstated batch stays unknown."""
    mbs, dp = _count(facts, "mbs"), _count(facts, "dp")
    if "gbs" not in facts or mbs is None or dp is None:
        return None
    return Stated(mbs * dp, "derived", "unset: the trainer uses mbs x dp")


def _vpp(facts: Facts) -> Stated | None:
    layout, pp = _value(facts, "pp_layout"), _count(facts, "pp")
    layout_stages = stages(layout) if isinstance(layout, str) else None
    if not layout_stages or not pp or len(layout_stages) % pp:
        return None
    chunks = len(layout_stages) // pp
    return Stated(chunks, "derived", f"the layout has {len(layout_stages)} stages, pp is {pp}")


def _dispatcher(facts: Facts) -> Stated | None:
    kind, backend = facts.get("dispatcher_type"), facts.get("flex_backend")
    if kind is None or kind.value is None:
        return None
    if kind.value != "flex":
        return Stated(kind.value, "derived", f"dispatcher_type is {kind.value}")
    if backend is None or backend.value is None:
        return Stated("deepep", "derived", "dispatcher_type is flex; its backend is unset, which is deepep")
    return Stated(backend.value, "derived", f"dispatcher_type is flex, flex_backend is {backend.value}")


def _routing_mode(facts: Facts) -> Stated | None:
    """Return the first mode that applies; `dropless` only when the switches of all other modes are known to be off."""
    if _value(facts, "force_balance") is True:
        return Stated("forced-balance", "derived", "force_balance is on")
    capacity = facts.get("capacity")
    if capacity is not None and capacity.value is not None:
        padded = _value(facts, "pad_to_capacity") is True
        mode = "drop-and-pad" if padded else "capacity-drop"
        return Stated(mode, "derived", f"capacity is {shown(capacity.value)}, padding is {'on' if padded else 'off'}")
    if _value(facts, "rank_capacity") is not None and _value(facts, "dispatcher") in ("hybridep", "ncclep"):
        return Stated("capacity-drop", "derived", "rank_capacity is set")
    if "force_balance" in facts and capacity is not None:
        return Stated("dropless", "derived", "nothing forces the router or drops tokens")
    return None


def _recompute_modules(facts: Facts) -> Stated | None:
    if _value(facts, "recompute_granularity") == "selective":
        return Stated(("core_attn",), "derived", "unset: the trainer uses core_attn")
    return None


def _model(facts: Facts) -> Stated | None:
    values = {name: stated.value for name, stated in facts.items()}
    model = recognise(values)
    if model is not None:
        return Stated(model.name, "derived", "its shape matches this model")
    name = outline_name(values)
    return None if name is None else Stated(name, "derived", "made from its shape, which matches no known model")


def _vocabulary(facts: Facts) -> Stated | None:
    """Return the vocabulary size of a known model, so that FLOPs can be computed when no source states it."""
    name = _value(facts, "model")
    model = known_model(name) if isinstance(name, str) else None
    if model is None or model.vocabulary is None:
        return None
    return Stated(model.vocabulary, "derived", f"that of {model.name}")


_RULES: tuple[tuple[str, Callable[[Facts], Stated | None]], ...] = (
    ("gpus", _gpus),
    ("gpus_per_node", _gpus_per_node),
    ("etp", _etp),
    ("dp", lambda facts: _quotient(facts, "gpus", "tp", "pp", "cp")),
    ("edp", lambda facts: _quotient(facts, "gpus", "pp", "ep", "etp")),
    ("gbs", _gbs),
    ("ga", lambda facts: _quotient(facts, "gbs", "mbs", "dp")),
    ("vpp", _vpp),
    ("dispatcher", _dispatcher),
    ("routing_mode", _routing_mode),
    ("recompute_modules", _recompute_modules),
    ("model", _model),
    ("vocab_size", _vocabulary),
)
"""In order of dependency."""

_FILLED_WHEN_UNSET = frozenset({"gbs", "etp", "vpp", "recompute_modules"})
"""Fields that the trainer fills from other fields when they are unset."""
