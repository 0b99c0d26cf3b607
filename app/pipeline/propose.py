"""The proposal of an experiment: pages show it before planning, and the plan is made from it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlmodel import Session, col

from app.domain.contract.fields import CONFIG_FIELDS, FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.resolve import config_key
from app.domain.contract.values import is_stated, read_value, same_value
from app.domain.experiments.plan import (
    MOST_ASKED_EACH,
    RUNS_EACH,
    Aim,
    effect_of,
    knob_change,
    planned_change,
    planned_warnings,
    read_knobs,
    turned,
    upload_meta,
    with_launch,
)
from app.domain.experiments.values import ExperimentPlan, KnobChange, Sizing
from app.domain.numbers import contract_value
from app.domain.rules.change import Changing, OwnIdea
from app.domain.rules.engine import Evaluation, Suggestion, evaluate
from app.domain.rules.rule import RuleBook
from app.domain.run import Stated
from app.domain.text import one_line
from app.domain.verdict.record import RunRecord
from app.errors import FieldError, InvalidChange, NotFound
from app.pipeline.suggest import RunSuggestions, suggest, unplannable_because
from app.settings import Settings
from app.storage.experiments import ExperimentItem, experiment_between
from app.storage.rules import AdvisedRun, RulesInForce, rules_in_force
from app.storage.runs import RunDetail
from app.storage.stacks import full_record
from app.storage.tables import RunRow, select_any

# --- Blockers of a configuration that has not run yet, from the same rules as for a run.


def blockers_of(
    advised: AdvisedRun, candidate: Mapping[str, Stated], rules: RulesInForce, evaluation: Evaluation
) -> Iterator[Suggestion]:
    """Yield each blocker of the changed configuration that `evaluation` of the run does not have."""
    planned = replace(advised, reading=replace(advised.reading, contract=candidate))
    ids = {suggestion.rule.id for suggestion in evaluation.fired}
    for suggestion in evaluate(planned.facts, rules.book, settings=rules.thresholds).fired:
        if suggestion.rule.kind == "blocker" and suggestion.rule.id not in ids:
            yield suggestion


LEAST_EFFECT_PCT, MOST_EFFECT_PCT = 1.2, 50.0
"""Limits of the effect to detect. A change below 1 % is never reported; just above, it would take too many runs."""
_MOST_TITLE = 300
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class ExperimentRequest:
    """A request for an experiment: the change of a rule, or own knobs.

    `runs_each`: None for as many as needed to detect `effect_pct`. `effect_pct`: None for the effect that the rule's
    evidence suggests, else 2 %.
    """

    run_id: int
    rule_id: str = ""
    knobs: Mapping[str, object] | None = None
    title: str = ""
    effect_pct: float | None = None
    runs_each: int | None = None


@dataclass(frozen=True, slots=True)
class ExperimentProposal:
    """A proposed experiment. `candidate_key`: empty if it cannot be predicted. `tag_words`: words of the tag.

    `same`: the experiment that makes this change on this configuration already; None without one. `blockers`: rules
    that stop the changed job; `plan.warnings` begins with them.
    """

    run: RunDetail
    rule_id: str
    title: str
    knobs: tuple[KnobChange, ...]
    candidate_key: str
    plan: ExperimentPlan
    tag_words: str
    same: ExperimentItem | None
    blockers: tuple[Suggestion, ...]

    @property
    def cautions(self) -> tuple[str, ...]:
        """Return the warnings besides the blockers."""
        return self.plan.warnings[len(self.blockers) :]


@dataclass(frozen=True, slots=True)
class _Change:
    """The change of an experiment. `rule`: None for the user's own idea."""

    changing: Changing
    knobs: tuple[KnobChange, ...]
    rule: Suggestion | None = None

    @property
    def title(self) -> str:
        if self.rule is not None:
            return self.rule.title
        return ", ".join(f"{knob.field}: {knob.before_text} to {knob.after_text}" for knob in self.knobs)


