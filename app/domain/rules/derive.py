"""Derived facts, each a small function of the facts it names. A fact that cannot be derived is absent."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from app.domain.contract import values as pp_layout
from app.domain.contract.fields import FLEX_BACKENDS, PREFIX
from app.domain.contract.values import GB_PER_GIB, GPU_MEMORY_GIB, GPUS_PER_NODE, canonical_model, known_model
from app.domain.numbers import share_text
from app.domain.performance.flops import peak_flops
from app.domain.references.point import published
from app.domain.rules.facts import SETTINGS, normal
from app.domain.rules.rule import Wall
from app.domain.text import capitalized

# --- Facts about a model by its name or shape. Values without a source are unknown.
#
# Totals and active parameters are those of the model table in docs/rules.md: weight counts of the public
# configurations.

Values = Mapping[str, object]
Rule = Callable[[Values], object]


def _when_known(name: str, of: Callable[[Any], object]) -> Rule:
    """Return `of` applied to the value of `name`, also if it is unset; nothing if it is unknown."""
    return lambda values: of(values[name]) if name in values else None


FAMILIES = (
    ("deepseekv3", "deepseek-v3"),
    ("deepseek", "deepseek"),
    ("qwen330b", "qwen3-30b"),
    ("qwen3235b", "qwen3-235b"),
    ("qwen3next", "qwen3-next"),
    ("qwen35", "qwen3.5"),
    ("kimik2", "kimi-k2"),
    ("gptoss", "gpt-oss"),
    ("nemotron3", "nemotron-3"),
    ("mixtral", "mixtral"),
    ("moonlight", "moonlight"),
    ("llama", "llama"),
    ("qwen", "qwen"),
)
"""By the beginning of a name without separators, longest first."""

_BILLIONS = {
    "DeepSeek-V3": (671.0, 37.6),
    "DeepSeek-V2": (235.7, 21.4),
    "DeepSeek-V2-Lite": (15.7, 2.7),
    "Kimi-K2": (1026.0, 32.9),
    "Qwen3-30B-A3B": (30.5, 3.35),
    "Qwen3-235B-A22B": (235.1, 22.2),
    "Qwen3-Next-80B-A3B": (79.7, 3.9),
    "GPT-OSS-120B": (116.8, 5.7),
    "GPT-OSS-20B": (20.9, 4.2),
    "Mixtral-8x7B": (46.7, 12.9),
    "Mixtral-8x22B": (140.6, 39.2),
    "Nemotron-3-Nano-30B-A3B": (30.0, 3.5),
    "Nemotron-3-Super-120B-A12B": (120.0, 12.0),
    "Moonlight-16B": (16.0, 3.0),
}
_GFLOP_PER_TOKEN: Mapping[tuple[object, ...], float] = {
    ("DeepSeek-V3", 4096, 1): 259.993,
    ("DeepSeek-V3", 4096, 0): 249.812,
    ("Qwen3-30B-A3B", 4096, 0): 23.006,
    ("Qwen3-235B-A22B", 4096, 0): 148.035,
    ("GPT-OSS-120B", 4096, 0): 32.630,
    ("Kimi-K2", 4096, 0): 204.477,
    ("Nemotron-3-Nano-30B-A3B", 8192, 0): 22.278,
    ("Nemotron-3-Super-120B-A12B", 8192, 2): 84.727,
}
_DENSE_LAYERS = {
    "DeepSeek-V3": 3,
    "DeepSeek-V2": 1,
    "DeepSeek-V2-Lite": 1,
    "Kimi-K2": 1,
    "Qwen3-30B-A3B": 0,
    "Qwen3-235B-A22B": 0,
    "Qwen3-Next-80B-A3B": 0,
    "GPT-OSS-120B": 0,
    "GPT-OSS-20B": 0,
    "Mixtral-8x7B": 0,
    "Mixtral-8x22B": 0,
    "Moonlight-16B": 1,
}
_MLA = ("deepseek-v3", "deepseek", "kimi-k2", "moonlight")
_SHARED = {
    **dict.fromkeys(("deepseek-v3", "deepseek", "kimi-k2", "qwen3-next", "nemotron-3"), True),
    **dict.fromkeys(("qwen3-30b", "qwen3-235b", "gpt-oss", "mixtral"), False),
}


def _name(values: Values) -> str:
    return canonical_model(str(values["model"])) if values.get("model") else ""


def _family(values: Values) -> str | None:
    if not values.get("model"):
        return None
    folded = "".join(letter for letter in str(values["model"]).rsplit("/", 1)[-1].lower() if letter.isalnum())
    return next((family for start, family in FAMILIES if folded.startswith(start)), "other")


def _shape(field: str) -> Callable[[Values], object]:
    def rule(values: Values) -> object:
        shape = known_model(_name(values))
        return getattr(shape, field) if shape is not None else None

    return rule


def _mla(values: Values) -> bool | None:
    if "multi_latent_attention" in values:
        return bool(values["multi_latent_attention"])
    family = values.get("family")
    return None if family in (None, "other") else family in _MLA


def _dense_layers(values: Values) -> int | None:
    layers, frequency = values.get("num_layers"), values.get("moe_layer_freq")
    if values.get("moe") is False and isinstance(layers, int):
        return layers
    if isinstance(frequency, list) and frequency:
        return _dense_by_frequency(frequency, layers)
    return _DENSE_LAYERS.get(_name(values))


def _dense_by_frequency(frequency: list[object], layers: object) -> int | None:
    """Return the number of dense layers. A list has a flag per layer; a single n means that every n-th is MoE."""
    if len(frequency) > 1:
        return sum(1 for flag in frequency if flag == 0)
    every = frequency[0]
    if not isinstance(layers, int) or not isinstance(every, int) or every < 1:
        return None
    return layers - -(-layers // every)


def _shared(values: Values) -> bool | None:
    if "moe_shared_expert_intermediate_size" in values:
        return bool(values["moe_shared_expert_intermediate_size"])
    return _SHARED.get(str(values.get("family")))


def _gdn(values: Values) -> bool | None:
    if "experimental_attention_variant" in values:
        return values["experimental_attention_variant"] == "gated_delta_net"
    family = values.get("family")
    return None if family in (None, "other") else family in ("qwen3-next", "qwen3.5")


def _vlm(values: Values) -> bool | None:
    if not values.get("model"):
        return None
    words = str(values["model"]).lower().replace("_", "-").split("-")
    return "vl" in words or "vlm" in words


def _billions(place: int) -> Callable[[Values], float | None]:
    def rule(values: Values) -> float | None:
        sizes = _BILLIONS.get(_name(values))
        return None if sizes is None else sizes[place]

    return rule


def _gflop(values: Values) -> float | None:
    mtp = values.get("mtp") or 0
    return _GFLOP_PER_TOKEN.get((_name(values), values.get("seq_len"), mtp))


MODEL_RULES: tuple[tuple[str, Rule], ...] = (
    ("family", _family),
    ("num_layers", _shape("layers")),
    ("hidden_size", _shape("hidden")),
    ("num_attention_heads", _shape("heads")),
    ("num_experts", _shape("experts")),
    ("topk", _shape("topk")),
    ("moe", _when_known("num_experts", lambda experts: experts is not None and int(str(experts)) > 1)),
    ("mla", _mla),
    ("dense_layers", _dense_layers),
    ("shared_experts", _shared),
    ("gdn", _gdn),
    ("vlm", _vlm),
    ("total_billions", _billions(0)),
    ("active_billions", _billions(1)),
    ("gflop_per_token_model", _gflop),
)


# --- Facts about a GPU model (NVIDIA/dgxc-benchmarking README, 2026-07-30; CUDA's table of architectures). Values
# without a source are unknown.

_ARCH = {
    "V100": 70,
    **dict.fromkeys(("A100", "A800"), 80),
    **dict.fromkeys(("H100", "H200", "H800", "H20"), 90),
    **dict.fromkeys(("B200", "GB200"), 100),
    **dict.fromkeys(("B300", "GB300"), 103),
}
_NVL72 = ("GB200", "GB300", "VR200")
_OAM = ("MI300X", "MI325X", "MI355X")
"""Eight to a board, all joined by Infinity Fabric (AMD's data sheets)."""


def _arch(gpu: object) -> str | None:
    number = _ARCH.get(str(gpu))
    return None if number is None else f"sm{number}"


def _generation(first: int, last: int) -> Callable[[object], bool | None]:
    def rule(gpu: object) -> bool | None:
        number = _ARCH.get(str(gpu))
        return None if number is None else first <= number <= last

    return rule


def _has_data(gpu: object) -> bool:
    return str(gpu) in _ARCH or str(gpu) in _NVL72


FACTS: Mapping[str, Callable[[object], object]] = {
    "arch": _arch,
    "arch_number": lambda gpu: _ARCH.get(str(gpu)),
    "hopper": _generation(90, 90),
    "blackwell": _generation(100, 109),
    "nvl72": lambda gpu: str(gpu) in _NVL72 if _has_data(gpu) else None,
    "nvlink_domain": lambda gpu: (72 if str(gpu) in _NVL72 else 8) if _has_data(gpu) or gpu in _OAM else None,
    "hbm_gb": lambda gpu: None if (gib := GPU_MEMORY_GIB.get(str(gpu))) is None else gib * GB_PER_GIB,
    "grace": lambda gpu: str(gpu).startswith("GB") if _has_data(gpu) else None,
}


def gpus_per_node(gpu: object) -> int | None:
    """Return the usual number of GPUs per node."""
    return GPUS_PER_NODE.get(str(gpu))


def mfu(values: Mapping[str, object]) -> float | None:
    """Return model FLOPs utilisation relative to the peak of the precision in use."""
    tflops = values.get("tflops_gpu")
    peak = peak_flops(str(values.get("gpu")), str(values.get("precision")))
    return tflops / peak.tflops if isinstance(tflops, float) and peak is not None else None


# --- What limits the step: measured, inferred from facts of the run, expected of its GPU, or unknown.

Certainty = Literal["measured", "inferred", "expected", "unknown"]


BORDERLINE = 0.02
"""Distance below its threshold up to which a share is called borderline. Our choice."""


def rated(share: float | None, threshold: float | None) -> Literal["wall", "borderline", ""]:
    """Return what a share of the step or of the memory is; empty if it is small or unknown."""
    if share is None or threshold is None:
        return ""
    return "wall" if share >= threshold else "borderline" if share >= threshold - BORDERLINE else ""


@dataclass(frozen=True, slots=True)
class WallReading:
    """A wall. `because`: a sentence; `evidence`: the facts behind it.

    `profile_of`: the other run whose profile shows it; None if facts of the run do. `borderline`: facts just below
    their threshold, where none reaches it.
    """

    wall: Wall
    certainty: Certainty
    because: str
    evidence: tuple[str, ...] = ()
    profile_of: int | None = None
    borderline: tuple[str, ...] = ()

    @property
    def limit(self) -> str:
        """Return what limits the step and how that is known: `compute (inferred from #1, before the last change)`."""
        if self.wall == "none" or self.certainty == "expected":
            return "unknown" if self.wall == "none" else "not measured"
        source = "" if self.profile_of is None else f" from #{self.profile_of}, before the last change"
        if self.profile_of is not None and self.certainty == "measured":
            source = f" on #{self.profile_of}, same configuration"
        near = " and ".join(_SMALL[name] for name in self.borderline)
        return f"{self.wall} ({self.certainty}{source}{f'; {near} borderline' if near else ''})"


def read_wall(values: Values) -> WallReading:
    """Return what limits the step. `values` are typed facts with the thresholds (see `derive`)."""
    readings = (_measured, _by_recompute, _by_timers, _by_platform)
    return next((fact for reading in readings if (fact := reading(values)) is not None), _unknown(values))


def _number(values: Values, name: str) -> float | None:
    value = values.get(name)
    return value if isinstance(value, float) else None


def _measured(values: Values) -> WallReading | None:
    if values.get("oom") is True:
        return WallReading("memory", "measured", "The job ran out of GPU memory.", ("oom",))
    strongest = max(_over_threshold(values), default=None, key=lambda entry: entry[0])
    if strongest is not None:
        return strongest[1]
    headroom, least = _number(values, "headroom_frac"), _number(values, "T_headroom") or 0.0
    if headroom is not None and headroom < least:
        because = f"{share_text(headroom)} of the GPU's memory is free (threshold: {share_text(least)})."
        return WallReading("memory", "measured", because, ("headroom_frac",))
    return _by_compute(values) or _by_exclusion(values)


def _over_threshold(values: Values) -> list[tuple[float, WallReading]]:
    """Return communication and host if above their thresholds, each with its excess."""
    readings = []
    shares: tuple[tuple[str, str, Wall, str], ...] = (
        ("exposed_comm_frac", "T_comm", "communication", "of the step is exposed communication"),
        ("gpu_idle_frac", "T_idle", "host", "of the step the GPU is idle"),
        ("launch_starved_frac", "T_idle", "host", "of the step the GPU waits for kernel launches"),
    )
    for name, threshold, wall, text in shares:
        value, least = _number(values, name), _number(values, threshold)
        if value is not None and least is not None and value >= least:
            sentence = f"{share_text(value)} {text} (threshold: {share_text(least)})."
            readings.append((value / max(least, 1e-9), WallReading(wall, "measured", sentence, (name,))))
    return readings


def _by_compute(values: Values) -> WallReading | None:
    """Return the compute wall: the GPU is busy, but kernels use little of it or only move data."""
    waits = [_number(values, name) for name in ("exposed_comm_frac", "gpu_idle_frac")]
    if any(share is None for share in waits):
        return None
    used, least = _number(values, "sm_util"), _number(values, "T_sm") or 0.0
    if used is not None and used < least:
        low = f"{share_text(used)} of the GPU (threshold: {share_text(least)})"
        because = f"The kernels use {low}, and it waits for nothing else."
        return WallReading("compute", "measured", because, ("sm_util",))
    for name, text in (
        ("small_gemm_frac", "of the step are small GEMMs"),
        ("cast_permute_frac", "of the step are casts and permutations"),
    ):
        share, most = _number(values, name), _number(values, "T_idle") or 0.0
        if share is not None and share >= most:
            return WallReading(
                "compute", "measured", f"{share_text(share)} {text} (threshold: {share_text(most)}).", (name,)
            )
    return None


def _by_recompute(values: Values) -> WallReading | None:
    """Return the memory wall for a job that recomputes whole layers, unless much memory is free."""
    free, least = _number(values, "headroom_frac"), _number(values, "T_headroom") or 0.0
    if values.get("full_recompute") is not True or values.get("fits") is not True:
        return None
    if free is not None and free > 2 * least:
        return None
    text = "The run recomputes whole layers, so it probably does not fit otherwise. Try a narrower list."
    return WallReading("memory", "inferred", text, ("recompute_granularity",))


def _by_exclusion(values: Values) -> WallReading | None:
    """Return the compute wall if communication, idle time and memory were measured and are below their thresholds."""
    shares = {name: _number(values, name) for name in _SMALL}
    limits = {name: _number(values, limit) for name, limit in zip(_SMALL, _LIMITS, strict=True)}
    if None in shares.values():
        return None
    near = {
        name: f"{_SMALL[name]} is borderline at {share_text(share)} (threshold: {share_text(limit)})"
        for name, share in shares.items()
        if share is not None
        and (limit := limits[name]) is not None
        and (rated(1 - share, 1 - limit) if name == "headroom_frac" else rated(share, limit)) == "borderline"
    }
    because = "None of communication, idle time and memory is the bottleneck."
    if near:
        because += f" {capitalized(', '.join(near.values()))}."
    return WallReading("compute", "measured", because, tuple(_SMALL), borderline=tuple(near))


def _by_timers(values: Values) -> WallReading | None:
    share = _number(values, "comm_timer_frac")
    least = _number(values, "T_comm")
    if share is None or least is None or share < least:
        return None
    because = (
        f"Communication timers add up to {share_text(share)} of the step. They insert barriers and do not show "
        f"overlap, so confirm this with a profile."
    )
    return WallReading("communication", "inferred", because, ("comm_timer_frac",))


def _by_platform(values: Values) -> WallReading | None:
    """Return what the platform suggests, unless that was measured to be below its threshold, or no step ran."""
    if values.get("steps_done") == 0:
        return None
    if values.get("hopper") is True and _number(values, "exposed_comm_frac") is None:
        text = "Not profiled yet. On Hopper, expect communication to be the first bottleneck."
        return WallReading("communication", "expected", text, ("gpu",))
    if values.get("nvl72") is True and _number(values, "gpu_idle_frac") is None:
        text = "Not profiled yet. On NVL72, expect host overhead to be the first bottleneck."
        return WallReading("host", "expected", text, ("gpu",))
    return None


def _unknown(values: Values) -> WallReading:
    low = [(name, value, text) for name, text in _SMALL.items() if (value := _number(values, name)) is not None]
    if values.get("steps_done") == 0:
        return WallReading("none", "unknown", "No iteration ran, so nothing limits the step yet.")
    if not low:
        because = "The bottleneck is unknown: the run was not profiled, and the platform gives no prior."
        return WallReading("none", "unknown", because)
    shares = ", ".join(f"{text} {share_text(value)}" for _, value, text in low)
    missing = ", ".join(text for name, text in _SMALL.items() if _number(values, name) is None)
    because = f"The measured values are below their thresholds ({shares}). Unknown: {missing}."
    return WallReading("none", "unknown", because, tuple(name for name, _, _ in low))


_SMALL = {"exposed_comm_frac": "exposed communication", "gpu_idle_frac": "idle time", "headroom_frac": "free memory"}
_LIMITS = ("T_comm", "T_idle", "T_headroom")


# --- Facts for preflight checks: the pipeline split, attention heads, groups.


def _count(values: Values, name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _split_layers(values: Values) -> int | None:
    layers, counted = _count(values, "num_layers"), values.get("pp_account")
    return layers + len(set(counted)) if layers is not None and isinstance(counted, list) else None


def _even_split(values: Values) -> bool | None:
    """Return False if one override is set; True only if all are known to be unset."""
    names = ("pp_layout", "first_stage_layers", "last_stage_layers")
    if any(values.get(name) is not None for name in names):
        return False
    pattern = values.get("hybrid_layer_pattern")
    if isinstance(pattern, str) and "|" in pattern:
        return False
    plain = "hybrid_layer_pattern" in values or values.get("family") not in (None, "nemotron-3", "other")
    return True if plain and all(name in values for name in names) else None


def _layout_problem(values: Values) -> str | None:
    """Return the problem of a layout: certain once one is found, absent only once all inputs are known."""
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
    """Return the virtual chunks per stage of the layout, regardless of `vpp`."""
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


PREFLIGHT_RULES: tuple[tuple[str, Rule], ...] = (
    ("ep", lambda values: 1 if values.get("moe") is False else None),
    ("split_layers", _split_layers),
    ("even_split", _even_split),
    ("layout_problem", _layout_problem),
    ("vpp_or_1", _chunks),
    ("microbatch_group", _microbatch_group),
    ("hcp_product", _hcp_product),
    ("kv_heads", _kv_heads),
    ("capacity_on", _when_known("capacity", lambda factor: isinstance(factor, float) and factor >= 0)),
    ("check_for_nan_in_loss", lambda values: values.get("nan_checks")),
    ("dataset_seq_len", lambda values: values.get("seq_len") if values.get("framework") == "megatron_lm" else None),
    ("offline_packing", lambda values: False if values.get("task") == "pretrain" else None),
    (
        "in_batch_packing",
        lambda values: False if values.get("task") == "pretrain" and values.get("framework") == "megatron_lm" else None,
    ),
)
"""Derived facts in the order of their dependencies.

A dense model without stated expert parallelism has none. Packing before the job is specific to fine-tuning.
"""


def derive(facts: Values, settings: Mapping[str, float] | None = None) -> dict[str, object]:
    """Return `facts` with everything derived from them and the thresholds. Stated facts override derived ones.

    Raises ValueError for an unknown fact.
    """
    values: dict[str, object] = {**SETTINGS, **(settings or {}), **normal(facts)}
    if "etp" in values and values["etp"] is None:
        values["etp_unset"] = True
        del values["etp"]
    if "dispatcher" in values and values["dispatcher"] is None:  # left to the trainer
        values = {"dispatcher_type": None, "flex_backend": None} | values
    for name, rule in RULES:
        if name not in values and (value := rule(values)) is not None:
            values[name] = value
    return values


def _ints(values: Values, *names: str) -> list[int] | None:
    """Return the integers with these names; None unless all are known."""
    values_of_names = [values.get(name) for name in names]
    counts = [
        value for value in values_of_names if isinstance(value, int) and not isinstance(value, bool) and value > 0
    ]
    return counts if len(counts) == len(names) else None


def _of_counts(of: Callable[..., object], *names: str) -> Rule:
    """Return `of` applied to the integers with these names; nothing unless all are known."""

    def rule(values: Values) -> object:
        counts = _ints(values, *names)
        return None if counts is None else of(*counts)

    return rule


def _quotient(whole: str, *parts: str) -> Rule:
    def of(count: int, *counts: int) -> int | None:
        return None if count % math.prod(counts) else count // math.prod(counts)

    return _of_counts(of, whole, *parts)


def _product(*names: str) -> Rule:
    return _of_counts(lambda *counts: math.prod(counts), *names)


def _of_ratio(of: Callable[[float], object], above: str, below: str) -> Rule:
    """Return `of` applied to the ratio of two facts; nothing unless both are known."""

    def rule(values: Values) -> object:
        a, b = values.get(above), values.get(below)
        return of(a / b) if isinstance(a, float) and isinstance(b, float) and b > 0 else None

    return rule


def _etp(values: Values) -> int | None:
    """Return ETP: tp if it is known to be unset or there are no experts. A missing value is not known to be unset."""
    counts, is_default = _ints(values, "tp"), values.get("etp_unset") is True or values.get("moe") is False
    return counts[0] if counts is not None and is_default else None


def _dispatcher(values: Values) -> object:
    kind = values.get("dispatcher_type")
    if kind != "flex":
        return kind
    return values.get("flex_backend") or ("deepep" if "flex_backend" in values else None)


def _dispatcher_type(values: Values) -> object:
    dispatcher = values.get("dispatcher")
    return "flex" if dispatcher in FLEX_BACKENDS else dispatcher


def _flex_backend(values: Values) -> object:
    dispatcher = values.get("dispatcher")
    return dispatcher if dispatcher in FLEX_BACKENDS else None


def _base_dtype(values: Values) -> str | None:
    """Without BF16 or FP16 a trainer uses FP32."""
    if values.get("bf16_flag") is False and values.get("fp16_flag") is False:
        return "fp32"
    precision = values.get("precision")
    return None if precision is None else "fp16" if precision == "fp16" else "bf16"


def _full_recompute(values: Values) -> bool | None:
    """Granularity `full` over no layer recomputes nothing."""
    granularity = values.get("recompute_granularity")
    return None if granularity is None else granularity == "full" and values.get("recompute_layers") != 0


def _stage_ranks(between: str) -> Rule:
    """Megatron orders ranks with the pipeline outermost. Only rank 0 if the layout is unknown."""

    def rule(values: Values) -> str:
        gpus, pp = values.get("gpus"), values.get("pp")
        if not isinstance(gpus, int) or not isinstance(pp, int) or pp < 1 or gpus % pp:
            return "0"
        return between.join(str(stage * gpus // pp) for stage in range(pp))

    return rule


PROFILED_STEPS, _PROFILE_FROM = 3, 20
"""Most runs are steady from step 20."""


def profile_start(values: Values) -> int:
    """Return a step inside the steady window, if it has enough; before that, warm-up would be profiled.

    Steps count from 0 and printed iterations from 1, so the first iteration of the window is left out, too.
    """
    first, last = values.get("window_first"), values.get("window_last")
    if not isinstance(first, int) or not isinstance(last, int):
        return _PROFILE_FROM
    latest = last - PROFILED_STEPS
    return max(first, min(_PROFILE_FROM, latest)) if first <= latest else max(first, _PROFILE_FROM)


def _ran(values: Values) -> bool:
    sound = values.get("oom") is not True and values.get("loss_finite") is not False
    return values.get("fits") is True and sound and values.get("steps_done") not in (None, 0)


def _ample_memory(values: Values) -> bool:
    free, least = values.get("headroom_frac"), values.get("T_headroom")
    return isinstance(free, float) and isinstance(least, float) and free > 2 * least


def _shard(values: Values) -> int | None:
    counts = _ints(values, "seq_len", "cp", "tp")
    if counts is None or ("sp" not in values and counts[2] > 1):
        return None
    seq_len, cp, tp = counts
    return seq_len // (cp * (tp if values.get("sp") else 1))


def _group_nodes(values: Values) -> int | None:
    counts = _ints(values, "expert_group", "gpus_per_node")
    return None if counts is None else math.ceil(counts[0] / counts[1])


def _recorded_dispatchers(values: Values) -> list[str] | None:
    if "family" not in values or "arch_number" not in values:
        return None
    return list(_dispatchers_of_records().get((values["family"], *kind_of_gpu(values["gpu"])), ()))


def kind_of_gpu(gpu: object) -> tuple[object, object]:
    """Return the generation of a GPU and whether 72 share an NVLink domain. An unknown generation is its model."""
    number = FACTS["arch_number"](gpu)
    return gpu if number is None else int(str(number)) // 10, FACTS["nvl72"](gpu)


@cache
def _dispatchers_of_records() -> Mapping[tuple[object, ...], Sequence[str]]:
    """Return the dispatchers that published records state, by family and kind of GPU, the fastest record first."""
    best: dict[tuple[object, ...], dict[str, float]] = {}
    for point in published():
        dispatcher, gpu = point.contract.get("dispatcher"), point.contract["gpu"]
        if dispatcher is not None and FACTS["arch_number"](gpu) is not None:
            speeds = best.setdefault((_family(point.contract), *kind_of_gpu(gpu)), {})
            speeds[str(dispatcher)] = max(speeds.get(str(dispatcher), 0.0), point.tflops_per_gpu or 0.0)
    return {kind: sorted(speeds, key=lambda name: -speeds[name]) for kind, speeds in best.items()}


def _gpus_per_node(values: Values) -> int | None:
    usual = gpus_per_node(values.get("gpu"))
    gpus = _ints(values, "gpus")
    return None if usual is None else min(usual, gpus[0] if gpus else usual)


def _memory_pressure(values: Values) -> str | None:
    """Return the memory state for the reasons of rules. Running out of memory outranks the free share."""
    if values.get("oom") is True:
        return "The job ran out of GPU memory"
    free = values.get("headroom_frac")
    return f"{share_text(free)} of the GPU's memory is free" if isinstance(free, float) else None


def _sharding_case(values: Values) -> str | None:
    """Return the kind of model for which full sharding is worth trying."""
    if values.get("vlm") is True:
        return "a vision-language model, whose stages are hard to balance"
    active, length = values.get("active_billions"), values.get("seq_len")
    if not isinstance(active, float) or not isinstance(length, int):
        return None
    return f"a small model ({active:g} billion active parameters) with long sequences ({length:,} tokens)"


_LOW_UTILIZATION = 0.15
"""Our own choice: most published records of tuned MoE training reach more."""


def _low_utilization(values: Values) -> bool:
    share = values.get("mfu")
    return isinstance(share, float) and share < _LOW_UTILIZATION


def _utilization_text(values: Values) -> str:
    """Return a sentence about a low share of the peak, for the reasons of rules; empty if it is unknown or usual."""
    share = _number(values, "mfu")
    if share is None or not _low_utilization(values):
        return ""
    return (
        f"With {values['tflops_gpu']:.0f} TFLOP/s/GPU the run reaches {share_text(share)} of the peak of "
        f"{values['gpu']} in {values['precision']}: large GEMMs take a small part of the step. "
    )


def _too_wide(values: Values) -> str:
    """Return which groups exceed a node or an NVLink domain, for the reasons of rules; empty if none is known to."""
    groups = (
        ("TP {}", "tp", "a node of {} GPUs", "gpus_per_node"),
        ("the expert group of {} ranks", "expert_group", "an NVLink domain of {} GPUs", "nvlink_domain"),
    )
    texts = []
    for name, size, place, limit in groups:
        ranks, gpus = values.get(size), values.get(limit)
        if isinstance(ranks, int) and isinstance(gpus, int) and ranks > gpus:
            texts.append(f"{name.format(ranks)} exceeds {place.format(gpus)}")
    return capitalized(" and ".join(texts))


def _fragmentation(values: Values) -> float | None:
    reserved, allocated = _number(values, "mem_reserved_peak_gb"), _number(values, "mem_alloc_peak_gb")
    return None if reserved is None or allocated is None else max(0.0, reserved - allocated)


def _fragmented(values: Values) -> bool | None:
    """Return whether the allocator reserved much memory that it cannot use; expandable segments prevent that.

    Without its figures: whether only ranks of one pipeline stage ran out of memory, and much was never allocated.
    """
    if values.get("expandable_segments") is True:
        return False
    unusable, size, least = (_number(values, name) for name in ("fragmentation_gb", "hbm_gb", "T_headroom"))
    if unusable is not None and size is not None and least is not None:
        return unusable > least * size
    ranks, counts, is_ample = values.get("oom_ranks"), _ints(values, "pp", "gpus"), values.get("ample_memory")
    ran_out = values.get("oom") is True
    if ran_out and isinstance(ranks, list) and ranks and counts is not None and is_ample is not None:
        return is_ample is True and 1 < counts[0] <= counts[1] // len(ranks)
    return None


def _tokens_s_gpu(values: Values) -> float | None:
    counts, step = _ints(values, "gbs", "seq_len", "gpus"), values.get("step_s")
    if counts is None or not isinstance(step, float) or step <= 0:
        return None
    return counts[0] * counts[1] / (step * counts[2])


PROFILE_SHARES = ("exposed_comm_frac", "gpu_idle_frac", "launch_starved_frac")
"""Shares that determine a wall alone. GPU utilisation by kernels counts only once these are known."""


def _nothing(empty: object) -> Rule:
    """Return a rule for a fact that is never unknown: the service sets it explicitly where it is not empty."""
    return lambda _: empty


def _expandable(conf: object) -> bool:
    return "expandable_segments:true" in str(conf or "").lower().replace(" ", "")


# --- The fields in which compared runs differ, by what they describe.

_SOFTWARE = (
    "container", "container_digest", "bridge_commit", "mcore_commit", "te_version", "pytorch_version", "cuda_version",
    "nccl_version",
)  # fmt: skip
_HARDWARE = ("gpus", "gpu", "gpus_per_node", "cluster")
_WORK = ("seq_len", "mbs", "gbs", "task", "data_mode", "mtp", "model")


def _differing(values: Values, is_of_group: Callable[[str], bool]) -> list[str] | None:
    differs = cast("list[str] | None", values.get("differs"))
    return None if differs is None else [field for field in differs if is_of_group(field)]


def _software_differs(values: Values) -> list[str] | None:
    differs = _differing(values, lambda field: field in _SOFTWARE)
    if differs is None:
        return None
    beside = cast("list[str]", values["differs_beside"])
    return [*differs, *(field for field in beside if field not in ("commit", "job"))]


def _hardware_differs(values: Values) -> list[str] | None:
    return _differing(values, lambda field: field in _HARDWARE or field.startswith("env."))


def _work_differs(values: Values) -> list[str] | None:
    return _differing(values, lambda field: field in _WORK)


RULES: tuple[tuple[str, Rule], ...] = (
    ("gpu", lambda values: values.get("sku")),
    ("sku", lambda values: values.get("gpu")),
    *((name, _when_known("gpu", rule)) for name, rule in FACTS.items()),
    *MODEL_RULES,
    *PREFLIGHT_RULES,
    ("gpus", _product("tp", "pp", "cp", "dp")),
    ("gpus_per_node", _gpus_per_node),
    ("nodes", _of_counts(lambda gpus, per_node: -(-gpus // per_node), "gpus", "gpus_per_node")),
    ("etp_unset", lambda values: False if "etp" in values else None),
    ("etp", _etp),
    ("dp", _quotient("gpus", "tp", "pp", "cp")),
    ("edp", _quotient("gpus", "pp", "ep", "etp")),
    ("ga", _quotient("gbs", "mbs", "dp")),
    ("min_gpus", _of_counts(lambda pp, tp, cp, ep, etp: pp * max(tp * cp, ep * etp), "pp", "tp", "cp", "ep", "etp")),
    ("min_ga_headroom", _of_counts(lambda ga, pp: ga - pp, "ga", "pp")),
    ("vpp_or_1", _when_known("vpp", lambda vpp: vpp or 1)),
    ("tokens_per_cp_shard", _quotient("seq_len", "cp")),
    ("tokens_per_cp_tp_shard", _shard),
    ("tokens_per_step", _product("gbs", "seq_len")),
    ("cp0", _of_counts(lambda seq_len: max(1, 2 ** round(math.log2(seq_len / 4096))), "seq_len")),
    ("local_experts", _quotient("num_experts", "ep")),
    ("expert_group", _product("ep", "etp")),
    ("dispatcher", _dispatcher),
    ("dispatcher_type", _dispatcher_type),
    ("flex_backend", _flex_backend),
    ("flex", _when_known("dispatcher_type", lambda kind: None if kind is None else kind == "flex")),
    ("recorded_dispatchers", _recorded_dispatchers),
    ("forced_routing", _when_known("routing_mode", lambda mode: str(mode).startswith("forced"))),
    ("base_dtype", _base_dtype),
    ("fp8", _when_known("precision", lambda value: str(value).startswith("fp8"))),
    ("low_precision", _when_known("precision", lambda value: value not in ("bf16", "fp16"))),
    ("graphs_on", _when_known("graph_impl", lambda value: value != "none")),
    ("graphs_scoped", _when_known("graph_impl", lambda value: value in ("local", "transformer_engine"))),
    ("recompute_on", _when_known("recompute_granularity", lambda value: value != "none")),
    ("full_recompute", _full_recompute),
    ("recompute_modules", lambda values: [] if values.get("recompute_granularity") in ("none", "full") else None),
    ("expandable_segments", _when_known(f"{PREFIX}PYTORCH_CUDA_ALLOC_CONF", _expandable)),
    ("overlap_grad_reduce", _when_known("dp_overlap", lambda words: "grad_reduce" in words)),
    ("overlap_param_gather", _when_known("dp_overlap", lambda words: "param_gather" in words)),
    ("headroom_frac", _of_ratio(lambda used: max(0.0, 1 - used), "mem_alloc_peak_gb", "hbm_gb")),
    ("ample_memory", _ample_memory),
    ("memory_pressure", _memory_pressure),
    ("sharding_case", _sharding_case),
    ("too_wide", _too_wide),
    ("fragmentation_gb", _fragmentation),
    ("fragmented", _fragmented),
    ("tokens_s_gpu", _tokens_s_gpu),
    ("gflop_per_token", _of_ratio(lambda ratio: 1000 * ratio, "tflops_gpu", "tokens_s_gpu")),
    ("mfu", mfu),
    ("low_utilization", _low_utilization),
    ("utilization_text", _utilization_text),
    ("profiler_slowdown", _of_ratio(lambda ratio: ratio - 1, "profiled_step_s", "unprofiled_step_s")),
    ("exposed_ep_frac", lambda values: values.get("exposed_comm_frac")),  # may be all of it
    ("profiled", lambda values: any(name in values for name in PROFILE_SHARES)),  # never unknown
    ("wrote_profile", lambda values: values.get("profiler_on") is True),
    ("stage_ranks", _stage_ranks(" ")),
    ("stage_ranks_listed", _stage_ranks(",")),
    ("profile_start", profile_start),
    ("profile_end", lambda values: profile_start(values) + PROFILED_STEPS),
    ("group_nodes", _group_nodes),
    ("amd", lambda values: str(values.get("gpu")).startswith("MI")),
    ("ran", _ran),
    ("sm_util_known", lambda values: values.get("sm_util") is not None),
    ("gpu_known", lambda values: values.get("gpu") is not None),
    ("steady_steps", lambda values: values.get("window", 0 if "steps_done" in values else None)),
    ("failure", _nothing("")),
    ("regression_pct", _nothing(0.0)),
    ("fitted_differs", _nothing([])),
    ("worked_changes", _nothing("")),
    ("works_with", _nothing("")),
    ("failure_text", _nothing("")),
    ("faster_pct", _nothing(0.0)),
    ("record_pct", _nothing(0.0)),
    ("earlier_wall", _nothing("")),
    ("differs_beside", _nothing([])),
    ("software_differs", _software_differs),
    ("hardware_differs", _hardware_differs),
    ("work_differs", _work_differs),
)
"""In the order of their dependencies."""
