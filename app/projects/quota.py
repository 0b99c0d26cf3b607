"""What a project may take, shown beside what it takes; an administrator sets it."""

from dataclasses import dataclass

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.text import one_line
from app.errors import FieldError, InvalidChange
from app.projects.defaults import get_project
from app.settings import Settings
from app.storage import audit
from app.storage.audit import MAX_AUTHOR
from app.storage.database import transaction
from app.storage.quotas import Quota, Usage, quota_of, usage_of

log = structlog.get_logger(__name__)

MOST_BYTES = 2**53
MOST_RUNS = 10**9


@dataclass(frozen=True, slots=True)
class ProjectQuota:
    project_id: int
    project: str
    quota: Quota
    usage: Usage


def get_quota(session: Session, settings: Settings, slug: str) -> ProjectQuota:
    """Raises NotFound."""
    project = get_project(session, slug)
    number = project.id or 0
    return ProjectQuota(number, slug, quota_of(project, settings), usage_of(session, number))


def set_quota(
    engine: Engine, settings: Settings, slug: str, *, most_bytes: int | None, runs_a_day: int | None, author: str
) -> ProjectQuota:
    """None: the service's own; 0: no limit. What is there already stays. Raises NotFound, InvalidChange."""
    author = one_line(author)
    errors = [
        FieldError(name, f"must be empty, or a whole number from 0 to {most:,}")
        for name, value, most in (("quota_bytes", most_bytes, MOST_BYTES), ("quota_runs_a_day", runs_a_day, MOST_RUNS))
        if value is not None and not 0 <= value <= most
    ]
    if not 0 < len(author) <= MAX_AUTHOR:
        errors.append(FieldError("author", f"must say who sets it, in 1 to {MAX_AUTHOR} characters"))
    if errors:
        raise InvalidChange(f"Correct {', '.join(one.field for one in errors)}. Nothing was changed.", tuple(errors))
    with transaction(engine, durable=True) as session:
        project = get_project(session, slug)
        before = {"bytes": project.quota_bytes, "runs_a_day": project.quota_runs_a_day}
        after = {"bytes": most_bytes, "runs_a_day": runs_a_day}
        if after != before:
            project.quota_bytes, project.quota_runs_a_day = most_bytes, runs_a_day
            session.add(project)
            audit.record(
                session, who=author, subject="project", subject_id=project.id or 0, action="quota",
                project_id=project.id, before=before, after=after,
            )  # fmt: skip
            log.info("quota_set", project=slug, **after)
        session.flush()
        return get_quota(session, settings, slug)
