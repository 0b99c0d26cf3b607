"""Inputs by which a person states contract fields: a select or a text box by the field's kind, with why it matters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from app.domain.contract.fields import FIELDS
from app.domain.run import Value
from app.errors import FieldError
from app.web.numbers import contract_value

PREFIX = "field."
"""Of the inputs that are contract fields; a form has others beside them."""
ROLES = {"stack": "Must be equal to compare.", "config": "A tuning knob.", "info": "Not compared."}
_ERROR_PATH = "fields."
"""By this errors name a contract field."""
_HINTS = {
    "count": "A whole number from 1.",
    "whole": "A whole number from 0.",
    "number": "A number.",
    "words": "Words, separated by commas.",
    "counts": "Whole numbers, separated by commas.",
    "layers": "A whole number, or 0 and 1 for each layer, separated by commas.",
}


class Typed(Protocol):
    """What was typed into a form and what is wrong with it, by input."""

    def value(self, name: str) -> str: ...
    def error(self, name: str) -> str: ...


@dataclass(frozen=True, slots=True)
class ContractInput:
    """`choices` (value, label) make it a select; `why` is the field's meaning and what depends on it."""

    name: str
    field: str
    why: str
    hint: str
    choices: tuple[tuple[str, str], ...]
    numeric: bool
    value: str
    error: str


def contract_input(name: str, form: Typed, before: Value = None) -> ContractInput:
    """The input of contract field `name`, with what was typed, else with the value `before`."""
    known = FIELDS[name]
    choices: tuple[tuple[str, str], ...] = ()
    if known.kind == "flag":
        choices = (("true", "on"), ("false", "off"))
    elif known.kind == "choice":
        choices = tuple((choice, choice) for choice in known.choices)
    hint = _HINTS.get(known.kind, "")
    if known.kind == "words" and known.choices:
        hint = f"Any of {', '.join(known.choices)}."
    typed = form.value(PREFIX + name)
    return ContractInput(
        name=PREFIX + name,
        field=name,
        why=f"{known.meaning} {ROLES[known.role]}",
        hint=hint + (f" In {known.unit}." if known.unit else ""),
        choices=choices,
        numeric=known.kind in ("count", "whole", "number"),
        value=typed or _shown(before),
        error=form.error(PREFIX + name),
    )


def stated(values: Mapping[str, str]) -> dict[str, str]:
    """The contract fields of a form that were filled in, as they were typed."""
    return {name.removeprefix(PREFIX): value for name, value in values.items() if name.startswith(PREFIX) and value}


def placed(errors: tuple[FieldError, ...]) -> dict[str, str]:
    """What is wrong, by the input that it belongs to."""
    found: dict[str, str] = {}
    for wrong in errors:
        name = wrong.field.replace(_ERROR_PATH, PREFIX, 1) if wrong.field.startswith(_ERROR_PATH) else wrong.field
        found[name] = "; ".join(filter(None, (found.get(name), wrong.message)))
    return found


def _shown(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return contract_value(value)
