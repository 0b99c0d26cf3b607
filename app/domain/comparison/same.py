"""What two contracts have in common, and what neither side states."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.contract.fields import CONFIG_FIELDS, STACK_FIELDS
from app.domain.contract.values import same_value
from app.domain.run import Stated


@dataclass(frozen=True, slots=True)
class SameField:
    field: str
    a: Stated
    b: Stated


def same_fields(a: Mapping[str, Stated], b: Mapping[str, Stated]) -> tuple[SameField, ...]:
    """Members of the keys that both sides state, with the same value; in the registry's order."""
    return tuple(
        SameField(name, a[name], b[name])
        for name in (*STACK_FIELDS, *CONFIG_FIELDS)
        if name in a and name in b and same_value(name, a[name].value, b[name].value)
    )
