"""How the cost of each member of a regression was made, from what is stored now."""

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.cost import Cost, regression_cost, steps_of_run
from app.regressions.read_models import Member, Regression
from app.storage.run_records import aware
from app.storage.tables import ProjectRow, RunRow


def costs_of(session: Session, found: Regression) -> dict[int, Cost]:
    """By the run of the member. A metric that is no time costs none: then the reason says so."""
    return {member.run_id: _cost(session, found, member) for member in found.members}


def _cost(session: Session, found: Regression, member: Member) -> Cost:
    times = session.execute(
        select(col(RunRow.ordered_at))
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(col(ProjectRow.slug) == found.project, col(RunRow.stack_key) == member.stack_key)
    ).scalars()
    slices, health = session.execute(
        select(col(RunRow.slices), col(RunRow.health)).where(col(RunRow.id) == member.run_id)
    ).one()
    extra = None
    if found.metric == "step_time_ms" and member.usual is not None and member.slow is not None:
        extra = member.slow - member.usual
    return regression_cost([aware(time) for time in times], extra, steps_of_run(slices, health), member.gpus)
