"""Delete runs and raw logs, undo it within a week, and delete by age.

A deletion copies the rows of its runs (`storage/row_copies.py`), deletes the rows, so that no query can find them, and
requests that their stacks are judged again. Undoing inserts the copies. After `UNDO_DAYS` the copies are deleted, and
with them the stored files that nothing else uses (`storage/objects.py`). Workers continue large deletions in batches.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import structlog
from sqlalchemy import ColumnElement, Engine, delete, exists, func, or_, select, update
from sqlalchemy.orm import aliased
from sqlmodel import Session, col

from app.domain.numbers import file_size, plural
from app.domain.retention import UNDO_DAYS, Retention, before
from app.errors import Conflict, FieldError, InvalidChange, NotFound
from app.pipeline.experiments import refresh
from app.pipeline.work import stack_queue
from app.queue import JUDGE_STACK, SWEEP, enqueue
from app.storage import audit, derived
from app.storage.audit import SERVICE
from app.storage.database import read_session, transaction
from app.storage.json_text import to_json
from app.storage.row_copies import RowCopies, copy_rows, insert_rows, pack, unpack
from app.storage.runs import settle_places
from app.storage.tables import (
    PROCESSED,
    AuditEventRow,
    DeletionObjectRow,
    DeletionPartRow,
    DeletionRow,
    ExperimentRow,
    PinRow,
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunFileRow,
    RunRow,
    RunValueRow,
    SegmentRow,
    select_any,
    table_of,
    utc_now,
)
from app.storage.worker_activity import timed

log = structlog.get_logger(__name__)

Kind = Literal["runs", "stack", "project", "failed", "older", "logs"]
MOST_CHOSEN = 1000
"""Maximum runs that one deletion can list."""

_BATCH = 25
_AT_ONCE_SECONDS = 3.0
"""Seconds that a request works on a deletion; a worker continues."""
_RAW = ("log", "events")


# --- Selecting the runs of a deletion.


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionSelection:
    """The runs of a deletion, all in one project: `runs`, those of `stack`, all, or by age those older than `before`.

    The kinds `failed`, `older` and `logs` are the rules of `Retention` and spare golden runs; `logs` deletes raw files
    only.
    """

    kind: Kind
    runs: tuple[int, ...] = ()
    stack: str = ""
    before: datetime

    @classmethod
    def read(cls, stored: dict[str, Any]) -> "DeletionSelection":
        values = stored | {"before": datetime.fromisoformat(stored["before"]), "runs": tuple(stored["runs"])}
        return cls(**values)

    @property
    def deletes_logs_only(self) -> bool:
        return self.kind == "logs"

    def conditions(self, project_id: int) -> tuple[ColumnElement[bool], ...]:
        own = (col(RunRow.project_id) == project_id, col(RunRow.created_at) <= self.before)
        if self.kind == "runs":
            return (*own, col(RunRow.id).in_(self.runs))
        if self.kind == "stack":
            return (*own, col(RunRow.stack_key) == self.stack)
        if self.kind == "project":
            return own
        is_done = (col(RunRow.status).in_(PROCESSED), col(RunRow.work) == "", col(RunRow.reception) != "receiving")
        spared = (*is_done, ~_is_golden())
        if self.kind == "failed":
            return (*own, *spared, col(RunRow.status).in_(("failed", "unread")))
        return (*own, *spared, _has_raw_files()) if self.kind == "logs" else (*own, *spared)


def _is_golden() -> ColumnElement[bool]:
    pin, experiment = aliased(PinRow), aliased(ExperimentRow)
    pinned = exists().where(col(pin.run_id) == col(RunRow.id), col(pin.unpinned_at).is_(None))
    planned = exists().where(col(experiment.baseline_run_id) == col(RunRow.id))
    return or_(pinned, planned)


def _has_raw_files() -> ColumnElement[bool]:
    file, piece = aliased(RunFileRow), aliased(SegmentRow)
    return (
        select(col(piece.file_id))
        .join(file, col(file.id) == piece.file_id)
        .where(col(file.run_id) == col(RunRow.id), col(file.kind).in_(_RAW), col(piece.removed_at).is_(None))
        .correlate(RunRow)
        .exists()
    )


@dataclass(frozen=True, slots=True)
class DeletionPreview:
    """The effect of a deletion. `bytes`: decompressed uploads. `golden`: pinned runs and baselines of experiments.
    `experiments`: those that are deleted with their baseline."""

    runs: int
    bytes: int
    golden: int
    experiments: int

    def sentence(self, selection: DeletionSelection) -> str:
        """Return the text of the confirmation."""
        if not self.runs:
            return "Nothing to delete."
        freed = f"frees {file_size(self.bytes)}; undo for {UNDO_DAYS} days."
        if selection.deletes_logs_only:
            return f"Deletes the raw logs of {plural(self.runs, 'run')}, keeps their figures, {freed}"
        parts = [plural(self.runs, "run") + (f" ({self.golden} golden)" if self.golden else "")]
        parts += [plural(self.experiments, "experiment")] if self.experiments else []
        return f"Deletes {' and '.join(parts)}, {freed}"


def preview(session: Session, project_id: int, selection: DeletionSelection) -> DeletionPreview:
    conditions = selection.conditions(project_id)
    raw = [col(RunFileRow.kind).in_(_RAW)] if selection.deletes_logs_only else []
    size = (
        select_any(func.coalesce(func.sum(SegmentRow.size_bytes), 0))
        .join(RunFileRow, col(RunFileRow.id) == SegmentRow.file_id)
        .join(RunRow, col(RunRow.id) == RunFileRow.run_id)
        .where(*conditions, *raw, col(SegmentRow.removed_at).is_(None))
    )
    runs, golden = session.execute(
        select_any(func.count(), func.count().filter(_is_golden())).select_from(RunRow).where(*conditions)
    ).one()
    planned = (
        select_any(func.count())
        .select_from(ExperimentRow)
        .join(RunRow, col(RunRow.id) == ExperimentRow.baseline_run_id)
        .where(*conditions)
    )
    experiments = 0 if selection.deletes_logs_only else session.execute(planned).scalar_one()
    return DeletionPreview(runs, int(session.execute(size).scalar_one()), golden, experiments)


# --- Deleting.


def request_deletion(
    session: Session, project: ProjectRow, selection: DeletionSelection, *, who: str, note: str = ""
) -> tuple[DeletionRow, DeletionPreview]:
    """Record a deletion for `continue_deletion`. Raises InvalidChange if no run matches."""
    project_id = project.id or 0
    expected = preview(session, project_id, selection)
    if not expected.runs and selection.kind != "project":
        raise InvalidChange(
            "No run of this project is selected. Nothing was deleted.", (FieldError("runs", "match no run"),)
        )
    title = _title(session, project, selection, expected)
    row = DeletionRow(
        project_id=project_id, selection=to_json(selection), title=title[:300], requested_by=who, note=note
    )
    session.add(row)
    if selection.kind == "project":
        project.archived_at = utc_now()
        session.add(project)
    session.flush()
    one_run = selection.kind == "runs" and len(selection.runs) == 1
    audit.record(
        session, who=who, subject="run" if one_run else "project",
        subject_id=selection.runs[0] if one_run else project_id, action="delete", project_id=project_id,
        after={"deletion": row.id, "what": title, "runs": expected.runs, "bytes": expected.bytes}, note=note,
    )  # fmt: skip
    return row, expected


def _title(session: Session, project: ProjectRow, selection: DeletionSelection, expected: DeletionPreview) -> str:
    day = f"{selection.before:%Y-%m-%d}"
    if selection.kind == "runs" and len(selection.runs) == 1:
        name = session.execute(select_any(RunRow.name).where(col(RunRow.id) == selection.runs[0])).scalar_one_or_none()
        return f"Run {selection.runs[0]} {name or ''}"
    return {
        "runs": plural(expected.runs, "chosen run"),
        "stack": f"Stack {selection.stack[:8]}",
        "project": f"Project {project.slug}",
        "failed": f"Failed and unread runs up to {day}",
        "older": f"Runs up to {day}",
        "logs": f"Raw logs up to {day}",
    }[selection.kind]


def continue_deletion(engine: Engine, deletion_id: int, seconds: float = _AT_ONCE_SECONDS) -> bool:
    """Delete or restore batches for about `seconds`. Return whether it is finished; else the next sweep continues."""
    end = time.monotonic() + seconds
    while True:
        with transaction(engine, durable=True) as session:
            row = session.get(DeletionRow, deletion_id, with_for_update=True)
            if row is None or row.state not in ("waiting", "undoing"):
                return True
            stacks, is_finished = _delete_batch(session, row) if row.state == "waiting" else _restore_part(session, row)
        for work_id in stacks:
            enqueue(JUDGE_STACK, work_id)
        if is_finished or time.monotonic() >= end:
            if not is_finished:
                enqueue(SWEEP)
            return is_finished


def _delete_batch(session: Session, row: DeletionRow) -> tuple[list[int], bool]:
    selection = DeletionSelection.read(row.selection)
    chosen = select_any(RunRow.id).where(*selection.conditions(row.project_id)).order_by(col(RunRow.id)).limit(_BATCH)
    run_ids = list(session.execute(chosen).scalars())
    stacks: list[int] = []
    if selection.deletes_logs_only:
        _remove_raw_files(session, row, run_ids)
    elif run_ids:
        stacks = _delete_runs(session, row, run_ids)
    row.runs += len(run_ids)
    is_finished = len(run_ids) < _BATCH
    if is_finished:
        row.state, row.ends_at = "done", utc_now() + timedelta(days=UNDO_DAYS)
        log.info("deleted", deletion=row.id, title=row.title, runs=row.runs)
    session.add(row)
    return stacks, is_finished


def _remove_raw_files(session: Session, row: DeletionRow, run_ids: Sequence[int]) -> None:
    files = select(col(RunFileRow.id)).where(col(RunFileRow.run_id).in_(run_ids), col(RunFileRow.kind).in_(_RAW))
    of_files = (col(SegmentRow.file_id).in_(files), col(SegmentRow.removed_at).is_(None))
    row.bytes += session.execute(
        select_any(func.coalesce(func.sum(SegmentRow.size_bytes), 0)).where(*of_files)
    ).scalar_one()
    session.execute(update(SegmentRow).where(*of_files).values(removed_at=row.requested_at))


def _delete_runs(session: Session, row: DeletionRow, run_ids: list[int]) -> list[int]:
    """Copy and delete runs with all their rows. Return the stacks to judge."""
    because = f"{row.title} was deleted."
    stacks = _judge_again(session, row.project_id, run_ids, because)  # first, because all code locks stacks first
    copies = copy_rows(session, {"run": run_ids})
    emptied = _emptied_regressions(session, copies)
    if emptied:
        copies = copy_rows(session, {"run": run_ids, "regression": emptied})
    runs = copies.rows["run"]
    row.bytes += sum(piece["size_bytes"] for piece in copies.rows.get("segment", ()))
    part = DeletionPartRow(deletion_id=row.id or 0, document=pack(copies))
    session.add(part)
    session.flush()
    keys = {piece["object_key"] for name in ("segment", "profile_file") for piece in copies.rows.get(name, ())}
    session.add_all(DeletionObjectRow(object_key=key, part_id=part.id or 0) for key in sorted(keys - {""}))
    deleted_experiments = {entry["id"] for entry in copies.rows.get("experiment", ())}
    experiments = {entry["experiment_id"] for entry in copies.rows.get("experiment_run", ())} - deleted_experiments
    for kind, numbers in ((RegressionRow, emptied), (RunRow, run_ids)):
        table = table_of(kind)
        session.execute(delete(table).where(table.c.id.in_(numbers)))
    session.expire_all()
    for config_key, commit in sorted({(run["config_key"], run["commit"]) for run in runs if run["commit"]}):
        settle_places(session, row.project_id, config_key, commit)
    _forget_values(session, row.project_id, runs)
    for experiment_id in sorted(experiments):
        refresh(session, experiment_id)
    return stacks


def _judge_again(session: Session, project_id: int, run_ids: Sequence[int], because: str) -> list[int]:
    positions = session.execute(
        select_any(RunRow.stack_key, func.min(RunRow.ordered_at))
        .where(col(RunRow.id).in_(run_ids), col(RunRow.stack_key) != "")
        .group_by(col(RunRow.stack_key))
        .order_by(col(RunRow.stack_key))
    ).all()
    return [
        stack_queue.request(session, project_id, stack, judge_from=position, because=because)
        for stack, position in positions
    ]


def _emptied_regressions(session: Session, copies: RowCopies) -> list[int]:
    """Return the regressions all of whose members are deleted."""
    members = copies.rows.get("regression_member", ())
    runs = [run["id"] for run in copies.rows["run"]]
    regressions = {member["regression_id"] for member in members}
    if not regressions:
        return []
    staying = session.execute(
        select_any(RegressionMemberRow.regression_id).where(
            col(RegressionMemberRow.regression_id).in_(regressions), col(RegressionMemberRow.run_id).not_in(runs)
        )
    ).scalars()
    return sorted(regressions - set(staying))


def _forget_values(session: Session, project_id: int, runs: Sequence[dict[str, Any]]) -> None:
    """Delete filter choices without runs."""
    for name in derived.FIELDS:
        column = getattr(RunRow, name)
        for value in sorted({run[name] for run in runs if run[name]}):
            still = exists().where(column == value, col(RunRow.project_id) == project_id)
            session.execute(
                delete(RunValueRow)
                .where(
                    col(RunValueRow.field) == name,
                    col(RunValueRow.project_id) == project_id,
                    col(RunValueRow.value) == value,
                    ~still,
                )
                .execution_options(synchronize_session=False)
            )


# --- Undoing.


def undo_deletion(session: Session, project_id: int, deletion_id: int, *, who: str) -> DeletionRow:
    """Record that a deletion is to be undone by `continue_deletion`. Raises NotFound, Conflict."""
    row = session.get(DeletionRow, deletion_id, with_for_update=True)
    if row is None or row.project_id != project_id:
        raise NotFound(f"Deletion {deletion_id} does not exist in this project.")
    if row.state not in ("done", "waiting"):
        states = {"undoing": "is being undone", "undone": "was undone", "final": "is final: its copies were deleted"}
        raise Conflict(f"Deletion {deletion_id} {states[row.state]}. Nothing was changed.")
    row.state, row.undone_by = "undoing", who
    session.add(row)
    project = session.get_one(ProjectRow, project_id)
    if row.selection["kind"] == "project":
        project.archived_at = None
        session.add(project)
    audit.record_project(
        session, project_id, "undo_delete", who=who, before={"deletion": row.id, "what": row.title},
        after={"runs": row.runs},
    )  # fmt: skip
    return row


def _restore_part(session: Session, row: DeletionRow) -> tuple[list[int], bool]:
    selection = DeletionSelection.read(row.selection)
    if selection.deletes_logs_only:
        own = select(col(RunFileRow.id)).join(RunRow, col(RunRow.id) == RunFileRow.run_id)
        own = own.where(col(RunRow.project_id) == row.project_id)
        removed = (col(SegmentRow.removed_at) == row.requested_at, col(SegmentRow.file_id).in_(own))
        session.execute(update(SegmentRow).where(*removed).values(removed_at=None))
        row.state = "undone"
        session.add(row)
        return [], True
    chosen = select(DeletionPartRow).where(col(DeletionPartRow.deletion_id) == row.id)
    part: DeletionPartRow | None = session.execute(chosen.order_by(col(DeletionPartRow.id)).limit(1)).scalar()
    if part is None:
        row.state = "undone"
        session.add(row)
        return [], True
    copies = _insertable(session, unpack(part.document))
    runs = copies.rows.get("run", [])
    stacks = sorted({run["stack_key"] for run in runs} - {""})
    work_ids = []
    for stack in stacks:
        first = min(run["ordered_at"] for run in runs if run["stack_key"] == stack)
        because = f"The deletion of {row.title[:1].lower()}{row.title[1:]} was undone."
        work_ids.append(stack_queue.request(session, row.project_id, stack, judge_from=first, because=because))
    insert_rows(session, copies)
    session.delete(part)
    session.flush()
    session.expire_all()
    experiments = {entry["experiment_id"] for entry in copies.rows.get("experiment_run", ())}
    for experiment_id in sorted(experiments):
        refresh(session, experiment_id)
    return work_ids, False


def _insertable(session: Session, copies: RowCopies) -> RowCopies:
    """Return the copies without runs that were uploaded again since, and without rows whose parent no longer exists."""
    runs = copies.rows.get("run", [])
    keys = [run["content_key"] for run in runs]
    taken = select_any(RunRow.content_key, RunRow.project_id).where(col(RunRow.content_key).in_(keys))
    again = {tuple(row) for row in session.execute(taken)}
    names = [run["idempotency_key"] for run in runs if run["idempotency_key"]]
    used = set(
        session.execute(select_any(RunRow.idempotency_key).where(col(RunRow.idempotency_key).in_(names))).scalars()
    )
    restored: dict[str, set[Any]] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    restored["run"] = {run["id"] for run in runs if (run["content_key"], run["project_id"]) not in again}
    for name, entries in copies.rows.items():
        if name == "run":
            rows[name] = [_idle(run, run["idempotency_key"] in used) for run in entries if run["id"] in restored["run"]]
            continue
        rows[name] = [entry for entry in entries if _has_parents(session, name, entry, restored)]
        if entries and "id" in entries[0]:
            restored[name] = {entry["id"] for entry in rows[name]}
    return replace(copies, rows=rows)


def _idle(run: dict[str, Any], key_is_used: bool) -> dict[str, Any]:
    """Return the row of a run in a state that no worker has claimed. `key_is_used`: drop its Idempotency-Key."""
    unfinished = run["status"] not in PROCESSED or run["work"] != ""
    state: dict[str, Any] = {"work": "waiting" if unfinished else "", "lease_until": None}
    state |= {"attempts": 0} if unfinished else {}
    state |= {"status": "received"} if run["status"] == "processing" else {}
    return run | state | ({"idempotency_key": None} if key_is_used else {})


def _has_parents(session: Session, table_name: str, row: dict[str, Any], restored: dict[str, set[Any]]) -> bool:
    for constraint in RunRow.metadata.tables[table_name].foreign_key_constraints:
        child, parent = constraint.elements[0].parent, constraint.elements[0].column
        value = row.get(child.name)
        if constraint.ondelete != "CASCADE" or value is None:
            continue
        if value in restored.get(parent.table.name, ()):
            continue
        if session.execute(select(parent).where(parent == value)).first() is None:
            return False
    return True


# --- Periodic work: unfinished deletions, expired undo periods, and deletions by age.


def continue_deletions(engine: Engine, seconds: float) -> None:
    """Continue unfinished deletions, oldest first, for about `seconds`."""
    end = time.monotonic() + seconds
    with read_session(engine) as session:
        unfinished = select_any(DeletionRow.id).where(col(DeletionRow.state).in_(("waiting", "undoing")))
        ids = list(session.execute(unfinished.order_by(col(DeletionRow.id))).scalars())
    for deletion_id in ids:
        with timed("delete"):
            is_over = continue_deletion(engine, deletion_id, max(0.0, end - time.monotonic()))
        if not is_over:
            return


def finish_deletions(engine: Engine) -> int:
    """Make deletions final whose undo period has ended. Return their number."""
    with transaction(engine) as session:
        over = select(DeletionRow).where(col(DeletionRow.state) == "done", col(DeletionRow.ends_at) < utc_now())
        rows = session.execute(over.order_by(col(DeletionRow.id)).limit(_BATCH).with_for_update()).scalars().all()
        for row in rows:
            session.execute(delete(DeletionPartRow).where(col(DeletionPartRow.deletion_id) == row.id))
            row.state = "final"
            session.add(row)
        projects = [row.project_id for row in rows if row.selection["kind"] == "project"]
    for project_id in projects:
        _delete_project(engine, project_id)
    return len(rows)


def _delete_project(engine: Engine, project_id: int) -> None:
    """Delete an archived project that has no runs, with all its rows. Its audit log stays."""
    with transaction(engine) as session:
        project = session.get(ProjectRow, project_id, with_for_update=True)
        own = select(col(RunRow.id)).where(col(RunRow.project_id) == project_id).limit(1)
        if project is None or project.archived_at is None or session.execute(own).first() is not None:
            return
        session.execute(
            update(AuditEventRow).where(col(AuditEventRow.project_id) == project_id).values(project_id=None)
        )
        audit.record(
            session, who=SERVICE, subject="project", subject_id=project_id, action="deleted",
            before={"slug": project.slug}, after={},
        )  # fmt: skip
        for table in reversed(RunRow.metadata.sorted_tables):
            if "project_id" in table.c and table.name != "audit_event":
                session.execute(delete(table).where(table.c.project_id == project_id))
        session.delete(project)


def apply_retention(engine: Engine) -> list[int]:
    """Request the deletions by age that projects have set, at most one per kind and day. Return their ids."""
    now = utc_now()
    requested: list[int] = []
    with read_session(engine) as session:
        chosen = select(ProjectRow).where(col(ProjectRow.archived_at).is_(None)).order_by(col(ProjectRow.id))
        projects = [row.id or 0 for row in session.execute(chosen).scalars() if row.retention]
    for project_id in projects:
        with transaction(engine) as session:
            project = session.get_one(ProjectRow, project_id, with_for_update=True)
            for selection in selections(Retention.read(project.retention), now):
                if not _was_applied(session, project_id, selection.kind, now - timedelta(hours=23)):
                    any_run = select(col(RunRow.id)).where(*selection.conditions(project_id)).limit(1)
                    if session.execute(any_run).first() is not None:
                        row, _ = request_deletion(
                            session, project, selection, who=SERVICE, note="By the retention of the project."
                        )
                        requested.append(row.id or 0)
    return requested


def selections(retention: Retention, now: datetime) -> list[DeletionSelection]:
    """Return the selections of a project's rules at this time."""
    kinds: dict[str, Kind] = {"runs": "older", "failed": "failed", "logs": "logs"}
    return [DeletionSelection(kind=kinds[name], before=before(days, now)) for name, days in retention.rules]


def _was_applied(session: Session, project_id: int, kind: Kind, since: datetime) -> bool:
    recent = select(DeletionRow).where(
        col(DeletionRow.project_id) == project_id,
        col(DeletionRow.requested_by) == SERVICE,
        col(DeletionRow.requested_at) > since,
    )
    return any(row.selection["kind"] == kind for row in session.execute(recent).scalars())
