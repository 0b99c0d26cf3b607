"""Write contract values as flags of Megatron-LM and overrides of Megatron-Bridge.

This is the inverse of the readers (`domain/logs/arguments.py`); a test writes and reads every value. Names come from
the table `domain/flags.toml`. Fields that several flags set together have functions here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.contract.fields import FIELDS
from app.domain.flags import FLAGS, TrainerNames
from app.domain.rules.rule import Setting

Others = Mapping[str, object]
"""Other facts of the run."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """Flags of a value. `flags`: to be present, with values (empty for a switch); `without`: to be absent."""

    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenFlags:
    """One contract value in both trainers. `bridge` maps paths to values; empty if the launcher decides it."""

    megatron_lm: Spelling
    bridge: Mapping[str, str] = field(default_factory=dict)


def written(name: str, value: Setting, others: Others | None = None) -> WrittenFlags:
    """Return how field `name` becomes `value`; None unsets it. `others`: the run's other facts.

    Empty for fields that no flag sets, such as the number of GPUs.
    """
    special = _SPECIAL.get(name)
    if special is not None:
        return special(value, others or {})
    row = FIELDS[name].names
    if row.words:
        return _switches(name, value)
    if name == "cp_comm" and isinstance(value, str) and "," in value:  # one for each layer
        value = tuple(value.split(","))
    return _plain(row, value)


def flags_text(settings: Mapping[str, Setting]) -> str:
    """Return the flags of Megatron-LM that set these contract fields."""
    spellings = (written(name, value).megatron_lm for name, value in settings.items())
    return " ".join(" ".join((flag, *values)) for spelling in spellings for flag, values in spelling.flags.items())


def _plain(row: TrainerNames, value: Setting) -> WrittenFlags:
    """Write a field with at most one flag, which may turn the field off, and remove the flags that it replaces."""
    if not row.flags:
        return WrittenFlags(Spelling(), dict.fromkeys(row.bridge, bridge_text(value)))
    (flag,) = row.flags
    inverted = flag.startswith("--no-")
    if inverted:
        value = value is not False
    spelling = _simple(flag, not value if inverted else value)
    return WrittenFlags(
        Spelling(spelling.flags, (*spelling.without, *row.other_flags)), dict.fromkeys(row.bridge, bridge_text(value))
    )


def _simple(flag: str, value: Setting) -> Spelling:
    """Write a switch, a value or several values. False, None and an empty set mean that the flag is absent."""
    if value is None or value is False or value == ():
        return Spelling(without=(flag,))
    if value is True:
        return Spelling({flag: ()})
    values = value if isinstance(value, tuple) else (value,)
    return Spelling({flag: tuple(_text(item) for item in values)})


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def bridge_text(value: Setting) -> str:
    """Return a value as an override: `true`, `null`, `[attn,moe_router]`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{','.join(_text(item) for item in value)}]"
    return _text(value)


def _switches(name: str, value: Setting) -> WrittenFlags:
    """Write a set of words, each with its own switch."""
    words = value if isinstance(value, tuple) else ()
    rows = FLAGS[name].words
    return WrittenFlags(
        Spelling(
            {flag: () for word, row in rows.items() if word in words for flag in row.flags},
            tuple(flag for word, row in rows.items() if word not in words for flag in row.flags),
        ),
        {path: bridge_text(word in words) for word, row in rows.items() for path in row.bridge},
    )


def _dispatcher(value: Setting, _: Others) -> WrittenFlags:
    row = FLAGS["dispatcher"]
    (kind, backend), (kind_path, backend_path) = row.flags, row.bridge
    if value in ("deepep", "hybridep", "ncclep"):
        flex = {kind: ("flex",), backend: (str(value),)}
        return WrittenFlags(Spelling(flex), {kind_path: "flex", backend_path: str(value)})
    types = {kind_path: str(value), backend_path: "null"}
    return WrittenFlags(Spelling({kind: (str(value),)}, (backend, *row.other_flags)), types)


_RECIPES = {
    "fp8_ds": ("delayed", "hybrid", "bf16_with_fp8_delayed_scaling_mixed"),
    "fp8_cs": ("tensorwise", "hybrid", "bf16_with_fp8_current_scaling_mixed"),
    "fp8_sc": ("blockwise", "e4m3", "bf16_with_fp8_subchannel_scaling_mixed"),
    "fp8_mx": ("mxfp8", "e4m3", "bf16_with_mxfp8_mixed"),
}


