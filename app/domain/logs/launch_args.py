"""Reads flags of Megatron-LM and of Megatron-Bridge's harness, and Bridge's overrides `model.name=value`.

An absent flag states nothing, because its default depends on the version.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from app.domain.flags import FLAGS
from app.domain.logs.arguments import contract_fields
from app.domain.logs.settings import Setting, read_literal
from app.domain.run import Stated, Value

MAX_TEXT = 100_000
"""Characters of a command line that are read."""

RENAMED = {flag: argument for row in FLAGS.values() for flag, argument in row.renamed.items()}
"""Flags whose argument has a different name."""

A2A_OVERLAP = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
"""Arguments that the single flag `--moe_a2a_overlap` of Megatron-Bridge's harness sets."""

LISTS = frozenset(
    {
        "cp_comm_type",
        "cuda_graph_modules",
        "cuda_graph_scope",
        "hierarchical_context_parallel_sizes",
        "moe_router_load_balancing_type",
        "offload_modules",
        "recompute_modules",
    }
)
"""Flags with several values, which a mapping may hold as one text."""

_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?\Z", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}[a-z][\w.]{0,200}\.([a-z]\w{0,100})=(.*)\Z", re.DOTALL)
_PATTERN_PART = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?\Z")
_WORD = re.compile(r"[^\s,\[\]()'\"]+")
_NODE_FLAGS = ("nproc_per_node", "gpus_per_node", "gn")


def stated_by_launch_args(
    args: Mapping[str, object] | str, where: str = "launch_args"
) -> tuple[dict[str, Stated], list[str]]:
    """Return the contract fields that flags state, all with the source `metadata`, and warnings about unusable values.

    `args` is a command line, or maps flags (with or without dashes) to values. True, None and "" stand for a flag
    without a value. Flags without a contract field are ignored. `where` names their origin in details and warnings.
    """
    pairs = list(_from_text(args) if isinstance(args, str) else _from_mapping(args))
    warnings: list[str] = []
    if not pairs and args:
        warnings.append(f"{where} contains no flags. Write them as --name value, or as a JSON object.")
    settings: dict[str, Setting] = {}
    for name, value in pairs:
        for setting in _settings(name, value):
            earlier = settings.get(setting.name)
            if earlier and earlier.value != setting.value:
                warnings.append(f"{where} states {setting.name} twice; {setting.value} is used.")
            settings[setting.name] = setting
    _add_derived(settings, of_harness=any(name.lstrip("-") == _BACKEND for name, _ in pairs))
    fields, refused = contract_fields(settings)
    warnings.extend(f"{where}: {sentence}" for sentence in refused)
    gpus_per_node = next((settings[name] for name in _NODE_FLAGS if name in settings), None)
    if gpus_per_node and isinstance(gpus_per_node.value, int) and gpus_per_node.value > 0:
        fields["gpus_per_node"] = Stated(gpus_per_node.value, "metadata", gpus_per_node.detail)
    return {
        name: replace(stated, source="metadata", detail=f"{where}: {stated.detail}") for name, stated in fields.items()
    }, warnings


def launch_arguments(args: object) -> dict[str, Value]:
    """Return the arguments that flags set, under the names of the trainer's dump; empty if `args` are no flags."""
    if isinstance(args, str):
        pairs = _from_text(args)
    elif isinstance(args, Mapping):
        pairs = _from_mapping(args)
    else:
        return {}
    settings = [setting for name, value in pairs for setting in _settings(name, value)]
    return {setting.name: {"true": True, "false": False}.get(str(setting.value), setting.value) for setting in settings}


