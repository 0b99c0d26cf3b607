"""What a person decides about an experiment: accept, reject, withdraw, or more runs. Recorded with who and why."""

from collections.abc import Mapping
from typing import Any

import structlog
from sqlalchemy import Engine, select
from sqlmodel import Session, col

from app.domain.experiments.order import interleaved
from app.domain.experiments.sizing import MOST_ASKED_EACH, RUNS_EACH, smallest_pct
from app.domain.experiments.values import UNDECIDED, ExperimentResult, Plan, State
from app.errors import FieldError, InvalidChange, NotFound
from app.storage import audit
from app.storage.database import transaction
from app.storage.decisions import checked
from app.storage.experiment_joining import refresh
from app.storage.experiment_tables import ExperimentRow
from app.storage.tables import utc_now
from app.storage.typed_json import from_json, to_json

log = structlog.get_logger(__name__)


def accept(engine: Engine, experiment_id: int, who: str, note: str = "") -> None:
    """The change is taken over: the next suggestions come from a run of the candidate.

    It needs a note where the result does not show that the candidate is better. Raises NotFound, InvalidChange.
    """
    with transaction(engine, durable=True) as session:
        row = _open(session, experiment_id)
        result = from_json(ExperimentResult, row.result or {})
        if not result.candidate:
            raise _refused("state", "No run of the candidate counts yet, so there is nothing to accept.")
        _decide(session, row, "accepted", who, note, needs_note=result.winner != "candidate")


def reject(engine: Engine, experiment_id: int, who: str, note: str) -> None:
    """The baseline stays. The note says why. Raises NotFound, InvalidChange."""
    with transaction(engine, durable=True) as session:
        _decide(session, _open(session, experiment_id), "rejected", who, note, needs_note=True)


def withdraw(engine: Engine, experiment_id: int, who: str, note: str = "") -> None:
    """It will not be run, or not to its end. Its runs stay as they are. Raises NotFound, InvalidChange."""
    with transaction(engine, durable=True) as session:
        _decide(session, _open(session, experiment_id), "withdrawn", who, note, needs_note=False)


def set_runs_each(engine: Engine, experiment_id: int, runs_each: int, who: str, note: str = "") -> None:
    """Another number of runs a side. Once there is something to see, the test asks for more certainty for it.

    Raises NotFound, InvalidChange.
    """
    with transaction(engine, durable=True) as session:
        row = _open(session, experiment_id)
        if not 1 <= runs_each <= MOST_ASKED_EACH:
            raise _refused("runs_each", f"{RUNS_EACH}.")
        who, note = checked(who, note)
        if runs_each == row.runs_each:
            return
        plan = from_json(Plan, row.plan)
        has_result = from_json(ExperimentResult, row.result or {}).verdict is not None
        plan = plan.resized(runs_each, smallest_pct(plan.sizing, runs_each), seen=has_result)
        before = {"runs_each": row.runs_each}
        row.runs_each, row.sequence, row.plan = runs_each, list(interleaved(runs_each)), to_json(plan)
        _record(session, row, who, "runs_each", note, before=before, after={"runs_each": runs_each})
        session.flush()
        refresh(session, experiment_id)


def _open(session: Session, experiment_id: int) -> ExperimentRow:
    """Locked, and not decided yet."""
    row: ExperimentRow | None = session.execute(
        select(ExperimentRow).where(col(ExperimentRow.id) == experiment_id).with_for_update()
    ).scalar_one_or_none()
    if row is None:
        raise NotFound(f"There is no experiment {experiment_id}. It may have been deleted, or the address is mistyped.")
    if row.state not in UNDECIDED:
        raise _refused("state", f"Experiment {experiment_id} is {row.state} already, by {row.decided_by}.")
    return row


def _decide(session: Session, row: ExperimentRow, state: State, who: str, note: str, *, needs_note: bool) -> None:
    who, note = checked(who, note, needed=needs_note)
    before = {"state": row.state}
    row.state, row.decided_by, row.decided_at, row.note = state, who, utc_now(), note or row.note
    _record(session, row, who, state, note, before=before, after={"state": state})
    log.info("experiment_decided", experiment_id=row.id, state=state)


def _record(session: Session, row: ExperimentRow, who: str, action: str, note: str, **sides: Mapping[str, Any]) -> None:
    """With `before` and `after`."""
    audit.record(
        session, who=who, subject="experiment", subject_id=row.id or 0, action=action, project_id=row.project_id,
        note=note, **sides,
    )  # fmt: skip


def _refused(field: str, message: str) -> InvalidChange:
    return InvalidChange(f"{message} Nothing was changed.", (FieldError(field, message),))
