"""Reads flags of Megatron-Bridge's launch scripts, which may set more or other fields than their names suggest.

`scripts/performance/argument_parser.py` and `utils/overrides.py` (run_script.py, setup_experiment.py);
`scripts/training/setup_experiment.py` and `run_recipe.py` (train.sh). Both accept dashes for underscores.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from app.domain.contract.values import canonical_model, known_model
from app.domain.flags import FLAGS

Set = list[tuple[str, object]]
"""Contract fields with raw values."""

SHORT = {
    "ng": "num_gpus",
    "gn": "gpus_per_node",
    "g": "gpu",
    "c": "compute_dtype",
    "m": "model_family_name",
    "mr": "model_recipe_name",
    "gb": "global_batch_size",
    "mb": "micro_batch_size",
    "sl": "seq_length",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "vp": "virtual_pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "et": "expert_tensor_parallel_size",
    "ms": "max_steps",
    "rl": "recompute_num_layers",
    "ol": "activation_offload_layers",
    "i": "container_image",
    "ce": "custom_env_vars",
    "E": "env",
    "cv": "config_variant",
}

SCRIPTS = frozenset(
    {
        "run_script.py",
        "setup_experiment.py",
        "run_recipe.py",
        "run_recipe.sh",
        "train.sh",
        "launch_with_sbatch.sh",
        "launch_with_nemo_run.py",
        "run_performance_workload.py",
    }
)
OWN_FLAGS = frozenset(
    {"--recipe", "-mr", "--model_recipe_name", "--moe_a2a_overlap", "--moe_flex_dispatcher_backend", "--compute_dtype"}
)
"""Flags that only these scripts have, as written: Megatron-LM's have dashes."""

CHOOSES_RECIPE = frozenset({"compute_dtype", "precision", "task", "mode", "model_recipe_name", "model", "gpu"})
"""Flags of the performance scripts that choose the recipe. Overrides change the recipe, then all other flags do."""

_FIELDS = {flag: field for field, row in FLAGS.items() for flag in row.harness}
"""Contract fields by flag, for flags with the same value as the field."""

_ON = frozenset({"true", "1", "t", "yes", "y"})


@dataclass(frozen=True, slots=True)
class Meaning:
    """The fields that one flag sets. `note`: a sentence about a flag that does not do what its name suggests."""

    fields: tuple[tuple[str, object], ...] = ()
    note: str = ""


def meaning_of(name: str, values: list[str]) -> Meaning:
    """Return what flag `name` (long, with underscores) sets with `values`; empty without a contract field."""
    value = values[0] if values else ""
    if name in _TRAPS:
        return _TRAPS[name](value)
    field = _FIELDS.get(name)
    if field is None or (not value and field != "etp"):
        return Meaning()
    return Meaning(((field, None if value in ("None", "") else value),))


def _a2a_overlap(value: str) -> Meaning:
    if value.lower() not in _ON:
        return Meaning(note="--moe_a2a_overlap false has no effect: the recipe keeps its own overlap.")
    return Meaning(
        (("ep_overlap", True), ("delay_wgrad", True), ("shared_overlap", False)),
        "--moe_a2a_overlap sets two knobs, expert overlap and delayed weight gradients, and clears shared overlap.",
    )


def _flex_backend(value: str) -> Meaning:
    if value == "None":
        return Meaning((("dispatcher_type", "alltoall"), ("flex_backend", None), ("dispatcher", "alltoall")))
    return Meaning((("dispatcher_type", "flex"), ("flex_backend", value), ("dispatcher", value)))


def _graph_scope(value: str) -> Meaning:
    modules = [module for module in value.split(",") if module]
    if "full_iteration" in modules:
        return Meaning((("graph_impl", "full_iteration"), ("graph_modules", [])))
    return Meaning((("graph_modules", modules),))


def _token_drop(value: str) -> Meaning:
    if value.lower() in _ON:
        return Meaning(
            (("capacity", 1.0), ("pad_to_capacity", True), ("force_balance", False), ("routing_mode", "drop-and-pad"))
        )
    return Meaning(
        (("capacity", None), ("pad_to_capacity", False), ("force_balance", True), ("routing_mode", "forced-balance")),
        "--use_tokendrop false forces even routing.",
    )


def _megatron_fsdp(value: str) -> Meaning:
    return Meaning((("fsdp", "megatron_fsdp"),) if value.lower() in _ON else ())


def _data(value: str) -> Meaning:
    return Meaning((("data_mode", "mock" if "mock" in value.lower() else "real"),) if value else ())


_TRAPS: dict[str, Callable[[str], Meaning]] = {
    "tensor_model_parallel_size": lambda value: Meaning(
        (("tp", value), ("sp", value.isdigit() and int(value[:9]) > 1))
    ),
    "moe_a2a_overlap": _a2a_overlap,
    "moe_flex_dispatcher_backend": _flex_backend,
    "cuda_graph_impl": lambda value: Meaning((("graph_impl", value), ("te_rng", value != "none"))),
    "cuda_graph_scope": _graph_scope,
    "recompute_num_layers": lambda value: Meaning(
        (("recompute_granularity", "full"), ("recompute_method", "block"), ("recompute_layers", value))
    ),
    "recompute_modules": lambda value: Meaning(
        (("recompute_granularity", "selective"), ("recompute_modules", value.split(",")))
    ),
    "activation_offload_layers": lambda value: Meaning((("act_offload", True), ("act_offload_layers", value))),
    "use_tokendrop": _token_drop,
    "use_megatron_fsdp": _megatron_fsdp,
    "data": _data,
    "dataset": _data,
}

_RECIPE_PRECISION = re.compile(r"_(bf16|fp8cs|fp8mx|fp8sc|nvfp4)(?=_|$)")
_RECIPE_TASK = re.compile(r"_(pretrain|sft|peft)(?=_|$)")
_PRECISIONS = {"bf16": "bf16", "fp8cs": "fp8_cs", "fp8mx": "fp8_mx", "fp8sc": "fp8_sc", "nvfp4": "nvfp4"}


def fields_of_recipe(recipe: str) -> Set:
    """Return model, task, precision and mock data from a name like `deepseek_v3_pretrain_256gpu_gb200_fp8mx_config`.

    Ignores its GPU and its size, which are those it was tuned for: a command may run it elsewhere.
    """
    fields: Set = []
    task, precision = _RECIPE_TASK.search(recipe), _RECIPE_PRECISION.search(recipe)
    if task:
        fields.append(("task", task[1]))
        model = canonical_model(recipe[: task.start()])
        if known_model(model) is not None:
            fields.append(("model", model))
    if precision:
        fields.append(("precision", _PRECISIONS[precision[1]]))
    if "_mock" in recipe:
        fields.append(("data_mode", "mock"))
    return fields
