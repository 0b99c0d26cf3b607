"""The data of a project: deletions, retention, archive and usage. Pages and the API call these functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, select
from sqlmodel import Session, col

from app.domain.retention import Retention
from app.errors import FieldError, InvalidChange, NotFound
from app.pipeline.decisions import checked
from app.pipeline.deletion import (
    MOST_CHOSEN,
    DeletionPreview,
    DeletionSelection,
    continue_deletion,
    preview,
    request_deletion,
    selections,
    undo_deletion,
)
from app.storage import audit
from app.storage.database import read_session, transaction
from app.storage.projects import find_project
from app.storage.tables import DeletionRow, ProjectRow, RunRow, select_any, utc_now
from app.storage.usage import ProjectUsage, counted_at, usage_of_projects

MOST_LISTED = 100


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion. `ends_at`: until when it can be undone."""

    id: int
    title: str
    state: str
    requested_by: str
    note: str
    requested_at: datetime
    runs: int
    bytes: int
    ends_at: datetime | None
    undone_by: str

    @property
    def can_be_undone(self) -> bool:
        return self.state in ("waiting", "done")


@dataclass(frozen=True, slots=True)
class ProjectData:
    """`due`: what each rule of the retention would delete now, with the sentence that says so."""

    project_id: int
    project: str
    archived_at: datetime | None
    retention: Retention
    due: tuple[tuple[DeletionSelection, DeletionPreview], ...]
    deletions: tuple[Deletion, ...]
    usage: ProjectUsage
    counted_at: datetime | None


def get_data(session: Session, slug: str) -> ProjectData:
    """Return what a project stores and its retention. Raises NotFound."""
    project = find_project(session, slug)
    retention = Retention.read(project.retention)
    return ProjectData(
        project.id or 0,
        project.slug,
        project.archived_at,
        retention,
        due(session, project, retention),
        deletions(session, project.id or 0),
        usage_of_projects(session, project.id)[0],
        counted_at(session),
    )


def due(
    session: Session, project: ProjectRow, retention: Retention
) -> tuple[tuple[DeletionSelection, DeletionPreview], ...]:
    """Return what each rule would delete now."""
    chosen = selections(retention, utc_now())
    return tuple((selection, preview(session, project.id or 0, selection)) for selection in chosen)


def deletions(session: Session, project_id: int) -> tuple[Deletion, ...]:
    """Return the last deletions, newest first."""
    chosen = select(DeletionRow).where(col(DeletionRow.project_id) == project_id)
    rows = session.execute(chosen.order_by(col(DeletionRow.id).desc()).limit(MOST_LISTED)).scalars()
    return tuple(_deletion(row) for row in rows)


def _deletion(row: DeletionRow) -> Deletion:
    return Deletion(
        row.id or 0, row.title, row.state, row.requested_by, row.note, row.requested_at, row.runs, row.bytes,
        row.ends_at, row.undone_by,
    )  # fmt: skip


def chosen_runs(sent: Mapping[str, str]) -> DeletionSelection:
    """Return the selection that an address or form names: `runs` (numbers between commas), `stack`, or the project.

    Raises InvalidChange.
    """
    if sent.get("runs"):
        numbers = [part.strip() for part in sent["runs"].split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in numbers):
            raise InvalidChange("Nothing was deleted.", (FieldError("runs", "must be numbers of runs"),))
        return select_runs([int(part) for part in numbers])
    stack = sent.get("stack", "")
    return DeletionSelection(kind="stack" if stack else "project", stack=stack, before=utc_now())


def select_runs(numbers: Sequence[int]) -> DeletionSelection:
    if not 0 < len(numbers) <= MOST_CHOSEN:
        problem = FieldError("runs", f"must have 1 to {MOST_CHOSEN:,} runs")
        raise InvalidChange(f"Choose 1 to {MOST_CHOSEN:,} runs. Nothing was deleted.", (problem,))
    return DeletionSelection(kind="runs", runs=tuple(sorted(set(numbers))), before=utc_now())


def preview_deletion(session: Session, slug: str, selection: DeletionSelection) -> DeletionPreview:
    """Return what a deletion would delete. Raises NotFound."""
    return preview(session, find_project(session, slug).id or 0, selection)


def delete_runs(engine: Engine, slug: str, selection: DeletionSelection, *, author: str, note: str) -> Deletion:
    """Delete the selected runs; a large deletion continues in the worker. Raises NotFound, InvalidChange."""
    who, note = checked(author, note)
    with transaction(engine, durable=True) as session:
        row, _ = request_deletion(session, find_project(session, slug), selection, who=who, note=note)
        deletion_id = row.id or 0
    return _carried_out(engine, deletion_id)


def delete_run(engine: Engine, run_id: int, *, author: str, note: str) -> Deletion:
    """Delete one run. Raises NotFound."""
    with read_session(engine) as session:
        owner = select_any(ProjectRow.slug).join(RunRow, col(RunRow.project_id) == ProjectRow.id)
        slug = session.execute(owner.where(col(RunRow.id) == run_id)).scalar_one_or_none()
    if slug is None:
        raise NotFound.of(f"Run {run_id}")
    return delete_runs(engine, slug, select_runs([run_id]), author=author, note=note)


def undo(engine: Engine, slug: str, deletion_id: int, *, author: str) -> Deletion:
    """Undo a deletion. Raises NotFound, Conflict."""
    who, _ = checked(author, "")
    with transaction(engine, durable=True) as session:
        undo_deletion(session, find_project(session, slug).id or 0, deletion_id, who=who)
    return _carried_out(engine, deletion_id)


def _carried_out(engine: Engine, deletion_id: int) -> Deletion:
    continue_deletion(engine, deletion_id)
    with read_session(engine) as session:
        return _deletion(session.get_one(DeletionRow, deletion_id))


def set_retention(engine: Engine, slug: str, values: Mapping[str, Any], *, author: str) -> None:
    """Replace the retention of a project. Raises NotFound, InvalidChange naming fields."""
    retention = Retention.read(values)
    who, _ = checked(author, "")
    with transaction(engine, durable=True) as session:
        project = find_project(session, slug)
        before, after = project.retention, retention.to_json()
        if before == after:
            return
        project.retention = after
        session.add(project)
        audit.record_project(session, project.id, "retention", who=who, before=before, after=after)


def set_archived(engine: Engine, slug: str, archived: bool, *, author: str) -> None:
    """Archive a project, which then takes no uploads, or restore it. Raises NotFound, InvalidChange."""
    who, _ = checked(author, "")
    with transaction(engine, durable=True) as session:
        project = find_project(session, slug)
        if (project.archived_at is not None) == archived:
            return
        project.archived_at = utc_now() if archived else None
        session.add(project)
        audit.record_project(
            session, project.id, "archived" if archived else "restored", who=who, before={"archived": not archived},
            after={"archived": archived},
        )  # fmt: skip