def _from_text(text: str) -> Iterator[tuple[str, object]]:
    """Yield the flags of a command line with their values. Words before the first flag are the program."""
    text = text[:MAX_TEXT].replace("\\\n", " ")
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its partner
        words = text.split()
    name: str | None = None
    values: list[str] = []
    for word in words:
        flag = _FLAG.match(word)
        override = _OVERRIDE.match(word)
        if not flag and not override:
            values.append(word)
            continue
        if name is not None:
            yield name, _values_of(name, values)
        name, values = None, []
        if override:
            yield override[1], override[2]
        elif flag:
            name = flag[1]
            values = [flag[2]] if flag[2] is not None else []
    if name is not None:
        yield name, _values_of(name, values)


def _values_of(name: str, values: list[str]) -> object:
    """Return the value of a flag. Only list flags take several words: a program may follow a launcher's last flag."""
    if len(values) > 1 and name.replace("-", "_") in LISTS:
        return values
    return values[0] if values else True


def _from_mapping(args: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in args.items():
        yield str(name), True if value is None or value == "" else value


def _settings(name: str, raw: object) -> Iterator[Setting]:
    """Yield the settings of one flag; `--no-x` switches x off."""
    name = name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
    name = RENAMED.get(name, name)
    value = _value(name, raw)
    if name.startswith("no_") and value is True:
        name, value = name.removeprefix("no_"), False
    for stored in A2A_OVERLAP if name == "moe_a2a_overlap" else (name,):
        yield Setting(stored, value, "metadata")


def _value(name: str, raw: object) -> Value:
    if isinstance(raw, str):
        if name == "moe_layer_freq" and (pattern := _layer_pattern(raw)):
            return pattern
        # Job files write lists in several ways: `attn mlp`, `attn,mlp`, `[attn mlp]`, `['attn', 'mlp']`
        words = _WORD.findall(raw) if name in LISTS else []
        return tuple(words) if len(words) > 1 else read_literal(raw)
    if isinstance(raw, Iterable):
        items = [read_literal(item) if isinstance(item, str) else item for item in raw]
        return tuple(item for item in items if isinstance(item, str | int | float))
    return raw if isinstance(raw, bool | int | float) else None


def _layer_pattern(text: str) -> tuple[int, ...] | None:
    """Return the MoE layers of a pattern such as `([0]*3+[1]*58)`, which Megatron-LM evaluates; None for other text."""
    layers: list[int] = []
    for part in text.replace(" ", "").strip("()").split("+"):
        match = _PATTERN_PART.match(part)
        if not match or len(layers) > 2000:
            return None
        layers.extend([int(layer) for layer in match[1].split(",")] * int(match[2] or 1))
    return tuple(layers[:2000])


_BACKEND = "moe_flex_dispatcher_backend"
"""With underscores a flag of Megatron-Bridge's harness. Megatron-LM's own, with hyphens, does not set the type."""


def _add_derived(settings: dict[str, Setting], *, of_harness: bool) -> None:
    """Add settings that follow from other flags: torchrun's world size, pipeline chunks, the type of a backend."""
    backend = settings.get(_BACKEND)
    if backend and of_harness:  # it sets only the backend, with None for alltoall
        kind = "alltoall" if backend.value is None else "flex"
        settings.setdefault("moe_token_dispatcher_type", Setting("moe_token_dispatcher_type", kind, "metadata"))
    numbers = {
        name: setting.value for name, setting in settings.items() if type(setting.value) is int and setting.value > 0
    }
    nodes, per_node = numbers.get("nnodes"), next((numbers[name] for name in _NODE_FLAGS if name in numbers), None)
    if "world_size" not in settings and nodes and per_node:
        settings["world_size"] = Setting("world_size", nodes * per_node, "metadata")
    layers, stages = numbers.get("num_layers"), numbers.get("pipeline_model_parallel_size")
    per_chunk = numbers.get("num_layers_per_virtual_pipeline_stage")
    if layers and stages and per_chunk and layers % (stages * per_chunk) == 0:
        chunks = layers // (stages * per_chunk)
        name = "virtual_pipeline_model_parallel_size"
        settings.setdefault(name, Setting(name, chunks, "metadata"))
