"""Reference points: the built-in ones, and those that teams added. Neither is ever ranked with runs."""

from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import ColumnElement
from sqlmodel import Session, col

from app.domain.references.point import ReferencePoint, published
from app.storage.json_text import from_json
from app.storage.tables import ProjectRow, ReferencePointRow, from_row, select_any


@dataclass(frozen=True, slots=True)
class Entered:
    """Who entered a figure, when, and for which `project` (empty: all). `withdrawn_at` None: in use."""

    project: str
    added_by: str
    added_at: datetime
    changed_at: datetime
    withdrawn_at: datetime | None


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference point and its URL. `entered` None: built in."""

    id: str
    point: ReferencePoint
    entered: Entered | None = None

    @property
    def counts(self) -> bool:
        return self.entered is None or self.entered.withdrawn_at is None


def references(session: Session, project: str | None = None) -> tuple[Reference, ...]:
    """Return all that are in use, newest first. `project`: only those offered to it; None: those of every project."""
    in_force = col(ReferencePointRow.withdrawn_at).is_(None)
    entered = [
        item
        for item in _entered(session, in_force)
        if project is None or item.entered is None or item.entered.project in ("", project)
    ]
    offered = (*_published(), *entered)
    return tuple(sorted(offered, key=lambda item: (item.point.date, item.id), reverse=True))


def find_reference(session: Session, reference_id: str) -> Reference | None:
    """Return one in any state, including withdrawn ones."""
    if reference_id.isascii() and reference_id.isdigit() and len(reference_id) < 10:
        return next(iter(_entered(session, col(ReferencePointRow.id) == int(reference_id))), None)
    return next((item for item in _published() if item.id == reference_id), None)


@cache
def _published() -> tuple[Reference, ...]:
    return tuple(Reference(point.key, point) for point in published())


def _entered(session: Session, condition: ColumnElement[bool]) -> list[Reference]:
    rows = session.execute(
        select_any(ReferencePointRow, ProjectRow.slug)
        .outerjoin(ProjectRow, col(ProjectRow.id) == ReferencePointRow.project_id)
        .where(condition)
    )
    return [
        Reference(str(row.id), from_json(ReferencePoint, row.point), from_row(Entered, row, project=slug or ""))
        for row, slug in rows
    ]
