"""The contract as the run page shows it: grouped, each value with its source, what is unknown among what is known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract_fields import FIELDS
from app.domain.run import Stated
from app.runs.log_view import stated_line
from app.web.numbers import contract_value

OTHER = "Other"
_ROLES = {"stack": "Must be equal to compare.", "config": "A tuning knob.", "info": "Not compared."}
_EXAMPLES = {"count": 8, "whole": 0, "number": 1.0, "flag": True}


@dataclass(frozen=True, slots=True)
class ContractRow:
    """`value` is None when it is unknown. `line` is the log line that states it, or None."""

    name: str
    meaning: str
    value: str | None
    unit: str
    source: str
    detail: str
    line: int | None


@dataclass(frozen=True, slots=True)
class ContractGroup:
    name: str
    rows: tuple[ContractRow, ...]


def contract_groups(contract: Mapping[str, Stated], unknown: Sequence[str]) -> tuple[ContractGroup, ...]:
    """Groups in the order of the registry; fields that it does not know come last, under `Other`."""
    shown = [name for name in FIELDS if name in contract or name in unknown]
    shown += [name for name in (*contract, *unknown) if name not in FIELDS]
    groups: dict[str, list[ContractRow]] = {}
    for name in dict.fromkeys(shown):
        group = FIELDS[name].group if name in FIELDS else OTHER
        groups.setdefault(group, []).append(_row(name, contract.get(name)))
    return tuple(ContractGroup(name, tuple(rows)) for name, rows in groups.items())


def metadata_to_add(unknown: Sequence[str]) -> str:
    """A `meta` document that states the unknown fields, with an example of each kind of value."""
    return json.dumps({name: _example(name) for name in unknown}, indent=2)


def _row(name: str, stated: Stated | None) -> ContractRow:
    field = FIELDS.get(name)
    meaning = f"{field.meaning} {_ROLES[field.role]}" if field else ""
    unit = field.unit if field else ""
    if stated is None:
        return ContractRow(name, meaning, None, unit, "", "", None)
    value = contract_value(stated.value)
    return ContractRow(name, meaning, value, unit, stated.source, stated.detail, stated_line(stated))


def _example(name: str) -> object:
    field = FIELDS.get(name)
    if field is None:
        return "..."
    return field.choices[0] if field.choices else _EXAMPLES.get(field.kind, "...")
