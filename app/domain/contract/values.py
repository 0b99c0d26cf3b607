"""Reads one contract value into its canonical form, so that the same fact has the same value whoever states it.

8, 8.0 and "8" are one count; "BF16" and "bf16_mixed" one precision; ["moe", "attn"] and "attn,moe" one set of words.
"""

import math
import re
from collections.abc import Iterable, Mapping

from app.domain.contract.fields import FIELDS, ContractField
from app.domain.contract.hardware import gpu_sku
from app.domain.contract.model_names import canonical_model
from app.domain.run import Scalar, Value
from app.domain.text import one_line

MAX_WHOLE = 10**12
"""No count of a training job comes near it; beyond it a value is a mistake and would not fit a database column."""
MAX_TEXT = 300
MAX_LIST = 1000

UNSET = frozenset({"", "none", "null", "unset", "n/a"})
"""Texts that mean "stated as unset". `none` is a choice of its own where the field lists it."""
_UNSET_IS_NOT_EMPTY = frozenset({"recompute_modules"})
"""Sets for which "unset" is a choice of the trainer's, other than nothing; for all others both are the empty set."""
_NEVER_UNSET = frozenset(
    {
        *("model", "task", "data_mode", "seq_len", "mbs", "gpu", "gpus", "gpus_per_node", "cluster", "container"),
        *("tp", "pp", "cp", "ep", "dp", "edp", "ga", "precision", "routing_mode", "attention"),
        *("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "topk"),
        *(name for name, field in FIELDS.items() if field.group == "Software"),
    }
)
_ENUM = re.compile(r"<?[a-z]\w*\.(?P<name>\w+)(?:: [^>]*)?>?")
"""How Python prints a member of an enumeration: `AttnBackend.flash` or `<AttnBackend.flash: 1>`."""
TRUE = frozenset({"true", "yes", "on", "1"})
FALSE = frozenset({"false", "no", "off", "0"})


def read_value(name: str, raw: object) -> Value:
    """The canonical value of field `name`; None means stated as unset.

    Raises ValueError with a sentence that says what the field takes, and KeyError on a name that is no field.
    """
    field = FIELDS[name]
    if _is_unset(field, raw):
        return () if field.kind == "words" and name not in _UNSET_IS_NOT_EMPTY else None
    return _READERS[field.kind](field, raw)


def _is_unset(field: ContractField, raw: object) -> bool:
    if raw is None:
        return field.kind != "choice" or "none" not in field.choices
    return isinstance(raw, str) and raw.strip().lower() in UNSET - set(field.choices)


def _number(raw: object) -> float:
    """A finite number from a number or a text that spells one."""
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


def _read_count(_: ContractField, raw: object) -> Value:
    return _integer(raw, 1)


def _read_whole(_: ContractField, raw: object) -> Value:
    return _integer(raw, 0)


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
    """The items of a list, of "a,b" or "['a', 'b']", or of {"a": true, "b": false}."""
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


def _read_counts(_: ContractField, raw: object) -> Value:
    return tuple(_integer(item, 1) for item in _items(raw))


def _read_layers(_: ContractField, raw: object) -> Value:
    """A frequency, or one 0 or 1 a layer."""
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
        raise ValueError("must be a text")
    text = one_line(str(raw))
    if len(text) > MAX_TEXT:
        raise ValueError(f"must be at most {MAX_TEXT} characters long")
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
    "count": _read_count,
    "whole": _read_whole,
    "number": _read_number,
    "flag": _read_flag,
    "choice": _read_choice,
    "words": _read_words,
    "counts": _read_counts,
    "layers": _read_layers,
    "text": _read_text,
    "name": _read_name,
}


def is_stated(name: str, value: Value) -> bool:
    """False for a null that says nothing: no job has an unset GPU count, and an unset switch is not known to be off.

    For other fields unset is a value, for instance for `vpp` or `capacity`.
    """
    return value is not None or not (name in _NEVER_UNSET or FIELDS[name].kind == "flag")


def same_value(name: str, a: Value, b: Value) -> bool:
    """True when two canonical values of a field are the same fact."""
    return comparable(name, a) == comparable(name, b)


def comparable(name: str, value: Value) -> Scalar | tuple[Scalar, ...]:
    """What keys and comparisons see of a canonical value: names without case, whole floats as integers."""
    if value is None:
        return "(unset)"
    if isinstance(value, str):
        return value.casefold() if FIELDS[name].kind == "name" else value
    if isinstance(value, float) and value == int(value):
        return int(value)
    return value


def shown(value: Value) -> str:
    """A contract value as a person writes it."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "empty"
    return str(value)
