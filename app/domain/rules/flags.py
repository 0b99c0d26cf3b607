"""How a contract value is written: as flags of Megatron-LM, and as overrides of Megatron-Bridge.

The inverse of what reads them (`domain/logs/launch_args.py`); a test sends every value there and back. Most names come
from the contract's registry; what several flags say together stands here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.domain.contract.fields import FIELDS, PREFIX
from app.domain.rules.rule import Setting

_FLAG = re.compile(r"--[a-z][\w-]*")
_PATH = re.compile(r"[a-z]\w*(?:\.[a-z]\w*)+")


@dataclass(frozen=True, slots=True)
class Spelling:
    """`flags`: those that must be there, with their values (empty: a switch); `without`: those that must not."""

    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """One contract value in both trainers. `bridge` maps paths to values; empty where the launcher decides it."""

    megatron_lm: Spelling
    bridge: Mapping[str, str] = field(default_factory=dict)


def written(name: str, value: Setting, others: Mapping[str, object] | None = None) -> Written:
    """How field `name` becomes `value`; None unsets it. `others`: the run's other facts, where the spelling needs one.

    Empty for fields that no flag sets, such as the number of GPUs.
    """
    if name.startswith(PREFIX):
        return Written(Spelling())
    special = _SPECIAL.get(name)
    if special is not None:
        return special(value, others or {})
    known = FIELDS[name]
    flag = next(iter(_FLAG.findall(known.megatron_lm)), None)
    paths = [path for path in _PATH.findall(known.bridge) if path.count(".") == 1]
    if name == "cp_comm" and isinstance(value, str) and "," in value:  # one for each layer
        value = tuple(value.split(","))
    return Written(
        _simple(flag, value) if flag else Spelling(),
        {path: bridge_text(value) for path in (paths[:1] if name == "dispatch_sms" else paths)},
    )


def _simple(flag: str, value: Setting) -> Spelling:
    """A switch, a value or several values; false, null and nothing at all mean that the flag is not there."""
    if value is None or value is False or value == ():
        return Spelling(without=(flag,))
    if value is True:
        return Spelling({flag: ()})
    values = value if isinstance(value, tuple) else (value,)
    return Spelling({flag: tuple(_text(one) for one in values)})


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def bridge_text(value: Setting) -> str:
    """A value as an override takes it: `true`, `null`, `[attn,moe_router]`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{','.join(_text(one) for one in value)}]"
    return _text(value)


def _switches(flags: Mapping[str, str], paths: Mapping[str, str]) -> Callable[[Setting, Mapping[str, object]], Written]:
    """A set of words, of which each has its own switch."""

    def write(value: Setting, _: Mapping[str, object]) -> Written:
        words = value if isinstance(value, tuple) else ()
        on = {flag: () for word, flag in flags.items() if word in words}
        off = tuple(flag for word, flag in flags.items() if word not in words)
        return Written(Spelling(on, off), {path: bridge_text(word in words) for word, path in paths.items()})

    return write


def _inverted(flag: str, *paths: str) -> Callable[[Setting, Mapping[str, object]], Written]:
    """A switch that turns something off."""

    def write(value: Setting, _: Mapping[str, object]) -> Written:
        on = value is not False
        spelling = Spelling(without=(flag,)) if on else Spelling({flag: ()})
        return Written(spelling, dict.fromkeys(paths, bridge_text(on)))

    return write


def _vpp(value: Setting, _: Mapping[str, object]) -> Written:
    flag, other = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
    spelling = Spelling(without=(flag, other)) if value in (None, 1) else Spelling({flag: (str(value),)}, (other,))
    return Written(spelling, {"model.virtual_pipeline_model_parallel_size": bridge_text(None if value == 1 else value)})


def _dispatcher(value: Setting, _: Mapping[str, object]) -> Written:
    kind, backend = "--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"
    types = {"model.moe_token_dispatcher_type": str(value), "model.moe_flex_dispatcher_backend": "null"}
    if value in ("deepep", "hybridep", "ncclep"):
        flex = {kind: ("flex",), backend: (str(value),)}
        return Written(
            Spelling(flex), {"model.moe_token_dispatcher_type": "flex", "model.moe_flex_dispatcher_backend": str(value)}
        )
    return Written(Spelling({kind: (str(value),)}, (backend, "--moe-enable-deepep")), types)


_RECIPES = {
    "fp8_ds": ("delayed", "hybrid", "bf16_with_fp8_delayed_scaling_mixed"),
    "fp8_cs": ("tensorwise", "hybrid", "bf16_with_fp8_current_scaling_mixed"),
    "fp8_sc": ("blockwise", "e4m3", "bf16_with_fp8_subchannel_scaling_mixed"),
    "fp8_mx": ("mxfp8", "e4m3", "bf16_with_mxfp8_mixed"),
}


def _precision(value: Setting, _: Mapping[str, object]) -> Written:
    fp8, fp4 = ("--fp8-format", "--fp8-recipe"), ("--fp4-format", "--fp4-recipe")
    if value == "nvfp4":
        flags: dict[str, tuple[str, ...]] = {"--bf16": (), fp4[0]: ("e2m1",), fp4[1]: ("nvfp4",)}
        return Written(Spelling(flags, (*fp8, "--fp16")), {"mixed_precision": "bf16_with_nvfp4_mixed"})
    if isinstance(value, str) and value in _RECIPES:
        recipe, form, name = _RECIPES[value]
        flags = {"--bf16": (), fp8[0]: (form,), fp8[1]: (recipe,)}
        return Written(Spelling(flags, (*fp4, "--fp16")), {"mixed_precision": name})
    other = "--fp16" if value == "bf16" else "--bf16"
    return Written(Spelling({f"--{value}": ()}, (*fp8, *fp4, other)), {"mixed_precision": f"{value}_mixed"})


