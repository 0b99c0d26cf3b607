"""Derives contract fields from a trainer's settings, and reads the settings of a command line."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import read_value
from app.domain.flags import FLAGS
from app.domain.logs.settings import Setting, read_literal
from app.domain.run import Source, Stated, Value

ONE_TO_ONE = {field: row.arguments for field, row in FLAGS.items() if row.arguments and not row.together}
"""Fields that one setting states, with its names. A name whose value is None gives way to the next."""


# --- Collects contract fields from a trainer's settings, each with the settings that it comes from.

Settings = Mapping[str, Setting]
"""Trainer's names (`tensor_model_parallel_size`) to what was stated under them."""


class SettingsReader:
    """Collects contract fields, and messages about values that a field does not accept."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.fields: dict[str, Stated] = {}
        self.refused: dict[str, str] = {}

    def has(self, *names: str) -> bool:
        return any(name in self.settings for name in names)

    def value(self, name: str) -> Value:
        setting = self.settings.get(name)
        return setting.value if setting else None

    def is_on(self, name: str) -> bool:
        return self.value(name) is True

    def state(self, field: str, raw: Value, *names: str, source: Source | None = None, why: str = "") -> None:
        """State `field` from the settings `names`. A value that the field does not accept only adds to `refused`."""
        used = [self.settings[name] for name in names if name in self.settings]
        only = used[0] if len(used) == 1 else None  # nearly always
        if source is None and only is not None:
            source = only.source
        elif source is None:
            source = "default" if all(setting.source == "default" for setting in used) else "derived"
        detail = why or (only.detail if only is not None else "; ".join([setting.detail for setting in used]))
        line = used[0].line if used and not why and used[0].source != "default" else 0
        try:
            self.fields[field] = Stated(read_value(field, raw), source, detail, 0, line)
        except ValueError as problem:
            self.refused[field] = f"{field} {problem}; the stated value is {raw!r} ({detail})."

    def words(self, field: str) -> None:
        """State a field as the set of its words whose settings are on."""
        settings = {row.arguments[0]: word for word, row in FLAGS[field].words.items()}
        if self.has(*settings):
            self.state(field, tuple(word for name, word in settings.items() if self.is_on(name)), *settings)


# --- Dispatcher and routing, which several settings decide together.


def read_expert_tensor_parallelism(reading: SettingsReader) -> None:
    if not reading.has("expert_tensor_parallel_size"):
        return
    size = reading.value("expert_tensor_parallel_size")
    if size is not None:
        reading.state("etp", size, "expert_tensor_parallel_size")
    elif "tp" in reading.fields:
        why = "expert_tensor_parallel_size is unset, so it equals that of the other layers."
        reading.state("etp", reading.fields["tp"].value, source="derived", why=why)


def read_dispatcher(reading: SettingsReader) -> None:
    """State the dispatcher: a flex dispatcher has the name of its backend, any other the name of its type."""
    if "dispatcher_type" not in reading.fields:
        return
    kind = reading.fields["dispatcher_type"].value
    names = ["moe_token_dispatcher_type", "moe_flex_dispatcher_backend"]
    if kind != "flex":
        reading.state("flex_backend", None, "moe_token_dispatcher_type")
        reading.state("dispatcher", kind, "moe_token_dispatcher_type")
    elif _is_reset(reading):
        reading.state("dispatcher_type", "alltoall", *names, source="derived")
        reading.state("flex_backend", None, names[1])
        reading.state("dispatcher", "alltoall", *names, source="derived")
    else:
        backend = reading.value("moe_flex_dispatcher_backend")
        if backend is None:  # Before backends could be chosen, a switch enabled DeepEP; it is the default since then
            backend, names[1] = "deepep", "moe_enable_deepep"
        reading.state("flex_backend", backend, *names[1:], source="default" if not reading.has(names[1]) else None)
        reading.state("dispatcher", backend, *names, source="derived")
    _dispatcher_knobs(reading, reading.fields["dispatcher"].value if "dispatcher" in reading.fields else None)


def _is_reset(reading: SettingsReader) -> bool:
    """Return True for a flex dispatcher without a backend, which Megatron-Bridge resets to alltoall.

    See `flex_dispatcher_backend.py`. Megatron-Bridge's settings have a section; in Megatron-LM's arguments the backend
    cannot be unset.
    """
    backend = reading.settings.get("moe_flex_dispatcher_backend")
    return backend is not None and backend.value is None and backend.section == "model"


def _dispatcher_knobs(reading: SettingsReader, dispatcher: Value) -> None:
    """State the settings that only some dispatchers use; they are unset for the others."""
    sms = {
        "deepep": ("moe_flex_dispatcher_num_sms", "moe_deepep_num_sms"),
        "hybridep": ("moe_flex_dispatcher_num_sms", "moe_hybridep_num_sms"),
        "ncclep": ("moe_flex_dispatcher_num_sms",),
    }.get(str(dispatcher), ())
    used = next((name for name in sms if reading.value(name) is not None), None)
    if used:
        reading.state("dispatch_sms", reading.value(used), used)
    elif not sms:
        reading.state("dispatch_sms", None, "moe_token_dispatcher_type")
    for field in ("hybridep_preproc_sms", "hybridep_permute_fused"):
        (name,) = FLAGS[field].arguments
        if dispatcher != "hybridep":
            reading.state(field, None, "moe_token_dispatcher_type")
        elif reading.has(name):
            reading.state(field, reading.value(name), name)


def read_routing_mode(reading: SettingsReader) -> None:
    """State the first mode that applies, because each mode cancels the effect of the later ones on speed."""
    forced, biased = "moe_router_force_load_balancing", "moe_router_force_biased"
    factor, padding = "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"
    rank_factor = "moe_expert_rank_capacity_factor"
    if not reading.has(forced, factor):
        return
    capacity = reading.value(factor)
    if reading.is_on(forced):
        mode, used = "forced-balance", [forced]
    elif reading.value(biased) is not None:
        mode, used = "forced-biased", [biased]
    elif isinstance(capacity, int | float) and capacity >= 0:
        mode = "drop-and-pad" if reading.is_on(padding) else "capacity-drop"
        used = [factor, padding]
    elif reading.value(rank_factor) is not None and _uses_rank_capacity(reading):
        mode, used = "capacity-drop", [rank_factor]
    else:
        mode, used = "dropless", [forced, biased, factor, rank_factor]
    is_default = all(reading.settings[name].source == "default" for name in used if reading.has(name))
    reading.state("routing_mode", mode, *used, source="default" if is_default else "derived")


def _uses_rank_capacity(reading: SettingsReader) -> bool:
    stated = reading.fields.get("dispatcher")
    return stated is not None and stated.value in ("hybridep", "ncclep")


# --- Precision, recomputation, CUDA graphs and other knobs that several settings decide together.

_FP8_RECIPES = {"delayed": "fp8_ds", "tensorwise": "fp8_cs", "blockwise": "fp8_sc", "mxfp8": "fp8_mx"}


def read_precision(reading: SettingsReader) -> None:
    """State the precision as trainers apply it: 4-bit formats win over 8-bit formats, which win over the base."""
    for name in ("fp4", "fp4_format"):
        if reading.value(name):
            return reading.state("precision", "nvfp4", name, source="derived")
    for name in ("fp8", "fp8_format"):
        if reading.value(name):
            recipe = str(reading.value("fp8_recipe") or "delayed").rpartition(".")[2].lower()
            word = _FP8_RECIPES.get(recipe, f"fp8_{recipe}")
            return reading.state("precision", word, name, "fp8_recipe", source="derived")
    if isinstance(reading.value("mixed_precision"), str):
        return reading.state("precision", reading.value("mixed_precision"), "mixed_precision")
    for name in ("bf16", "fp16"):
        if reading.is_on(name):
            return reading.state("precision", name, name, source="derived")
    return None


def read_param_gather(reading: SettingsReader) -> None:
    names = [name for name in FLAGS["param_gather_lp"].arguments if reading.has(name)]
    if names:
        reading.state("param_gather_lp", any(reading.is_on(name) for name in names), *names)


def read_recompute(reading: SettingsReader) -> None:
    """State recomputation. Modules matter only to selective recomputation; unset means core attention."""
    if reading.value("recompute_granularity") is None and reading.is_on("recompute_activations"):
        reading.state("recompute_granularity", "selective", "recompute_activations")
    granularity = reading.fields.get("recompute_granularity")
    if granularity is None:
        return
    modules = reading.value("recompute_modules")
    if granularity.value != "selective":
        why = f"recompute_granularity is {granularity.value}, so it has no effect."
        reading.state("recompute_modules", None, source="derived", why=why)
    elif modules is not None:
        reading.state("recompute_modules", modules, "recompute_modules")
    else:
        why = "recompute_modules is unset, which means core_attn."
        reading.state("recompute_modules", ("core_attn",), source="derived", why=why)


def read_graphs(reading: SettingsReader) -> None:
    """State CUDA graphs. Older versions have `cuda_graph_scope` for the modules and two implementation switches."""
    impl, impl_names = _graph_implementation(reading)
    if not impl_names:
        return
    scope_names = [name for name in FLAGS["graph_modules"].arguments if reading.has(name)]
    used = next((name for name in scope_names if reading.value(name)), scope_names[0] if scope_names else None)
    words = _words_of(reading.value(used)) if used else ()
    if impl == "local" and "full_iteration" in words:
        impl, words = "full_iteration", ()
        impl_names.append(str(used))
    reading.state("graph_impl", impl, *impl_names)
    if impl == "none":
        reading.state("graph_modules", (), source="derived", why="No CUDA graphs are captured.")
    elif used:
        reading.state("graph_modules", () if words == ("full",) else words, used)


def _graph_implementation(reading: SettingsReader) -> tuple[str, list[str]]:
    """Return the implementation that captures graphs, and the settings that state it (empty when none does)."""
    stated = reading.value("cuda_graph_impl")
    if isinstance(stated, str) and stated != "none":
        return stated, ["cuda_graph_impl"]
    switches = {"external_cuda_graph": "transformer_engine", "enable_cuda_graph": "local"}
    for name, impl in switches.items():
        if reading.is_on(name):
            return impl, [name]
    return "none", [name for name in ("cuda_graph_impl", *switches) if reading.has(name)][:1]


def _words_of(value: Value) -> tuple[str, ...]:
    """Return the words of a value that is a list in some versions and a comma-separated text in others."""
    parts = value if isinstance(value, tuple) else () if value is None else (value,)
    return tuple(word.strip() for part in parts for word in str(part).split(",") if word.strip())


def read_data_parallelism(reading: SettingsReader) -> None:
    reading.words("dp_overlap")
    kinds = {name: kind for kind, row in FLAGS["fsdp"].words.items() for name in row.arguments}
    if reading.has(*kinds):
        on = [name for name in kinds if reading.is_on(name)]
        reading.state("fsdp", kinds[on[0]] if on else "none", *(on[:1] or kinds))


def read_offload(reading: SettingsReader) -> None:
    name = "fine_grained_activation_offloading"
    if reading.has(name):
        modules = reading.value("offload_modules") if reading.is_on(name) else ()
        reading.state("fine_offload", modules or (), name, "offload_modules")


def read_checks_and_data(reading: SettingsReader) -> None:
    used = [name for name in FLAGS["nan_checks"].arguments if reading.has(name)]
    if used:
        reading.state("nan_checks", any(reading.is_on(name) for name in used), *used)
    if reading.is_on("mock_data"):
        reading.state("data_mode", "mock", "mock_data")
        return
    for name in ("data_path", "train_data_path", "data_args_path", "per_split_data_args_path", "blend"):
        if reading.value(name):
            reading.state("data_mode", "real", name)
            return


MOE_FIELDS = frozenset({*(name for name, field in FIELDS.items() if field.group == "Experts and routing"), "topk"})
"""Fields without meaning in a dense model."""


def contract_fields(settings: Settings) -> tuple[dict[str, Stated], dict[str, str]]:
    """Return the contract fields that a trainer's settings state, and a message for each field that refused its value.

    A field that several settings decide has the source `derived` and names them in its detail. A field without a
    setting is not stated: only the caller knows whether the omission means the default.
    """
    reading = SettingsReader(settings)
    for field, names in ONE_TO_ONE.items():
        stated = [name for name in names if name in settings]
        if stated:
            best = next((name for name in stated if settings[name].value is not None), stated[0])
            reading.state(field, settings[best].value, best)
    for derive in _DERIVED:
        derive(reading)
    if "num_experts" in reading.fields and reading.fields["num_experts"].value is None:
        for field in MOE_FIELDS & reading.fields.keys():
            reading.fields[field] = Stated(None, "derived", "There are no experts: a dense model.")
    return reading.fields, reading.refused


def _pipeline(reading: SettingsReader) -> None:
    if reading.has("virtual_pipeline_model_parallel_size"):
        chunks = reading.value("virtual_pipeline_model_parallel_size")
        reading.state("vpp", None if chunks == 1 else chunks, "virtual_pipeline_model_parallel_size")
    reading.words("pp_account")


def _attention_heads(reading: SettingsReader) -> None:
    """State the query groups. Megatron-LM prints 1 when grouped-query attention is off, which means unset."""
    if reading.settings.get("group_query_attention") and not reading.is_on("group_query_attention"):
        reading.state("num_query_groups", None, "group_query_attention")
    elif reading.has("num_query_groups"):
        reading.state("num_query_groups", reading.value("num_query_groups"), "num_query_groups")


_DERIVED = (
    _pipeline,
    _attention_heads,
    read_expert_tensor_parallelism,
    read_dispatcher,
    read_routing_mode,
    read_precision,
    read_param_gather,
    read_recompute,
    read_graphs,
    read_data_parallelism,
    read_offload,
    read_checks_and_data,
)
"""The order matters: the routing mode depends on the dispatcher."""


# --- Flags of Megatron-LM and of Megatron-Bridge's harness, and Bridge's overrides `model.name=value`. An
# absent flag states nothing, because its default depends on the version.

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
_ALSO_LAYERS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
_NODE_FLAGS = ("nproc_per_node", "gpus_per_node", "gn")


def stated_by_launch_args(
    args: Mapping[str, object] | str, where: str = "launch_args"
) -> tuple[dict[str, Stated], list[str], dict[str, str]]:
    """Return the contract fields that flags state, all with the source `metadata`, and warnings about unusable values.

    The last part names those of the warnings that are about the value of a contract field, by its name.

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
    fields, sentences = contract_fields(settings)
    refused = {name: f"{where}: {sentence}" for name, sentence in sentences.items()}
    warnings.extend(refused.values())
    gpus_per_node = next((settings[name] for name in _NODE_FLAGS if name in settings), None)
    if gpus_per_node and isinstance(gpus_per_node.value, int) and gpus_per_node.value > 0:
        fields["gpus_per_node"] = Stated(gpus_per_node.value, "metadata", gpus_per_node.detail)
    return (
        {
            name: replace(stated, source="metadata", detail=f"{where}: {stated.detail}")
            for name, stated in fields.items()
        },
        warnings,
        refused,
    )


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
    except ValueError:  # an unmatched quote
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
    if layers:  # embedding and loss may count as a layer each
        layers += sum(name in settings and settings[name].value is True for name in _ALSO_LAYERS)
    per_chunk = numbers.get("num_layers_per_virtual_pipeline_stage")
    if layers and stages and per_chunk and layers % (stages * per_chunk) == 0:
        chunks = layers // (stages * per_chunk)
        name = "virtual_pipeline_model_parallel_size"
        settings.setdefault(name, Setting(name, chunks, "metadata"))
