"""Messages that a person asks for: a test, one of the log now or again, all that were given up."""

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, Select, select
from sqlmodel import Session, col

from app.domain.notices.events import Notice, UnreadableNotice
from app.domain.notices.texts import trial_notice
from app.errors import FieldError, InvalidChange, NotFound, TooManyMessages
from app.notifications.receivers import checked_author, project_of, receiver_of
from app.storage import allowance, audit, delivery_work
from app.storage.database import transaction
from app.storage.delivery_work import call_due
from app.storage.news import put_delivery
from app.storage.notice_tables import DeliveryRow, ReceiverRow
from app.storage.tables import utc_now

TRIALS_A_MINUTE, TRIALS_OF_ONE = 10, 3
"""Of a project, and of one receiver: enough to try an address, and nothing to flood it with."""
REPLAYS_AN_HOUR = 1000
MOST_AT_ONCE = 500


def send_trial(engine: Engine, slug: str, receiver_id: int, author: str) -> int:
    """The id of the delivery, which is sent at once, also to a paused receiver.

    Raises NotFound, InvalidChange, TooManyMessages.
    """
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        minute = timedelta(minutes=1)
        _allow(session, row, f"tests of {receiver_id}", 1, most=TRIALS_OF_ONE, within=minute)
        _allow(session, row, "tests", 1, most=TRIALS_A_MINUTE, within=minute)
        path = f"/settings/projects/{slug}/notifications"
        notice = trial_notice(project=slug, receiver=row.name, path=path, by=author, at=utc_now())
        made = _put(session, row, "tested", notice)
        _record(session, row, author, "tested", {"delivery": made})
    call_due(engine)
    return made


def replay(engine: Engine, slug: str, delivery_id: int, author: str) -> int:
    """Send it again, as a delivery of its own that names the first one; what still waits is itself tried now.

    Raises NotFound, InvalidChange, TooManyMessages.
    """
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        old, row = _delivery_of(session, slug, delivery_id)
        _allow(session, row, "messages again", 1, most=REPLAYS_AN_HOUR, within=timedelta(hours=1))
        if old.work:
            delivery_work.send_now(session, old)
            _record(session, row, author, "sent_now", {"delivery": delivery_id})
            made = delivery_id
        else:
            made = _again(session, row, old)
            _record(session, row, author, "replayed", {"delivery": made, "replay_of": old.replay_of or delivery_id})
    call_due(engine)
    return made


def replay_all(engine: Engine, slug: str, receiver_id: int, author: str) -> list[int]:
    """Send again what was given up, in its order; at most MOST_AT_ONCE, the oldest.

    What cannot be read any more is left. Raises NotFound, InvalidChange, TooManyMessages.
    """
    author = checked_author(author)
    made: list[int] = []
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        given_up = session.execute(_given_up(receiver_id).limit(MOST_AT_ONCE)).scalars().all()
        if given_up:
            _allow(session, row, "messages again", len(given_up), most=REPLAYS_AN_HOUR, within=timedelta(hours=1))
        for old in given_up:
            try:
                made.append(_again(session, row, old))
            except InvalidChange:
                continue
        _record(session, row, author, "replayed_all", {"deliveries": len(made)})
    call_due(engine)
    return made


def dismiss(engine: Engine, slug: str, receiver_id: int, author: str) -> int:
    """What was given up needs nobody any more; it stays in the log. How many. Raises NotFound, InvalidChange."""
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        given_up = session.execute(_given_up(receiver_id)).scalars().all()
        for old in given_up:
            old.settled = True
        _record(session, row, author, "dismissed", {"deliveries": len(given_up)})
        return len(given_up)


def _given_up(receiver_id: int) -> Select[Any]:
    mine = (col(DeliveryRow.receiver_id) == receiver_id, col(DeliveryRow.state) == "failed")
    return select(DeliveryRow).where(*mine, ~col(DeliveryRow.settled)).order_by(col(DeliveryRow.id))


def _delivery_of(session: Session, slug: str, delivery_id: int) -> tuple[DeliveryRow, ReceiverRow]:
    """Raises NotFound, in the same words for one of another project and for one that there is not."""
    project = project_of(session, slug)
    found = session.execute(
        select(DeliveryRow, ReceiverRow)
        .join(ReceiverRow, col(ReceiverRow.id) == col(DeliveryRow.receiver_id))
        .where(col(DeliveryRow.id) == delivery_id, col(ReceiverRow.project_id) == project.id)
    ).first()
    if found is None:
        raise NotFound(f"There is no delivery {delivery_id} in {slug}. Its receiver may have been deleted.")
    return found[0], found[1]


def _again(session: Session, row: ReceiverRow, old: DeliveryRow) -> int:
    """Raises InvalidChange."""
    try:
        notice = Notice.read(old.payload)
    except UnreadableNotice:
        message = "cannot be sent again: it was kept by another version, and this one cannot read it"
        raise InvalidChange(f"Delivery {old.id} {message}.", (FieldError("delivery", message),)) from None
    old.settled = True
    return _put(session, row, "replayed", notice, subject=old.subject, replay_of=old.replay_of or old.id)


def _put(
    session: Session, row: ReceiverRow, action: str, notice: Notice, *, subject: str = "", replay_of: int | None = None
) -> int:
    # A cause of its own: what a person asks for is sent each time.
    cause = f"{action}:{secrets.token_hex(8)}"
    made = put_delivery(session, row.id or 0, notice, cause, subject=subject, replay_of=replay_of)
    assert made is not None  # noqa: S101  # nobody else has this cause
    return made


def _allow(session: Session, row: ReceiverRow, what: str, amount: int, *, most: int, within: timedelta) -> None:
    """Raises TooManyMessages."""
    if wait := allowance.use(session, row.project_id, what, amount, most=most, within=within):
        words = "a minute" if within <= timedelta(minutes=1) else "an hour"
        told = f"This would be more than {most:,} {what.partition(' of ')[0]} {words}, the limit"
        whose = "of a receiver" if " of " in what else "of a project"
        raise TooManyMessages(f"{told} {whose}. Nothing was sent. Try again in {wait} s.", retry_after=wait)


def _record(session: Session, row: ReceiverRow, author: str, action: str, after: Mapping[str, Any]) -> None:
    audit.record(
        session, who=author, subject="receiver", subject_id=row.id or 0, action=action, project_id=row.project_id,
        after=after, note=row.name,
    )  # fmt: skip
