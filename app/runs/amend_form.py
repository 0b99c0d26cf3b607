"""The form in which a person states contract fields of a run that is there already: unknown ones, or a correction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from app.domain.contract.fields import FIELDS
from app.domain.run import Stated
from app.errors import ThreewallsError
from app.runs.amend import TAKE_BACK
from app.web.contract_inputs import PREFIX, ContractInput, contract_input, placed, stated

_WORDS = ("author", "note")
UNSET = "take_back"
"""The input that names a field whose correction is taken back."""


@dataclass(frozen=True, slots=True)
class AmendForm:
    """What was typed, by input, and what is wrong with it."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def stated(self) -> dict[str, object]:
        """The contract fields that were filled in, as they were typed, and the one that is taken back."""
        fields: dict[str, object] = dict(stated(self.values))
        if self.value(UNSET):
            fields[self.value(UNSET)] = TAKE_BACK
        return fields

    def inputs(self, names: Sequence[str], contract: Mapping[str, Stated]) -> tuple[ContractInput, ...]:
        known = (name for name in names if name in FIELDS)
        return tuple(contract_input(name, self, contract[name].value if name in contract else None) for name in known)

    def refused(self, error: ThreewallsError) -> Self:
        """The same form with `error` where it belongs; what has no input of its own stands above the form."""
        errors = placed(error.errors)
        elsewhere = [text for name, text in errors.items() if name not in self.values and name not in _WORDS]
        return type(self)(self.values, errors, " ".join(elsewhere) if errors else error.detail)


def read_amend_form(sent: Mapping[str, object]) -> AmendForm:
    """The text inputs of a form as it was sent; others are left out."""
    names = [name for name in sent if name in (*_WORDS, UNSET) or name.removeprefix(PREFIX) in FIELDS]
    return AmendForm({name: value.strip() for name in names if isinstance(value := sent[name], str)})
