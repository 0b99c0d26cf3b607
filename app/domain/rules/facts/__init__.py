"""The registry of facts: every name that a condition may use.

A rule that needs another fact adds one row: in `asked.yaml` an option of the launch (with the trainer's own name for
it), in `measured.yaml` what logs and profiles show, in `derived.yaml` what follows from others, together with its
function in `domain/rules/derive.py`. Contract fields are facts by themselves.
"""

from collections.abc import Mapping

from app.domain.rules.facts import contract
from app.domain.rules.facts.fact import Fact, Group, Type, typed
from app.domain.rules.facts.tables import read_tables

__all__ = ["FACTS", "SETTINGS", "Fact", "Group", "Type", "normal", "typed"]

FACTS: dict[str, Fact] = {fact.name: fact for fact in (*contract.FACTS, *read_tables())}

SETTINGS: dict[str, float] = {fact.name: fact.default for fact in FACTS.values() if fact.default is not None}
"""Thresholds that no source gives: our own defaults."""

_FLAGS_OFF = frozenset(fact.name for fact in contract.FACTS if fact.type == "bool")
"""A switch of the contract is unset where another field leaves it without effect: it is off."""


def normal(facts: Mapping[str, object]) -> dict[str, object]:
    """Facts as people write them, as conditions see them; `env` may be a mapping.

    Raises ValueError on a name that is no fact and on a value that does not suit it.
    """
    found: dict[str, object] = {}
    for name, value in _flat(facts):
        if name not in FACTS:
            raise ValueError(f"{name} is no known fact")
        read = typed(FACTS[name], value)
        found[name] = False if read is None and name in _FLAGS_OFF else read
    return found


def _flat(facts: Mapping[str, object]) -> list[tuple[str, object]]:
    flat: list[tuple[str, object]] = []
    for name, value in facts.items():
        if name == "env" and isinstance(value, Mapping):
            flat += [(f"env.{key}", None if item is None else str(item)) for key, item in value.items()]
        else:
            flat.append((name, value))
    return flat
