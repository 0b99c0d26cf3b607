"""Knobs that have no effect in a run: they become unset, so that meaningless defaults split no stack and no config.

Each function looks at one switch; what was stated under a knob is told in its detail.
"""

from collections.abc import Mapping
from dataclasses import replace

from app.domain.contract.values import shown
from app.domain.run import Stated, Value

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
