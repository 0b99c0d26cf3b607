"""The registry of the contract: every field that a fair comparison may depend on, and every headline figure.

`FIELDS` maps the canonical name to its field, in the order in which pages show them. A new field is one row in the
file of its group and one line in `docs/glossary.md`.
"""

from app.domain.contract.fields import environment, identity, moe, parallelism, performance, shape
from app.domain.contract.fields.field import ContractField, Kind, MetricField, Role
from app.domain.contract.fields.metrics import METRICS

__all__ = [
    "CONFIG_FIELDS",
    "FIELDS",
    "METRICS",
    "STACK_FIELDS",
    "ContractField",
    "Kind",
    "MetricField",
    "Role",
]

FIELDS: dict[str, ContractField] = {
    field.name: field
    for field in (
        *identity.FIELDS,
        *parallelism.FIELDS,
        *moe.FIELDS,
        *performance.FIELDS,
        *environment.FIELDS,
        *shape.FIELDS,
    )
}

STACK_FIELDS = tuple(name for name, field in FIELDS.items() if field.role == "stack")
"""Members of the stack key, besides the project."""

CONFIG_FIELDS = tuple(name for name, field in FIELDS.items() if field.role == "config")
"""Members that the config key adds to the stack key."""
