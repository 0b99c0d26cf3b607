"""Correct the metadata of runs: name, tags, branch, commit, commit time, job, project and notes.

The stored metadata of the upload changes, too, so that a later reading of the files keeps the correction. Stacks whose
verdicts may change are judged again through their queue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, exists, select, update
from sqlmodel import Session, col

from app.domain.documents.metadata import read_metadata
from app.errors import Conflict, FieldError, InvalidChange, InvalidMetadata, NotFound
from app.pipeline.work import run_queue, stack_queue
from app.storage import audit
from app.storage.runs import settle_places
from app.storage.tables import (
    AvailabilityRow,
    ExperimentRow,
    ExperimentRunRow,
    GoldenProposalRow,
    PinRow,
    ProjectRow,
    RegressionMemberRow,
    RegressionRow,
    RunAlarmRow,
    RunRow,
    UpgradeChangeRow,
    VerdictRow,
    select_any,
)

CORRECTED = ("name", "tags", "branch", "commit", "commit_time", "job", "project", "notes")
MOST_RUNS = 200
"""Maximum runs that one correction may change."""
MOST_NOTES = 4000
_CHANGES_VERDICTS = {"tags", "branch", "commit", "commit_time", "job"}


@dataclass(frozen=True, slots=True)
class Corrected:
    """The result of a correction. `changed`: number of runs. `runs` and `stacks`: work to enqueue after the commit."""

    changed: int
    runs: tuple[int, ...]
    stacks: tuple[int, ...]


def correct_runs(
    session: Session, run_ids: Sequence[int], changes: Mapping[str, Any], *, who: str, note: str = ""
) -> Corrected:
    """Correct all of the runs or none. Raises NotFound, Conflict, and InvalidChange naming the fields.

    The target project must be one that the caller may change.
    """
    columns = _checked(run_ids, changes)
    slug = columns.pop("project", None)
    target = _project(session, slug) if slug is not None else None
    chosen = select(RunRow).where(col(RunRow.id).in_(run_ids)).order_by(col(RunRow.id))
    rows = {row.id or 0: row for row in session.execute(chosen).scalars()}
    if missing := [run_id for run_id in run_ids if run_id not in rows]:
        raise NotFound(f"Run {missing[0]} does not exist. It may have been deleted. Nothing was changed.")
    differing = {run_id: row for run_id, row in rows.items() if _differs(row, columns, target)}
    moving = {run_id: row for run_id, row in differing.items() if target and row.project_id != target.id}
    for run_id, row in moving.items():
        _check_may_move(session, run_id, row, target)
    # Stacks are locked before runs, as in all other code.
    stacks = _judge_again(session, differing, moving, columns)
    emptied: set[int] = set()
    for run_id, row in differing.items():
        before = {name: _shown(getattr(row, name)) for name in columns if getattr(row, name) != columns[name]}
        after = {name: _shown(columns[name]) for name in before}
        old = row.project_id
        if run_id in moving and target is not None:
            before |= {"project": session.get_one(ProjectRow, old).slug}
            after |= {"project": target.slug}
            emptied |= _move(session, run_id, row, target)
        _apply(session, row, columns, after)
        for project_id in sorted({old, row.project_id}):
            audit.record(
                session, who=who, subject="run", subject_id=run_id, action="correct", project_id=project_id,
                before=before, after=after, note=note,
            )  # fmt: skip
    session.flush()
    _delete_emptied(session, emptied)
    stacks += _regroup_reruns(session, differing, columns)
    reread = [run_id for run_id, row in differing.items() if run_id in moving or ("job" in columns and not row.job)]
    if reread:
        run_queue.request(session, col(RunRow.id).in_(reread))
    return Corrected(len(differing), tuple(reread), tuple(dict.fromkeys(stacks)))


def _checked(run_ids: Sequence[int], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes as columns of RunRow, and `project`. Raises InvalidChange."""
    errors = []
    if not 0 < len(run_ids) <= MOST_RUNS:
        errors.append(FieldError("runs", f"must have 1 to {MOST_RUNS} runs"))
    if not changes:
        errors.append(FieldError("", f"must change at least one of {', '.join(CORRECTED)}"))
    notes = changes.get("notes")
    if notes is not None and (not isinstance(notes, str) or len(notes) > MOST_NOTES or "\0" in notes):
        errors.append(FieldError("notes", f"must be text of at most {MOST_NOTES:,} characters"))
    for name in ("name", "project"):
        if name in changes and not str(changes[name] or "").strip():
            errors.append(FieldError(name, "must not be empty"))
    stated = {name: value for name, value in changes.items() if name != "notes"}
    try:
        metadata = read_metadata(stated)
    except InvalidMetadata as error:
        errors += [FieldError(wrong.field.removeprefix("meta."), wrong.message) for wrong in error.errors]
    if errors:
        names = ", ".join(error.field for error in errors if error.field) or "the change"
        raise InvalidChange(f"Correct {names}. Nothing was changed.", tuple(errors))
    columns = {name: getattr(metadata, name) for name in CORRECTED if name in stated}
    columns |= {"tags": list(metadata.tags)} if "tags" in stated else {}
    return columns | ({"notes": str(notes).strip() or None} if "notes" in changes else {})


