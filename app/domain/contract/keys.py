"""The two identities of a run: what must be equal before runs are ranked, and that plus every tuning knob.

A key is the SHA-256 of the canonical JSON of its members. It depends on values only: not on their order, nor on who
stated them, nor on how a number was written. An unknown member is null, which no stated value is.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.contract.values import comparable
from app.domain.run import Stated


def stack_key(project: str, contract: Mapping[str, Stated]) -> str:
    """The key of what must be equal before two runs may be ranked or judged, as 64 hexadecimal digits."""
    return _digest(project, contract, STACK_FIELDS)


def config_key(project: str, contract: Mapping[str, Stated]) -> str:
    """The key of the stack and every remaining knob, as 64 hexadecimal digits."""
    return _digest(project, contract, (*STACK_FIELDS, *CONFIG_FIELDS))


def is_provisional(contract: Mapping[str, Stated]) -> bool:
    """True when a member of the stack key is unknown: results that rest on it may compare what is not equal."""
    return any(name not in contract for name in STACK_FIELDS)


def _digest(project: str, contract: Mapping[str, Stated], members: Iterable[str]) -> str:
    values: dict[str, object] = {"project": project.casefold()}
    values |= {name: comparable(name, contract[name].value) if name in contract else None for name in members}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