def _precision(value: Setting, _: Others) -> WrittenFlags:
    fp8, fp4 = ("--fp8-format", "--fp8-recipe"), ("--fp4-format", "--fp4-recipe")
    if value == "nvfp4":
        flags: dict[str, tuple[str, ...]] = {"--bf16": (), fp4[0]: ("e2m1",), fp4[1]: ("nvfp4",)}
        return WrittenFlags(Spelling(flags, (*fp8, "--fp16")), {"mixed_precision": "bf16_with_nvfp4_mixed"})
    if isinstance(value, str) and value in _RECIPES:
        recipe, form, name = _RECIPES[value]
        flags = {"--bf16": (), fp8[0]: (form,), fp8[1]: (recipe,)}
        return WrittenFlags(Spelling(flags, (*fp4, "--fp16")), {"mixed_precision": name})
    other = "--fp16" if value == "bf16" else "--bf16"
    return WrittenFlags(Spelling({f"--{value}": ()}, (*fp8, *fp4, other)), {"mixed_precision": f"{value}_mixed"})


def _fine_offload(value: Setting, _: Others) -> WrittenFlags:
    row = FLAGS["fine_offload"]
    (switch, modules), (switch_path, modules_path) = row.flags, row.bridge
    words = value if isinstance(value, tuple) else ()
    bridge = {switch_path: bridge_text(bool(words)), modules_path: bridge_text(words)}
    if not words:
        return WrittenFlags(Spelling(without=row.flags), bridge)
    return WrittenFlags(Spelling({switch: (), modules: tuple(map(str, words))}), bridge)


def _fsdp(value: Setting, _: Others) -> WrittenFlags:
    switches = _switches("fsdp", (value,) if isinstance(value, str) else ())
    # Not every version has the path of a disabled FSDP.
    bridge = {path: text for path, text in switches.bridge.items() if "torch" not in path or text == "true"}
    return WrittenFlags(switches.megatron_lm, bridge)


def _param_gather(value: Setting, others: Others) -> WrittenFlags:
    low = "fp4" if others.get("precision") == "nvfp4" else "fp8"
    return WrittenFlags(
        _simple(f"--{low}-param-gather", value), {f"mixed_precision.{low}_param_gather": bridge_text(value)}
    )


def _routing(value: Setting, _: Others) -> WrittenFlags:
    """Write dropless and forced balance. The other modes need an amount, which is another field."""
    row = FLAGS["routing_mode"]
    (forced,), (path,) = row.flags, row.bridge
    if value == "forced-balance":
        return WrittenFlags(Spelling({forced: ()}), {path: "true"})
    if value != "dropless":
        return WrittenFlags(Spelling())
    off = (forced, "--moe-router-force-biased", "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity")
    return WrittenFlags(Spelling(without=off), {path: "false", "model.moe_expert_capacity_factor": "null"})


_SPECIAL: Mapping[str, Callable[[Setting, Others], WrittenFlags]] = {
    "vpp": lambda value, _: _plain(FLAGS["vpp"], None if value == 1 else value),
    "dispatcher": _dispatcher,
    "precision": _precision,
    "recompute_granularity": lambda value, _: _plain(
        FLAGS["recompute_granularity"], None if value == "none" else value
    ),
    "graph_modules": lambda value, _: _plain(FLAGS["graph_modules"], value or ()),
    "fine_offload": _fine_offload,
    "fsdp": _fsdp,
    "param_gather_lp": _param_gather,
    "routing_mode": _routing,
    "data_mode": lambda value, _: WrittenFlags(_simple(FLAGS["data_mode"].flags[0], value == "mock")),
}


# --- Earlier names of flags, for releases that lack the present one.


def older_words(name: str, words: Sequence[str], others: Others) -> list[str]:
    """Return a flag with its values under its earlier name; empty if it had none. `name`: with underscores."""
    if name == "cuda_graph_modules":
        return ["--cuda-graph-scope", *words[1:]]
    if name == "moe_flex_dispatcher_num_sms" and others.get("dispatcher") in ("deepep", "hybridep"):
        return [f"--moe-{others['dispatcher']}-num-sms", *words[1:]]
    if name == "moe_flex_dispatcher_backend" and words[1:] == ["deepep"]:
        return ["--moe-enable-deepep"]
    return []
