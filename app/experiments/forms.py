"""The forms of experiments as they were sent: planning one, and deciding about one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from app.errors import ThreewallsError

DECISIONS = ("accept", "reject", "withdraw", "runs")
_DECISION_INPUTS = ("decision", "note", "author", "runs_each")
_PLAN_INPUTS = ("run", "rule", "field", "value", "author", "runs_each")
_LONGEST = 5000
_PLACES = {"who": "author", "knobs": "value", "rule_id": "rule"}
"""Where an error of the service belongs, by the name that it gives the field."""


@dataclass(frozen=True, slots=True)
class _Form:
    """What was typed, by input, and what is wrong with it. `problem` is what has no input of its own."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: ThreewallsError) -> Self:
        """The same form with `error` where it belongs; what has no input of its own stands above the form."""
        shown = self._shown()
        errors = {_PLACES.get(top := one.field.partition(".")[0], top): one.message for one in reversed(error.errors)}
        placed = {name: text for name, text in errors.items() if name in shown}
        elsewhere = [f"{name} {text}." for name, text in errors.items() if name not in shown]
        problem = " ".join([error.detail, *elsewhere]) if elsewhere or not placed else ""
        return type(self)(self.values, placed, problem)

    def _shown(self) -> tuple[str, ...]:
        """Inputs beside which an error can stand."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class DecisionForm(_Form):
    """Accept, reject, withdraw, or another number of runs."""

    def _shown(self) -> tuple[str, ...]:
        return ("note", "author", "runs_each")


@dataclass(frozen=True, slots=True)
class PlanForm(_Form):
    """A suggestion's experiment (`run`, `rule`), or a person's own (`run`, `field`, `value`)."""

    def _shown(self) -> tuple[str, ...]:
        return ("run", "field", "value", "author", "runs_each")

    @property
    def run_id(self) -> int | None:
        """None where nobody named one, or what was typed is no number of a run."""
        return whole_number(self.value("run"))

    @property
    def knobs(self) -> dict[str, object]:
        return {self.value("field"): self.value("value")} if self.value("field") else {}

    @property
    def runs_each(self) -> int | None:
        return whole_number(self.value("runs_each"))


def read_decision_form(sent: Mapping[str, object]) -> DecisionForm:
    return DecisionForm(_texts(sent, _DECISION_INPUTS))


def read_plan_form(sent: Mapping[str, object]) -> PlanForm:
    return PlanForm(_texts(sent, _PLAN_INPUTS))


def whole_number(text: str) -> int | None:
    digits = text.strip().removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 and int(digits) > 0 else None


def _texts(sent: Mapping[str, object], names: tuple[str, ...]) -> dict[str, str]:
    # Browsers send line ends as CRLF, whatever was typed.
    return {
        name: value.strip().replace("\r\n", "\n")[:5000] for name in names if isinstance(value := sent.get(name), str)
    }
