"""Changes of a project's notification receivers, and messages that users request. Secrets are shown once."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from sqlalchemy import Engine, Select, delete, func, select
from sqlmodel import Session, col

from app.domain.notifications.events import (
    EVENTS,
    Notification,
    Subscription,
    UnreadableNotification,
    trial_notification,
)
from app.domain.notifications.messages import new_secret
from app.domain.notifications.targets import (
    EMAIL,
    KINDS,
    WEBHOOK,
    check_reach,
    read_mailboxes,
    read_networks,
    read_web,
    shown,
)
from app.domain.text import one_line
from app.errors import FieldError, InvalidChange, NotFound, TooManyMessages
from app.pipeline.notify import put_delivery
from app.pipeline.work import delivery_queue
from app.settings import Settings
from app.storage import audit, projects
from app.storage.database import transaction
from app.storage.projects import find_project
from app.storage.tables import DeliveryRow, ProjectRow, ReceiverRow, StackWorkRow, select_any, utc_now

MAX_NAME = 100
MOST_RECEIVERS = 50
MOST_STACKS = 50
MOST_MAILBOXES_OF_A_PROJECT = 60
"""Limits mail to people who did not agree to it."""
_SHORTEST_KEY = 6


@dataclass(frozen=True, slots=True)
class ReceiverSpec:
    """A receiver as a user states it. An empty `target` keeps the current one. `address`: the service's, for links."""

    name: str
    kind: str
    target: str
    events: tuple[str, ...]
    stacks: tuple[str, ...]
    author: str
    address: str = ""


def add_receiver(engine: Engine, settings: Settings, slug: str, spec: ReceiverSpec) -> tuple[int, str]:
    """Add a receiver. Return its id and, for a webhook, the secret. Raises NotFound, InvalidChange."""
    with transaction(engine, durable=True) as session:
        project = find_project(session, slug)
        spec = _checked(session, settings, project, spec, None)
        count = select(func.count()).where(col(ReceiverRow.project_id) == project.id)
        if session.execute(count).scalar_one() >= MOST_RECEIVERS:
            raise InvalidChange.of_field("name", f"exceeds the limit of {MOST_RECEIVERS} receivers per project")
        secret = new_secret() if spec.kind == WEBHOOK else ""
        row = ReceiverRow(
            project_id=project.id or 0, kind=spec.kind, name=spec.name, target=spec.target, secret=secret,
            rules=_rules(spec, {}), created_by=spec.author,
        )  # fmt: skip
        session.add(row)
        session.flush()
        _record(session, row, spec.author, "added", after=_recorded(row))
        return row.id or 0, secret


def change_receiver(engine: Engine, settings: Settings, slug: str, receiver_id: int, spec: ReceiverSpec) -> None:
    """Change a receiver, except its kind. Raises NotFound, InvalidChange."""
    with transaction(engine, durable=True) as session:
        project = find_project(session, slug)
        row = receiver_of(session, slug, receiver_id)
        spec = _checked(session, settings, project, spec, row)
        before, target = _recorded(row), row.target
        row.name, row.target, row.rules = spec.name, spec.target, _rules(spec, row.rules)
        after = _recorded(row)
        changed = [name for name in after if after[name] != before[name]]
        if target != row.target and "target" not in changed:  # another path at the same host, which is not recorded
            changed.append("target")
        if changed:
            _record(
                session, row, spec.author, "changed", before={name: before[name] for name in changed},
                after={name: after[name] for name in changed},
            )  # fmt: skip


def set_enabled(engine: Engine, slug: str, receiver_id: int, author: str, *, enabled: bool) -> None:
    """Pause or resume a receiver. A pause also cancels its waiting deliveries. Raises NotFound, InvalidChange."""
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        if row.enabled == enabled:
            return
        row.enabled = enabled
        if not enabled:
            delivery_queue.stop(session, receiver_id)
        action = "resumed" if enabled else "paused"
        _record(session, row, author, action, before={"enabled": not enabled}, after={"enabled": enabled})


