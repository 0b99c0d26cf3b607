"""The secret of a project from which the keys of its badges are made (`domain/badges/key.py`)."""

from sqlmodel import Session

from app.domain.badges.key import new_badge_secret
from app.domain.text import one_line
from app.storage import audit
from app.storage.tables import ProjectRow


def renew_badge_secret(session: Session, project_id: int, who: str) -> None:
    """All addresses of badges that were given out for the project end."""
    project = session.get_one(ProjectRow, project_id)
    project.badge_secret = new_badge_secret()
    session.add(project)
    audit.record(
        session, who=one_line(who)[:100], subject="project", subject_id=project_id, action="renew_badges",
        project_id=project_id,
    )  # fmt: skip
