"""Contract fields that follow from others: each a small function that names its inputs, or says nothing."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from app.domain.contract import values as pp_layout
from app.domain.contract.fields import FIELDS
from app.domain.contract.values import GPUS_PER_NODE, known_model, outline_name, recognise, shown
from app.domain.run import ParsedLog, Stated, Value

# --- What a dump of arguments says by leaving a field out: Megatron Core's default, not "unknown".
#
# A version that does not list an option yet behaves as the option's default does in later versions.

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
"""Fields of the keys that are unknown where nobody states them: each job has its own, they follow from others, or the
trainer decides by more than one setting."""

_BRIDGE_SECTIONS = ("model.", "comm_overlap.")
"""Megatron-Bridge's summary is complete for the model and the overlap, which is part of it; the rest stays unknown."""


def defaults_of_dump(log: ParsedLog) -> dict[str, Stated]:
    """Fields that the log's dump may leave out, at their defaults; empty when it holds no whole dump of a model."""
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
    """True when no dump was printed to its end: what it leaves out may have stood behind the cut.

    Megatron-LM prints names in order; `world_size`, which every dump has, comes behind all that have a default here.
    """
    cut = any(problem.kind == "unfinished dump" for problem in log.problems)
    return cut and "world_size" not in log.arguments


def _task(log: ParsedLog) -> dict[str, Stated]:
    """A dump without a fine-tuning switch that is on is one of pre-training (the default above)."""
    for name, task in (("sft", "sft"), ("perform_rl_step", "rl"), ("peft", "peft")):
        if log.arguments.get(name) not in (None, False):
            return {"task": Stated(task, "arguments", f"{name} = {log.arguments[name]}")}
    return {}


# --- Knobs that have no effect in a run: they become unset, so that meaningless defaults split no stack and no config.
#
# Each function looks at one switch; what was stated under a knob is told in its detail.

Facts = Mapping[str, Stated]
FLEX_BACKENDS = ("deepep", "hybridep", "ncclep")


def switch_off_unused(facts: Facts) -> dict[str, Stated]:
    """`facts` with every knob unset that another field leaves without effect."""
    known = dict(facts)
    for rule in _NOT_IN_USE:
        known |= rule(known)
    return known


def _value(facts: Facts, name: str) -> Value:
    return facts[name].value if name in facts else None


def _unused(facts: Facts, because: str, *names: str) -> dict[str, Stated]:
    """`names` as unset; where something was stated, that is told."""
    return {
        name: Stated(None, "derived", f"not in use: {because}" + _instead(facts, name))
        for name in names
        if name not in facts or facts[name].value is not None
    }


def _instead(facts: Facts, name: str) -> str:
    return f" (stated: {shown(facts[name].value)})" if name in facts and facts[name].value != () else ""


def _without_pipeline(facts: Facts) -> dict[str, Stated]:
    if _value(facts, "pp") == 1:
        return _unused(facts, "pp is 1", "vpp", "pp_layout", "pp_account", "pp_overlap")
    return _unused(facts, "1 chunk a stage is no virtual pipeline", "vpp") if _value(facts, "vpp") == 1 else {}


def _without_tensor_parallelism(facts: Facts) -> dict[str, Stated]:
    return _unused(facts, "tp is 1", "sp", "tp_overlap") if _value(facts, "tp") == 1 else {}


def _without_context_parallelism(facts: Facts) -> dict[str, Stated]:
    return _unused(facts, "cp is 1", "cp_comm", "hcp_sizes") if _value(facts, "cp") == 1 else {}


def _without_experts(facts: Facts) -> dict[str, Stated]:
    if "num_experts" not in facts or facts["num_experts"].value is not None:
        return {}
    return _unused(facts, "the model is dense", *MOE_FIELDS)


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


def _without_recomputation(facts: Facts) -> dict[str, Stated]:
    granularity = _value(facts, "recompute_granularity")
    because = f"recomputation is {granularity}"
    if granularity == "none":
        return _unused(facts, because, "recompute_modules", "recompute_method", "recompute_layers")
    if granularity == "selective":
        return _unused(facts, because, "recompute_method", "recompute_layers")
    return _unused(facts, because, "recompute_modules") if granularity == "full" else {}


def _without_graphs(facts: Facts) -> dict[str, Stated]:
    implementation = _value(facts, "graph_impl")
    if implementation == "none":
        return _unused(facts, "no CUDA graphs", "graph_modules", "graph_warmup")
    if implementation == "full_iteration":
        return _unused(facts, "the graph is the whole iteration", "graph_modules")
    return {}