def new_secret_of(engine: Engine, slug: str, receiver_id: int, author: str) -> str:
    """Replace the secret of a webhook immediately and return the new one. Raises NotFound, InvalidChange."""
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        if row.kind != WEBHOOK:
            raise InvalidChange.of_field("kind", "must be webhook: only webhooks are signed")
        row.secret = new_secret()
        _record(session, row, author, "secret_renewed")
        return row.secret


def delete_receiver(engine: Engine, slug: str, receiver_id: int, author: str) -> None:
    """Delete a receiver and its deliveries. The audit log keeps a record. Raises NotFound, InvalidChange."""
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        _record(session, row, author, "deleted", before=_recorded(row))
        session.execute(delete(DeliveryRow).where(col(DeliveryRow.receiver_id) == receiver_id))
        session.delete(row)


def receiver_of(session: Session, slug: str, receiver_id: int) -> ReceiverRow:
    """Return a receiver of the project. Raises NotFound."""
    project = find_project(session, slug)
    row = session.get(ReceiverRow, receiver_id)
    if row is None or row.project_id != project.id:
        raise NotFound(f"Receiver {receiver_id} does not exist in {slug}. It may have been deleted.")
    return row


def checked_author(author: str) -> str:
    """Return the author in one line. Raises InvalidChange."""
    author = one_line(author)
    if errors := audit.author_errors(author):
        raise InvalidChange.of_field("author", errors[0].message)
    return author


def _checked(
    session: Session, settings: Settings, project: ProjectRow, spec: ReceiverSpec, row: ReceiverRow | None
) -> ReceiverSpec:
    """Return the spec as it is stored. Raises InvalidChange with an error for each invalid field."""
    name, author, target = one_line(spec.name), one_line(spec.author), spec.target.strip()
    kind = row.kind if row else spec.kind
    errors: list[FieldError] = []
    if not 0 < len(name) <= MAX_NAME:
        errors.append(FieldError("name", f"must have 1 to {MAX_NAME} characters"))
    if kind not in KINDS:
        errors.append(FieldError("kind", f"must be one of {', '.join(KINDS)}"))
    elif row is None or target:
        try:
            _check_target(settings, kind, target, _mailboxes_besides(session, project, row))
        except ValueError as error:
            errors.append(FieldError("target", str(error)))
    unknown = [event for event in spec.events if event not in EVENTS]
    if unknown or not spec.events:
        errors.append(FieldError("events", f"must be one or more of {', '.join(EVENTS)}"))
    stacks: list[str] = []
    try:
        stacks = list(_stacks(session, project, spec.stacks))
    except ValueError as error:
        errors.append(FieldError("stacks", str(error)))
    errors += audit.author_errors(author)
    if errors:
        raise InvalidChange.of(*errors)
    events = tuple(event for event in EVENTS if event in spec.events)
    target = target or (row.target if row else "")
    return ReceiverSpec(name, kind, target, events, tuple(dict.fromkeys(stacks)), author, spec.address)


def _check_target(settings: Settings, kind: str, target: str, others: set[str]) -> None:
    """Raise ValueError if the target is not allowed. `others`: mailboxes of the project's other receivers."""
    if kind == EMAIL:
        if not settings.smtp_host:
            raise ValueError("needs a mail server: the operator of the service sets THREEWALLS_SMTP_HOST")
        mailboxes = {mailbox.lower() for mailbox in read_mailboxes(target)} | others
        if len(mailboxes) > MOST_MAILBOXES_OF_A_PROJECT:
            raise ValueError(
                f"exceeds the limit of {MOST_MAILBOXES_OF_A_PROJECT} mailboxes per project: use a mailing list"
            )
        return
    check_reach(read_web(target), read_networks(settings.allow_private_targets))


def _mailboxes_besides(session: Session, project: ProjectRow, row: ReceiverRow | None) -> set[str]:
    """Return the mailboxes of the project's other receivers."""
    others = select_any(ReceiverRow.target).where(
        col(ReceiverRow.project_id) == project.id, col(ReceiverRow.kind) == EMAIL,
        col(ReceiverRow.id) != (row.id if row else 0),
    )  # fmt: skip
    targets = session.execute(others).scalars()
    return {mailbox.lower() for target in targets for mailbox in read_mailboxes(target)}


