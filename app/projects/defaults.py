"""A project's defaults: contract fields that its runs have unless they say otherwise, and its container image."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Engine, delete, select
from sqlmodel import Session, col

from app.domain.contract.project_defaults import CONTAINER_RULE
from app.domain.contract.statements import read_statements, refused
from app.domain.documents.container_image import read_image
from app.domain.run import Value
from app.domain.text import one_line
from app.errors import FieldError, InvalidMetadata, NotFound
from app.queue import SWEEP, enqueue
from app.storage import audit
from app.storage.audit import MAX_AUTHOR
from app.storage.database import transaction
from app.storage.findings import frozen
from app.storage.run_records import aware
from app.storage.run_work import ask_to_read
from app.storage.tables import ProjectDefaultRow, ProjectRow, RunRow

log = structlog.get_logger(__name__)

_IDS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Default:
    value: Value
    author: str
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class Defaults:
    """`fields` by contract field; `container_image` completes a container's name (`26.06`), None without a rule."""

    project: str
    fields: Mapping[str, Default]
    container_image: Default | None


def get_defaults(session: Session, slug: str) -> Defaults:
    """Raises NotFound."""
    project = get_project(session, slug)
    rows = session.execute(
        select(ProjectDefaultRow)
        .where(col(ProjectDefaultRow.project_id) == project.id)
        .order_by(col(ProjectDefaultRow.name))
    ).scalars()
    found = {row.name: Default(frozen(row.value), row.author, aware(row.changed_at)) for row in rows}
    rule = found.pop(CONTAINER_RULE, None)
    return Defaults(slug, found, rule)


def set_defaults(
    engine: Engine, slug: str, *, fields: Mapping[str, object], container_image: str = "", author: str
) -> Defaults:
    """Replace all defaults of the project, and have those of its runs read again that they concern.

    Raises NotFound, and InvalidMetadata that names each wrong field as `fields.NAME`, `container_image` or `author`.
    """
    wanted = _checked(fields, container_image.strip(), one_line(author))
    with transaction(engine, durable=True) as session:
        project = get_project(session, slug)
        before = {row.name: row for row in _rows(session, project)}
        changed = {name for name in before.keys() | wanted.keys() if _value(before.get(name)) != wanted.get(name)}
        for name in changed:
            session.execute(
                delete(ProjectDefaultRow).where(
                    col(ProjectDefaultRow.project_id) == project.id, col(ProjectDefaultRow.name) == name
                )
            )
            if name in wanted:
                row = ProjectDefaultRow(
                    project_id=project.id or 0, name=name, value=wanted[name], author=one_line(author)
                )
                session.add(row)
        if changed:
            audit.record(
                session, who=one_line(author), subject="project", subject_id=project.id or 0, action="defaults",
                project_id=project.id, before={name: _value(before.get(name)) for name in sorted(changed)},
                after={name: wanted.get(name) for name in sorted(changed)},
            )  # fmt: skip
        session.flush()
        concerned = _runs_concerned(session, project, changed)
        for start in range(0, len(concerned), _IDS_AT_ONCE):
            ask_to_read(session, col(RunRow.id).in_(concerned[start : start + _IDS_AT_ONCE]))
        defaults = get_defaults(session, slug)
    log.info("project_defaults_set", project=slug, changed=sorted(changed), runs=len(concerned))
    if concerned:
        enqueue(SWEEP)
    return defaults


def _value(row: ProjectDefaultRow | None) -> Any:
    return None if row is None else row.value


def _rows(session: Session, project: ProjectRow) -> list[ProjectDefaultRow]:
    chosen = select(ProjectDefaultRow).where(col(ProjectDefaultRow.project_id) == project.id)
    return list(session.execute(chosen).scalars())


def get_project(session: Session, slug: str) -> ProjectRow:
    """Raises NotFound."""
    project: ProjectRow | None = session.execute(
        select(ProjectRow).where(col(ProjectRow.slug) == slug)
    ).scalar_one_or_none()
    if project is None:
        raise NotFound(f"There is no project {slug[:100]!r}. A project begins with its first run.")
    return project


def _checked(fields: Mapping[str, object], container_image: str, author: str) -> dict[str, Any]:
    errors: list[FieldError] = []
    if not 0 < len(author) <= MAX_AUTHOR:
        errors.append(FieldError("author", f"must say who sets them, in 1 to {MAX_AUTHOR} characters"))
    if container_image:
        try:
            read_image(container_image)
        except ValueError as error:
            errors.append(FieldError("container_image", str(error)))
    wanted: dict[str, Any] = {}
    try:
        stated = read_statements(fields, "fields")
        wanted = {name: list(s.value) if isinstance(s.value, tuple) else s.value for name, s in stated.items()}
    except InvalidMetadata as error:
        errors += error.errors
    if errors:
        raise refused(errors)
    return wanted | ({CONTAINER_RULE: container_image} if container_image else {})


def _runs_concerned(session: Session, project: ProjectRow, changed: set[str]) -> list[int]:
    """Runs that a changed field says something about: where it is unknown, or stands by a default.

    An image concerns every run that has a container.
    """
    chosen = select(RunRow.id, RunRow.contract).where(col(RunRow.project_id) == project.id)  # type: ignore[call-overload]
    rows = session.execute(chosen.execution_options(yield_per=100))
    return [row.id for row in rows if any(_concerns(name, row.contract) for name in changed)]


def _concerns(name: str, contract: Mapping[str, Any]) -> bool:
    if name == CONTAINER_RULE:
        return "container" in contract
    return name not in contract or contract[name].get("source") == "default"
