"""Add, correct and withdraw reference points of teams. Each change is recorded with author, time and old values.

A withdrawn point keeps its URL and history, but runs are no longer compared with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Engine, func, select
from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.references.point import InvalidReference, ReferencePoint, read_reference
from app.domain.text import one_line
from app.errors import EditConflict, FieldError, InvalidChange, NotFound
from app.storage import audit
from app.storage.audit import MAX_NOTE, author_errors
from app.storage.database import transaction
from app.storage.json_text import from_json, to_json
from app.storage.references import find_reference, references
from app.storage.tables import ProjectRow, ReferencePointRow, select_any, utc_now

log = structlog.get_logger(__name__)

MAX_IN_FORCE = 2000
"""All points are read to find the nearest one; a larger number suggests an import of another database."""
FACTS = (
    *("measured_by", "source", "url", "date", "window", "note", "rounded", "untuned"),
    *("tokens_per_s_per_gpu", "tflops_per_gpu", "step_time_ms"),
)
"""Values of a figure outside its contract."""
CONTRACT = "contract."
"""Prefix of contract fields in errors."""


@dataclass(frozen=True, slots=True)
class ReferenceStatement:
    """Contract fields and FACTS by name, as received.

    For an existing figure, None removes a field and omitted names stay.
    """

    contract: Mapping[str, object] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReferenceAuthor:
    """Author and reason of a change, and `seen`: the `changed_at` that the user saw; None skips the check."""

    author: str
    reason: str = ""
    seen: datetime | None = None


def add_reference(engine: Engine, statement: ReferenceStatement, by: ReferenceAuthor, project: str) -> int:
    """Add a figure for `project`, or for all, and return its number. Raises InvalidChange."""
    by, errors = _checked(by)
    point = _point({}, statement, errors)
    with transaction(engine, durable=True) as session:
        project_id, project = _project(session, project)
        _refuse_too_many(session)
        _refuse_twin(session, point, project)
        row = ReferencePointRow(project_id=project_id, point=to_json(point), added_by=by.author)
        row.changed_at = row.added_at
        session.add(row)
        session.flush()
        _record(session, row, by, "add", project_id=project_id, after=stated_values(point))
    log.info("reference_added", reference_id=row.id)
    return row.id or 0


def change_reference(
    engine: Engine, number: int, statement: ReferenceStatement, by: ReferenceAuthor, project: str | None
) -> None:
    """Correct a figure; `project` None: offered as before. Raises NotFound, InvalidChange, EditConflict."""
    by, errors = _checked(by)
    with transaction(engine, durable=True) as session:
        row = _locked(session, number)
        if row.withdrawn_at is not None:
            raise InvalidChange(f"Reference point {number} was withdrawn. Nothing was changed.")
        _refuse_if_changed(session, row, by)
        old = from_json(ReferencePoint, row.point)
        point = _point(stated_values(old), statement, errors)
        before, after = _difference(stated_values(old), stated_values(point))
        owner = row.project_id
        was = "" if owner is None else session.get_one(ProjectRow, owner).slug
        project_id, project = (owner, was) if project is None else _project(session, project)
        if moves := project_id != owner:
            row.project_id = project_id
            before, after = before | {"project": was}, after | ({} if project else {"project": ""})
        if not after and not before:
            return
        _refuse_twin(session, point, project, but=number)
        row.point, row.changed_at = to_json(point), utc_now()
        session.add(row)
        # Readers of the old project still see the old values; the entry there says where the figure went.
        _record(session, row, by, "change", project_id=owner, before=before, after=after)
        if moves and row.project_id is not None:
            _record(session, row, by, "change", project_id=row.project_id, after={"project": project})
    log.info("reference_changed", reference_id=number, fields=sorted({*before, *after}))


def withdraw_reference(engine: Engine, number: int, by: ReferenceAuthor) -> None:
    """Withdraw a reference point; withdrawing twice has no effect. Raises NotFound, InvalidChange, EditConflict."""
    by, errors = _checked(by)
    if errors:
        raise InvalidChange.of(*errors)
    with transaction(engine, durable=True) as session:
        row = _locked(session, number)
        if row.withdrawn_at is not None:
            return
        _refuse_if_changed(session, row, by)
        row.withdrawn_at = row.changed_at = utc_now()
        session.add(row)
        _record(session, row, by, "withdraw", project_id=row.project_id)
    log.info("reference_withdrawn", reference_id=number)


def stated_values(point: ReferencePoint) -> dict[str, Any]:
    facts = {name: getattr(point, name) for name in FACTS}
    return {**point.contract, **{name: value for name, value in facts.items() if value not in (None, "", False)}}


def _point(
    before: Mapping[str, object], statement: ReferenceStatement, errors: Sequence[FieldError] = ()
) -> ReferencePoint:
    """Return the point. Raises InvalidChange with `errors`, found earlier, and every invalid field."""
    wrong = {CONTRACT + name: "is not a contract field" for name in statement.contract if name not in FIELDS}
    wrong |= {name: "is not known" for name in statement.facts if name not in FACTS}
    stated = {name: value for name, value in statement.contract.items() if name in FIELDS}
    stated |= {name: value for name, value in statement.facts.items() if name in FACTS}
    merged = {name: value for name, value in {**before, **stated}.items() if name not in stated or value is not None}
    try:
        point = read_reference(
            {name: one_line(value) if isinstance(value, str) else value for name, value in merged.items()}
            | {"kind": "own"}
        )
    except InvalidReference as error:
        wrong |= {(CONTRACT + name if name in FIELDS else name): why for name, why in error.fields.items()}
    if wrong or errors:
        raise InvalidChange.of(*errors, *(FieldError(name, why) for name, why in wrong.items()))
    return point


def _checked(by: ReferenceAuthor) -> tuple[ReferenceAuthor, Sequence[FieldError]]:
    """Return the author with a one-line note, and the errors."""
    author, reason = one_line(by.author), one_line(by.reason)
    errors = author_errors(author)
    if len(reason) > MAX_NOTE:
        errors.append(FieldError("reason", f"must have at most {MAX_NOTE:,} characters"))
    return ReferenceAuthor(author, reason, by.seen), errors


def _locked(session: Session, number: int) -> ReferencePointRow:
    chosen = select(ReferencePointRow).where(col(ReferencePointRow.id) == number).with_for_update()
    row: ReferencePointRow | None = session.execute(chosen).scalar_one_or_none()
    if row is None:
        raise NotFound(f"No team added a reference point {number}. Built-in ones cannot be changed.")
    return row


def number_of(session: Session, reference_id: str) -> int:
    """Return the number of a figure that may be changed, by its address. Raises NotFound, InvalidChange."""
    reference = find_reference(session, reference_id)
    if reference is None:
        raise NotFound(f"No team added a reference point {reference_id[:80]}.")
    if reference.entered is None:
        raise InvalidChange(
            "Built-in figures cannot be changed or withdrawn. Add your own figure instead; it takes precedence "
            "if no known field differs."
        )
    return int(reference_id)


def _refuse_if_changed(session: Session, row: ReferencePointRow, by: ReferenceAuthor) -> None:
    if by.seen is not None and by.seen != row.changed_at:
        newest = audit.events(session, "reference", row.id or 0)
        who = f" by {newest[0].who}" if newest else ""
        why = f"was changed{who} at {row.changed_at:%Y-%m-%d %H:%M:%S} UTC"
        raise EditConflict(f"It {why}, so nothing was changed. Read it again, then decide.", (FieldError("seen", why),))


def _project(session: Session, slug: str) -> tuple[int | None, str]:
    """Return the id and slug of a project by its slug in any case; None and nothing for all. Raises InvalidChange."""
    if not slug:
        return None, ""
    chosen = select_any(ProjectRow.id, ProjectRow.slug).where(col(ProjectRow.slug_lower) == slug.lower())
    if (row := session.execute(chosen).one_or_none()) is None:
        raise InvalidChange.of(FieldError("project", "is not a project; a project is created by its first upload"))
    return row.id, row.slug


def _refuse_too_many(session: Session) -> None:
    in_force = select(func.count()).where(col(ReferencePointRow.withdrawn_at).is_(None))
    if session.execute(in_force).scalar_one() >= MAX_IN_FORCE:
        raise InvalidChange(
            f"The limit of {MAX_IN_FORCE:,} figures is reached. Withdraw figures that are no longer needed. "
            "Nothing was changed."
        )


def _refuse_twin(session: Session, point: ReferencePoint, project: str, but: int = 0) -> None:
    for reference in references(session):
        if (
            reference.entered
            and reference.entered.project == project
            and reference.id != str(but)
            and reference.point == point
        ):
            raise InvalidChange.of(
                FieldError("source", f"already exists with the same figures: reference point {reference.id}")
            )


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name) or (name in old) != (name in new)]
    before, after = ({name: side[name] for name in changed if name in side} for side in (old, new))
    return before, after


def _record(
    session: Session,
    row: ReferencePointRow,
    by: ReferenceAuthor,
    action: str,
    *,
    project_id: int | None,
    **sides: Mapping[str, Any],
) -> None:
    """Record the change with `before` and `after`, for readers of the project."""
    audit.record(
        session, who=by.author, subject="reference", subject_id=row.id or 0, action=action, project_id=project_id,
        note=by.reason, **sides,
    )  # fmt: skip
