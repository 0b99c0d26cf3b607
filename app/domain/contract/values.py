"""Converts contract values to their canonical form, so that the same fact has the same value from every source.

8, 8.0 and "8" are the same count, "BF16" and "bf16_mixed" the same precision, ["moe", "attn"] and "attn,moe" the same
set of words.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.domain.contract.fields import FIELDS, ContractField
from app.domain.run import Scalar, Stated, Value
from app.domain.text import one_line

# --- Placeholders. As values they would create separate stacks.

PLACEHOLDERS = frozenset(
    {
        *("...", "\u2026", "?", "??", "???", "-", "--", "x", "xx", "xxx", "n/a", "na", "n.a.", "unknown", "undefined"),
        *("todo", "tbd", "fixme", "placeholder", "changeme", "change me", "change-me", "fill me in", "not known"),
    }
)
"""In lower case."""

_TEMPLATE = re.compile(r"<[^<>:.]*>|\$\{[^{}]*\}|\$[A-Za-z_]\w*|\{\{.*\}\}", re.DOTALL)
"""Unfilled templates: `<gpu>`, `${GPU}`, `$GPU`, `{{ gpu }}`. A colon or dot is Python's `<AttnBackend.flash: 1>`."""


def refuse_placeholders(raw: object) -> None:
    """Raise ValueError when a text, or an item of a list, is a placeholder."""
    for text in raw if isinstance(raw, list | tuple) else [raw]:
        if isinstance(text, str) and (text.strip().casefold() in PLACEHOLDERS or _TEMPLATE.fullmatch(text.strip())):
            raise ValueError(f"is the placeholder {one_line(text)[:50]!r}; state the value or omit the field")


# --- Recognises a GPU by the names that drivers, people and test platforms use.

_SKUS = (
    "GB300",
    "GB200",
    "B300",
    "B200",
    "H200",
    "H100",
    "H800",
    "H20",
    "A100",
    "A800",
    "VR200",
    "L40S",
    "V100",
    "MI355X",
    "MI350X",
    "MI325X",
    "MI300X",
    "MI300A",
    "MI250X",
)
"""Most specific first: a GB200 also contains B200."""

GPUS_PER_NODE = {"H100": 8, "H200": 8, "B200": 8, "B300": 8, "GB200": 4, "GB300": 4}
GPUS_PER_NODE |= dict.fromkeys(("MI300X", "MI325X", "MI355X"), 8)
"""Usual node sizes (NVIDIA/dgxc-benchmarking README; recipes launch GB systems with four GPUs per node; AMD's data
sheets of the platforms)."""

GB_PER_GIB = 2**30 / 1e9
GPU_MEMORY_GIB = {"H100": 80, "B200": 180, "B300": 270, "GB200": 186, "GB300": 279}
GPU_MEMORY_GIB |= {"MI300X": 192, "MI325X": 256, "MI355X": 288}
"""As vendors state it (NVIDIA/dgxc-benchmarking README.md, 2026-07; AMD's data sheets). Drivers report about as many
GiB and reserve some of them, so headroom is an upper bound. GPUs without a source are unknown."""


def gpu_sku(name: str) -> str | None:
    """Return the SKU in a GPU's name, for example H100 for `NVIDIA H100 80GB HBM3`; None without a known one."""
    upper = name.upper()
    for sku in _SKUS:
        if re.search(rf"(?<![A-Z0-9]){sku}(?![0-9])", upper.replace("_", " ")):
            return sku
    return None


# --- Reads a pipeline layout such as `Et*3|(tt|)*29m|L`: which layers are on which stage.
#
# Grammar: Megatron-LM `megatron/core/transformer/pipeline_parallel_layer_layout.py`. E embedding, t decoder layer, m
# multi-token-prediction layer, L loss, `|` ends a stage, `(...)*n` and `x*n` repeat, commas and blanks mean nothing.

