"""Messages that a person asks for: a test, and one of the log again."""

import secrets

from sqlalchemy import Engine
from sqlmodel import Session

from app.domain.notices.events import Notice
from app.domain.notices.texts import trial_notice
from app.errors import FieldError, InvalidChange, NotFound
from app.notifications.receivers import checked_author, receiver_of
from app.storage import audit
from app.storage.database import transaction
from app.storage.delivery_work import call_due
from app.storage.news import put_delivery
from app.storage.notice_tables import DeliveryRow, ReceiverRow
from app.storage.tables import utc_now


def send_trial(engine: Engine, slug: str, receiver_id: int, author: str) -> int:
    """The id of the delivery, which is sent at once, also to a paused receiver. Raises NotFound, InvalidChange."""
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        path = f"/settings/projects/{slug}/notifications"
        notice = trial_notice(project=slug, receiver=row.name, path=path, by=author, at=utc_now())
        made = _put(session, row, author, "tested", notice=notice)
    call_due(engine)
    return made


def replay(engine: Engine, slug: str, delivery_id: int, author: str) -> int:
    """Send it again, as a delivery of its own that names the first one. Raises NotFound, InvalidChange."""
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        old = session.get(DeliveryRow, delivery_id)
        if old is None:
            raise NotFound(f"There is no delivery {delivery_id} in {slug}. Its receiver may have been deleted.")
        row = receiver_of(session, slug, old.receiver_id)
        if old.work:
            message = "is still being sent; it can be sent again once it arrived or was given up"
            raise InvalidChange(f"Delivery {delivery_id} {message}.", (FieldError("delivery", message),))
        first = old.replay_of or delivery_id
        made = _put(session, row, author, "replayed", notice=Notice.read(old.payload), replay_of=first)
    call_due(engine)
    return made


def _put(
    session: Session, row: ReceiverRow, author: str, action: str, *, notice: Notice, replay_of: int | None = None
) -> int:
    # A cause of its own: what a person asks for is sent each time.
    made = put_delivery(session, row.id or 0, notice, f"{action}:{secrets.token_hex(8)}", replay_of)
    assert made is not None  # noqa: S101  # nobody else has this cause
    audit.record(
        session, who=author, subject="receiver", subject_id=row.id or 0, action=action, project_id=row.project_id,
        after={"delivery": made} | ({"replay_of": replay_of} if replay_of else {}), note=row.name,
    )  # fmt: skip
    return made
