"""The projects that access is given to."""

from collections.abc import Collection

from sqlalchemy import select
from sqlmodel import Session, col

from app.storage.tables import ProjectRow


def project_slugs(session: Session, ids: Collection[int]) -> list[str]:
    """Of those of the ids that there are, in alphabetical order."""
    chosen = select(col(ProjectRow.slug)).where(col(ProjectRow.id).in_(ids)).order_by(col(ProjectRow.slug))
    return list(session.execute(chosen).scalars())
