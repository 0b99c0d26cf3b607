"""Planning an experiment: its estimated cost, and the form for the user's own change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from sqlmodel import Session

from app.domain.contract.fields import FIELDS
from app.domain.numbers import contract_value
from app.domain.verdict.differences import axis_of
from app.errors import InvalidChange, NotReady, ThreewallsError
from app.pipeline.propose import ExperimentProposal, Wish, propose
from app.pipeline.suggest import RunSuggestions
from app.settings import Settings
from app.storage.rules import read_run
from app.web.forms import PREFIX, ContractInput, Form, contract_input

# --- The submitted forms: plan an experiment, or decide about one.

DECISIONS = ("accept", "reject", "withdraw", "runs")
_PLACES = {"who": "author", "knobs": "value", "rule_id": "rule"}
"""Form field of each field that errors of the service name."""


class FormOfPlan(Form):
    longest = 5000

    def input_of(self, field: str) -> str:
        name = field.partition(".")[0]
        return _PLACES.get(name, name)

    def refused(self, error: ThreewallsError) -> Self:
        """Return the form with `error` at its field; errors without an input are shown above the form."""
        errors = self.errors_by_input(error)
        placed = {name: text for name, text in errors.items() if name in self.inputs}
        elsewhere = [f"{name} {text}." for name, text in errors.items() if name not in self.inputs]
        problem = " ".join([error.detail, *elsewhere]) if elsewhere or not placed else ""
        return replace(self, errors=placed, problem=problem)


class ExperimentDecisionForm(FormOfPlan):
    """Accept, reject, withdraw, or another number of runs."""

    inputs = ("note", "author", "runs_each")
    hidden = ("decision",)


class PlanForm(FormOfPlan):
    """An experiment from a suggestion (`run`, `rule`), or from the user's own idea (`run`, `field`, `value`)."""

    inputs = ("run", "field", "value", "author", "runs_each")
    hidden = ("rule",)

    @property
    def run_id(self) -> int | None:
        """Return the number of the run; None without a valid one."""
        return whole_number(self.value("run"))

    @property
    def knobs(self) -> dict[str, object]:
        return {self.value("field"): self.value("value")} if self.value("field") else {}

    @property
    def runs_each(self) -> int | None:
        return whole_number(self.value("runs_each"))


def whole_number(text: str) -> int | None:
    digits = text.strip().removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 and int(digits) > 0 else None


_OF_THE_TASK = ("gpu", "gpus", "gpus_per_node")


@dataclass(frozen=True, slots=True)
class OfferedPlan:
    """The plan, or why it cannot be planned (`refused`); `form`: its inputs."""

    run_id: int
    form: PlanForm
    proposal: ExperimentProposal | None = None
    refused: str = ""


def offer(
    session: Session, settings: Settings, run_id: int, form: PlanForm, advice: RunSuggestions | None = None
) -> OfferedPlan:
    """Return the offer. `advice`: for the run, if the caller has it. Raises NotFound for an unknown run or rule."""
    try:
        return OfferedPlan(run_id, form, propose(session, settings, wish_of(run_id, form), advice))
    except NotReady as error:
        return OfferedPlan(run_id, form, refused=error.detail)
    except InvalidChange as error:
        marked = form.refused(error)
        return OfferedPlan(run_id, marked, refused=" ".join(marked.errors.values()) or error.detail)


def wish_of(run_id: int, form: PlanForm) -> Wish:
    return Wish(run_id, rule_id=form.value("rule"), knobs=form.knobs or None, runs_each=form.runs_each)


class IdeaPage:
    """The data of the template for the user's own idea. Raises NotFound, and NotReady until the run was read."""

    def __init__(self, session: Session, settings: Settings, run_id: int, form: PlanForm) -> None:
        self.run = read_run(session, run_id).run
        self.form = form
        self.offer: OfferedPlan | None = None
        if form.value("rule") or (form.value("field") and form.value("value")):
            self.offer = offer(session, settings, run_id, form)
            self.form = self.offer.form

    @property
    def rule(self) -> str:
        return self.form.value("rule")

    @cached_property
    def groups(self) -> Mapping[str, list[tuple[str, str]]]:
        """Return the changeable fields by group, each with the run's value."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, contract_field in FIELDS.items():
            if contract_field.role == "info" or axis_of(name) == "workload" or name in _OF_THE_TASK:
                continue
            stated = self.run.contract.get(name)
            now = "unknown" if stated is None else contract_value(stated.value)
            groups.setdefault(contract_field.group, []).append((name, now))
        return groups

    @property
    def chosen(self) -> str:
        """Return the chosen field, "" without one."""
        name = self.form.value("field")
        return name if name in FIELDS else ""

    @property
    def now(self) -> str:
        stated = self.run.contract.get(self.chosen)
        return "unknown" if stated is None else contract_value(stated.value)

    @property
    def input(self) -> ContractInput | None:
        """Return the input for the new value of the chosen field."""
        if not self.chosen:
            return None
        typed = PlanForm({PREFIX + self.chosen: self.form.value("value")})
        return replace(contract_input(self.chosen, typed), name="value", error=self.form.error("value"))