def propose(
    session: Session, settings: Settings, requested: ExperimentRequest, advice: RunSuggestions | None = None
) -> ExperimentProposal:
    """Return the proposal. Raises NotFound, NotReady, and InvalidChange naming the field that cannot be planned.

    `advice`: the suggestions for the run, if the caller has them.
    """
    _check(requested)
    if advice is None:
        advice = suggest(session, requested.run_id, rules_in_force(settings))
    evaluation, rules = advice.evaluation, advice.rules
    record = full_record(session, requested.run_id)
    if advice.job is None:
        raise _refused("run", f"Run {record.run} cannot be a baseline: {unplannable_because(record)}.")
    turn = _turn(evaluation, rules.book, requested, record)
    candidate = turned(record.contract, turn.knobs)
    if turn.rule is None:
        _refuse_without_effect(record.contract, candidate, turn.knobs)
    key = _candidate_key(record, candidate, turn)
    asked = requested.effect_pct
    aim = effect_of(turn.rule) if asked is None else Aim(asked, asked, most_gpu_hours=None)
    plan = _plan(advice, record, evaluation, turn, advice.job.size(aim, requested.runs_each))
    same = experiment_between(session, advice.run.project_id, (record.config_key, key)) if key else None
    warnings = planned_warnings(
        record, candidate, turn.knobs, candidate_key=key, sizing=plan.sizing, suggestion=turn.rule, change=plan.change,
        ran_before=() if same else _ran_before(session, advice.run.project_id, key),
    )  # fmt: skip
    blockers = tuple(blockers_of(advice, candidate, rules, evaluation))
    stops = (f"This job cannot start (rule {blocker.rule.id}): {blocker.why}" for blocker in blockers)
    return ExperimentProposal(
        run=advice.run,
        rule_id=requested.rule_id,
        title=(one_line(requested.title) or turn.title)[:_MOST_TITLE],
        knobs=turn.knobs,
        candidate_key=key,
        plan=replace(plan, warnings=(*stops, *warnings)),
        tag_words=requested.rule_id or "-".join(knob.field.removeprefix(PREFIX) for knob in turn.knobs[:2]),
        same=same,
        blockers=blockers,
    )


def _turn(evaluation: Evaluation, book: RuleBook, requested: ExperimentRequest, record: RunRecord) -> _Change:
    if not requested.rule_id:
        knobs = read_knobs(requested.knobs or {}, record.contract)
        return _Change(_idea(knobs), knobs)
    if requested.rule_id not in book.rules:
        raise NotFound(f"Rule {requested.rule_id[:60]!r} does not exist. It may have been renamed.")
    suggestion = evaluation.find(requested.rule_id)
    if suggestion is None:
        raise _refused(
            "rule",
            f"{requested.rule_id} does not fire in this run, so it has no change for it. Use `knobs` instead.",
        )
    if not (suggestion.set or suggestion.env or suggestion.open or suggestion.megatron_lm or suggestion.bridge):
        raise _refused("rule", f"{requested.rule_id} changes nothing measurable.")
    return _Change(suggestion, knobs_of(suggestion, record.contract), suggestion)


def _plan(
    advised: AdvisedRun, record: RunRecord, evaluation: Evaluation, turn: _Change, sizing: Sizing
) -> ExperimentPlan:
    rule = None if turn.rule is None else turn.rule.rule
    change = planned_change(
        turn.changing,
        evaluation.facts,
        advised.launch,
        advised.reading.arguments,
        text=turn.rule.change_text if turn.rule else "",
        open_fields=turn.rule.open if turn.rule else (),
    )
    meta = upload_meta(_identity(advised), record.contract, turned(record.contract, turn.knobs), turn.knobs)
    if advised.run.metadata_stated.get("launch_args"):
        meta = with_launch(meta, change)
    return ExperimentPlan(
        sizing=sizing,
        change=change,
        hold=_fields_to_keep(record.contract, turn.knobs, rule.hints.hold if rule else ()),
        verify=rule.verify if rule else "",
        expected=rule.effect.text if rule else "",
        meta=meta,
    )


