"""What a slow-down costs: one reckoning for regressions, their pages and the report of an upgrade."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select
from sqlmodel import Session, col

from app.domain.cost import Cost, clock, extra_ms, regression_cost, steps_of_run
from app.storage.judging_tables import RegressionMemberRow, RegressionRow
from app.storage.run_records import aware
from app.storage.tables import ProjectRow, RunRow
from app.storage.verdicts import current_verdict

_ANY_BRANCH = "*"


def member_cost(session: Session, regression: RegressionRow, member: RegressionMemberRow, now: datetime) -> Cost:
    """Of one stack of a regression. A metric that is no time costs none: then the reason says so."""
    extra = None
    if regression.metric == "step_time_ms" and member.usual_level is not None and member.slow_level is not None:
        extra = extra_ms(member.usual_level, member.slow_level)
    stacks = {member.stack_key, *(_before_upgrade(session, member.run_id) if regression.kind == "upgrade" else ())}
    is_over = member.proposal == "fixed" or regression.state == "fixed"
    return slowdown_cost(session, member.run_id, stacks, extra, now, is_over=is_over)


def slowdown_cost(
    session: Session, run_id: int, stack_keys: Collection[str], extra: float | None, now: datetime, *,
    is_over: bool = False,
) -> Cost:  # fmt: skip
    """`run_id`: a slow run. `stack_keys`: its stack; after an upgrade that before it, too, as it is the same job.

    `extra`: milliseconds a step. What runs off the baseline branch alone is as frequent as the runs of that branch.
    """
    run = session.execute(
        select(  # type: ignore[call-overload]
            RunRow.project_id, RunRow.branch, RunRow.commit, RunRow.config_key, RunRow.slices, RunRow.health,
            RunRow.gpus, ProjectRow.baseline_branch, ProjectRow.generated,
        )
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(RunRow.id) == run_id)
    ).one()  # fmt: skip
    times = select(RunRow.ordered_at).where(  # type: ignore[call-overload]
        col(RunRow.project_id) == run.project_id, col(RunRow.stack_key).in_(stack_keys)
    )
    main = run.baseline_branch
    if main not in (_ANY_BRANCH, run.branch) and not _ran_on(session, run, main):
        times = times.where(col(RunRow.branch) == run.branch)
    at = [aware(time) for time in session.execute(times).scalars()]
    here = _clock(session, run.project_id, now, is_replay=run.generated)
    return regression_cost(at, extra, steps_of_run(run.slices, run.health), run.gpus, now=here, is_over=is_over)


def _ran_on(session: Session, run: Row[Any], branch: str) -> bool:
    """Whether the commit of a run ran on that branch as well, with the same configuration."""
    same = select(RunRow.id).where(  # type: ignore[call-overload]
        col(RunRow.project_id) == run.project_id,
        col(RunRow.config_key) == run.config_key,
        col(RunRow.commit) == run.commit,
        col(RunRow.branch) == branch,
    )
    return bool(run.commit) and session.execute(same.limit(1)).first() is not None


def _clock(session: Session, project_id: int, now: datetime, *, is_replay: bool) -> datetime:
    own = col(RunRow.project_id) == project_id
    past = select(func.max(col(RunRow.ordered_at))).where(own, col(RunRow.ordered_at) <= now)
    upload = select(func.max(col(RunRow.created_at))).where(own)
    place, newest = session.execute(past).scalar_one(), session.execute(upload).scalar_one()
    return clock(place and aware(place), newest and aware(newest), now, is_replay=is_replay)


def _before_upgrade(session: Session, run_id: int) -> Collection[str]:
    """The stack that a contrast was measured against."""
    verdict = current_verdict(session, run_id)
    contrast = None if verdict is None else verdict.document.contrast
    if contrast is None or not contrast.runs:
        return ()
    chosen = select(RunRow.stack_key).where(col(RunRow.id) == int(contrast.runs[-1]))  # type: ignore[call-overload]
    return tuple(session.execute(chosen).scalars())