def _stacks(session: Session, project: ProjectRow, prefixes: Sequence[str]) -> Iterator[str]:
    """Yield the full keys of the stacks with these prefixes. Raises ValueError."""
    if len(prefixes) > MOST_STACKS:
        raise ValueError(f"must be at most {MOST_STACKS}; leave it empty for all")
    for text in prefixes:
        key = text.strip().rpartition("/")[2].lower()  # also accepts the address of a history
        if len(key) < _SHORTEST_KEY or any(c not in "0123456789abcdef" for c in key):
            raise ValueError(
                f"{one_line(text)[:60]!r} is not a stack key, which is the last part of the URL of a history"
            )
        matching = select_any(StackWorkRow.stack_key).where(
            col(StackWorkRow.project_id) == project.id, col(StackWorkRow.stack_key).startswith(key)
        )
        keys = session.execute(matching.limit(2)).scalars().all()
        if len(keys) != 1:
            raise ValueError(f"{key[:60]} matches {'several stacks' if keys else 'no stack'} of this project")
        yield keys[0]


def _rules(spec: ReceiverSpec, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored form of the subscription. `address`: for links, as seen by the user who entered the
    receiver."""
    return Subscription(spec.events, spec.stacks).as_json() | {"address": spec.address or before.get("address", "")}


def _recorded(row: ReceiverRow) -> dict[str, Any]:
    """Return the receiver for the audit log, without secrets and with only the host of an address."""
    subscription = Subscription.read(row.rules).as_json()
    return {"name": row.name, "kind": row.kind, "target": shown(row.kind, row.target), **subscription}


def _record(
    session: Session,
    row: ReceiverRow,
    who: str,
    action: str,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    audit.record(
        session, who=who, subject="receiver", subject_id=row.id or 0, action=action, project_id=row.project_id,
        before=before, after=after, note=row.name,
    )  # fmt: skip


# --- Messages that users request: tests, and replays of single messages or of all failed ones.

TRIALS_A_MINUTE, TRIALS_OF_ONE = 10, 3
"""Limits of a project and of a receiver, so that tests cannot flood an address."""
REPLAYS_AN_HOUR = 1000
MOST_AT_ONCE = 500


def send_trial(engine: Engine, slug: str, receiver_id: int, author: str) -> int:
    """Send a test message, also to a paused receiver, and return the id of its delivery.

    Raises NotFound, InvalidChange, TooManyMessages.
    """
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        minute = timedelta(minutes=1)
        _allow(session, row, f"tests of {receiver_id}", 1, most=TRIALS_OF_ONE, within=minute)
        _allow(session, row, "tests", 1, most=TRIALS_A_MINUTE, within=minute)
        path = f"/settings/projects/{quote(slug)}/notifications"
        notification = trial_notification(project=slug, receiver=row.name, path=path, by=author, at=utc_now())
        sent_id = _put(session, row, "tested", notification)
        _sending_record(session, row, author, "tested", {"delivery": sent_id})
    delivery_queue.enqueue_due(engine)
    return sent_id


def replay(engine: Engine, slug: str, delivery_id: int, author: str) -> int:
    """Send a message again as a new delivery, or now if it is still waiting. Return the id of the delivery.

    Raises NotFound, InvalidChange, TooManyMessages.
    """
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        old, row = _delivery_of(session, slug, delivery_id)
        _allow(session, row, "messages again", 1, most=REPLAYS_AN_HOUR, within=timedelta(hours=1))
        if old.work:
            delivery_queue.send_now(session, old)
            _sending_record(session, row, author, "sent_now", {"delivery": delivery_id})
            sent_id = delivery_id
        else:
            sent_id = _again(session, row, old)
            _sending_record(
                session, row, author, "replayed", {"delivery": sent_id, "replay_of": old.replay_of or delivery_id}
            )
    delivery_queue.enqueue_due(engine)
    return sent_id


def replay_all(engine: Engine, slug: str, receiver_id: int, author: str) -> list[int]:
    """Send failed messages again, oldest first, at most MOST_AT_ONCE. Return the ids of the deliveries.

    Skips messages that this version cannot read. Raises NotFound, InvalidChange, TooManyMessages.
    """
    author = checked_author(author)
    delivery_ids: list[int] = []
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        given_up = session.execute(_given_up(receiver_id).limit(MOST_AT_ONCE)).scalars().all()
        if given_up:
            _allow(session, row, "messages again", len(given_up), most=REPLAYS_AN_HOUR, within=timedelta(hours=1))
        for old in given_up:
            try:
                delivery_ids.append(_again(session, row, old))
            except InvalidChange:
                continue
        _sending_record(session, row, author, "replayed_all", {"deliveries": len(delivery_ids)})
    delivery_queue.enqueue_due(engine)
    return delivery_ids


def dismiss(engine: Engine, slug: str, receiver_id: int, author: str) -> int:
    """Mark failed deliveries as settled; they stay in the log. Return their number. Raises NotFound, InvalidChange."""
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        given_up = session.execute(_given_up(receiver_id)).scalars().all()
        for old in given_up:
            old.settled = True
        _sending_record(session, row, author, "dismissed", {"deliveries": len(given_up)})
        return len(given_up)


def _given_up(receiver_id: int) -> Select[Any]:
    mine = (col(DeliveryRow.receiver_id) == receiver_id, col(DeliveryRow.state) == "failed")
    return select(DeliveryRow).where(*mine, ~col(DeliveryRow.settled)).order_by(col(DeliveryRow.id))


def _delivery_of(session: Session, slug: str, delivery_id: int) -> tuple[DeliveryRow, ReceiverRow]:
    """Return a delivery of the project and its receiver. Raises NotFound."""
    project = find_project(session, slug)
    rows = session.execute(
        select(DeliveryRow, ReceiverRow)
        .join(ReceiverRow, col(ReceiverRow.id) == col(DeliveryRow.receiver_id))
        .where(col(DeliveryRow.id) == delivery_id, col(ReceiverRow.project_id) == project.id)
    ).first()
    if rows is None:
        raise NotFound(f"Delivery {delivery_id} does not exist in {slug}. Its receiver may have been deleted.")
    return rows[0], rows[1]


def _again(session: Session, row: ReceiverRow, old: DeliveryRow) -> int:
    """Add a delivery with the same message and return its id. Raises InvalidChange."""
    try:
        notification = Notification.read(old.payload)
    except UnreadableNotification:
        message = "cannot be sent again: another version stored it in a form that this one cannot read"
        raise InvalidChange(f"Delivery {old.id} {message}.", (FieldError("delivery", message),)) from None
    old.settled = True
    return _put(session, row, "replayed", notification, subject=old.subject, replay_of=old.replay_of or old.id)


def _put(
    session: Session,
    row: ReceiverRow,
    action: str,
    notification: Notification,
    *,
    subject: str = "",
    replay_of: int | None = None,
) -> int:
    # A unique cause, because every requested message is sent.
    cause = f"{action}:{secrets.token_hex(8)}"
    delivery_id = put_delivery(session, row.id or 0, notification, cause, subject=subject, replay_of=replay_of)
    assert delivery_id is not None  # noqa: S101  # the cause is unique
    return delivery_id


def _allow(session: Session, row: ReceiverRow, what: str, amount: int, *, most: int, within: timedelta) -> None:
    """Count messages and raise TooManyMessages over the limit. `what`: with ` of ID` for the limit of a receiver."""
    if wait := projects.use(session, row.project_id, what, amount, most=most, within=within):
        per = "minute" if within <= timedelta(minutes=1) else "hour"
        owner = "receiver" if " of " in what else "project"
        limit = f"The limit of a {owner} is {most:,} {what.partition(' of ')[0]} per {per}"
        raise TooManyMessages(f"{limit}. Nothing was sent. Try again in {wait} s.", retry_after=wait)


def _sending_record(session: Session, row: ReceiverRow, author: str, action: str, after: Mapping[str, Any]) -> None:
    audit.record(
        session, who=author, subject="receiver", subject_id=row.id or 0, action=action, project_id=row.project_id,
        after=after, note=row.name,
    )  # fmt: skip
