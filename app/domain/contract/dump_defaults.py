"""What a dump of arguments says by leaving a field out: Megatron Core's default, not "unknown".

A version that does not list an option yet behaves as the option's default does in later versions.
"""

from app.domain.contract.fields import FIELDS
from app.domain.run import ParsedLog, Stated, Value

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
