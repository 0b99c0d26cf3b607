"""Update the runs and results of experiments in the transaction that changed the runs.

The outcome depends only on the stored runs, so the update may happen any number of times, in any order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Select, bindparam, delete, or_, select, update
from sqlmodel import Session, col

from app.domain.experiments.outcome import Applicant, Enrolment, ExperimentMember, OutcomeRules, outcome, side_of
from app.domain.experiments.values import UNDECIDED, ExperimentPlan, ExperimentResult, JoinedBy, Side, State
from app.domain.verdict.record import RunFacts
from app.storage import json_text, runs
from app.storage.experiments import knobs_of
from app.storage.json_text import from_json, to_json
from app.storage.runs import EXPERIMENT_OF_RUN, metrics_of
from app.storage.stacks import RunReader, full_records
from app.storage.tables import (
    ExperimentRow,
    ExperimentRunRow,
    RunResultRow,
    RunRow,
    in_batches,
    not_indexed,
    select_any,
    utc_now,
)

_SOME: Select[Any] = select_any(ExperimentRow.id).where(col(ExperimentRow.project_id) == bindparam("project")).limit(1)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Columns of a run that its record does not have."""

    id: int
    created_at: datetime
    tags: tuple[str, ...]
    activity: Any
    level: str
    metrics: Any


def follow_experiments(session: Session, project_id: int, stack_key: str, run_ids: Sequence[int]) -> None:
    """Recompute the experiments that the judged runs of a stack join, leave or belong to.

    Call this last in a transaction, because it locks experiments in the order of their ids.
    """
    if not run_ids or session.execute(_SOME, {"project": project_id}).first() is None:
        return
    for experiment_id, offered in sorted(_concerned(session, project_id, stack_key, run_ids).items()):
        refresh(session, experiment_id, offered)


