"""Facts that the preflight checks need beside the identities: the split over the pipeline, heads, groups."""

import math
from collections.abc import Callable, Mapping

from app.domain.contract import pp_layout

Values = Mapping[str, object]


def _count(values: Values, name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _split_layers(values: Values) -> int | None:
    layers, counted = _count(values, "num_layers"), values.get("pp_account")
    return layers + len(set(counted)) if layers is not None and isinstance(counted, list) else None


def _even_split(values: Values) -> bool | None:
    """False as soon as one override is known; True only when all of them are known to be unset."""
    names = ("pp_layout", "first_stage_layers", "last_stage_layers")
    if any(values.get(name) is not None for name in names):
        return False
    pattern = values.get("hybrid_layer_pattern")
    if isinstance(pattern, str) and "|" in pattern:
        return False
    plain = "hybrid_layer_pattern" in values or values.get("family") not in (None, "nemotron-3", "other")
    return True if plain and all(name in values for name in names) else None


def _layout_problem(values: Values) -> str | None:
    """A problem is certain as soon as one is found; that there is none only once all that it depends on is known."""
    if "pp_layout" not in values:
        return None
    layout = values["pp_layout"]
    if not isinstance(layout, str):
        return ""
    mtp = (_count(values, "mtp") or 0) if "mtp" in values else None
    pp, layers = _count(values, "pp"), _count(values, "num_layers")
    problem = pp_layout.layout_problem(layout, pp, layers, mtp)
    return "" if problem is None and None not in (pp, layers, mtp) else problem


def _chunks(values: Values) -> int | None:
    """Virtual chunks of a stage by the layout, whatever `vpp` says."""
    layout, pp = values.get("pp_layout"), _count(values, "pp")
    stages = pp_layout.stages(layout) if isinstance(layout, str) else None
    return len(stages) // pp if stages and pp and len(stages) % pp == 0 else None


def _microbatch_group(values: Values) -> int | None:
    if "microbatch_group_size" not in values:
        return None
    return _count(values, "microbatch_group_size") or _count(values, "pp")


def _hcp_product(values: Values) -> int | None:
    sizes = values.get("hcp_sizes")
    return (math.prod(sizes) if sizes else 0) if isinstance(sizes, list) else None


def _kv_heads(values: Values) -> int | None:
    groups = _count(values, "num_query_groups")
    unset = "num_query_groups" in values or values.get("mla") is True
    return groups or (_count(values, "num_attention_heads") if unset else None)


def _capacity_on(values: Values) -> bool | None:
    capacity = values.get("capacity")
    return None if "capacity" not in values else isinstance(capacity, float) and capacity >= 0


def _dataset_seq_len(values: Values) -> object:
    """Megatron-LM has one length for the model and its data."""
    return values.get("seq_len") if values.get("framework") == "megatron_lm" else None


def _in_batch_packing(values: Values) -> bool | None:
    return False if values.get("task") == "pretrain" and values.get("framework") == "megatron_lm" else None


RULES: tuple[tuple[str, Callable[[Values], object]], ...] = (
    ("ep", lambda values: 1 if values.get("moe") is False else None),
    ("split_layers", _split_layers),
    ("even_split", _even_split),
    ("layout_problem", _layout_problem),
    ("vpp_or_1", _chunks),
    ("microbatch_group", _microbatch_group),
    ("hcp_product", _hcp_product),
    ("kv_heads", _kv_heads),
    ("capacity_on", _capacity_on),
    ("check_for_nan_in_loss", lambda values: values.get("nan_checks")),
    ("dataset_seq_len", _dataset_seq_len),
    ("offline_packing", lambda values: False if values.get("task") == "pretrain" else None),
    ("in_batch_packing", _in_batch_packing),
)
"""In the order in which one needs another. A dense model that nobody gave expert parallelism has none; packing before
the job is a matter of fine-tuning."""
