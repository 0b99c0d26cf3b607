"""Settings of a project: default contract fields of its runs, container image, baseline branch, links, quota."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Engine, delete, select
from sqlmodel import Session, col

from app.domain.contract.statements import CONTAINER_RULE, read_statements, refused
from app.domain.documents.environment import read_image
from app.domain.run import Value
from app.domain.text import COMMIT, RANGE, one_line, read_template
from app.errors import FieldError, InvalidChange, InvalidMetadata
from app.pipeline import decisions
from app.pipeline.decisions import MAX_BRANCH
from app.pipeline.work import run_queue
from app.queue import JUDGE_STACK, SWEEP, enqueue
from app.settings import Settings
from app.storage import audit
from app.storage.audit import AuditEvent
from app.storage.database import transaction
from app.storage.json_text import frozen
from app.storage.projects import Quota, Usage, find_project, quota_of, usage_of
from app.storage.tables import ProjectDefaultRow, ProjectRow, RunResultRow, RunRow, in_batches, select_any

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Default:
    value: Value
    author: str
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class Defaults:
    """`fields`: by contract field. `container_image`: completes short container names (`26.06`); None if not set."""

    project: str
    fields: Mapping[str, Default]
    container_image: Default | None


def get_defaults(session: Session, slug: str) -> Defaults:
    """Return the defaults of the project. Raises NotFound."""
    project = find_project(session, slug)
    rows = session.execute(
        select(ProjectDefaultRow)
        .where(col(ProjectDefaultRow.project_id) == project.id)
        .order_by(col(ProjectDefaultRow.name))
    ).scalars()
    fields = {row.name: Default(frozen(row.value), row.author, row.changed_at) for row in rows}
    container_image = fields.pop(CONTAINER_RULE, None)
    return Defaults(slug, fields, container_image)


def set_defaults(
    engine: Engine, slug: str, *, fields: Mapping[str, object], container_image: str = "", author: str
) -> Defaults:
    """Replace all defaults of the project and request processing of the affected runs.

    Raises NotFound, and InvalidMetadata with the invalid fields as `fields.NAME`, `container_image` or `author`.
    """
    after = _checked(fields, container_image.strip(), one_line(author))
    with transaction(engine, durable=True) as session:
        project = find_project(session, slug)
        before = {row.name: row for row in _rows(session, project)}
        changed = {name for name in before.keys() | after.keys() if _value(before.get(name)) != after.get(name)}
        for name in changed:
            session.execute(
                delete(ProjectDefaultRow).where(
                    col(ProjectDefaultRow.project_id) == project.id, col(ProjectDefaultRow.name) == name
                )
            )
            if name in after:
                row = ProjectDefaultRow(
                    project_id=project.id or 0, name=name, value=after[name], author=one_line(author)
                )
                session.add(row)
        if changed:
            audit.record_project(
                session, project.id, "defaults", who=one_line(author),
                before={name: _value(before.get(name)) for name in sorted(changed)},
                after={name: after.get(name) for name in sorted(changed)},
            )  # fmt: skip
        session.flush()
        run_ids = _affected_runs(session, project, changed)
        for some in in_batches(run_ids):
            run_queue.request(session, col(RunRow.id).in_(some))
        defaults = get_defaults(session, slug)
    log.info("project_defaults_set", project=slug, changed=sorted(changed), runs=len(run_ids))
    if run_ids:
        enqueue(SWEEP)
    return defaults


def _value(row: ProjectDefaultRow | None) -> Any:
    return None if row is None else row.value


def _rows(session: Session, project: ProjectRow) -> list[ProjectDefaultRow]:
    query = select(ProjectDefaultRow).where(col(ProjectDefaultRow.project_id) == project.id)
    return list(session.execute(query).scalars())


def _checked(fields: Mapping[str, object], container_image: str, author: str) -> dict[str, Any]:
    errors = audit.author_errors(author)
    if container_image:
        try:
            read_image(container_image)
        except ValueError as error:
            errors.append(FieldError("container_image", str(error)))
    values: dict[str, Any] = {}
    try:
        stated = read_statements(fields, "fields")
        values = {name: list(s.value) if isinstance(s.value, tuple) else s.value for name, s in stated.items()}
    except InvalidMetadata as error:
        errors += error.errors
    if errors:
        raise refused(errors)
    return values | ({CONTAINER_RULE: container_image} if container_image else {})


def _affected_runs(session: Session, project: ProjectRow, changed: set[str]) -> list[int]:
    """Return the ids of runs in which a changed field is unknown or has its default.

    A changed image affects every run with a container.
    """
    query = select_any(RunRow.id, RunResultRow.contract).join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
    rows = session.execute(query.where(col(RunRow.project_id) == project.id).execution_options(yield_per=100))
    return [row.id for row in rows if any(_affects(name, row.contract) for name in changed)]


def _affects(name: str, contract: Mapping[str, Any]) -> bool:
    if name == CONTAINER_RULE:
        return "container" in contract
    return name not in contract or contract[name].get("source") == "default"


# --- Baseline branch and links to commits.

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
    """Return baseline branch and links of the project, with their changes. Raises NotFound."""
    project = find_project(session, slug)
    events = tuple(event for event in audit.events(session, "project", project.id or 0) if event.action in _CHANGES)
    return Rules(slug, project.baseline_branch, project.commit_url, project.compare_url, events)


def set_rules(
    engine: Engine, slug: str, *, baseline_branch: str, commit_url: str, compare_url: str, author: str
) -> Rules:
    """Change baseline branch and links. A new branch makes workers judge every stack of the project again.

    Raises NotFound, and InvalidChange with an error for each invalid field.
    """
    branch, author = one_line(baseline_branch), one_line(author)
    links = _rules_checked({"commit_url": commit_url, "compare_url": compare_url}, branch, author)
    with transaction(engine, durable=True) as session:
        project = find_project(session, slug)
        stacks = decisions.set_baseline_rules(session, project, author, baseline_branch=branch)
        _set_links(session, project, author, links)
        session.flush()
        rules = get_rules(session, slug)
    log.info("project_rules_set", project=slug, baseline_branch=branch, stacks=len(stacks))
    for work_id in stacks:
        enqueue(JUDGE_STACK, work_id)
    return rules


def _set_links(session: Session, project: ProjectRow, author: str, links: Mapping[str, str]) -> None:
    before = {name: getattr(project, name) for name in links}
    changed = [name for name in links if links[name] != before[name]]
    for name in changed:
        setattr(project, name, links[name])
    if changed:
        session.add(project)
        audit.record_project(
            session, project.id, "links", who=author, before={name: before[name] for name in changed},
            after={name: links[name] for name in changed},
        )  # fmt: skip


def _rules_checked(links: Mapping[str, str], branch: str, author: str) -> dict[str, str]:
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
    errors += audit.author_errors(author)
    if errors:
        raise InvalidChange.of(*errors)
    return read


# --- Quotas, which administrators set.

MOST_BYTES = 2**53
MOST_RUNS = 10**9


@dataclass(frozen=True, slots=True)
class ProjectQuota:
    project_id: int
    project: str
    quota: Quota
    usage: Usage


def get_quota(session: Session, settings: Settings, slug: str) -> ProjectQuota:
    """Return quota and usage of the project. Raises NotFound."""
    project = find_project(session, slug)
    number = project.id or 0
    return ProjectQuota(number, slug, quota_of(project, settings), usage_of(session, number))


def set_quota(
    engine: Engine, settings: Settings, slug: str, *, most_bytes: int | None, runs_a_day: int | None, author: str
) -> ProjectQuota:
    """Set the quotas; None: the service's default, 0: no limit. Existing data stay. Raises NotFound, InvalidChange."""
    author = one_line(author)
    errors = [
        FieldError(name, f"must be empty or a whole number from 0 to {most:,}")
        for name, value, most in (("quota_bytes", most_bytes, MOST_BYTES), ("quota_runs_a_day", runs_a_day, MOST_RUNS))
        if value is not None and not 0 <= value <= most
    ]
    errors += audit.author_errors(author)
    if errors:
        raise InvalidChange.of(*errors)
    with transaction(engine, durable=True) as session:
        project = find_project(session, slug)
        before = {"bytes": project.quota_bytes, "runs_a_day": project.quota_runs_a_day}
        after = {"bytes": most_bytes, "runs_a_day": runs_a_day}
        if after != before:
            project.quota_bytes, project.quota_runs_a_day = most_bytes, runs_a_day
            session.add(project)
            audit.record_project(session, project.id, "quota", who=author, before=before, after=after)
            log.info("quota_set", project=slug, **after)
        session.flush()
        return get_quota(session, settings, slug)
