"""Record what upgrades changed, faster or slower, so that lists show it. Runs in the transaction of the verdicts."""

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, delete, select
from sqlmodel import Session, col

from app.domain.contract.values import shown
from app.domain.run import Stated
from app.domain.verdict.alarms import move_of
from app.domain.verdict.assess import changed_field
from app.domain.verdict.document import MeasuredContrast, VerdictDocument
from app.domain.verdict.step_time import StepTimeChange
from app.pipeline.assess import Candidate, StackToJudge
from app.pipeline.notify import notify_upgrade
from app.storage.tables import RunRow, UpgradeChangeRow, select_any

_MOST_VALUE = 500


def follow_upgrades(session: Session, stack: StackToJudge, judged: Sequence[tuple[Candidate, VerdictDocument]]) -> None:
    """Record the effect of the upgrade that a stack began with, from each judged candidate; later ones replace
    earlier."""
    may_have_changes = stack.concerns.moved
    for candidate, document in judged:
        if document.upgrade is None and document.decision != "no_baseline":
            continue
        newest = candidate.newest
        same = (
            col(UpgradeChangeRow.project_id) == stack.project_id,
            col(UpgradeChangeRow.stack_key) == stack.stack_key,
            col(UpgradeChangeRow.config_key) == newest.config_key,
            col(UpgradeChangeRow.job) == newest.job,
        )
        contrast = move_of(document, newest.purpose)
        time = None if contrast is None else contrast.measured.step_time
        if contrast is None or time is None:
            if may_have_changes:
                session.execute(delete(UpgradeChangeRow).where(*same))
            continue
        values = _values(session, stack, candidate, contrast, time)
        row = session.execute(select(UpgradeChangeRow).where(*same)).scalar_one_or_none()
        before = "" if row is None else row.decision
        if row is None:
            row = UpgradeChangeRow(
                project_id=stack.project_id, stack_key=stack.stack_key, config_key=newest.config_key, job=newest.job,
                **values,
            )  # fmt: skip
            session.add(row)
            may_have_changes = True
        elif document.comparability is None:
            row.sqlmodel_update(values)
        else:  # its first run may be unsteady and is then not among the measured runs
            row.sqlmodel_update({name: value for name, value in values.items() if name not in ("run_id", "at")})
        if row.decision == "improvement" != before and not row.side_by_side:
            session.flush()
            notify_upgrade(session, row)


_STACK_OF_RUN = select_any(RunRow.stack_key).where(col(RunRow.id) == bindparam("run"))


def _values(
    session: Session, stack: StackToJudge, candidate: Candidate, contrast: MeasuredContrast, time: StepTimeChange
) -> dict[str, Any]:
    comparability, measured = contrast.comparability, contrast.measured
    difference = changed_field(comparability)
    first = next((run for run in stack.runs if run.facts.run in measured.candidates_used), candidate.runs[0])
    return {
        "from_stack_key": session.execute(_STACK_OF_RUN, {"run": int(contrast.runs[-1])}).scalar_one(),
        "run_id": first.id,
        "at": first.ordered_at,
        "field": difference.field,
        "from_value": _text(difference.a),
        "to_value": _text(difference.b),
        "others": len(comparability.stack) + len(comparability.knobs) - 1,
        "side_by_side": contrast.side_by_side,
        "decision": time.decision,
        "level": math.log(time.candidate_ms),
        "delta_pct": time.delta_pct,
        "ci_low_pct": time.ci_low_pct,
        "ci_high_pct": time.ci_high_pct,
        "runs": len(measured.candidates_used),
        "from_runs": len(measured.baseline_used),
    }


def _text(side: Stated | None) -> str:
    return "" if side is None else shown(side.value)[:_MOST_VALUE]
