"""Where the cause of a regression lies, by the key that groups its members (`domain/alarms.py`).

The key begins with an axis (`code:0f3c2a9d...`), or with `upgrade` and the field whose value a project changed.
"""

from sqlalchemy import ColumnElement, or_
from sqlmodel import col

from app.domain.matching import AXES, Axis, axis_of
from app.domain.matching.assessment import UPGRADES
from app.storage.judging_tables import RegressionRow

_UPGRADE = "upgrade"


def axis_of_cause(cause_key: str) -> Axis | None:
    """None for a cause of which nobody can tell where it lies."""
    name, _, rest = cause_key.partition(":")
    field = rest.partition(":")[0]
    if name == _UPGRADE and field in UPGRADES:
        return axis_of(field)
    return next((axis for axis in AXES if axis == name), None)


def has_axis(axis: str) -> ColumnElement[bool]:
    upgrades = [f"{_UPGRADE}:{field}" for field in UPGRADES if axis_of(field) == axis]
    return or_(*(col(RegressionRow.cause_key).startswith(f"{key}:", autoescape=True) for key in (axis, *upgrades)))
