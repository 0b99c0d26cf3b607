"""The form in which a person states contract fields of a run that is there already: unknown ones, or a correction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from app.domain.contract_fields import FIELDS, ContractField
from app.domain.run import Stated
from app.errors import ThreewallsError
from app.runs.contract_view import ROLES
from app.web.numbers import contract_value

PREFIX = "field."
"""Of the form's inputs that are contract fields; `author` and `note` are not."""
_PATH = "fields."
"""By this `amend_contract` names a wrong one."""
_HINTS = {
    "count": "A whole number from 1.",
    "whole": "A whole number from 0.",
    "number": "A number.",
    "words": "Words, separated by commas.",
    "counts": "Whole numbers, separated by commas.",
    "layers": "A whole number, or 0 and 1 for each layer, separated by commas.",
}


@dataclass(frozen=True, slots=True)
class AmendInput:
    """One input. `choices` make it a select; `why` is the field's meaning and what depends on it."""

    name: str
    why: str
    hint: str
    choices: tuple[tuple[str, str], ...]
    numeric: bool
    value: str
    error: str


@dataclass(frozen=True, slots=True)
class AmendForm:
    """What was typed, by input, and what is wrong with it. `open` are fields asked for though they are known."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def stated(self) -> dict[str, str]:
        """The contract fields that were filled in, as they were typed."""
        return {
            name.removeprefix(PREFIX): value for name, value in self.values.items() if name.startswith(PREFIX) and value
        }

    def inputs(self, names: Sequence[str], contract: Mapping[str, Stated]) -> tuple[AmendInput, ...]:
        return tuple(self._input(FIELDS[name], contract.get(name)) for name in names if name in FIELDS)

    def refused(self, error: ThreewallsError) -> Self:
        """The same form with `error` where it belongs; what has no input of its own stands above the form."""
        errors: dict[str, str] = {}
        for wrong in error.errors:
            place = wrong.field.replace(_PATH, PREFIX, 1) if wrong.field.startswith(_PATH) else wrong.field
            errors[place] = "; ".join(filter(None, (errors.get(place), wrong.message)))
        known = {place for place in errors if place in (*self.values, "author", "note")}
        return type(self)(self.values, errors, "" if known else error.detail)

    def _input(self, known: ContractField, stated: Stated | None) -> AmendInput:
        name = PREFIX + known.name
        if known.kind == "flag":
            choices: tuple[tuple[str, str], ...] = (("true", "on"), ("false", "off"))
        else:
            choices = tuple((choice, choice) for choice in known.choices) if known.kind == "choice" else ()
        hint = _HINTS.get(known.kind, "")
        if known.kind == "words" and known.choices:
            hint = f"Any of {', '.join(known.choices)}."
        before = contract_value(stated.value) if stated and not choices else ""
        return AmendInput(
            name=name,
            why=f"{known.meaning} {ROLES[known.role]}",
            hint=hint + (f" In {known.unit}." if known.unit else ""),
            choices=choices,
            numeric=known.kind in ("count", "whole", "number"),
            value=self.values.get(name, before),
            error=self.error(name),
        )


def read_amend_form(sent: Mapping[str, object]) -> AmendForm:
    """The text inputs of a form as it was sent; others are left out."""
    names = [name for name in sent if name in ("author", "note") or name.removeprefix(PREFIX) in FIELDS]
    return AmendForm({name: value.strip() for name in names if isinstance(value := sent[name], str)})
