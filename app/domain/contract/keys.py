"""Computes the two identities of a run: the stack key and the config key, which adds every tuning knob.

A key is the SHA-256 of the canonical JSON of its members. It depends on values only, not on their order, their source
or the spelling of a number. An unknown member is null, which no stated value is.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.contract.values import comparable, shown
from app.domain.run import Stated


def stack_key(project: str, contract: Mapping[str, Stated]) -> str:
    """Return the key of everything that must be equal before two runs are ranked or judged: 64 hexadecimal digits."""
    return _digest(project, contract, STACK_FIELDS)


def config_key(project: str, contract: Mapping[str, Stated]) -> str:
    """Return the key of the stack and every other knob: 64 hexadecimal digits."""
    return _digest(project, contract, (*STACK_FIELDS, *CONFIG_FIELDS))


def workload(contract: Mapping[str, Stated]) -> tuple[str, ...]:
    """Return what identifies the work across containers, within a project; "" for an unknown member."""
    stated = (contract.get(name) for name in STACK_FIELDS if name != "container")
    return tuple("" if field is None or field.value is None else shown(field.value) for field in stated)


def is_provisional(contract: Mapping[str, Stated]) -> bool:
    """Return True when a member of the stack key is unknown, so that results may compare unequal runs."""
    return any(name not in contract for name in STACK_FIELDS)


def _digest(project: str, contract: Mapping[str, Stated], members: Iterable[str]) -> str:
    values: dict[str, object] = {"project": project.casefold()}
    values |= {name: comparable(name, contract[name].value) if name in contract else None for name in members}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
