"""What a fact is: a name that conditions may use, its meaning, its kind, and how somebody supplies it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Type = Literal["int", "double", "bool", "string", "version", "strings", "ints"]
"""How conditions see it. A version is a string that holds digits."""
Group = Literal["contract", "derived", "hardware", "model", "software", "asked", "measured", "compared", "setting"]
"""contract: a field of the registry. derived, hardware, model: follow from others. software: of the installed stack.
asked: an option of the launch that is no contract field. measured: from logs or a profile. compared: of two runs that
stand beside each other. setting: a threshold of this service."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of the registry. `argument`: names under which the trainer's dump states it (argparse names).

    `inputs`: facts that it follows from, for derived ones. `supply`: what somebody does who wants it known.
    `default`: of settings only. `section` of its table tells who knows it: a log, a profile, a person, the launch.
    """

    name: str
    type: Type
    group: Group
    meaning: str
    unit: str = ""
    supply: str = ""
    argument: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    default: float | None = None
    section: str = "contract"


def typed(fact: Fact, value: object) -> object:
    """The value as conditions see it. Raises ValueError on one that the fact does not take; None is "unset"."""
    if value is None:
        return _UNSET.get(fact.type)
    if fact.type in _LISTS:
        items = value if isinstance(value, list | tuple | set | frozenset) else (value,)
        return [_LISTS[fact.type](fact.name, item) for item in items]
    return _READERS[fact.type](fact.name, value)


_UNSET: Mapping[str, object] = {"strings": [], "ints": []}


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return int(value)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return float(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, not {value!r}")
    return value


def _version(name: str, value: object) -> str:
    text = str(value)
    if not re.search(r"\d", text):
        raise ValueError(f"{name} must be a version, not {value!r}")
    return text


_READERS = {"int": _whole, "double": _number, "bool": _flag, "string": _text, "version": _version}
_LISTS = {"strings": _text, "ints": _whole}
