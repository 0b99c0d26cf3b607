"""Where the cause of a regression lies. The key that groups its members begins with the axis: `code:0f3c2a9d...`."""

from sqlalchemy import ColumnElement
from sqlmodel import col

from app.domain.matching import AXES, Axis
from app.storage.tables import RegressionRow


def axis_of_cause(cause_key: str) -> Axis | None:
    """None for a cause of which nobody can tell where it lies."""
    name = cause_key.partition(":")[0]
    return next((axis for axis in AXES if axis == name), None)


def has_axis(axis: str) -> ColumnElement[bool]:
    return col(RegressionRow.cause_key).startswith(f"{axis}:", autoescape=True)
