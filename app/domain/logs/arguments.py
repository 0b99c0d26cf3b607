"""Derives contract fields from a trainer's settings, including the fields that several settings decide together."""

from collections.abc import Mapping

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import read_value
from app.domain.flags import FLAGS
from app.domain.logs.settings import Setting
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
        self.refused: list[str] = []

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
            self.refused.append(f"{field} {problem}; the stated value is {raw!r} ({detail}).")

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


def contract_fields(settings: Settings) -> tuple[dict[str, Stated], list[str]]:
    """Return the contract fields that a trainer's settings state, and messages about values that no field accepts.

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
