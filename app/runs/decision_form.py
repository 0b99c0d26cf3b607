"""The forms of what a person decides about a run: which was sent, what was typed, what is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from app.errors import ThreewallsError
from app.runs.decide import Action

_INPUTS = ("author", "note")


@dataclass(frozen=True, slots=True)
class DecisionForm:
    """`action` None: none was sent. What has no input of its own stands above the form, in `problem`."""

    action: Action | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def value(self, action: Action, name: str) -> str:
        return self.values.get(name, "") if action == self.action else ""

    def error(self, action: Action, name: str) -> str:
        return self.errors.get(name, "") if action == self.action else ""

    def refused(self, error: ThreewallsError) -> Self:
        errors = {one.field: one.message for one in error.errors}
        placed = {name: text for name, text in errors.items() if name in _INPUTS}
        return type(self)(self.action, self.values, placed, "" if placed else error.detail)


def read_decision_form(action: Action, sent: Mapping[str, object]) -> DecisionForm:
    values = {name: value.strip() for name in _INPUTS if isinstance(value := sent.get(name), str)}
    return DecisionForm(action, values)
