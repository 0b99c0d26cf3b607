"""The list of published figures: those that match, a page of them, and what the filters can offer."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlmodel import Session, col

from app.references.filters import ReferenceFilters
from app.storage.references import Reference, references
from app.storage.tables import ProjectRow
from app.web.numbers import counted

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class ReferencePage:
    """One page of the list: `page` counts from 1, `total` is over all pages."""

    items: tuple[Reference, ...]
    total: int
    page: int
    size: int = PAGE_SIZE

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size + 1 if self.items else 0

    @property
    def last(self) -> int:
        return self.first + len(self.items) - 1 if self.items else 0


@dataclass(frozen=True, slots=True)
class ReferenceOptions:
    """Values of the filters, as they occur."""

    models: tuple[str, ...]
    gpus: tuple[str, ...]
    precisions: tuple[str, ...]
    routings: tuple[str, ...]
    projects: tuple[str, ...]


def find_references(session: Session, filters: ReferenceFilters) -> tuple[Reference, ...]:
    """All that count and match, newest first."""
    return filters.keep(references(session, filters.project or None))


def page_of(found: tuple[Reference, ...], page: int, size: int = PAGE_SIZE) -> ReferencePage:
    """A page past the end is empty, with the true total."""
    return ReferencePage(found[(page - 1) * size : page * size], len(found), page, size)


def reference_options(session: Session) -> ReferenceOptions:
    points = [one.point for one in references(session)]
    return ReferenceOptions(
        models=_occurring(point.family.name for point in points),
        gpus=_occurring(point.contract["gpu"] for point in points),
        precisions=_occurring(point.contract["precision"] for point in points),
        routings=_occurring(point.contract.get("routing_mode") for point in points),
        projects=tuple(session.execute(select(ProjectRow.slug).order_by(col(ProjectRow.slug))).scalars()),  # type: ignore[call-overload]
    )


def told(found: tuple[Reference, ...]) -> str:
    """The first sentence of the page."""
    if not found:
        return "No published figure matches."
    models = len({one.point.family for one in found})
    own = sum(one.entered is not None for one in found)
    added = f", {own} of them added by teams" if own else ""
    what = f"{counted(len(found), 'published figure')} of {counted(models, 'model')}"
    return f"{what}{added}, the newest of {found[0].point.date}."


def _occurring(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(sorted({str(value) for value in values if value is not None}))
