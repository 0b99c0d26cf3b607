"""Receivers and deliveries as pages and API show them, without secrets."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.domain.notifications.events import Subscription
from app.domain.notifications.targets import shown
from app.notifications.commands import receiver_of
from app.storage.database import ListPage
from app.storage.projects import find_project
from app.storage.tables import DeliveryRow, ReceiverRow, select_any

PAGE_SIZE = 50
STATES = ("waiting", "delivered", "failed")
State = Literal["waiting", "delivered", "failed"]


@dataclass(frozen=True, slots=True)
class Receiver:
    """`target`: without its secret part. `waiting`, `failed`: numbers of deliveries; `failed` without settled ones."""

    id: int
    kind: str
    name: str
    target: str
    subscription: Subscription
    enabled: bool
    created_by: str
    created_at: datetime
    waiting: int = 0
    failed: int = 0
    delivered_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """`again_at`: time of the next attempt; None when it is finished or due. `is_done`: no more attempts follow.

    `behind`: the delivery of the same subject that it waits for. `settled`: it failed and was sent again or dismissed.
    `is_due`: the next attempt takes place within seconds.
    """

    id: int
    receiver_id: int
    receiver: str
    event: str
    title: str
    path: str
    state: str
    attempts: int
    answer_status: int | None
    error: str
    replay_of: int | None
    created_at: datetime
    tried_at: datetime | None
    delivered_at: datetime | None
    again_at: datetime | None
    is_done: bool
    message_id: str = ""
    settled: bool = False
    behind: int | None = None

    @property
    def is_due(self) -> bool:
        return not self.is_done and self.again_at is None and self.behind is None


@dataclass(frozen=True, slots=True)
class DeliveryPage(ListPage[Delivery]):
    @property
    def moves(self) -> bool:
        """Return whether the page will change within seconds."""
        return any(delivery.is_due for delivery in self.items)


def receivers_of(session: Session, slug: str) -> list[Receiver]:
    """Return the receivers of a project in the order in which they were added. Raises NotFound."""
    project = find_project(session, slug)
    rows = session.execute(
        select(ReceiverRow).where(col(ReceiverRow.project_id) == project.id).order_by(col(ReceiverRow.id))
    ).scalars().all()  # fmt: skip
    counts = _counts(session, [row.id or 0 for row in rows])
    return [_receiver(row, counts) for row in rows]


def get_receiver(session: Session, slug: str, receiver_id: int) -> Receiver:
    """Return a receiver of the project. Raises NotFound."""
    row = receiver_of(session, slug, receiver_id)
    return _receiver(row, _counts(session, [receiver_id]))


def deliveries_of(
    session: Session, slug: str, *, receiver_id: int | None = None, state: str, page: int,
    page_size: int,
) -> DeliveryPage:  # fmt: skip
    """Return a page of the deliveries, newest first. Raises NotFound."""
    project = find_project(session, slug)
    conditions = [col(ReceiverRow.project_id) == project.id]
    if receiver_id is not None:
        conditions.append(col(DeliveryRow.receiver_id) == receiver_id)
    if state:
        conditions.append(col(DeliveryRow.state) == state)
    joined = col(ReceiverRow.id) == col(DeliveryRow.receiver_id)
    total = session.execute(select(func.count(col(DeliveryRow.id))).join(ReceiverRow, joined).where(*conditions))
    rows = session.execute(
        select_any(DeliveryRow, ReceiverRow.name)
        .join(ReceiverRow, joined)
        .where(*conditions)
        .order_by(col(DeliveryRow.id).desc())
        .limit(page_size)
        .offset((page - 1) * page_size)
    )
    pairs = rows.all()
    first = _first_of_subjects(session, {row.receiver_id for row, _ in pairs if row.work and row.subject})
    items = tuple(_delivery(row, name, first.get((row.receiver_id, row.subject))) for row, name in pairs)
    return DeliveryPage(items, total.scalar_one(), page, page_size)


def _first_of_subjects(session: Session, receivers: Collection[int]) -> dict[tuple[int, str], int]:
    """Return the oldest unfinished delivery by receiver and subject."""
    rows = session.execute(
        select_any(DeliveryRow.receiver_id, DeliveryRow.subject, func.min(DeliveryRow.id))
        .where(col(DeliveryRow.receiver_id).in_(receivers), col(DeliveryRow.work) != "", col(DeliveryRow.subject) != "")
        .group_by(col(DeliveryRow.receiver_id), col(DeliveryRow.subject))
    )
    return {(receiver, subject): first for receiver, subject, first in rows}


def _counts(session: Session, ids: Sequence[int]) -> dict[tuple[int, str], tuple[int, datetime | None]]:
    """Return the number and newest arrival of unsettled deliveries, by receiver and state."""
    rows = session.execute(
        select_any(DeliveryRow.receiver_id, DeliveryRow.state, func.count(), func.max(DeliveryRow.delivered_at))
        .where(col(DeliveryRow.receiver_id).in_(ids), ~col(DeliveryRow.settled))
        .group_by(col(DeliveryRow.receiver_id), col(DeliveryRow.state))
    )
    return {(receiver, state): (count, newest) for receiver, state, count, newest in rows}


def _receiver(row: ReceiverRow, counts: dict[tuple[int, str], tuple[int, datetime | None]]) -> Receiver:
    def of(state: str) -> Any:
        return counts.get((row.id or 0, state), (0, None))

    newest = of("delivered")[1]
    return Receiver(
        row.id or 0, row.kind, row.name, shown(row.kind, row.target), Subscription.read(row.rules), row.enabled,
        row.created_by, row.created_at, of("waiting")[0], of("failed")[0], newest,
    )  # fmt: skip


def _delivery(row: DeliveryRow, receiver: str, first: int | None) -> Delivery:
    again = row.lease_until if row.work == "waiting" and row.attempts else None
    return Delivery(
        row.id or 0, row.receiver_id, receiver, row.event, str(row.payload.get("title", "")),
        str(row.payload.get("path", "")), row.state, row.attempts, row.answer_status, row.error, row.replay_of,
        row.created_at, row.tried_at, row.delivered_at, again, not row.work, row.message_id, row.settled,
        first if row.work and first != row.id else None,
    )  # fmt: skip
