"""The stacks of a published figure's model and GPU: to which it is the nearest, and what is nearer to the rest."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlmodel import Session, col

from app.domain.contract.values import same_value
from app.domain.reference_points import why_farther
from app.references.nearest import Ours, held_against, our_stack
from app.storage.references import Reference, references
from app.storage.stack_names import names_of_titles
from app.storage.standings_tables import StandingRow
from app.storage.tables import ProjectRow

MOST = 20
"""Stacks that are looked at, those with the newest runs."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A stack that it could be held against. `nearer` None: the figure is the nearest to it; else `why` that one is."""

    name: str
    href: str
    nearer: Reference | None
    why: str


@dataclass(frozen=True, slots=True)
class BesideAll:
    """Those that were looked at, of `total`; the ones it is the nearest to first."""

    stacks: tuple[Beside, ...]
    total: int

    @property
    def sentence(self) -> str:
        """`It is the nearest published figure to 2 of 3 stacks of this model on this GPU.`"""
        if not self.total:
            return "No stack of this model on this GPU is ranked here yet."
        nearest, seen = sum(one.nearer is None for one in self.stacks), len(self.stacks)
        of = f"{seen:,} stacks of this model on this GPU" if seen > 1 else "the only stack of this model on this GPU"
        if self.total > seen:
            of = f"the {seen:,} of {self.total:,} stacks of this model on this GPU that ran last"
        if not nearest:
            return f"It is the nearest published figure to {'none of ' if seen > 1 else 'nothing: not to '}{of}."
        return f"It is the nearest published figure to {f'{nearest:,} of ' if seen > 1 else ''}{of}."


def stacks_beside(session: Session, one: Reference) -> BesideAll:
    """Of the projects that the figure is offered to; none where it counts no more."""
    if not one.counts:
        return BesideAll((), 0)
    project = one.entered.project if one.entered else ""
    rows = [row for row in _stacks(session, one) if project in ("", row.slug)]
    looked_at = rows[:MOST]
    names = names_of_titles(session, (row.title for row in looked_at))
    ours = [our_stack(session, row.stack_key) for row in looked_at]
    known = {slug: references(session, slug) for slug in {each.project for each in ours}}
    found = [
        _beside(one, each, known[each.project], names[row.stack_key], _address(row))
        for row, each in zip(looked_at, ours, strict=True)
    ]
    return BesideAll(tuple(sorted(found, key=lambda each: each.nearer is not None)), len(rows))


def _beside(one: Reference, ours: Ours, known: Iterable[Reference], name: str, href: str) -> Beside:
    held = held_against(ours, tuple(known))
    nearer = held.reference
    if nearer is None or nearer.id == one.id:
        return Beside(name, href, None, "")
    values = {field: stated.value for field, stated in ours.contract.items()}
    return Beside(name, href, nearer, why_farther(values, one.point, nearer.point))


def _stacks(session: Session, one: Reference) -> list[Any]:
    """Of its model and GPU, the newest runs first."""
    columns = (StandingRow.stack_key, StandingRow.title, StandingRow.hardware, StandingRow.hardware_slug)
    chosen = (
        select(*columns, StandingRow.family_slug, ProjectRow.slug)  # type: ignore[call-overload]
        .join(ProjectRow, col(ProjectRow.id) == StandingRow.project_id)
        .where(col(StandingRow.family_slug) == one.point.family.slug)
        .order_by(col(StandingRow.newest_at).desc(), col(StandingRow.stack_key))
    )
    gpu = one.point.contract["gpu"]
    return [row for row in session.execute(chosen) if same_value("gpu", row.hardware, gpu)]


def _address(row: Any) -> str:
    return f"/leaderboards/{row.hardware_slug}/{row.family_slug}?stack={row.stack_key[:12]}"
