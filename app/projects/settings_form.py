"""The form of a project's defaults: the fields that most projects share, those that are set, and one more."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from app.domain.contract.fields import FIELDS
from app.errors import ThreewallsError
from app.projects.defaults import Defaults
from app.web.contract_inputs import PREFIX, ContractInput, contract_input, placed, stated

OFFERED = ("cluster", "gpu", "gpus_per_node", "container", "driver", "data_mode", "task")
"""What holds for all jobs of most projects, and what hardly any log prints."""
ANOTHER, ANOTHER_VALUE = "another", "another_value"
_OWN = ("container_image", "author", ANOTHER, ANOTHER_VALUE)


@dataclass(frozen=True, slots=True)
class SettingsForm:
    """What was typed, by input, and what is wrong with it. `sent`: it came from a browser and wins over what is set."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    sent: bool = False

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def stated(self) -> dict[str, str]:
        """The fields as they were typed, the additional one among them."""
        extra = {self.value(ANOTHER): self.value(ANOTHER_VALUE)} if self.value(ANOTHER_VALUE) else {}
        return stated(self.values) | extra

    def inputs(self, defaults: Defaults) -> tuple[ContractInput, ...]:
        names = dict.fromkeys((*OFFERED, *defaults.fields, *stated(self.values)))
        before = {} if self.sent else {name: default.value for name, default in defaults.fields.items()}
        return tuple(contract_input(name, self, before.get(name)) for name in names if name in FIELDS)

    def refused(self, error: ThreewallsError) -> Self:
        errors = placed(error.errors)
        if wrong := errors.get(PREFIX + self.value(ANOTHER)):
            errors[ANOTHER_VALUE] = wrong
        known = any(name in (*self.values, *_OWN) for name in errors)
        return type(self)(self.values, errors, "" if known else error.detail, sent=True)


def read_settings_form(sent: Mapping[str, object]) -> SettingsForm:
    names = [name for name in sent if name in _OWN or name.removeprefix(PREFIX) in FIELDS]
    return SettingsForm({name: value.strip() for name in names if isinstance(value := sent[name], str)}, sent=True)


def filled_form(defaults: Defaults) -> SettingsForm:
    """The form as the project's settings stand."""
    rule = defaults.container_image
    return SettingsForm({"container_image": str(rule.value)} if rule else {})