def refresh(session: Session, experiment_id: int, offered: Iterable[int] = ()) -> None:
    """Recompute the runs and the result of an experiment. `offered`: runs that may join it."""
    row = session.execute(
        select(ExperimentRow)
        .where(col(ExperimentRow.id) == experiment_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).scalar_one_or_none()
    if row is None or row.state == "withdrawn":
        return
    joined = _joined(session, experiment_id)
    wanted = {*joined, row.baseline_run_id} | (set(offered) if row.state in UNDECIDED else set())
    records, stored = full_records(session, sorted(wanted)), _stored(session, sorted(wanted))
    baseline = records.get(str(row.baseline_run_id))
    if baseline is None:
        return
    enrolment = Enrolment(baseline, row.tag, row.baseline_key, row.candidate_key, knobs_of(row.knobs), row.created_at)
    applicants = [
        Applicant(records[str(run.id)], run.created_at, run.tags, runs.activities(run.activity)) for run in stored
    ]
    sides = {int(run.name): side for run in applicants if (side := side_of(run, enrolment)) is not None}
    _write_runs(session, experiment_id, joined, sides)
    members = [
        ExperimentMember(applicant, sides[run.id][0], run.level, metrics_of(run.metrics))
        for run, applicant in zip(stored, applicants, strict=True)
        if run.id in sides
    ]
    plan = from_json(ExperimentPlan, row.plan)
    rules = OutcomeRules(row.runs_each, plan.sizing.prior, plan.extensions, plan.sizing.noise)
    result = _outcome(session, members, enrolment, rules)
    _write_result(row, result, has_runs=len(sides) > 1)
    session.flush()
    _show(session, experiment_id, sides, result)


def _outcome(
    session: Session, members: Sequence[ExperimentMember], enrolment: Enrolment, rules: OutcomeRules
) -> ExperimentResult:
    """Compute the outcome. Losses cover the iterations that all counted runs share, so a first pass without losses
    determines these runs.
    """
    first = outcome(members, enrolment, rules)
    counted = [member for member in members if member.name in {*first.baseline, *first.candidate}]
    if first.verdict is None:
        return first
    with_losses = {member.run: member for member in RunReader(session).with_losses([member.run for member in counted])}
    return outcome([_with_loss(member, with_losses.get(member.name)) for member in members], enrolment, rules)


def _with_loss(member: ExperimentMember, facts: RunFacts | None) -> ExperimentMember:
    if facts is None or facts.estimate.loss is None:
        return member
    run = replace(member.run, estimate=replace(member.run.estimate, loss=facts.estimate.loss))
    return replace(member, applicant=replace(member.applicant, run=run))


def _concerned(session: Session, project_id: int, stack_key: str, run_ids: Sequence[int]) -> dict[int, set[int]]:
    """Return the experiments that have runs of the stack or that these runs may join, with the runs that may join."""
    tags: dict[str, set[int]] = {}
    keys: dict[str, set[int]] = {}
    came: dict[int, datetime] = {}
    for some in in_batches(run_ids):
        columns = select_any(RunRow.id, RunRow.config_key, RunRow.tags, RunRow.created_at)
        for row in session.execute(columns.where(col(RunRow.id).in_(some))):
            keys.setdefault(row.config_key, set()).add(row.id)
            came[row.id] = row.created_at
            for tag in row.tags or ():
                tags.setdefault(tag, set()).add(row.id)
    concerned: dict[int, set[int]] = {}
    for row in _open_for(session, project_id, tags, keys):
        alike = keys.get(row.baseline_key, set()) | keys.get(row.candidate_key, set())
        offered = tags.get(row.tag, set()) | {run_id for run_id in alike if came[run_id] >= row.created_at}
        if offered:
            concerned.setdefault(row.id, set()).update(offered)
    has_runs = (
        select_any(ExperimentRunRow.experiment_id)
        .join(RunRow, col(RunRow.id) == ExperimentRunRow.run_id)
        .where(
            not_indexed(col(RunRow.project_id)) == project_id, col(RunRow.stack_key) == stack_key
        )  # by the stack's index
    )
    for experiment_id in session.execute(has_runs.distinct()).scalars():
        concerned.setdefault(experiment_id, set())
    return concerned


def _open_for(session: Session, project_id: int, tags: Iterable[str], keys: Iterable[str]) -> Iterable[Any]:
    config_keys = sorted(set(keys) - {""})
    return session.execute(
        select_any(
            ExperimentRow.id,
            ExperimentRow.tag,
            ExperimentRow.baseline_key,
            ExperimentRow.candidate_key,
            ExperimentRow.created_at,
        ).where(
            col(ExperimentRow.project_id) == project_id,
            col(ExperimentRow.state).in_(UNDECIDED),
            or_(
                col(ExperimentRow.tag).in_(sorted(tags)),
                col(ExperimentRow.baseline_key).in_(config_keys),
                col(ExperimentRow.candidate_key).in_(config_keys),
            ),
        )
    )


def _joined(session: Session, experiment_id: int) -> dict[int, ExperimentRunRow]:
    rows = session.execute(select(ExperimentRunRow).where(col(ExperimentRunRow.experiment_id) == experiment_id))
    return {row.run_id: row for row in rows.scalars()}


def _stored(session: Session, run_ids: Sequence[int]) -> list[_Stored]:
    """Return the runs in order of arrival."""
    rows = session.execute(
        select_any(
            RunRow.id,
            RunRow.created_at,
            RunRow.tags,
            RunRow.evidence_level,
            RunResultRow.activity,
            RunResultRow.metrics,
        )
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(col(RunRow.id).in_(run_ids), col(RunRow.reception) != "receiving")
        .order_by(col(RunRow.created_at), col(RunRow.id))
    )
    return [
        _Stored(row.id, row.created_at, tuple(row.tags or ()), row.activity, row.evidence_level, row.metrics)
        for row in rows
    ]


def _write_runs(
    session: Session,
    experiment_id: int,
    joined: dict[int, ExperimentRunRow],
    sides: dict[int, tuple[Side, JoinedBy]],
) -> None:
    left = sorted(set(joined) - set(sides))
    if left:
        session.execute(
            delete(ExperimentRunRow).where(
                col(ExperimentRunRow.experiment_id) == experiment_id, col(ExperimentRunRow.run_id).in_(left)
            )
        )
    for run_id, (side, joined_by) in sides.items():
        row = joined.get(run_id)
        if row is None:
            session.add(ExperimentRunRow(experiment_id=experiment_id, run_id=run_id, side=side, joined_by=joined_by))
        elif (row.side, row.joined_by) != (side, joined_by):
            row.side, row.joined_by = side, joined_by


def _write_result(row: ExperimentRow, result: ExperimentResult, *, has_runs: bool) -> None:
    stored = to_json(result)
    if json_text.column_text(stored) != json_text.column_text(row.result):
        row.result, row.result_at = stored, utc_now()
    if row.state in UNDECIDED:
        state: State = "done" if result.finished else "waiting" if has_runs else "planned"
        row.state = state


def _show(session: Session, experiment_id: int, runs: Iterable[int], result: ExperimentResult) -> None:
    """Make the result the verdict that lists show for the judged runs made for this experiment, of both sides."""
    time = None if result.verdict is None else result.verdict.step_time
    session.execute(
        update(RunRow)
        .where(
            col(RunRow.id).in_(sorted(runs)),
            col(RunRow.purpose) == "experiment",
            col(RunRow.verdict).not_in(("", "failed")),
            experiment_id == EXPERIMENT_OF_RUN,
        )
        .values(
            verdict=result.decision,
            badge=result.decision,
            badge_label="",
            verdict_delta_pct=None if time is None else time.delta_pct,
        )
        .execution_options(synchronize_session=False)
    )
