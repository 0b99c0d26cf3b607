"""The messages that wait to be sent, and who sends them. The row is the record, Celery only the doorbell.

`work` is waiting (for `lease_until`, or at once), rung (a worker was called for it), held (one sends it, until
`lease_until`) or empty (done). `attempts` numbers the claims: what a worker found out is written only while the row
still carries its number. So whoever is killed, the message is sent; at worst twice, and then with the same id.

A receiver gets the messages of one subject in their order: the next is rung for when the one before it has arrived or
was given up. What arrives shows that the receiver is there, so all that waits for it is due at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, Engine, and_, case, or_, select, update
from sqlalchemy.orm import aliased
from sqlmodel import Session, col

from app.domain.notifications.messages import ATTEMPTS, LONGEST_WAIT
from app.queue import DELIVER, enqueue
from app.storage.database import read_session, transaction
from app.storage.runs import aware
from app.storage.tables import DeliveryRow, ReceiverRow, utc_now

LEASE_SECONDS = 60
"""Well over the time limit of one attempt: nobody has to renew it."""
_LEASE = timedelta(seconds=LEASE_SECONDS)
_AT_ONCE = 100
PAUSED, PAUSED_THEN = "The receiver was paused.", "Then the receiver was paused."


@dataclass(frozen=True, slots=True)
class HeldDelivery:
    """`message_id` is the same at every attempt; `replay_of`: that of the one that it repeats."""

    id: int
    message_id: str
    attempt: int
    created_at: datetime
    payload: dict[str, Any]
    replay_of: str | None
    project_id: int
    receiver_id: int
    kind: str
    target: str
    secret: str
    rules: dict[str, Any]


def ring(session: Session) -> Sequence[int]:
    """The deliveries that are due, to be rung for after the commit: waiting, forgotten, or given up by their worker."""
    now = utc_now()
    chosen = (
        select(DeliveryRow.id, DeliveryRow.work)  # type: ignore[call-overload]
        .where(col(DeliveryRow.work) != "", _is_over(now), _is_next())
        .order_by(DeliveryRow.id)
        .limit(_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    rows = session.execute(chosen).all()
    called = [row.id for row in rows if row.work != "held"]
    again = now + _LEASE
    _update(session, col(DeliveryRow.id).in_(called), work="rung", lease_until=again)
    return [row.id for row in rows]


def call_due(engine: Engine) -> None:
    """Ring for what is due, after the commit of what made it. Nothing is written where nothing is."""
    anything = (
        select(DeliveryRow.id)  # type: ignore[call-overload]
        .where(col(DeliveryRow.work) != "", _is_over(utc_now()), _is_next())
        .limit(1)
    )
    with read_session(engine) as session:
        if session.execute(anything).first() is None:
            return
    with transaction(engine) as session:
        due = ring(session)
    for delivery in due:
        enqueue(DELIVER, delivery)


def claim(session: Session, delivery_id: int) -> HeldDelivery | None:
    """Take one that was rung for, or whose worker was given up. None when it is another's, done or not due yet."""
    now = utc_now()
    given_up = and_(col(DeliveryRow.work) == "held", _is_over(now))
    taken = _update(
        session,
        and_(col(DeliveryRow.id) == delivery_id, or_(col(DeliveryRow.work) == "rung", given_up), _is_next()),
        work="held",
        attempts=DeliveryRow.attempts + 1,
        lease_until=now + _LEASE,
        tried_at=now,
    )
    if not taken:
        return None
    first = aliased(DeliveryRow)
    row, receiver, repeated = session.execute(
        select(DeliveryRow, ReceiverRow, first.message_id)  # type: ignore[call-overload]
        .join(ReceiverRow, col(ReceiverRow.id) == col(DeliveryRow.receiver_id))
        .outerjoin(first, first.id == DeliveryRow.replay_of)
        .where(col(DeliveryRow.id) == delivery_id)
        .execution_options(populate_existing=True)
    ).one()
    return HeldDelivery(
        delivery_id, row.message_id, row.attempts, aware(row.created_at), row.payload, repeated, receiver.project_id,
        receiver.id or 0, receiver.kind, receiver.target, receiver.secret, receiver.rules,
    )  # fmt: skip


def delivered(session: Session, held: HeldDelivery, *, status: int | None, note: str = "") -> bool:
    """The receiver is there: what waits for it is due. False, and nothing written, when the claim was lost."""
    found = _update(
        session, _is_held(held), work="", state="delivered", lease_until=None, answer_status=status, error=note,
        delivered_at=utc_now(),
    )  # fmt: skip
    if found:
        _update(session, and_(col(DeliveryRow.receiver_id) == held.receiver_id, _can_be_hurried()), lease_until=None)
    return found > 0


