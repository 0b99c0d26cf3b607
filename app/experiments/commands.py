"""Decide about an experiment: accept, reject, withdraw, or change its number of runs.

Author and reason are recorded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

import structlog
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import read_value, same_value
from app.domain.experiments.plan import MOST_ASKED_EACH, RUNS_EACH, interleaved, smallest_pct
from app.domain.experiments.sweep import (
    FEWEST_VALUES,
    MOST_VALUES,
    SweepCost,
    SweepProgress,
    Trial,
    cost_of_sweep,
    sweep_progress,
)
from app.domain.experiments.values import UNDECIDED, ExperimentPlan, ExperimentResult, Sizing, State
from app.domain.run import Stated
from app.errors import Conflict, FieldError, InvalidChange, NotFound
from app.pipeline.decisions import checked
from app.pipeline.experiments import refresh
from app.pipeline.propose import ExperimentProposal, ExperimentRequest, propose
from app.pipeline.suggest import suggest
from app.settings import Settings
from app.storage import audit
from app.storage.database import read_session, transaction
from app.storage.experiments import Experiment, knobs_json, sweep_of
from app.storage.json_text import from_json, frozen, to_json
from app.storage.rules import rules_in_force
from app.storage.tables import ExperimentRow, ExperimentRunRow, select_any, utc_now

log = structlog.get_logger(__name__)


def accept(engine: Engine, experiment_id: int, who: str, note: str = "") -> None:
    """Accept the candidate: the next suggestions start from one of its runs.

    Requires a note when the result does not show that the candidate is better. Raises NotFound, InvalidChange.
    """
    with transaction(engine, durable=True) as session:
        row = _open(session, experiment_id)
        result = from_json(ExperimentResult, row.result or {})
        if not result.candidate:
            raise _refused("state", "No run of the candidate counts yet, so there is nothing to accept.")
        _decide(session, row, "accepted", who, note, needs_note=result.winner != "candidate")


def reject(engine: Engine, experiment_id: int, who: str, note: str) -> None:
    """Reject the candidate, so that the baseline stays. The note says why. Raises NotFound, InvalidChange."""
    with transaction(engine, durable=True) as session:
        _decide(session, _open(session, experiment_id), "rejected", who, note, needs_note=True)


def withdraw(engine: Engine, experiment_id: int, who: str, note: str = "") -> None:
    """End the experiment without a decision. Its runs stay unchanged. Raises NotFound, InvalidChange."""
    with transaction(engine, durable=True) as session:
        _decide(session, _open(session, experiment_id), "withdrawn", who, note, needs_note=False)


def set_runs_each(engine: Engine, experiment_id: int, runs_each: int, who: str, note: str = "") -> None:
    """Change the number of runs per side.

    Once there is a result, the test then requires more certainty. Raises NotFound, InvalidChange.
    """
    with transaction(engine, durable=True) as session:
        row = _open(session, experiment_id)
        if not 1 <= runs_each <= MOST_ASKED_EACH:
            raise _refused("runs_each", f"{RUNS_EACH}.")
        who, note = checked(who, note)
        _ask_for(session, row, runs_each, who, note)


def _ask_for(session: Session, row: ExperimentRow, runs_each: int, who: str, note: str = "") -> None:
    if runs_each == row.runs_each:
        return
    plan = from_json(ExperimentPlan, row.plan)
    has_result = from_json(ExperimentResult, row.result or {}).verdict is not None
    plan = plan.resized(runs_each, smallest_pct(plan.sizing, runs_each), seen=has_result)
    before = {"runs_each": row.runs_each}
    row.runs_each, row.sequence, row.plan = runs_each, list(interleaved(runs_each)), to_json(plan)
    _record(session, row, who, "runs_each", note, before=before, after={"runs_each": runs_each})
    session.flush()
    refresh(session, row.id or 0)


def _open(session: Session, experiment_id: int) -> ExperimentRow:
    """Lock and return an experiment that is not decided yet."""
    row: ExperimentRow | None = session.execute(
        select(ExperimentRow).where(col(ExperimentRow.id) == experiment_id).with_for_update()
    ).scalar_one_or_none()
    if row is None:
        raise NotFound.of(f"Experiment {experiment_id}")
    if row.state not in UNDECIDED:
        raise _refused("state", f"Experiment {experiment_id} was already {row.state} by {row.decided_by}.")
    return row


def _decide(session: Session, row: ExperimentRow, state: State, who: str, note: str, *, needs_note: bool) -> None:
    who, note = checked(who, note, needed=needs_note)
    before = {"state": row.state}
    row.state, row.decided_by, row.decided_at, row.note = state, who, utc_now(), note or row.note
    _record(session, row, who, state, note, before=before, after={"state": state})
    log.info("experiment_decided", experiment_id=row.id, state=state)


def _record(session: Session, row: ExperimentRow, who: str, action: str, note: str, **sides: Mapping[str, Any]) -> None:
    """Record the action with `before` and `after`."""
    audit.record(
        session, who=who, subject="experiment", subject_id=row.id or 0, action=action, project_id=row.project_id,
        note=note, **sides,
    )  # fmt: skip


def _refused(field: str, message: str) -> InvalidChange:
    return InvalidChange(f"{message} Nothing was changed.", (FieldError(field, message),))


# --- Plan an experiment: store its row, with a unique tag, and the run that it starts from.

_MOST_WORDS = 60
_ATTEMPTS = 5
_NOT_IN_A_TAG = re.compile(r"[^a-z0-9]+")


def plan_experiment(engine: Engine, settings: Settings, requested: ExperimentRequest, who: str, note: str = "") -> int:
    """Plan an experiment and return its number. Raises NotFound, NotReady, and InvalidChange naming fields."""
    who, note = checked(who, note)
    with read_session(engine) as session:
        proposal = propose(session, settings, requested)
    with transaction(engine, durable=True) as session:
        row = _add(session, proposal, who, note)
        experiment_id = row.id or 0
        refresh(session, experiment_id)
        audit.record(
            session, who=who, subject="experiment", subject_id=experiment_id, action="plan",
            project_id=row.project_id, after={"tag": row.tag, "runs_each": row.runs_each}, note=note,
        )  # fmt: skip
    log.info("experiment_planned", experiment_id=experiment_id, run_id=requested.run_id, rule=requested.rule_id)
    return experiment_id


def _add(session: Session, proposal: ExperimentProposal, who: str, note: str) -> ExperimentRow:
    """Add the experiment with the first free tag; another user may take one at the same moment."""
    project_id = proposal.run.project_id
    of_project = select_any(ExperimentRow.tag).where(col(ExperimentRow.project_id) == project_id)
    taken = set(session.execute(of_project).scalars())
    for _ in range(_ATTEMPTS):
        row = _row(proposal, who, note)
        row.tag, row.parent_id = _free_tag(proposal, taken), _parent(session, proposal.run.id)
        try:
            with session.begin_nested():
                session.add(row)
                session.flush()
        except IntegrityError:
            taken.add(row.tag)
        else:
            return row
    raise Conflict("Other experiments of this run are being planned right now. Nothing was planned; try again.")


def _row(proposal: ExperimentProposal, who: str, note: str) -> ExperimentRow:
    run, sizing = proposal.run, proposal.plan.sizing
    return ExperimentRow(
        project_id=run.project_id,
        baseline_run_id=run.id,
        rule_id=proposal.rule_id,
        title=proposal.title,
        stack_key=run.stack_key,
        baseline_key=run.config_key,
        candidate_key=proposal.candidate_key,
        knobs=knobs_json(proposal.knobs),
        change=to_json(proposal.plan.change),
        tag="",
        runs_each=sizing.runs_each,
        sequence=list(interleaved(sizing.runs_each)),
        plan=to_json(proposal.plan),
        note=note,
        created_by=who,
    )


def _free_tag(proposal: ExperimentProposal, taken: set[str]) -> str:
    words = _NOT_IN_A_TAG.sub("-", proposal.tag_words.lower()).strip("-")[:_MOST_WORDS].strip("-")
    plain = f"exp-{words or 'change'}-{proposal.run.id}"
    return next(tag for tag in chain([plain], (f"{plain}-{n}" for n in count(2))) if tag not in taken)


def _parent(session: Session, run_id: int) -> int | None:
    """Return the newest experiment whose candidate is this baseline: the journey continues from it."""
    baseline_id: int | None = session.execute(
        select_any(ExperimentRunRow.experiment_id)
        .where(col(ExperimentRunRow.run_id) == run_id, col(ExperimentRunRow.side) == "candidate")
        .order_by(col(ExperimentRunRow.experiment_id).desc())
        .limit(1)
    ).scalar_one_or_none()
    return baseline_id


# --- A sweep: an experiment for each value of one knob, as one plan.


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """`values`: of the contract field `field`. `confirm`: runs per side of the last value, None: as many as needed."""

    run_id: int
    field: str
    values: Sequence[object]
    confirm: int | None = None


@dataclass(frozen=True, slots=True)
class SweepProposal:
    """A proposed sweep: a proposal for each value, and its cost."""

    proposals: tuple[ExperimentProposal, ...]
    sizing: Sizing
    cost: SweepCost


def propose_sweep(session: Session, settings: Settings, requested: SweepRequest) -> SweepProposal:
    """Plan the sweep without storing it. Raises NotFound, NotReady, and InvalidChange naming the invalid fields."""
    values = list(dict.fromkeys(map(frozen, requested.values)))
    advice = suggest(session, requested.run_id, rules_in_force(settings))
    now = advice.run.contract.get(requested.field)
    if not FEWEST_VALUES <= len(values) <= MOST_VALUES:
        message = f"must be {FEWEST_VALUES} to {MOST_VALUES} different values"
        raise InvalidChange(f"values {message}. Nothing was planned.", (FieldError("values", message),))
    single = [
        propose(
            session,
            settings,
            ExperimentRequest(requested.run_id, knobs={requested.field: value}, runs_each=requested.confirm),
            advice,
        )
        for value in values
        if not _is_now(requested.field, value, now)
    ]
    if not single:
        raise InvalidChange("The run already has this value.", (FieldError("values", "must differ from the run's"),))
    sizing = single[0].plan.sizing
    stricter = len(single) - 1
    proposals = tuple(
        replace(
            item,
            plan=replace(
                item.plan.resized(1, smallest_pct(sizing, 1), seen=False), extensions=stricter,
                confirm=sizing.runs_each,
            ),
        )
        for item in single
    )  # fmt: skip
    return SweepProposal(proposals, sizing, cost_of_sweep(len(single), sizing))


def _is_now(field: str, value: object, now: Stated | None) -> bool:
    """Return whether the baseline run has this value, so that it needs no experiment."""
    try:
        return now is not None and field in FIELDS and same_value(field, now.value, read_value(field, value))
    except ValueError:
        return False


def plan_sweep(engine: Engine, settings: Settings, requested: SweepRequest, who: str, note: str = "") -> int:
    """Plan a sweep and return the number of its first experiment, which names it. Raises as `propose_sweep`."""
    who, note = checked(who, note)
    with read_session(engine) as session:
        proposed = propose_sweep(session, settings, requested)
    with transaction(engine, durable=True) as session:
        rows = [_add(session, proposal, who, note) for proposal in proposed.proposals]
        for row in rows:
            row.sweep_id = rows[0].id
            session.flush()
            refresh(session, row.id or 0)
            after = {"tag": row.tag, "runs_each": row.runs_each, "sweep": rows[0].id}
            _record(session, row, who, "plan", note, after=after)
        first = rows[0].id or 0
    log.info("sweep_planned", experiment_id=first, run_id=requested.run_id, values=len(rows))
    return first


def advance_sweep(engine: Engine, sweep_id: int, who: str) -> None:
    """Go to the next round: reject the worse half, and request more runs of the rest.

    Raises NotFound, and InvalidChange while a value lacks runs or nothing is left to drop.
    """
    with transaction(engine, durable=True) as session:
        who, _ = checked(who, "")
        experiments = sweep_of(session, sweep_id)
        now = progress_of(experiments)
        if not now.may_go_on:
            raise _refused("state", now.sentence)
        for trial in now.drop:
            note = f"Dropped in round {now.number + 1} of sweep #{sweep_id}."
            _decide(session, _open(session, trial.experiment_id), "rejected", who, note, needs_note=False)
        following = now.round if now.behind else now.next_round
        assert following is not None  # noqa: S101  # may_go_on says so
        for trial in now.keep:
            _ask_for(session, _open(session, trial.experiment_id), following.runs_each, who)


def progress_of(experiments: Sequence[Experiment]) -> SweepProgress:
    return sweep_progress([_trial(experiment) for experiment in experiments], experiments[0].plan.confirm)


def _trial(experiment: Experiment) -> Trial:
    side = experiment.side("candidate")
    return Trial(
        experiment_id=experiment.id,
        value=", ".join(knob.after_text for knob in experiment.knobs),
        state=experiment.state,
        planned=experiment.runs_each,
        runs=len(experiment.result.candidate),
        failed=sum(not run.counts for run in side),
        gain=experiment.result.gain,
        winner=experiment.result.winner,
    )