def _recompute(value: Setting, _: Mapping[str, object]) -> Written:
    flag = "--recompute-granularity"
    if value in (None, "none"):
        return Written(Spelling(without=(flag, "--recompute-activations")), {"model.recompute_granularity": "null"})
    return Written(
        Spelling({flag: (str(value),)}, ("--recompute-activations",)), {"model.recompute_granularity": str(value)}
    )


def _graphs(value: Setting, _: Mapping[str, object]) -> Written:
    old = ("--enable-cuda-graph", "--external-cuda-graph")
    return Written(Spelling({"--cuda-graph-impl": (str(value),)}, old), {"model.cuda_graph_impl": str(value)})


def _graph_modules(value: Setting, _: Mapping[str, object]) -> Written:
    plain = _simple("--cuda-graph-modules", value)
    return Written(
        Spelling(plain.flags, (*plain.without, "--cuda-graph-scope")),
        {"model.cuda_graph_modules": bridge_text(value or ())},
    )


def _fine_offload(value: Setting, _: Mapping[str, object]) -> Written:
    switch, modules = "--fine-grained-activation-offloading", "--offload-modules"
    words = value if isinstance(value, tuple) else ()
    bridge = {
        "model.fine_grained_activation_offloading": bridge_text(bool(words)),
        "model.offload_modules": bridge_text(words),
    }
    if not words:
        return Written(Spelling(without=(switch, modules)), bridge)
    return Written(Spelling({switch: (), modules: tuple(map(str, words))}), bridge)


def _fsdp(value: Setting, _: Mapping[str, object]) -> Written:
    flags = {"megatron_fsdp": "--use-megatron-fsdp", "torch_fsdp2": "--use-torch-fsdp2"}
    on = {flag: () for name, flag in flags.items() if name == value}
    off = tuple(flag for name, flag in flags.items() if name != value)
    megatron = bridge_text(value == "megatron_fsdp")
    bridge = {"dist.use_megatron_fsdp": megatron, "ddp.use_megatron_fsdp": megatron}
    if value == "torch_fsdp2":
        bridge["dist.use_torch_fsdp2"] = "true"
    return Written(Spelling(on, off), bridge)


def _param_gather(value: Setting, others: Mapping[str, object]) -> Written:
    low = "fp4" if others.get("precision") == "nvfp4" else "fp8"
    return Written(_simple(f"--{low}-param-gather", value), {f"mixed_precision.{low}_param_gather": bridge_text(value)})


def _routing(value: Setting, _: Mapping[str, object]) -> Written:
    """Dropless and forced balance; the other modes need an amount, which fields of their own hold."""
    forced = "--moe-router-force-load-balancing"
    path = "model.moe_router_force_load_balancing"
    if value == "forced-balance":
        return Written(Spelling({forced: ()}), {path: "true"})
    if value != "dropless":
        return Written(Spelling())
    off = (forced, "--moe-router-force-biased", "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity")
    paths = {path: "false", "model.moe_expert_capacity_factor": "null"}
    return Written(Spelling(without=off), paths)


def _data(value: Setting, _: Mapping[str, object]) -> Written:
    return Written(Spelling({"--mock-data": ()}) if value == "mock" else Spelling(without=("--mock-data",)))


def _none(_: Setting, __: Mapping[str, object]) -> Written:
    return Written(Spelling())


_SPECIAL: Mapping[str, Callable[[Setting, Mapping[str, object]], Written]] = {
    "vpp": _vpp,
    "pp_account": _switches(
        {
            "embedding": "--account-for-embedding-in-pipeline-split",
            "loss": "--account-for-loss-in-pipeline-split",
        },
        {
            "embedding": "model.account_for_embedding_in_pipeline_split",
            "loss": "model.account_for_loss_in_pipeline_split",
        },
    ),
    "dp_overlap": _switches(
        {"grad_reduce": "--overlap-grad-reduce", "param_gather": "--overlap-param-gather"},
        {"grad_reduce": "ddp.overlap_grad_reduce", "param_gather": "ddp.overlap_param_gather"},
    ),
    "pp_overlap": _inverted("--no-overlap-p2p-communication", "comm_overlap.overlap_p2p_comm"),
    "nan_checks": _inverted(
        "--no-check-for-nan-in-loss-and-grad",
        "rerun_state_machine.check_for_nan_in_loss",
        "ddp.check_for_nan_in_grad",
    ),
    "dispatcher": _dispatcher,
    "precision": _precision,
    "recompute_granularity": _recompute,
    "graph_impl": _graphs,
    "graph_modules": _graph_modules,
    "fine_offload": _fine_offload,
    "fsdp": _fsdp,
    "param_gather_lp": _param_gather,
    "routing_mode": _routing,
    "data_mode": _data,
    **dict.fromkeys(("gpus", "gpus_per_node", "dp", "edp", "ga"), _none),
}
