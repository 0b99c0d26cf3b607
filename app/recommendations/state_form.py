"""The form in which a person states facts of a run that no log tells."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from app.domain.rules.facts import Fact
from app.domain.rules.filling import fact_text
from app.domain.rules.stating import CHOICES, STATEABLE, TAKE_BACK, is_share
from app.errors import ThreewallsError
from app.web.contract_inputs import ContractInput

PREFIX = "fact."
"""Of the inputs that are facts."""
UNSET = "take_back"
"""The input that names a fact whose statement is taken back."""
_WORDS = ("author", "note")
_HINTS = {"int": "A whole number.", "double": "A number.", "ints": "Whole numbers, separated by commas."}


@dataclass(frozen=True, slots=True)
class StateForm:
    """What was typed, by input, and what is wrong with it."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def facts(self) -> dict[str, object]:
        """What was filled in, as it was typed, and what is taken back."""
        found: dict[str, object] = {
            name.removeprefix(PREFIX): value for name, value in self.values.items() if name.startswith(PREFIX) and value
        }
        if self.value(UNSET):
            found[self.value(UNSET)] = TAKE_BACK
        return found

    def refused(self, error: ThreewallsError) -> Self:
        """The same form with `error` where it belongs; what has no input of its own stands above the form."""
        errors = {one.field.replace("facts.", PREFIX, 1): one.message for one in error.errors}
        elsewhere = [text for name, text in errors.items() if name not in self.values and name not in _WORDS]
        return type(self)(self.values, errors, " ".join(elsewhere) if errors else error.detail)


def read_state_form(sent: Mapping[str, object]) -> StateForm:
    """The text inputs of a form as it was sent; others are left out."""
    names = [name for name in sent if name in (*_WORDS, UNSET) or name.removeprefix(PREFIX) in STATEABLE]
    return StateForm({name: value.strip() for name in names if isinstance(value := sent[name], str)})


def fact_input(fact: Fact, form: StateForm, before: object = None) -> ContractInput:
    """A select or a text box by the kind of the fact, with what was typed, else with the value `before`."""
    name = PREFIX + fact.name
    choices: tuple[tuple[str, str], ...] = ()
    if fact.type == "bool":
        choices = (("true", "yes"), ("false", "no"))
    elif fact.type == "string":
        choices = tuple((one, one) for one in CHOICES.get(fact.name, ()))
    shown = "" if before is None else str(before).lower() if isinstance(before, bool) else fact_text(before)
    return ContractInput(
        name=name,
        field=fact.name,
        why=fact.meaning,
        hint=_hint(fact),
        choices=choices,
        numeric=fact.type in ("int", "double"),
        value=form.value(name) or shown,
        error=form.error(name),
    )


def _hint(fact: Fact) -> str:
    if is_share(fact):
        return "Such as 0.18 or 18 %."
    if fact.type == "strings":
        return f"Any of {', '.join(CHOICES[fact.name])}; none." if fact.name in CHOICES else "Words; none."
    return f"In {fact.unit}." if fact.unit else _HINTS.get(fact.type, "")
