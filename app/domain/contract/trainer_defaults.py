"""The values that a trainer gives to flags that a launch omits, by its release; and the flags that a release lacks.

The facts and their sources are in `app/domain/trainer_defaults.toml`. A launch that states no release has the newest
one's defaults. An argument dump needs none of this, because it shows what the trainer used.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from app.domain.contract.derive import DEFAULTS, WITHOUT_DEFAULT
from app.domain.run import Stated, Value

Trainer = Literal["Megatron-LM", "Primus", "Megatron-Bridge"]
"""Trainers whose launches are read. NeMo's configurations have the names of Megatron-Bridge's."""

_TABLE: Mapping[str, Any] = tomllib.loads(
    (Path(__file__).parents[1] / "trainer_defaults.toml").read_text(encoding="utf-8")
)
_MEGATRON: Mapping[str, Any] = _TABLE["megatron_lm"]
_OF_PRESETS = (
    *("mtp", "ep", "dist_opt", "dp_overlap"),
    *("dispatcher_type", "flex_backend", "dispatch_sms", "force_balance", "lb_type", "capacity", "pad_to_capacity"),
    *("rank_capacity", "router_dtype", "expert_bias", "grouped_gemm", "permute_fusion", "router_fusion"),
    *("shared_overlap", "attention_output_gate", "swiglu", "num_experts", "topk", "moe_layer_freq"),
    *("moe_shared_expert_intermediate_size", "moe_latent_size", "multi_latent_attention", "window_size"),
    *("experimental_attention_variant",),
)
"""Fields that the model presets of Primus set, or on which its module presets differ."""


def release_of(version: object) -> tuple[int, int] | None:
    """Return the release of `0.14.0rc1` or `core_v0.14.0` as (0, 14). None without one."""
    numbers = re.search(r"(\d{1,4})\.(\d{1,4})", str(version))
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def launch_defaults(trainer: Trainer, version: object, stated: Mapping[str, Stated]) -> dict[str, Value]:
    """Return the values of omitted fields. `stated`: what the launch states; `version`: of Megatron Core, or None."""
    if trainer == "Megatron-Bridge":
        return {}
    values = {name: value for name, value in DEFAULTS.items() if name not in WITHOUT_DEFAULT}
    if trainer == "Primus":
        values = {name: value for name, value in values.items() if name not in _OF_PRESETS}
        values.update(_TABLE["primus"]["values"])
        return values
    values.update(_MEGATRON["values"])
    release = release_of(version)
    if release is None:
        return values
    dispatcher = stated["dispatcher"].value if "dispatcher" in stated else None
    if sms := _dispatch_sms(dispatcher, release):
        values["dispatch_sms"] = sms
    if dispatcher != "hybridep" or not _has("moe_hybridep_num_sms_preprocessing", release):
        values["hybridep_preproc_sms"] = None
    return values


def _dispatch_sms(dispatcher: Value, release: tuple[int, int]) -> int | None:
    default = _MEGATRON["dispatch_sms"].get(str(dispatcher))
    if default is None or release >= (release_of(_MEGATRON["library_decides_sms"]) or release):
        return None
    return int(default["sms"]) if release >= (release_of(default["since"]) or release) else None


def _has(flag: str, release: tuple[int, int]) -> bool:
    since = release_of(_MEGATRON["since"].get(flag, ""))
    return since is None or release >= since


def newer_names(version: object, names: Iterable[str]) -> list[str]:
    """Return which names of flags, with underscores, came after this release of Megatron Core.

    Empty if the version is unknown.
    """
    release = release_of(version)
    return [] if release is None else [name for name in dict.fromkeys(names) if not _has(name, release)]


def newer_flags(version: object, names: Iterable[str]) -> list[str]:
    """Return the flags that came after this release of Megatron Core, each with its first release."""
    return [f"--{name.replace('_', '-')} (since {_MEGATRON['since'][name]})" for name in newer_names(version, names)]
