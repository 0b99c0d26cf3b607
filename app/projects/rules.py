"""A project's rules of judging and its links: whose runs are the baseline, and where its commits can be read."""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.commit_links import COMMIT, RANGE, read_template
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange
from app.projects.defaults import get_project
from app.queue import JUDGE_STACK, enqueue
from app.storage import audit, decisions
from app.storage.audit import MAX_AUTHOR, AuditEvent
from app.storage.database import transaction
from app.storage.decisions import MAX_BRANCH
from app.storage.tables import ProjectRow

log = structlog.get_logger(__name__)

_LINKS = {"commit_url": COMMIT, "compare_url": RANGE}
_CHANGES = ("baseline_branch", "links")


@dataclass(frozen=True, slots=True)
class Rules:
    """`baseline_branch`: `*` for any. Links are templates, empty without one. `events`: changes, newest first."""

    project: str
    baseline_branch: str
    commit_url: str
    compare_url: str
    events: tuple[AuditEvent, ...]


def get_rules(session: Session, slug: str) -> Rules:
    """Raises NotFound."""
    project = get_project(session, slug)
    events = tuple(one for one in audit.events(session, "project", project.id or 0) if one.action in _CHANGES)
    return Rules(slug, project.baseline_branch, project.commit_url, project.compare_url, events)


def set_rules(
    engine: Engine, slug: str, *, baseline_branch: str, commit_url: str, compare_url: str, author: str
) -> Rules:
    """Change the rules; another baseline branch has every stack of the project judged again.

    Raises NotFound, and InvalidChange that names each wrong field.
    """
    branch, author = one_line(baseline_branch), one_line(author)
    links = _checked({"commit_url": commit_url, "compare_url": compare_url}, branch, author)
    with transaction(engine, durable=True) as session:
        project = get_project(session, slug)
        asked = decisions.set_baseline_rules(session, project, author, baseline_branch=branch)
        _set_links(session, project, author, links)
        session.flush()
        rules = get_rules(session, slug)
    log.info("project_rules_set", project=slug, baseline_branch=branch, stacks=len(asked))
    for work in asked:
        enqueue(JUDGE_STACK, work)
    return rules


def _set_links(session: Session, project: ProjectRow, author: str, links: Mapping[str, str]) -> None:
    before = {name: getattr(project, name) for name in links}
    changed = [name for name in links if links[name] != before[name]]
    for name in changed:
        setattr(project, name, links[name])
    if changed:
        session.add(project)
        audit.record(
            session, who=author, subject="project", subject_id=project.id or 0, action="links", project_id=project.id,
            before={name: before[name] for name in changed}, after={name: links[name] for name in changed},
        )  # fmt: skip


def _checked(links: Mapping[str, str], branch: str, author: str) -> dict[str, str]:
    errors: list[FieldError] = []
    read: dict[str, str] = {}
    if not 0 < len(branch) <= MAX_BRANCH:
        errors.append(
            FieldError("baseline_branch", f"must name a branch in 1 to {MAX_BRANCH} characters, or * for any")
        )
    for name, template in links.items():
        try:
            read[name] = read_template(template, _LINKS[name])
        except ValueError as error:
            errors.append(FieldError(name, str(error)))
    if not 0 < len(author) <= MAX_AUTHOR:
        errors.append(FieldError("author", f"must say who sets them, in 1 to {MAX_AUTHOR} characters"))
    if errors:
        names = ", ".join(error.field for error in errors)
        raise InvalidChange(f"Correct {names}. Nothing was changed.", tuple(errors))
    return read