_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,4})")
_ITEM = re.compile(r"([EtmL|])\*(\d{1,4})")
_PLAIN = re.compile(r"[EtmL|]+")
MAX_ITEMS = 10_000


def stages(layout: str) -> tuple[str, ...] | None:
    """Return the layers of each stage in order, one letter per layer; None when the layout cannot be read."""
    text = re.sub(r"[,\s]", "", layout)
    for repeated in (_GROUP, _ITEM):
        if sum(len(m[1]) * int(m[2]) for m in repeated.finditer(text)) > MAX_ITEMS:
            return None
        text = repeated.sub(lambda m: m[1] * int(m[2]), text)
    return tuple(text.split("|")) if _PLAIN.fullmatch(text) else None


def layout_problem(layout: str, pp: int | None, num_layers: int | None, mtp: int | None) -> str | None:
    """Return why a layout cannot be right, as the end of a sentence; None for a possible layout."""
    layout_stages = stages(layout)
    if layout_stages is None:
        return "cannot be read"
    text = "".join(layout_stages)
    if not (text.startswith("E") and text.endswith("L") and text.count("E") == text.count("L") == 1):
        return "must start with E and end with L, with one of each"
    if pp and len(layout_stages) % pp:
        return f"has {len(layout_stages)} stages, not divisible by pp = {pp}"
    if num_layers and text.count("t") != num_layers:
        return f"has {text.count('t')} layers, but the model has {num_layers}"
    if mtp is not None and text.count("m") != mtp:
        return f"has {text.count('m')} multi-token-prediction layers, but the model has {mtp}"
    return _mtp_problem(layout_stages, pp) if "m" in text else None


def _mtp_problem(layout_stages: tuple[str, ...], pp: int | None) -> str | None:
    """Return why the multi-token-prediction layers are misplaced; None when their positions are valid."""
    text, places = "".join(layout_stages), [number for number, stage in enumerate(layout_stages) if "m" in stage]
    if "t" in text[text.index("m") :]:
        return "has a layer after a multi-token-prediction layer"
    if len(places) > 1:
        return "spreads the multi-token-prediction layers over several stages"
    if pp and places[0] // pp != len(layout_stages) // pp - 1:
        return "puts multi-token-prediction layers on a chunk that is not the last of its rank"
    return None


# --- Known models: the canonical spelling of each name, and the shapes that identify a run without a model name.
#
# Shapes: configuration files of Megatron-MoE-ModelZoo, Megatron-LM examples and Megatron-Bridge documentation
# (2026-08).


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Describe a public model by enough of its shape to identify it. `expert_width` is moe_ffn_hidden_size."""

    name: str
    layers: int
    hidden: int
    heads: int
    experts: int
    topk: int
    expert_width: int
    vocabulary: int | None
    also: tuple[str, ...] = ()


KNOWN_MODELS = (
    KnownModel("DeepSeek-V3", 61, 7168, 128, 256, 8, 2048, 129280, ("DSV3", "DeepSeek-V3-671B", "DeepSeek-V3-685B")),
    KnownModel("DeepSeek-V2", 60, 5120, 128, 160, 6, 1536, 102400, ("DSV2",)),
    KnownModel("DeepSeek-V2-Lite", 27, 2048, 16, 64, 6, 1408, 102400, ("DSV2-Lite",)),
    KnownModel("Kimi-K2", 61, 7168, 64, 384, 8, 2048, 163840),
    KnownModel("Qwen3-30B-A3B", 48, 2048, 32, 128, 8, 768, 151936, ("Qwen3-30B",)),
    KnownModel("Qwen3-235B-A22B", 94, 4096, 64, 128, 8, 1536, 151936, ("Qwen3-235B",)),
    KnownModel("Qwen3-Next-80B-A3B", 48, 2048, 16, 512, 10, 512, 151936, ("Qwen3-Next", "Qwen3-Next-80B")),
    KnownModel("GPT-OSS-120B", 36, 2880, 64, 128, 4, 2880, 201088),
    KnownModel("GPT-OSS-20B", 24, 2880, 64, 32, 4, 2880, 201088),
    KnownModel("Mixtral-8x7B", 32, 4096, 32, 8, 2, 14336, 32000),
    KnownModel("Mixtral-8x22B", 56, 6144, 48, 8, 2, 16384, 32768),
    KnownModel(
        "Nemotron-3-Nano-30B-A3B", 52, 2688, 32, 128, 6, 1856, 131072, ("Nemotron-3-Nano", "Nemotron-3-Nano-30B")
    ),
    KnownModel(
        "Nemotron-3-Super-120B-A12B", 88, 4096, 32, 512, 22, 2688, 131072, ("Nemotron-3-Super", "Nemotron-3-Super-120B")
    ),
    KnownModel(
        "Nemotron-3-Ultra-550B-A55B", 108, 8192, 64, 512, 22, 5120, None, ("Nemotron-3-Ultra", "Nemotron-3-Ultra-550B")
    ),
)

OUTLINE = ("num_layers", "hidden_size", "num_attention_heads", "num_experts", "topk")
"""Fields that must be known and equal before a run gets the name of a known model. Others have several notations."""


def _folded(name: str) -> str:
    """Return a name without its organisation, case and separators: `Qwen/Qwen3_30B-A3B` is `qwen330ba3b`."""
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())


_SPELLINGS = {_folded(spelling): model.name for model in KNOWN_MODELS for spelling in (model.name, *model.also)}
_BY_NAME = {model.name: model for model in KNOWN_MODELS}


def canonical_model(name: str) -> str:
    """Return the usual spelling of a known model's name; any other name unchanged."""
    return _SPELLINGS.get(_folded(name), name)


