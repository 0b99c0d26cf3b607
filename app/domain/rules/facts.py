"""The registry of facts: every name that a condition may use.

A rule that needs another fact adds a row: in `asked.yaml` for a launch option (with the trainer's name for it), in
`measured.yaml` for values of logs and profiles, in `derived.yaml` for derived values, with a function in
`domain/rules/derive.py`. Contract fields are facts automatically.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from app.domain.contract.fields import FIELDS, ContractField

# --- Facts: names that conditions may use, with meaning, type, and how to supply them.

Type = Literal["int", "double", "bool", "string", "version", "strings", "ints"]
"""Types in conditions. A version is a string of digits and dots."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of the registry.

    `argument`: names in the trainer's argument dump (argparse names). `inputs`: the facts it is derived from. `supply`:
    how to state it. `default`: of settings only. `section`: its table, which tells its source: a log, a profile, a
    user, the launch, other facts (derived, hardware, model), other runs (compared, faster, judged); contract: a field
    of the registry; setting: a threshold of this service.
    """

    name: str
    type: Type
    meaning: str
    unit: str = ""
    supply: str = ""
    argument: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    default: float | None = None
    section: str = "contract"


def typed(fact: Fact, value: object) -> object:
    """Return the typed value. Raises ValueError for an invalid value; None means "unset"."""
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
        raise ValueError(f"{name} must be text, not {value!r}")
    return value


def _version(name: str, value: object) -> str:
    text = str(value)
    if not re.search(r"\d", text):
        raise ValueError(f"{name} must be a version, not {value!r}")
    return text


_READERS = {"int": _whole, "double": _number, "bool": _flag, "string": _text, "version": _version}
_LISTS = {"strings": _text, "ints": _whole}


# --- Contract fields as facts, by canonical name.

_TYPES: dict[str, Type] = {
    "count": "int",
    "whole": "int",
    "number": "double",
    "flag": "bool",
    "choice": "string",
    "words": "strings",
    "counts": "ints",
    "text": "string",
    "name": "string",
    "layers": "ints",
}
"""Return the type of a field in conditions. `layers`: a frequency is a list of one."""

VERSIONS = frozenset({"te_version", "pytorch_version", "cuda_version", "nccl_version", "cudnn_version"})

INPUTS = {
    "dp": ("gpus", "tp", "pp", "cp"),
    "edp": ("gpus", "pp", "ep", "etp"),
    "ga": ("gbs", "mbs", "dp"),
    "dispatcher_type": ("dispatcher",),
    "flex_backend": ("dispatcher",),
    "gpus_per_node": ("gpu",),
    "num_layers": ("model",),
    "hidden_size": ("model",),
    "num_experts": ("model",),
    "topk": ("model",),
}
"""Fields that are usually derived, with the fields to state instead."""


def _fact(field: ContractField) -> Fact:
    kind: Type = "version" if field.name in VERSIONS else _TYPES[field.kind]
    supply = f"State `{field.name}` in the metadata or as a default of the project"
    if field.name.startswith("env."):
        supply = (
            f"State `{field.name.removeprefix('env.')}` under `env` in the metadata, or upload the job's environment"
        )
    elif "--" in field.megatron_lm or field.bridge.startswith(("model.", "ddp.", "comm_overlap.", "optimizer.")):
        supply += ", or upload a log that contains the trainer's arguments"
    return Fact(field.name, kind, field.meaning, field.unit, supply + ".", inputs=INPUTS.get(field.name, ()))


CONTRACT_FACTS = tuple(_fact(field) for field in FIELDS.values())


# --- Read the tables of facts: `derived.yaml`, `measured.yaml` and `asked.yaml`.

FOLDER = Path(__file__).resolve().parent / "fact_tables"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Both loaders are safe; the C one is ten times as fast."""

_SUPPLY = {
    "log": "A log with iterations contains it; or state `{name}` in the metadata.",
    "profile": "Measure it with a profile of steady steps and state `{name}` in the metadata.",
    "stated": "State `{name}` in the metadata.",
    "asked": "State `{name}` in the metadata.",
    "compared": "Compare the run with another one.",
    "setting": "A setting of this service.",
}


def read_tables() -> tuple[Fact, ...]:
    return tuple(
        _tables_fact(section, name, row)
        for path in sorted(FOLDER.glob("*.yaml"))
        for section, rows in yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER).items()  # noqa: S506
        for name, row in rows.items()
    )


def _tables_fact(section: str, name: str, row: dict[str, Any]) -> Fact:
    unknown = set(row) - {"type", "meaning", "unit", "from", "argument", "default", "supply"}
    if unknown or not {"type", "meaning"} <= set(row):
        raise ValueError(f"{name}: a fact has type and meaning, not {', '.join(sorted(unknown))}")
    supply = row.get("supply") or _SUPPLY.get(section, "")
    return Fact(
        name=name,
        type=row["type"],
        meaning=str(row["meaning"]),
        unit=str(row.get("unit", "")),
        supply=str(supply).format(name=name),
        argument=tuple(row.get("argument", ())),
        inputs=tuple(row.get("from", ())),
        default=row.get("default"),
        section=section,
    )


FACTS: dict[str, Fact] = {fact.name: fact for fact in (*CONTRACT_FACTS, *read_tables())}

SETTINGS: dict[str, float] = {fact.name: fact.default for fact in FACTS.values() if fact.default is not None}
"""Thresholds without a published source: our defaults."""

_FLAGS_OFF = frozenset(fact.name for fact in CONTRACT_FACTS if fact.type == "bool")
"""A contract switch that another field makes ineffective is off."""


def normal(facts: Mapping[str, object]) -> dict[str, object]:
    """Return typed facts; `env` may be a mapping. Raises ValueError for an unknown name or an invalid value."""
    typed_facts: dict[str, object] = {}
    for name, value in _flat(facts):
        if name not in FACTS:
            raise ValueError(f"{name} is not a known fact")
        read = typed(FACTS[name], value)
        typed_facts[name] = False if read is None and name in _FLAGS_OFF else read
    return typed_facts


def _flat(facts: Mapping[str, object]) -> list[tuple[str, object]]:
    flat: list[tuple[str, object]] = []
    for name, value in facts.items():
        if name == "env" and isinstance(value, Mapping):
            flat += [(f"env.{key}", None if item is None else str(item)) for key, item in value.items()]
        else:
            flat.append((name, value))
    return flat