def _check(requested: ExperimentRequest) -> None:
    errors = []
    if bool(requested.rule_id) == bool(requested.knobs):
        errors.append(FieldError("rule", "or `knobs` must be given, not both"))
    if requested.runs_each is not None and not 1 <= requested.runs_each <= MOST_ASKED_EACH:
        errors.append(FieldError("runs_each", RUNS_EACH))
    if requested.effect_pct is not None and not LEAST_EFFECT_PCT <= requested.effect_pct <= MOST_EFFECT_PCT:
        errors.append(FieldError("effect_pct", f"must be {LEAST_EFFECT_PCT} to {MOST_EFFECT_PCT:.0f}"))
    if errors:
        raise InvalidChange.of(*errors, outcome="Nothing was planned")


def _refused(field: str, message: str) -> InvalidChange:
    return InvalidChange(f"{message} Nothing was planned.", (FieldError(field, message),))


def knobs_of(suggestion: Suggestion, contract: Mapping[str, Stated]) -> tuple[KnobChange, ...]:
    """Return the contract fields that a suggestion changes, without values that the run already has."""
    wanted = dict(suggestion.set) | {PREFIX + name: value for name, value in suggestion.env.items()}
    changes = []
    for name, raw in wanted.items():
        if name not in FIELDS:
            continue
        try:
            value = read_value(name, raw)
        except ValueError:
            continue
        now = contract.get(name)
        if now is not None and same_value(name, now.value, value):
            continue
        # An unknown knob that should be off is set explicitly, but does not count as changed.
        if is_stated(name, value) and (now is not None or value not in (False, None, ())):
            changes.append(knob_change(name, value, contract))
    return tuple(changes)


def _refuse_without_effect(
    contract: Mapping[str, Stated], candidate: Mapping[str, Stated], knobs: tuple[KnobChange, ...]
) -> None:
    """Raise InvalidChange for a knob that the rest of the configuration makes ineffective before and after."""
    for knob in knobs:
        before, after = contract.get(knob.field), candidate.get(knob.field)
        if after is not None and not after.in_use and (before is None or before.value is None):
            message = f"{knob.field} has no effect in this configuration ({after.detail})."
            raise InvalidChange(f"{message} Nothing was planned.", (FieldError(f"knobs.{knob.field}", message),))


def _idea(knobs: tuple[KnobChange, ...]) -> OwnIdea:
    env = {knob.field.removeprefix(PREFIX): knob.after for knob in knobs if knob.field.startswith(PREFIX)}
    return OwnIdea({knob.field: knob.after for knob in knobs if not knob.field.startswith(PREFIX)}, env)


def _candidate_key(record: RunRecord, candidate: Mapping[str, Stated], turn: _Change) -> str:
    """Return the candidate's config key.

    Empty if a known field of the key becomes unknown, or if no field would distinguish the sides.
    """
    members = (*STACK_FIELDS, *CONFIG_FIELDS)
    if (turn.rule and turn.rule.open) or any(name in record.contract and name not in candidate for name in members):
        return ""
    key = config_key(record.project, candidate)
    return "" if key == record.config_key else key


def _fields_to_keep(
    contract: Mapping[str, Stated], knobs: tuple[KnobChange, ...], more: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Return the fields to keep, with their values: those of the stack, and those that the rule names."""
    changed = {knob.field for knob in knobs}
    return tuple(
        (name, contract_value(contract[name].value))
        for name in dict.fromkeys([*more, *STACK_FIELDS])
        if name in contract and name not in changed and contract[name].value is not None
    )


def _identity(advised: AdvisedRun) -> dict[str, Any]:
    """Return the metadata for uploads of the experiment, without contract fields."""
    run, stated = advised.run, advised.run.metadata_stated
    identity: dict[str, Any] = {
        "project": run.project,
        "purpose": "experiment",
        "branch": run.branch,
        "commit": run.commit,
    }
    identity |= {name: stated[name] for name in ("commit_time", "window") if stated.get(name)}
    return {name: value for name, value in identity.items() if value}


def _ran_before(session: Session, project_id: int, key: str) -> tuple[int, ...]:
    """Return earlier runs with the candidate's configuration, newest first."""
    if not key:
        return ()
    alike = select_any(RunRow.id).where(col(RunRow.project_id) == project_id, col(RunRow.config_key) == key)
    fit = alike.where(col(RunRow.quarantine) == "", col(RunRow.status) == "ready")
    return tuple(session.execute(fit.order_by(col(RunRow.id).desc()).limit(_MOST_LISTED)).scalars())