def known_model(name: str) -> KnownModel | None:
    """Return the known model with this canonical name; None for any other name."""
    return _BY_NAME.get(name)


def recognise(values: Mapping[str, Value]) -> KnownModel | None:
    """Return the known model with this shape (contract values by canonical name); None when no model matches."""
    for model in KNOWN_MODELS:
        if not differences(model, values) and all(values.get(name) is not None for name in OUTLINE):
            return model
    return None


def differences(model: KnownModel, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return where stated shape values contradict a known model, such as `num_layers is 16, DeepSeek-V3 has 61`."""
    width = values.get("moe_ffn_hidden_size") or values.get("ffn_hidden_size")
    expected = zip(OUTLINE, (model.layers, model.hidden, model.heads, model.experts, model.topk), strict=True)
    pairs = [(name, values.get(name), value) for name, value in expected]
    pairs.append(("moe_ffn_hidden_size", width, model.expert_width))
    return tuple(
        f"{name} is {stated}, {model.name} has {value}"
        for name, stated, value in pairs
        if stated is not None and stated != value
    )


_LAYERS = re.compile(r"\d{1,3}l")
_COUNT = r"(\d{1,6})"


def values_in_name(file_name: str) -> dict[str, str]:
    """Return the model, GPU and number of GPUs that a file name shows, by contract field: `qwen3-30b-16xh100.log`.

    They are proposals for a user to confirm. A cut model (`dsv3-16l`) gets a name of its own: `DeepSeek-V3-16L`.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", file_name.lower()) if word]
    text = "-".join(words)
    values = {}
    spans = [(at, end) for at in range(len(words)) for end in range(len(words), at, -1)]
    model = next((span for span in spans if "".join(words[slice(*span)]) in _SPELLINGS), None)
    if model and "proxy" not in words:
        after = words[model[1]] if model[1] < len(words) else ""
        cut = f"-{after.upper()}" if _LAYERS.fullmatch(after) else ""
        values["model"] = _SPELLINGS["".join(words[slice(*model)])] + cut
    sku = next((sku for sku in _SKUS if re.search(rf"(?:^|-|\dx?){sku.lower()}(?![0-9])", text)), None)
    if sku:
        values["gpu"] = sku
    gpu = sku.lower() if sku else "gpus?"
    if count := re.search(rf"(?:^|-){_COUNT}x-?{gpu}|{gpu}-?x-?{_COUNT}(?!\d)|(?:^|-){_COUNT}gpus?(?:-|$)", text):
        values["gpus"] = next(group for group in count.groups() if group)
    return values


def outline_name(values: Mapping[str, Value]) -> str | None:
    """Return a name made from the shape of an unknown model: `24L-h1024-8e-top2`. None when too little is known."""
    layers, hidden = values.get("num_layers"), values.get("hidden_size")
    if layers is None or hidden is None or "num_experts" not in values:
        return None
    experts = values.get("num_experts")
    routed = f"-{experts}e-top{values.get('topk') or '?'}" if experts else "-dense"
    return f"{layers}L-h{hidden}{routed}"


MAX_WHOLE = 10**12
"""No count of a training job comes near it. A larger value is a mistake and would not fit a database column."""
MAX_TEXT = 300
MAX_LIST = 1000

UNSET = frozenset({"", "none", "null", "unset", "n/a"})
"""Texts that state a field as unset. `none` is a value where the field lists it as a choice."""
_UNSET_IS_NOT_EMPTY = frozenset({"recompute_modules"})
"""Sets that the trainer fills when they are unset. For all other sets, unset and empty are the same."""
_NEVER_UNSET = frozenset(
    {
        *("model", "task", "data_mode", "seq_len", "mbs", "gpu", "gpus", "gpus_per_node", "cluster", "container"),
        *("tp", "pp", "cp", "ep", "dp", "edp", "ga", "precision", "routing_mode", "attention"),
        *("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "topk"),
        *(name for name, field in FIELDS.items() if field.group == "Software"),
    }
)
_ENUM = re.compile(r"<?[a-z]\w*\.(?P<name>\w+)(?:: [^>]*)?>?")
"""A member of an enumeration as Python prints it: `AttnBackend.flash` or `<AttnBackend.flash: 1>`."""
TRUE = frozenset({"true", "yes", "on", "1"})
FALSE = frozenset({"false", "no", "off", "0"})


def read_value(name: str, raw: object) -> Value:
    """Return the canonical value of field `name`; None means stated as unset.

    Raises ValueError with a sentence that says what the field accepts, and KeyError for an unknown field.
    """
    field = FIELDS[name]
    if _is_unset(field, raw):
        return () if field.kind == "words" and name not in _UNSET_IS_NOT_EMPTY else None
    return _READERS[field.kind](field, raw)


def _is_unset(field: ContractField, raw: object) -> bool:
    if raw is None:
        return field.kind != "choice" or "none" not in field.choices
    return isinstance(raw, str) and (text := raw.strip().lower()) in UNSET and text not in field.choices


def _number(raw: object) -> float:
    """Return a finite number from a number or its text."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError("must be a number")
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        raise ValueError("must be a number") from None
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def _integer(raw: object, least: int) -> int:
    what = "must be a whole number of at least " + str(least)
    try:
        value = _number(raw)
    except ValueError:
        raise ValueError(what) from None
    if value != int(value) or not least <= value <= MAX_WHOLE:
        raise ValueError(what)
    return int(value)


def _read_number(field: ContractField, raw: object) -> Value:
    value = _number(raw)
    if value < 0:  # Megatron takes a negative capacity factor for "no capacity"
        if "capacity" in field.name:
            return None
        raise ValueError("must not be negative")
    return int(value) if value == int(value) else value


def _read_flag(_: ContractField, raw: object) -> Value:
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower() if isinstance(raw, int | str) else ""
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ValueError("must be true or false")


def _choice(field: ContractField, raw: object) -> str:
    word = one_line(str(raw)).lower() if raw is not None else "none"
    if member := _ENUM.fullmatch(word):
        word = member["name"]
    word = field.aliases.get(word, word)
    if field.choices and word not in field.choices:
        raise ValueError(f"must be one of {', '.join(field.choices)}")
    return word


def _read_choice(field: ContractField, raw: object) -> Value:
    if not isinstance(raw, str | None):
        raise ValueError(f"must be one of {', '.join(field.choices)}")
    return _choice(field, raw)


def _items(raw: object) -> Iterable[object]:
    """Return the items of a list, of "a,b" or "['a', 'b']", or of {"a": true, "b": false}."""
    if isinstance(raw, Mapping):
        return [key for key, on in raw.items() if on]
    if isinstance(raw, str):
        inner = raw.strip().strip("[]()")
        return [word.strip(" '\"") for word in inner.split(",") if word.strip(" '\"")]
    if isinstance(raw, list | tuple | set | frozenset):
        if len(raw) > MAX_LIST:
            raise ValueError(f"must have at most {MAX_LIST} items")
        return raw
    raise ValueError("must be a list")


def _read_words(field: ContractField, raw: object) -> Value:
    items = list(_items(raw))
    if not all(isinstance(item, str) for item in items):
        raise ValueError("must be a list of words")
    return tuple(sorted({_choice(field, item) for item in items}))


def _read_layers(_: ContractField, raw: object) -> Value:
    """Return a frequency, or a tuple with a 0 or 1 for each layer."""
    if isinstance(raw, int | float) or (isinstance(raw, str) and raw.strip().isdigit()):
        return _integer(raw, 1)
    pattern = tuple(_integer(item, 0) for item in _items(raw))
    if not pattern or any(flag > 1 for flag in pattern):
        raise ValueError("must be a whole number, or a list with a 0 or 1 for each layer")
    return pattern


def _text(raw: object) -> str:
    if isinstance(raw, list | tuple):
        raw = ",".join(str(item) for item in raw)
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise ValueError("must be text")
    text = one_line(str(raw))
    if len(text) > MAX_TEXT:
        raise ValueError(f"must have at most {MAX_TEXT} characters")
    return text


def _read_text(field: ContractField, raw: object) -> Value:
    text = _text(raw)
    # Blanks mean nothing in a layout, and backslashes are what a shell needed
    return re.sub(r"[\\ ]", "", text) if field.name == "pp_layout" else text


def _read_name(field: ContractField, raw: object) -> Value:
    text = _text(raw)
    if field.name == "gpu":
        return gpu_sku(text) or text
    if field.name == "model":
        return canonical_model(text)
    return text


_READERS = {
    "count": lambda _, raw: _integer(raw, 1),
    "whole": lambda _, raw: _integer(raw, 0),
    "number": _read_number,
    "flag": _read_flag,
    "choice": _read_choice,
    "words": _read_words,
    "counts": lambda _, raw: tuple(_integer(item, 1) for item in _items(raw)),
    "layers": _read_layers,
    "text": _read_text,
    "name": _read_name,
}


def is_stated(name: str, value: Value) -> bool:
    """Return False for a null without information: no job has an unset GPU count, and an unset switch may be on.

    For other fields, such as `vpp` and `capacity`, unset is a value.
    """
    return value is not None or not (name in _NEVER_UNSET or FIELDS[name].kind == "flag")


def same_value(name: str, a: Value, b: Value) -> bool:
    """Return True when two canonical values of a field are the same fact."""
    return comparable(name, a) == comparable(name, b)


def comparable(name: str, value: Value) -> Scalar | tuple[Scalar, ...]:
    """Return a canonical value as keys and comparisons use it: names without case, whole floats as integers."""
    if value is None:
        return "(unset)"
    if isinstance(value, str):
        return value.casefold() if FIELDS[name].kind == "name" else value
    if isinstance(value, float) and value == int(value):
        return int(value)
    return value


def shown(value: Value) -> str:
    """Return a contract value as users write it."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "empty"
    return str(value)


def explained(stated: Stated) -> str:
    """Return the origin of a value for users, with the stated value of a knob that is not in use."""
    return stated.detail if stated.stated_value is None else f"{stated.detail} (stated: {shown(stated.stated_value)})"
