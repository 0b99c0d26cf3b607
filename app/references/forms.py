"""The forms by which a team adds a published figure, corrects it and withdraws it. They work without script."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self

from app.domain.contract.fields import FIELDS
from app.domain.reference_points import FIGURES
from app.domain.reference_points.point import FP8_OF_SOME_KIND
from app.domain.run import Value
from app.errors import ThreewallsError
from app.references.change import CONTRACT, FACTS, By, Said, said_by
from app.storage.references import Reference
from app.web.contract_inputs import PREFIX, ContractInput, contract_input
from app.web.numbers import contract_value

OFFERED = (
    *("model", "gpu", "gpus", "precision", "seq_len", "gbs", "mbs", "routing_mode", "dispatcher", "data_mode"),
    *("tp", "pp", "vpp", "cp", "ep", "mtp", "container", "task"),
)
"""What a published table most often states, in the order in which it does."""
ANOTHER, ANOTHER_VALUE = "another", "another_value"
_OWN = (*FACTS, "project", "author", "reason", "seen", ANOTHER, ANOTHER_VALUE)


@dataclass(frozen=True, slots=True)
class ReferenceForm:
    """What was typed, by input, and what is wrong with it. `problem` is what has no input of its own."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    @property
    def project(self) -> str:
        return self.value("project")

    def said(self) -> Said:
        """An empty input takes its field away."""
        contract = {name.removeprefix(PREFIX): text for name, text in self.values.items() if name.startswith(PREFIX)}
        if self.value(ANOTHER_VALUE):
            contract[self.value(ANOTHER)] = self.value(ANOTHER_VALUE)
        facts: dict[str, object] = {name: self.values[name] or None for name in FACTS if name in self.values}
        facts |= {name: _number(self.value(name)) for name in FIGURES if self.value(name)}
        facts["rounded"] = self.value("rounded") == "true" or None
        return Said({name: text or None for name, text in contract.items()}, facts)

    def by(self) -> By:
        return By(self.value("author"), self.value("reason"), _time(self.value("seen")))

    def inputs(self) -> tuple[ContractInput, ...]:
        """Those that are offered, and those that are stated besides."""
        stated = (name.removeprefix(PREFIX) for name in self.values if name.startswith(PREFIX))
        names = (name for name in dict.fromkeys((*OFFERED, *stated)) if name in FIELDS)
        return tuple(_with_some_fp8(contract_input(name, self)) for name in names)

    def refused(self, error: ThreewallsError) -> Self:
        errors = {one.field.replace(CONTRACT, PREFIX, 1): one.message for one in error.errors}
        if wrong := errors.get(PREFIX + self.value(ANOTHER)):
            errors[ANOTHER_VALUE] = wrong
        placed = {name: text for name, text in errors.items() if name in _OWN or name.startswith(PREFIX)}
        return type(self)(self.values, placed, "" if placed and "seen" not in placed else error.detail)


def read_reference_form(sent: Mapping[str, object]) -> ReferenceForm:
    names = [name for name in sent if name in _OWN or name.removeprefix(PREFIX) in FIELDS]
    return ReferenceForm({name: value.strip() for name in names if isinstance(value := sent[name], str)})


def offered_form(params: Mapping[str, str]) -> ReferenceForm:
    """An empty form, with the contract fields that the address names."""
    return ReferenceForm({PREFIX + name: value[:300] for name, value in params.items() if name in FIELDS})


def filled_form(one: Reference) -> ReferenceForm:
    """The form of a figure as it is."""
    said = said_by(one.point)
    values = {(PREFIX + name if name in FIELDS else name): _shown(value) for name, value in said.items()}
    if one.entered:
        values |= {"project": one.entered.project, "seen": one.entered.changed_at.isoformat()}
    return ReferenceForm(values)


def _with_some_fp8(input_: ContractInput) -> ContractInput:
    if input_.field != "precision":
        return input_
    return replace(input_, choices=(*input_.choices, (FP8_OF_SOME_KIND, "fp8, not said which")))


def _shown(value: Value) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.15g}"
    return contract_value(value)


def _number(text: str) -> object:
    """As the figure that it spells; a text that spells none is refused by its name."""
    try:
        return float(text)
    except ValueError:
        return text


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else None
