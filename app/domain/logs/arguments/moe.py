"""How tokens reach their experts, as several settings decide it together."""

from app.domain.logs.arguments.settings_reader import SettingsReader
from app.domain.run import Value


def read_expert_tensor_parallelism(reading: SettingsReader) -> None:
    if not reading.has("expert_tensor_parallel_size"):
        return
    size = reading.value("expert_tensor_parallel_size")
    if size is not None:
        reading.state("etp", size, "expert_tensor_parallel_size")
    elif "tp" in reading.found:
        why = "expert_tensor_parallel_size is unset, so it is that of the other layers."
        reading.state("etp", reading.found["tp"].value, source="derived", why=why)


def read_dispatcher(reading: SettingsReader) -> None:
    """The dispatcher's name: a flex dispatcher is named by its backend, any other by its type."""
    if "dispatcher_type" not in reading.found:
        return
    kind = reading.found["dispatcher_type"].value
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
        if backend is None:  # Before there was a choice of backends a switch turned DeepEP on; it is the default since
            backend, names[1] = "deepep", "moe_enable_deepep"
        reading.state("flex_backend", backend, *names[1:], source="default" if not reading.has(names[1]) else None)
        reading.state("dispatcher", backend, *names, source="derived")
    _dispatcher_knobs(reading, reading.found["dispatcher"].value if "dispatcher" in reading.found else None)


def _is_reset(reading: SettingsReader) -> bool:
    """Megatron-Bridge resets a flex dispatcher that has no backend to alltoall (`flex_dispatcher_backend.py`).

    Its settings are known by their section; in Megatron-LM's arguments the backend cannot be unset.
    """
    backend = reading.settings.get("moe_flex_dispatcher_backend")
    return backend is not None and backend.value is None and backend.section == "model"


def _dispatcher_knobs(reading: SettingsReader, dispatcher: Value) -> None:
    """Settings that only some dispatchers look at are unset for the others."""
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
    for field, name in (
        ("hybridep_preproc_sms", "moe_hybridep_num_sms_preprocessing"),
        ("hybridep_permute_fused", "moe_permute_fusion_into_hybridep"),
    ):
        if dispatcher != "hybridep":
            reading.state(field, None, "moe_token_dispatcher_type")
        elif reading.has(name):
            reading.state(field, reading.value(name), name)


def read_routing_mode(reading: SettingsReader) -> None:
    """The first that applies, since each makes the later ones meaningless for speed."""
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
    stated = reading.found.get("dispatcher")
    return stated is not None and stated.value in ("hybridep", "ncclep")
