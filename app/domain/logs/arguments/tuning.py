"""Precision, recomputation, CUDA graphs and the other knobs that several settings decide together."""

from app.domain.logs.arguments.settings_reader import SettingsReader
from app.domain.run import Value

_FP8_RECIPES = {"delayed": "fp8_ds", "tensorwise": "fp8_cs", "blockwise": "fp8_sc", "mxfp8": "fp8_mx"}


def read_precision(reading: SettingsReader) -> None:
    """4-bit over 8-bit over the base format, as trainers apply them."""
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
    names = [name for name in ("fp8_param_gather", "fp4_param_gather", "fp8_param", "fp4_param") if reading.has(name)]
    if names:
        reading.state("param_gather_lp", any(reading.is_on(name) for name in names), *names)


def read_recompute(reading: SettingsReader) -> None:
    """Modules matter to selective recomputation only; unset they are the core of attention."""
    if reading.value("recompute_granularity") is None and reading.is_on("recompute_activations"):
        reading.state("recompute_granularity", "selective", "recompute_activations")
    granularity = reading.found.get("recompute_granularity")
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
    """`cuda_graph_modules` was `cuda_graph_scope`; the implementation was two switches before."""
    impl, impl_names = _graph_implementation(reading)
    if not impl_names:
        return
    scope_names = [name for name in ("cuda_graph_modules", "cuda_graph_scope") if reading.has(name)]
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
    """Who captures graphs, and the settings that say so (none of them: nobody says)."""
    stated = reading.value("cuda_graph_impl")
    if isinstance(stated, str) and stated != "none":
        return stated, ["cuda_graph_impl"]
    switches = {"external_cuda_graph": "transformer_engine", "enable_cuda_graph": "local"}
    for name, impl in switches.items():
        if reading.is_on(name):
            return impl, [name]
    return "none", [name for name in ("cuda_graph_impl", *switches) if reading.has(name)][:1]


def _words_of(value: Value) -> tuple[str, ...]:
    """The words of a value that was a list in some versions and a text with commas in others."""
    parts = value if isinstance(value, tuple) else () if value is None else (value,)
    return tuple(word.strip() for part in parts for word in str(part).split(",") if word.strip())


def read_data_parallelism(reading: SettingsReader) -> None:
    reading.words("dp_overlap", {"overlap_grad_reduce": "grad_reduce", "overlap_param_gather": "param_gather"})
    kinds = {
        "use_megatron_fsdp": "megatron_fsdp",
        "use_custom_fsdp": "megatron_fsdp",
        "use_torch_fsdp2": "torch_fsdp2",
    }
    if reading.has(*kinds):
        on = [name for name in kinds if reading.is_on(name)]
        reading.state("fsdp", kinds[on[0]] if on else "none", *(on[:1] or kinds))


def read_offload(reading: SettingsReader) -> None:
    name = "fine_grained_activation_offloading"
    if reading.has(name):
        modules = reading.value("offload_modules") if reading.is_on(name) else ()
        reading.state("fine_offload", modules or (), name, "offload_modules")


def read_checks_and_data(reading: SettingsReader) -> None:
    checks = ("check_for_nan_in_loss_and_grad", "check_for_nan_in_loss", "check_for_nan_in_grad")
    if reading.has(*checks):
        used = [name for name in checks if reading.has(name)]
        reading.state("nan_checks", any(reading.is_on(name) for name in used), *used)
    if reading.is_on("mock_data"):
        reading.state("data_mode", "mock", "mock_data")
        return
    for name in ("data_path", "train_data_path", "data_args_path", "per_split_data_args_path", "blend"):
        if reading.value(name):
            reading.state("data_mode", "real", name)
            return
