"""The history of leaders: which dispatcher led a leaderboard, and since when."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_
from sqlmodel import Session, col

from app.domain.ranking.rank import LEADER_FLOOR, Head, HeadChange
from app.storage.json_text import from_json, to_json
from app.storage.runs import aware
from app.storage.stacks import names_of_titles
from app.storage.tables import LeaderChangeRow, ProjectRow, RunRow, StandingRow, select_any

NEWEST = 50


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """A change of the leader of one leaderboard.

    `at`: when it was noticed. `name`: unique title, empty unless it was read. `run_id`: the run that caused it, at
    history position `placed_at`; None if no run did or the run was deleted. `measured_until`: history position of the
    stack's newest run.
    """

    id: int
    project: str
    stack_key: str
    name: str
    title: str
    hardware_slug: str
    family_slug: str
    floor: str
    at: datetime
    run_id: int | None
    run_name: str
    placed_at: datetime | None
    measured_until: datetime
    change: HeadChange

    @property
    def happened_at(self) -> datetime:
        """Return the history position of the newest run behind the change: of the stack at that time, else when
        noticed."""
        return self.change.after.at or self.placed_at or self.at


def leader_changes(
    session: Session,
    *,
    hardware_slug: str = "",
    family_slug: str = "",
    project: str = "",
    stack_keys: Sequence[str] = (),
    since: datetime | None = None,
    newest: int | None = NEWEST,
    is_named: bool = True,
) -> tuple[LeaderChange, ...]:
    """Return the changes of stacks that still have standings, newest first. `is_named`: with the names of stacks."""
    same = and_(
        col(StandingRow.project_id) == LeaderChangeRow.project_id,
        col(StandingRow.stack_key) == LeaderChangeRow.stack_key,
    )
    chosen = (
        select_any(
            LeaderChangeRow, StandingRow.title, StandingRow.hardware_slug, StandingRow.family_slug,
            StandingRow.newest_at, ProjectRow.slug, RunRow.name, RunRow.ordered_at,
        )
        .join(StandingRow, same)
        .join(ProjectRow, col(ProjectRow.id) == LeaderChangeRow.project_id)
        .outerjoin(RunRow, col(RunRow.id) == LeaderChangeRow.run_id)
        .order_by(col(LeaderChangeRow.at).desc(), col(LeaderChangeRow.id).desc())
        .limit(newest)
    )  # fmt: skip
    for value, column in (
        (hardware_slug, col(StandingRow.hardware_slug)),
        (family_slug, col(StandingRow.family_slug)),
    ):
        if value:
            chosen = chosen.where(column == value)
    if project:
        number = select_any(ProjectRow.id).where(col(ProjectRow.slug) == project)
        chosen = chosen.where(col(LeaderChangeRow.project_id) == number.scalar_subquery())
    if since is not None:
        chosen = chosen.where(col(LeaderChangeRow.at) >= since)
    if stack_keys:
        chosen = chosen.where(col(LeaderChangeRow.stack_key).in_(stack_keys))
    rows = session.execute(chosen).all()
    changes = [_change(row) for row in rows]
    return named_changes(session, changes) if is_named else tuple(changes)


def named_changes(session: Session, changes: Sequence[LeaderChange]) -> tuple[LeaderChange, ...]:
    """Return the changes with the names of their stacks."""
    names = names_of_titles(session, (change.title for change in changes))
    return tuple(replace(change, name=names[change.stack_key]) for change in changes)


def last_heads(session: Session, project_id: int, stack_key: str) -> tuple[Head, ...]:
    """Return the newest head of each class of the stack."""
    rows = session.execute(
        select_any(LeaderChangeRow.after)
        .where(col(LeaderChangeRow.project_id) == project_id, col(LeaderChangeRow.stack_key) == stack_key)
        .order_by(col(LeaderChangeRow.id))
    ).scalars()
    heads = [from_json(Head, stored) for stored in rows]
    return tuple({(head.routing_mode, head.semantic_class): head for head in heads}.values())


def add_leader_changes(session: Session, project_id: int, stack_key: str, changes: Iterable[HeadChange]) -> None:
    listed = list(changes)
    named = [int(change.after.run) for change in listed if change.after.run]
    existing = session.execute(select_any(RunRow.id).where(col(RunRow.id).in_(named))).scalars() if named else ()
    run_ids = {str(run_id): run_id for run_id in existing}  # one that no longer counts may be gone
    session.add_all(
        LeaderChangeRow(
            project_id=project_id,
            stack_key=stack_key,
            floor=LEADER_FLOOR,
            routing_mode=change.after.routing_mode,
            semantic_class=change.after.semantic_class,
            before=to_json(change.before),
            after=to_json(change.after),
            run_id=run_ids.get(change.after.run),
        )
        for change in listed
    )


def _change(row: Row[Any]) -> LeaderChange:
    change: LeaderChangeRow = row.LeaderChangeRow
    before = None if change.before is None else from_json(Head, change.before)
    return LeaderChange(
        id=change.id or 0,
        project=row.slug,
        stack_key=change.stack_key,
        name="",
        title=row.title,
        hardware_slug=row.hardware_slug,
        family_slug=row.family_slug,
        floor=change.floor,
        at=aware(change.at),
        run_id=change.run_id,
        run_name=row.name or "",
        placed_at=aware(row.ordered_at) if row.ordered_at else None,
        measured_until=aware(row.newest_at),
        change=HeadChange(before, from_json(Head, change.after)),
    )