def postponed(session: Session, held: HeldDelivery, *, again_at: datetime, status: int | None, error: str) -> bool:
    """Tried again later, and so are the others of the receiver: one is enough to find out whether it is back.

    Unless the receiver took others meanwhile: then it is this message that it does not take. False, and nothing
    written, when the claim was lost.
    """
    if not _update(session, _is_held(held), work="waiting", lease_until=again_at, answer_status=status, error=error):
        return False
    taken = select(DeliveryRow.id).where(  # type: ignore[call-overload]
        col(DeliveryRow.receiver_id) == held.receiver_id, col(DeliveryRow.delivered_at) > held.created_at
    )
    if session.execute(taken.limit(1)).first() is not None:
        return True
    others = and_(
        col(DeliveryRow.receiver_id) == held.receiver_id,
        col(DeliveryRow.id) != held.id,
        or_(
            col(DeliveryRow.work) == "rung",
            and_(
                col(DeliveryRow.work) == "waiting",
                or_(col(DeliveryRow.lease_until).is_(None), col(DeliveryRow.lease_until) < again_at),
            ),
        ),
    )
    _update(session, others, work="waiting", lease_until=again_at)
    return True


def given_up(session: Session, held: HeldDelivery, *, status: int | None, error: str) -> bool:
    """A dead letter: it stays in the log, to be sent again by a person."""
    found = _update(
        session, _is_held(held), work="", state="failed", lease_until=None, answer_status=status, error=error
    )
    return found > 0


def stop(session: Session, receiver_id: int) -> int:
    """What waits for a receiver that is paused is not sent; it stays in the log, with why it waited. How many."""
    mine = and_(col(DeliveryRow.receiver_id) == receiver_id, col(DeliveryRow.work) != "")
    why = case((col(DeliveryRow.error) == "", PAUSED), else_=col(DeliveryRow.error) + f" {PAUSED_THEN}")
    return _update(session, mine, work="", state="failed", lease_until=None, error=why)


def hurry(session: Session, receiver_id: int, subject: str) -> None:
    """What waits of the subject is tried at once, in its order."""
    mine = and_(col(DeliveryRow.receiver_id) == receiver_id, col(DeliveryRow.subject) == subject)
    _update(session, and_(mine, _can_be_hurried()), lease_until=None)


def send_now(session: Session, row: DeliveryRow) -> None:
    """A person wants one that waits to be tried now, however often it was, and with it those that it waits for."""
    before = and_(
        col(DeliveryRow.receiver_id) == row.receiver_id, col(DeliveryRow.subject) == row.subject,
        col(DeliveryRow.subject) != "", col(DeliveryRow.id) < row.id,
    )  # fmt: skip
    chosen = and_(col(DeliveryRow.work) == "waiting", or_(col(DeliveryRow.id) == row.id, before))
    _update(session, chosen, lease_until=None)


def void_leases(session: Session) -> None:
    """Make all that was under way due now. For the start of the embedded mode, where no other worker can be alive."""
    under_way = col(DeliveryRow.work).in_(("rung", "held"))
    _update(session, under_way, work="waiting", lease_until=None)


def _is_over(now: datetime) -> ColumnElement[bool]:
    """The time has come, or is further away than any is set: the clock was set back."""
    until = col(DeliveryRow.lease_until)
    longest = case((col(DeliveryRow.work) == "waiting", now + 2 * LONGEST_WAIT), else_=now + 2 * _LEASE)
    return or_(until.is_(None), until < now, until > longest)


def _is_next() -> ColumnElement[bool]:
    """No older message of its subject is still on its way to the same receiver."""
    older = aliased(DeliveryRow)
    before = select(older.id).where(  # type: ignore[call-overload]
        older.receiver_id == DeliveryRow.receiver_id, older.subject == DeliveryRow.subject, older.work != "",
        col(older.id) < col(DeliveryRow.id),
    )  # fmt: skip
    return or_(col(DeliveryRow.subject) == "", ~before.correlate(DeliveryRow).exists())


def _can_be_hurried() -> ColumnElement[bool]:
    """What a receiver refused so often, it refuses again: that keeps to its own times."""
    return and_(col(DeliveryRow.work) == "waiting", col(DeliveryRow.attempts) < ATTEMPTS)


def _is_held(held: HeldDelivery) -> ColumnElement[bool]:
    return and_(
        col(DeliveryRow.id) == held.id, col(DeliveryRow.work) == "held", col(DeliveryRow.attempts) == held.attempt
    )


def _update(session: Session, condition: ColumnElement[bool], **values: Any) -> int:
    statement = update(DeliveryRow).where(condition).values(**values).execution_options(synchronize_session=False)
    return cast("CursorResult[Any]", session.execute(statement)).rowcount
