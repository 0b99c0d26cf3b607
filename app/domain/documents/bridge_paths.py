"""Where Megatron-Bridge's ConfigContainer keeps a trainer's settings, and which section wins where two have the same.

Megatron-Bridge `src/megatron/bridge/training/config.py`. Paths are `section.name`.
"""

from collections.abc import Mapping

from app.domain.flops.model_shape import pad_vocabulary
from app.domain.logs.setting import Setting
from app.domain.run import Source, Value

Paths = Mapping[str, object]
"""Leaves of a configuration by path: {"model.tensor_model_parallel_size": 2}. Only what was stated is in it."""

MAX_ITEMS = 1000
_PRECISION = ("bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe", "fp8_param_gather", "fp4_param_gather")
_OVERLAP = (
    "tp_comm_overlap",
    "overlap_p2p_comm",
    "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute",
    "overlap_grad_reduce",
    "overlap_param_gather",
)

_SECTIONS: dict[str, tuple[str, ...]] = {
    "dataset": ("seq_length", "sequence_length"),
    "model": (),
    "train": ("micro_batch_size", "global_batch_size", "manual_gc", "manual_gc_interval"),
    "rerun_state_machine": ("check_for_nan_in_loss",),
    "optimizer": ("use_distributed_optimizer", "optimizer_cpu_offload", "optimizer_offload_fraction"),
    "ddp": (
        "use_distributed_optimizer",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "use_megatron_fsdp",
        "use_custom_fsdp",
        "check_for_nan_in_grad",
    ),
    "rng": ("te_rng_tracker",),
    "dist": ("use_megatron_fsdp", "use_torch_fsdp2"),
    "mixed_precision": _PRECISION,
    "comm_overlap": _OVERLAP,
}
"""Names taken from each section, of `model` all; a later section wins.

`mixed_precision` and `comm_overlap` are applied to the model when training starts, so they stand last.
"""
_RENAMED = {"dataset.sequence_length": "seq_length"}
_ANY_SECTION = frozenset({"use_megatron_fsdp"})
"""On when any of its sections says so: the start-up copies it from one to the other."""


def settings_at(paths: Paths, source: Source) -> dict[str, Setting]:
    """The trainer's settings of a whole container or of single overrides."""
    settings: dict[str, Setting] = {}
    for section, names in _SECTIONS.items():
        prefix = f"{section}."
        present = [path for path in paths if path.startswith(prefix)] if section == "model" else []
        for path in present or [prefix + name for name in names]:
            if path not in paths or _gives_way(section, path, paths[path], settings):
                continue
            name = path.removeprefix(prefix)
            settings[_RENAMED.get(path, name)] = Setting(name, _value(paths[path]), source, section=section)
    recipe = paths.get("mixed_precision")
    if isinstance(recipe, str):
        settings = {name: setting for name, setting in settings.items() if name not in _PRECISION}
        settings["mixed_precision"] = Setting("mixed_precision", recipe, source)
    _pad_vocabulary(settings)
    return settings


def _value(raw: object) -> Value:
    """A leaf as a contract value; an enum's member by its name, any other object as None."""
    if isinstance(raw, Mapping):
        name = raw.get("_name_")
        return name if isinstance(name, str) else None
    if isinstance(raw, list | tuple):
        items = [_value(item) for item in raw[:MAX_ITEMS]]
        return tuple(item for item in items if item is not None and not isinstance(item, tuple))
    return raw if isinstance(raw, str | int | float | bool) else None


def _gives_way(section: str, path: str, raw: object, settings: Mapping[str, Setting]) -> bool:
    """True when an earlier section's value stays: overlap set to null leaves it, and a switch on anywhere is on."""
    name = path.rpartition(".")[2]
    if section == "comm_overlap":
        return raw is None
    return name in _ANY_SECTION and raw is not True and name in settings


def _pad_vocabulary(settings: dict[str, Setting]) -> None:
    """`should_pad_vocab` rounds the vocabulary up to a multiple for every tensor-parallel rank."""

    def whole(name: str, otherwise: int) -> int:
        value = settings[name].value if name in settings else None
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9 else otherwise

    size = whole("vocab_size", 0)
    if size and "should_pad_vocab" in settings and settings["should_pad_vocab"].value is True:
        padded = pad_vocabulary(
            size, whole("make_vocab_size_divisible_by", 128), whole("tensor_model_parallel_size", 1)
        )
        name = f"vocab_size ({size}, padded)"
        settings["padded_vocab_size"] = Setting(name, padded, settings["vocab_size"].source, section="model")
