"""The projects of experiments: those that have one, and those whose runs are generated."""

from sqlalchemy import select
from sqlmodel import Session, col

from app.storage.experiment_tables import ExperimentRow
from app.storage.tables import ProjectRow


def projects_with_experiments(session: Session) -> tuple[str, ...]:
    some = select(ExperimentRow.project_id)  # type: ignore[call-overload]
    wanted = select(ProjectRow.slug).where(col(ProjectRow.id).in_(some)).order_by(ProjectRow.slug)  # type: ignore[call-overload]
    return tuple(session.execute(wanted).scalars())


def is_generated(session: Session, project: str) -> bool:
    """That nobody measured its figures."""
    wanted = select(ProjectRow.generated).where(col(ProjectRow.slug) == project)  # type: ignore[call-overload]
    return bool(session.execute(wanted).scalar_one_or_none())
