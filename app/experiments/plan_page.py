"""Planning an experiment: its estimated cost, and the form for the user's own change."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self
from urllib.parse import urlencode

from sqlmodel import Session

from app.domain.contract.fields import FIELDS
from app.domain.contract.fields import PREFIX as ENVIRONMENT_PREFIX
from app.domain.contract.values import read_value, shown
from app.domain.experiments.plan import read_knobs, turned
from app.domain.experiments.values import UNDECIDED, KnobChange
from app.domain.numbers import axis_limit_pct, contract_value
from app.domain.rules.engine import Suggestion
from app.domain.rules.evidence import OwnResult
from app.domain.rules.rule import WALLS, Knob, RuleBook
from app.domain.verdict.comparability import axis_of
from app.domain.verdict.evidence import value_text
from app.errors import InvalidChange, NotReady, ThreewallsError
from app.pipeline.propose import ExperimentProposal, ExperimentRequest, blockers_of, knobs_of, propose
from app.pipeline.suggest import MeasuredKnob, RunSuggestions, experiments_of, measured_knobs, suggest
from app.settings import Settings
from app.storage.experiments import ExperimentItem, experiments_of_stacks
from app.storage.rules import rules_in_force
from app.storage.stacks import names_of_stacks
from app.web.forms import PREFIX, ContractInput, Form, contract_input

# --- The submitted forms: plan an experiment, or decide about one.

DECISIONS = ("accept", "reject", "withdraw", "runs")
_PLACES = {"who": "author", "knobs": "value", "rule_id": "rule"}
"""Form field of each field that errors of the service name."""


class FormOfPlan(Form):
    longest = 5000

    @property
    def runs_each(self) -> int | None:
        return whole_number(self.value("runs_each"))

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


def whole_number(text: str) -> int | None:
    digits = text.strip().removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 and int(digits) > 0 else None


_OF_THE_TASK = ("gbs", "gpus_per_node", "routing_mode")
"""Fields of the recipe that change what is trained, or where."""
_SHOWN_FIRST = 5
"""Number of changes listed before the choice of a knob."""
_WALL_TITLES = {
    "memory": "Memory wall", "communication": "Communication wall", "compute": "Compute", "host": "Host wall",
    "other": "Other knobs", "environment": "Environment variables",
}  # fmt: skip


def knob_fields() -> list[str]:
    """Return the fields that an experiment changes: knobs, but not the task, hardware, container or code."""
    return [
        name
        for name, contract_field in FIELDS.items()
        if contract_field.role != "info" and axis_of(name) == "recipe" and name not in _OF_THE_TASK
    ]


def walls_of(book: RuleBook) -> Mapping[str, str]:
    """Return the wall of each field: that of most rules that set it."""
    counts: dict[str, Counter[str]] = {}
    for rule in book.rules.values():
        for name in rule.change.set:
            counts.setdefault(name, Counter())[rule.wall] += rule.wall != "none"
    return {name: count.most_common(1)[0][0] for name, count in counts.items() if count.total()}


@dataclass(frozen=True, slots=True)
class TryRow:
    """A change worth planning first. `pct`, `low`, `high`: gain of throughput in percent; `evidence`: how it is known.

    `change`: the values of a knob; empty for a suggestion, which has a title instead. `stack`: key and name of another
    stack that measured it. `experiment`: the one that makes this change on the run's stack; None without
    one. `is_open`: it is not decided. `is_measured`: False for an open experiment without a result, whose gain is 0.
    """

    title: str
    change: str
    query: str
    pct: float
    low: float
    high: float
    evidence: str
    stack: tuple[str, str] | None = None
    experiment: int | None = None
    is_open: bool = False
    is_measured: bool = True

    @property
    def leads(self) -> bool:
        """Return whether its gain is certain, or its experiment has begun."""
        return self.low > 0 or self.is_open


@dataclass(frozen=True, slots=True)
class OfferedPlan:
    """The plan, or why it cannot be planned (`refused`); `form`: its inputs."""

    run_id: int
    form: PlanForm
    proposal: ExperimentProposal | None = None
    refused: str = ""


def offer(
    session: Session, settings: Settings, run_id: int, form: PlanForm, advice: RunSuggestions | None
) -> OfferedPlan:
    """Return the offer. `advice`: for the run, if the caller has it. Raises NotFound for an unknown run or rule."""
    try:
        return OfferedPlan(run_id, form, propose(session, settings, experiment_request(run_id, form), advice))
    except NotReady as error:
        return OfferedPlan(run_id, form, refused=error.detail)
    except InvalidChange as error:
        marked = form.refused(error)
        return OfferedPlan(run_id, marked, refused=" ".join(marked.errors.values()) or error.detail)


def experiment_request(run_id: int, form: PlanForm) -> ExperimentRequest:
    return ExperimentRequest(run_id, rule_id=form.value("rule"), knobs=form.knobs or None, runs_each=form.runs_each)


class IdeaPage:
    """The data of the template for the user's own idea. Raises NotFound, and NotReady until the run was read."""

    def __init__(self, session: Session, settings: Settings, run_id: int, form: PlanForm) -> None:
        self._session = session
        self._advice = suggest(session, run_id, rules_in_force(settings))
        self.run = self._advice.run
        self._measured = measured_knobs(session, self.run, knob_fields())
        self.form = form
        self.offer: OfferedPlan | None = None
        if form.value("rule") or (form.value("field") and form.value("value")):
            self.offer = offer(session, settings, run_id, form, self._advice)
            self.form = self.offer.form

    @property
    def rule(self) -> str:
        return self.form.value("rule")

    @cached_property
    def groups(self) -> Mapping[str, list[tuple[str, str]]]:
        """Return the knobs by the wall they lower, each with the run's value."""
        walls = walls_of(self._advice.book)
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in _WALL_TITLES.values()}
        for name in knob_fields():
            wall = "environment" if name.startswith(ENVIRONMENT_PREFIX) else walls.get(name, "other")
            groups[_WALL_TITLES[wall]].append((name, self.value_now(name)))
        # Knobs that the run does not use, such as those of another dispatcher, come last.
        return {title: sorted(rows, key=lambda row: row[1] == "unset") for title, rows in groups.items() if rows}

    most_of_wall = 12
    """Knobs listed of each wall; the select below has all."""

    @property
    def walls(self) -> list[str]:
        """Return the groups that name a wall."""
        return [_WALL_TITLES[wall] for wall in WALLS if wall in _WALL_TITLES]

    @cached_property
    def first(self) -> list[TryRow]:
        """Return changes with which the job starts: measured and suggested ones, certain gains before the others."""
        most_like: dict[Knob, MeasuredKnob] = {}
        for of_stack in self._measured:
            most_like.setdefault(of_stack.knob, of_stack)
        faster = {str(knob): row for knob, row in most_like.items() if row.measured.result.median_gain_pct > 0}
        experiments = experiments_of(self._session, self.run, {name: row.knob for name, row in faster.items()})
        measured = [
            self._measured_row(row, experiments.get(name))
            for name, row in faster.items()
            if self.starts(row.knob.field, row.knob.wanted)
        ]
        changed = {row.knob.field for row in faster.values()}
        listed = {row.experiment for row in measured}
        begun = [
            self._open_row(item)
            for item in self._open_experiments
            if item.id not in listed and self._starts_with(item.knobs)
        ]
        suggested = [
            row
            for suggestion in self._advice.ranked
            if not changed & suggestion.set.keys() and self._advice.sizing(suggestion) is not None
            if (row := _suggested_row(suggestion)) is not None
            and self._starts_with(knobs_of(suggestion, self.run.contract))
        ]
        return sorted([*measured, *begun, *suggested], key=lambda row: (not row.is_open, not row.leads))[:_SHOWN_FIRST]

    @property
    def _open_experiments(self) -> list[ExperimentItem]:
        """Return the undecided experiments of this project that change this configuration."""
        of_stack = experiments_of_stacks(self._session, [self.run.stack_key]) if self.run.stack_key else ()
        return [
            item
            for item in of_stack
            if item.project_id == self.run.project_id
            and item.state in UNDECIDED
            and item.knobs
            and all(
                (shown(knob.before) if knob.known else "") == value_text(self.run.contract.get(knob.field))
                for knob in item.knobs
            )
        ]

    def _open_row(self, item: ExperimentItem) -> TryRow:
        gain = item.result.gain
        return TryRow(
            title="",
            change="; ".join(
                f"{knob.field} {knob.before_text} \N{RIGHTWARDS ARROW} {knob.after_text}" for knob in item.knobs
            ),
            query="",
            pct=gain.pct if gain else 0.0,
            low=gain.low_pct if gain else 0.0,
            high=gain.high_pct if gain else 0.0,
            evidence="so far" if gain else f"{item.state}, not measured yet",
            experiment=item.id,
            is_open=True,
            is_measured=gain is not None,
        )

    @property
    def groups_shown(self) -> list[tuple[str, list[TryRow]]]:
        """Return the rows shown, those of which no gain is certain under a title of their own."""
        if self.chosen:
            return [("Measured in this project", self.shown)] if self.shown else []
        certain = [row for row in self.shown if row.leads]
        undecided = [row for row in self.shown if not row.leads]
        title = "Finish first" if certain and certain[0].is_open else "Try first"
        return [(title, rows) for title, rows in ((title, certain), ("Undecided", undecided)) if rows]

    @property
    def limit_pct(self) -> float:
        """Return the end of the common axis of the gains."""
        return axis_limit_pct((row.low, row.high) for row in self.shown)

    @property
    def _of_rule(self) -> list[TryRow]:
        suggestion = self._advice.evaluation_of(self.rule).find(self.rule)
        row = None if suggestion is None else _suggested_row(suggestion)
        return [] if row is None else [row]

    @property
    def shown(self) -> list[TryRow]:
        """Return what was measured on the chosen knob, or without a choice what to try first."""
        if not self.chosen:
            return self._of_rule if self.rule else self.first
        value = self.form.value("value")
        rows = [row for row in self._measured if row.knob.field == self.chosen]
        return [self._measured_row(row) for row in rows if not value or _is(row, value)]

    def _measured_row(self, row: MeasuredKnob, experiment: ExperimentItem | None = None) -> TryRow:
        result = row.measured.result
        is_another = not result.same_contract and not result.at_gpus
        change = (row.knob.field, _value(row, row.knob.now), "\N{RIGHTWARDS ARROW}", _value(row, row.knob.wanted))
        return TryRow(
            title="",
            change=" ".join(change),
            query=urlencode({"field": row.knob.field, "value": row.knob.wanted}),
            pct=result.median_gain_pct,
            low=result.low_pct,
            high=result.high_pct,
            evidence=f"{result.count} on" if is_another else _evidence(result),
            stack=next(iter(names_of_stacks(self._session, result.stacks).items())) if is_another else None,
            experiment=None if experiment is None else experiment.id,
            is_open=experiment is not None and experiment.state in UNDECIDED,
        )

    @property
    def chosen(self) -> str:
        """Return the chosen field, "" without one."""
        name = self.form.value("field")
        return name if name in FIELDS else ""

    @property
    def now(self) -> str:
        return self.value_now(self.chosen)

    def value_now(self, name: str) -> str:
        stated = self.run.contract.get(name)
        return "unknown" if stated is None else contract_value(stated.value)

    def starts(self, name: str, value: str) -> bool:
        """Return whether this value changes the knob and no rule stops the job then."""
        try:
            return self._starts_with(read_knobs({name: value}, self.run.contract))
        except InvalidChange:
            return False

    def _starts_with(self, knobs: tuple[KnobChange, ...]) -> bool:
        advice = self._advice
        candidate = turned(self.run.contract, knobs)
        return not any(blockers_of(advice, candidate, advice.rules, advice.evaluation))

    @property
    def suggested(self) -> list[str]:
        """Return the numeric knobs by what to try first: measured ones, those of suggestions, then the others."""
        of_suggestions = (name for suggestion in self._advice.ranked for name in suggestion.set)
        order = dict.fromkeys((*(row.knob.field for row in self._measured), *of_suggestions, *knob_fields()))
        numbers = [name for name in order if name in FIELDS and FIELDS[name].kind in ("count", "whole")]
        return [name for name in numbers if name in knob_fields()]

    @property
    def input(self) -> ContractInput | None:
        """Return the input for the new value of the chosen field."""
        if not self.chosen:
            return None
        typed = PlanForm({PREFIX + self.chosen: self.form.value("value")})
        return replace(contract_input(self.chosen, typed), name="value", error=self.form.error("value"))


def _value(row: MeasuredKnob, text: str) -> str:
    return contract_value(read_value(row.knob.field, text))


def _suggested_row(suggestion: Suggestion) -> TryRow | None:
    """Return a suggestion with its expected gain; None without a figure."""
    expected = suggestion.place.expected
    if expected is None:
        return None
    own = expected.statement.own
    evidence = expected.statement.strength if own is None else _evidence(own)
    query = urlencode({"rule": suggestion.rule.id})
    return TryRow(suggestion.title, "", query, expected.pct, expected.low, expected.high, evidence)


def _evidence(own: OwnResult) -> str:
    return f"{own.count} {own.where}"


def _is(row: MeasuredKnob, value: str) -> bool:
    """Return whether the A/Bs measured this value of the form."""
    try:
        return shown(read_value(row.knob.field, value)) == row.knob.wanted
    except ValueError:
        return False