def _project(session: Session, slug: str) -> ProjectRow:
    row: ProjectRow | None = session.execute(
        select(ProjectRow).where(col(ProjectRow.slug_lower) == slug.lower(), col(ProjectRow.archived_at).is_(None))
    ).scalar_one_or_none()
    if row is None:
        message = f"is not a project that you can upload to: {slug[:100]!r}"
        raise InvalidChange("Nothing was changed.", (FieldError("project", message),))
    return row


def _differs(row: RunRow, columns: Mapping[str, Any], target: ProjectRow | None) -> bool:
    return any(getattr(row, name) != value for name, value in columns.items()) or (
        target is not None and row.project_id != target.id
    )


def _shown(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _check_may_move(session: Session, run_id: int, row: RunRow, target: ProjectRow | None) -> None:
    pinned = select(col(PinRow.id)).where(col(PinRow.run_id) == run_id, col(PinRow.unpinned_at).is_(None))
    planned = select(col(ExperimentRow.id)).where(col(ExperimentRow.baseline_run_id) == run_id)
    joined = select(col(ExperimentRunRow.experiment_id)).where(col(ExperimentRunRow.run_id) == run_id)
    if session.execute(pinned.limit(1)).first():
        raise Conflict(f"Run {run_id} is pinned as a golden baseline. Unpin it first. Nothing was changed.")
    if session.execute(planned.limit(1)).first() or session.execute(joined.limit(1)).first():
        raise Conflict(f"Run {run_id} belongs to an experiment of its project. Nothing was changed.")
    same = select_any(RunRow.id).where(
        col(RunRow.project_id) == (target.id if target else 0), col(RunRow.content_key) == row.content_key
    )
    if (other := session.execute(same).scalar()) is not None:
        raise Conflict(f"Run {run_id} also exists in that project, as run {other}. Nothing was changed.")


def _judge_again(
    session: Session, differing: Mapping[int, RunRow], moving: Mapping[int, RunRow], columns: Mapping[str, Any]
) -> list[int]:
    firsts: dict[tuple[int, str], tuple[datetime, int]] = {}
    for run_id, row in differing.items():
        if row.stack_key and (run_id in moving or columns.keys() & _CHANGES_VERDICTS):
            position = min(row.ordered_at, columns.get("commit_time") or row.ordered_at)
            key = row.project_id, row.stack_key
            firsts[key] = min(firsts.get(key, (position, run_id)), (position, run_id))
    return [
        stack_queue.request(session, *key, judge_from=position, because=f"The metadata of run {run_id} was corrected.")
        for key, (position, run_id) in sorted(firsts.items())
    ]


def _apply(session: Session, row: RunRow, columns: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for name, value in columns.items():
        setattr(row, name, value)
    if "commit" in columns or "commit_time" in columns:
        row.ordered_at = row.commit_time or row.created_at
    stated = {name: value for name, value in after.items() if name != "notes"}
    if stated:
        row.result.metadata_stated = {**row.result.metadata_stated, **stated}
    session.add(row)


def _move(session: Session, run_id: int, row: RunRow, target: ProjectRow) -> set[int]:
    """Move a run to another project and remove it from regressions of the old one. Return those regressions."""
    members = select(col(RegressionMemberRow.regression_id)).where(col(RegressionMemberRow.run_id) == run_id)
    regressions = set(session.execute(members).scalars())
    for kind in (RegressionMemberRow, RunAlarmRow, PinRow, GoldenProposalRow, UpgradeChangeRow, VerdictRow):
        session.execute(delete(kind).where(col(kind.run_id) == run_id))
    session.execute(update(AvailabilityRow).where(col(AvailabilityRow.run_id) == run_id).values(project_id=target.id))
    row.project_id = target.id or 0
    row.idempotency_key = None
    row.stack_key = row.config_key = row.verdict = row.badge = row.badge_label = ""
    row.verdict_delta_pct = None
    return regressions


def _delete_emptied(session: Session, regressions: set[int]) -> None:
    empty = ~exists().where(col(RegressionMemberRow.regression_id) == col(RegressionRow.id))
    session.execute(
        delete(RegressionRow)
        .where(col(RegressionRow.id).in_(regressions), empty)
        .execution_options(synchronize_session=False)
    )


def _regroup_reruns(session: Session, differing: Mapping[int, RunRow], columns: Mapping[str, Any]) -> list[int]:
    """Group the reruns of a changed commit, and request that runs with a new history position are judged again."""
    if "commit" not in columns and "commit_time" not in columns:
        return []
    groups = {(row.project_id, row.stack_key, row.config_key, row.commit) for row in differing.values()}
    stacks = []
    for project_id, stack_key, config_key, commit in sorted(groups):
        if commit and stack_key:
            moved = settle_places(session, project_id, config_key, commit)
            if moved is not None:
                because = "Runs were moved next to the other runs of their commit."
                stacks.append(stack_queue.request(session, project_id, stack_key, judge_from=moved, because=because))
    return stacks