def _without_switches(facts: Facts) -> dict[str, Stated]:
    """Amounts of what is switched off."""
    unused: dict[str, Stated] = {}
    for switch, *amounts in (
        ("opt_offload", "opt_offload_fraction"),
        ("act_offload", "act_offload_layers"),
        ("manual_gc", "manual_gc_interval"),
    ):
        if _value(facts, switch) is False:
            unused |= _unused(facts, f"{switch} is off", *amounts)
    for name in ("mtp", "recompute_layers"):
        if name in facts and facts[name].value == 0:
            unused[name] = replace(facts[name], value=None, detail=f"{facts[name].detail} (stated: 0)".lstrip())
    if _value(facts, "precision") in ("bf16", "fp16"):
        unused |= _unused(facts, "the precision is not a low one", "param_gather_lp")
    return unused


def _graph_scope(facts: Facts) -> dict[str, Stated]:
    """Older spellings: scope `full` is the whole layer; `full_iteration` was a scope of the local implementation."""
    modules = facts.get("graph_modules")
    if modules is None or not isinstance(modules.value, tuple):
        return {}
    kept = tuple(word for word in modules.value if word not in ("full", "full_iteration"))
    if kept == modules.value:
        return {}
    changed = {"graph_modules": Stated(kept, modules.source, modules.detail)}
    if "full_iteration" in modules.value and _value(facts, "graph_impl") == "local":
        changed["graph_impl"] = Stated("full_iteration", modules.source, modules.detail)
    return changed


_NOT_IN_USE = (
    _graph_scope,
    _without_pipeline,
    _without_tensor_parallelism,
    _without_context_parallelism,
    _without_experts,
    _without_flex,
    _without_recomputation,
    _without_graphs,
    _without_switches,
)


def derive(facts: Facts) -> dict[str, Stated]:
    """`facts` and everything that follows from them and nobody stated; knobs that are not in use become unset."""
    known = dict(facts)
    for name, rule in _RULES:
        fillable = name not in known or (name in _FILLED_WHEN_UNSET and known[name].value is None)
        if fillable and (derived := rule(known)) is not None:
            known[name] = derived
    return switch_off_unused(known)


def _count(facts: Facts, name: str) -> int | None:
    value = _value(facts, name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _quotient(facts: Facts, total: str, *parts: str) -> Stated | None:
    """`total` over the product of `parts`, when all are known and it divides."""
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
    return None if tp is None else Stated(tp, "derived", "unset: the trainer takes tp")


def _dp(facts: Facts) -> Stated | None:
    return _quotient(facts, "gpus", "tp", "pp", "cp")


def _edp(facts: Facts) -> Stated | None:
    return _quotient(facts, "gpus", "pp", "ep", "etp")


def _ga(facts: Facts) -> Stated | None:
    return _quotient(facts, "gbs", "mbs", "dp")


def _gbs(facts: Facts) -> Stated | None:
    """Stated as unset, the trainer takes one micro-batch a replica; a batch that nobody stated stays unknown."""
    mbs, dp = _count(facts, "mbs"), _count(facts, "dp")
    if "gbs" not in facts or mbs is None or dp is None:
        return None
    return Stated(mbs * dp, "derived", "unset: the trainer takes mbs x dp")


def _vpp(facts: Facts) -> Stated | None:
    layout, pp = _value(facts, "pp_layout"), _count(facts, "pp")
    stages = pp_layout.stages(layout) if isinstance(layout, str) else None
    if not stages or not pp or len(stages) % pp:
        return None
    chunks = len(stages) // pp
    return Stated(chunks, "derived", f"the layout has {len(stages)} stages, pp is {pp}")


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
    """The first match wins; `dropless` only when the switches of the other modes are known to be off."""
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
        return Stated(("core_attn",), "derived", "unset: the trainer takes core_attn")
    return None


def _model(facts: Facts) -> Stated | None:
    values = {name: stated.value for name, stated in facts.items()}
    known = recognise(values)
    if known is not None:
        return Stated(known.name, "derived", "its shape is that of this model")
    name = outline_name(values)
    return None if name is None else Stated(name, "derived", "made from its shape, which is that of no model we know")


def _vocabulary(facts: Facts) -> Stated | None:
    """A known model has a known vocabulary; a recognised shape without one still gets its FLOPs."""
    name = _value(facts, "model")
    model = known_model(name) if isinstance(name, str) else None
    if model is None or model.vocabulary is None:
        return None
    return Stated(model.vocabulary, "derived", f"that of {model.name}")


_RULES: tuple[tuple[str, Callable[[Facts], Stated | None]], ...] = (
    ("gpus", _gpus),
    ("gpus_per_node", _gpus_per_node),
    ("etp", _etp),
    ("dp", _dp),
    ("edp", _edp),
    ("gbs", _gbs),
    ("ga", _ga),
    ("vpp", _vpp),
    ("dispatcher", _dispatcher),
    ("routing_mode", _routing_mode),
    ("recompute_modules", _recompute_modules),
    ("model", _model),
    ("vocab_size", _vocabulary),
)
"""In the order in which one needs another."""

_FILLED_WHEN_UNSET = frozenset({"gbs", "etp", "vpp", "recompute_modules"})
"""Fields for which the trainer takes another field's value when they are unset."""
