"""Computes the figures of earlier versions of the definitions again: a few runs at a time, so that uploads go first.

Nothing is planned ahead: each batch is chosen from the rows as they are, so that whatever is killed goes on where it
was. Runs are asked to be read like any other (`pipeline/run_work.py`); what was found in their files is kept, so that
most of them need no log (`storage/readings.py`). The project that has the newest run comes first, and a project is
ended before the next one, because its stacks are judged only when all its runs are of one version.
"""

from collections.abc import Sequence
from itertools import accumulate

from sqlalchemy import and_, exists, func, select
from sqlmodel import Session, col

from app.domain.definitions import VERDICT_VERSION
from app.pipeline.run_work import ask_to_read
from app.pipeline.stack_work import ask_to_judge
from app.storage.definition_progress import is_outdated
from app.storage.tables import EVERYTHING, RunRow, StackWorkRow, VerdictRow

BATCH_RUNS = 16
BATCH_SECONDS = 5.0
"""An upload waits for one batch at most: this many runs, and those that took this long the last time."""

MOST_QUEUED = 24
"""As long as more messages wait in the queue, nothing old is added to them. A batch leaves its judging behind it."""

BATCH_STACKS = 16


def ask_next(session: Session) -> list[int]:
    """Have the next runs read again. Their ids, to ring for after the commit."""
    projects = select(RunRow.project_id, func.max(RunRow.id).label("newest"))  # type: ignore[call-overload]
    newest = projects.group_by(RunRow.project_id).subquery()
    chosen = (
        select(RunRow.id, RunRow.read_seconds)  # type: ignore[call-overload]
        .join(newest, newest.c.project_id == RunRow.project_id)
        .where(is_outdated(), col(RunRow.work) == "")
        .order_by(newest.c.newest.desc(), col(RunRow.id).desc())
        .limit(BATCH_RUNS)
    )
    found = session.execute(chosen).all()
    ids = [row.id for row in found[: _affordable([row.read_seconds for row in found])]]
    ask_to_read(session, col(RunRow.id).in_(ids), is_outdated(), col(RunRow.work) == "")
    return ids


def ask_to_judge_again(session: Session) -> list[int]:
    """Have the next stacks judged again whose verdicts rest on earlier rules. The ids to ring for after the commit."""
    asked = exists().where(
        and_(
            col(StackWorkRow.project_id) == RunRow.project_id,
            col(StackWorkRow.stack_key) == RunRow.stack_key,
            col(StackWorkRow.judge_from) == EVERYTHING,
        )
    )
    chosen = (
        select(RunRow.project_id, RunRow.stack_key, func.min(VerdictRow.verdict_version).label("version"))  # type: ignore[call-overload]
        .join(VerdictRow, col(VerdictRow.run_id) == RunRow.id)
        .where(col(VerdictRow.current), col(VerdictRow.verdict_version) < VERDICT_VERSION, ~asked)
        .group_by(RunRow.project_id, RunRow.stack_key)
        .order_by(func.max(RunRow.ordered_at).desc())
        .limit(BATCH_STACKS)
    )
    # In one order, as everybody locks them.
    stacks = sorted(session.execute(chosen).all(), key=lambda row: (row.project_id, row.stack_key))
    return [
        ask_to_judge(
            session,
            row.project_id,
            row.stack_key,
            judge_from=EVERYTHING,
            because=f"The rules of verdicts changed (version {row.version} -> {VERDICT_VERSION}).",
        )
        for row in stacks
    ]


def _affordable(seconds: Sequence[float]) -> int:
    """How many of them fit into a batch; one at least."""
    return max(1, sum(total <= BATCH_SECONDS for total in accumulate(seconds)))
