"""Receivers of a project's news: added, changed, paused, deleted, each with its record. Secrets are told once."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, Select, delete, func, select
from sqlmodel import Session, col

from app.domain.notifications.events import EVENTS, Notice, UnreadableNotice, Wants, trial_notice
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
from app.storage.audit import MAX_AUTHOR
from app.storage.database import transaction
from app.storage.tables import DeliveryRow, ProjectRow, ReceiverRow, StackWorkRow, select_any, utc_now

MAX_NAME = 100
MOST_RECEIVERS = 50
MOST_STACKS = 50
MOST_MAILBOXES_OF_A_PROJECT = 60
"""Nobody asked their owners."""
_SHORTEST_KEY = 6
_LIKE = "%_\\"


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants a receiver to be. An empty `target` leaves the old one. `address`: the service's."""

    name: str
    kind: str
    target: str
    events: tuple[str, ...]
    stacks: tuple[str, ...]
    author: str
    address: str = ""


def add_receiver(engine: Engine, settings: Settings, slug: str, wish: Wish) -> tuple[int, str]:
    """The id, and the secret of a webhook, which is told now and never again. Raises NotFound, InvalidChange."""
    with transaction(engine, durable=True) as session:
        project = project_of(session, slug)
        wish = _checked(session, settings, project, wish, None)
        count = select(func.count()).where(col(ReceiverRow.project_id) == project.id)
        if session.execute(count).scalar_one() >= MOST_RECEIVERS:
            raise _refused("name", f"would be one more than {MOST_RECEIVERS} of a project")
        secret = new_secret() if wish.kind == WEBHOOK else ""
        row = ReceiverRow(
            project_id=project.id or 0, kind=wish.kind, name=wish.name, target=wish.target, secret=secret,
            rules=_rules(wish, {}), created_by=wish.author,
        )  # fmt: skip
        session.add(row)
        session.flush()
        _record(session, row, wish.author, "added", after=_told(row))
        return row.id or 0, secret


def change_receiver(engine: Engine, settings: Settings, slug: str, receiver_id: int, wish: Wish) -> None:
    """Raises NotFound, InvalidChange. The kind of a receiver stays."""
    with transaction(engine, durable=True) as session:
        project = project_of(session, slug)
        row = receiver_of(session, slug, receiver_id)
        wish = _checked(session, settings, project, wish, row)
        before, target = _told(row), row.target
        row.name, row.target, row.rules = wish.name, wish.target, _rules(wish, row.rules)
        after = _told(row)
        changed = [name for name in after if after[name] != before[name]]
        if target != row.target and "target" not in changed:  # another path at the same host, which is not shown
            changed.append("target")
        if changed:
            was, now = ({name: side[name] for name in changed} for side in (before, after))
            _record(session, row, wish.author, "changed", before=was, after=now)


def set_enabled(engine: Engine, slug: str, receiver_id: int, author: str, *, enabled: bool) -> None:
    """A paused receiver is told nothing, and what waits for it is not sent. Raises NotFound, InvalidChange."""
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
    """A webhook's new secret, which signs from now on. Raises NotFound, InvalidChange."""
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        if row.kind != WEBHOOK:
            raise _refused("kind", "must be webhook: nothing else is signed")
        row.secret = new_secret()
        _record(session, row, author, "secret_renewed")
        return row.secret


def delete_receiver(engine: Engine, slug: str, receiver_id: int, author: str) -> None:
    """With its log. The record of what it was stays. Raises NotFound, InvalidChange."""
    author = checked_author(author)
    with transaction(engine, durable=True) as session:
        row = receiver_of(session, slug, receiver_id)
        _record(session, row, author, "deleted", before=_told(row))
        session.execute(delete(DeliveryRow).where(col(DeliveryRow.receiver_id) == receiver_id))
        session.delete(row)


def project_of(session: Session, slug: str) -> ProjectRow:
    """Raises NotFound."""
    found: ProjectRow | None = session.execute(select(ProjectRow).where(col(ProjectRow.slug) == slug)).scalar()
    if found is None:
        raise NotFound(f"There is no project {slug}. It begins with the first upload that names it.")
    return found


def receiver_of(session: Session, slug: str, receiver_id: int) -> ReceiverRow:
    """Raises NotFound, also for one of another project."""
    project = project_of(session, slug)
    row = session.get(ReceiverRow, receiver_id)
    if row is None or row.project_id != project.id:
        raise NotFound(f"There is no receiver {receiver_id} in {slug}. It may have been deleted.")
    return row


def checked_author(author: str) -> str:
    """Raises InvalidChange."""
    author = one_line(author)
    if not 0 < len(author) <= MAX_AUTHOR:
        raise _refused("author", f"must say who does it, in 1 to {MAX_AUTHOR} characters")
    return author


def _checked(session: Session, settings: Settings, project: ProjectRow, wish: Wish, row: ReceiverRow | None) -> Wish:
    """The wish as it is kept. Raises InvalidChange that names each wrong field."""
    name, author, target = one_line(wish.name), one_line(wish.author), wish.target.strip()
    kind = row.kind if row else wish.kind
    errors: list[FieldError] = []
    if not 0 < len(name) <= MAX_NAME:
        errors.append(FieldError("name", f"must say who gets it, in 1 to {MAX_NAME} characters"))
    if kind not in KINDS:
        errors.append(FieldError("kind", f"must be one of {', '.join(KINDS)}"))
    elif row is None or target:
        try:
            _check_target(settings, kind, target, _mailboxes_besides(session, project, row))
        except ValueError as error:
            errors.append(FieldError("target", str(error)))
    unknown = [event for event in wish.events if event not in EVENTS]
    if unknown or not wish.events:
        errors.append(FieldError("events", f"must be some of {', '.join(EVENTS)}"))
    stacks: list[str] = []
    try:
        stacks = list(_stacks(session, project, wish.stacks))
    except ValueError as error:
        errors.append(FieldError("stacks", str(error)))
    if not 0 < len(author) <= MAX_AUTHOR:
        errors.append(FieldError("author", f"must say who does it, in 1 to {MAX_AUTHOR} characters"))
    if errors:
        names = ", ".join(error.field for error in errors)
        raise InvalidChange(f"Correct {names}. Nothing was changed.", tuple(errors))
    events = tuple(event for event in EVENTS if event in wish.events)
    kept = target or (row.target if row else "")
    return Wish(name, kind, kept, events, tuple(dict.fromkeys(stacks)), author, wish.address)


def _check_target(settings: Settings, kind: str, target: str, others: set[str]) -> None:
    """`others`: mailboxes that the project's other receivers have. Raises ValueError."""
    if kind == EMAIL:
        if not settings.smtp_host:
            raise ValueError("needs a mail server: whoever runs the service sets THREEWALLS_SMTP_HOST")
        mailboxes = {one.lower() for one in read_mailboxes(target)} | others
        if len(mailboxes) > MOST_MAILBOXES_OF_A_PROJECT:
            most = MOST_MAILBOXES_OF_A_PROJECT
            raise ValueError(f"would make {len(mailboxes)} mailboxes of this project, more than {most}: use a list")
        return
    check_reach(read_web(target), read_networks(settings.allow_private_targets))


def _mailboxes_besides(session: Session, project: ProjectRow, row: ReceiverRow | None) -> set[str]:
    """Of the project's other receivers."""
    others = select_any(ReceiverRow.target).where(
        col(ReceiverRow.project_id) == project.id, col(ReceiverRow.kind) == EMAIL,
        col(ReceiverRow.id) != (row.id if row else 0),
    )  # fmt: skip
    return {one.lower() for target in session.execute(others).scalars() for one in read_mailboxes(target)}


def _stacks(session: Session, project: ProjectRow, wanted: Sequence[str]) -> Iterator[str]:
    """The whole keys of stacks that are named by their beginnings. Raises ValueError."""
    if len(wanted) > MOST_STACKS:
        raise ValueError(f"must be at most {MOST_STACKS}; leave it empty for all")
    for text in wanted:
        key = text.strip().rpartition("/")[2].lower()  # also the address of its history
        if len(key) < _SHORTEST_KEY or any(c not in "0123456789abcdef" for c in key):
            raise ValueError(f"{one_line(text)[:60]!r} is no key of a stack: the end of the address of its history")
        known = select_any(StackWorkRow.stack_key).where(
            col(StackWorkRow.project_id) == project.id, col(StackWorkRow.stack_key).startswith(key)
        )
        found = session.execute(known.limit(2)).scalars().all()
        if len(found) != 1:
            raise ValueError(f"{key[:60]} is {'several stacks' if found else 'no stack'} of this project")
        yield found[0]


def _rules(wish: Wish, before: Mapping[str, Any]) -> dict[str, Any]:
    """`address`: where people open the service, as whoever entered it saw it; links in messages lead there."""
    return Wants(wish.events, wish.stacks).as_json() | {"address": wish.address or before.get("address", "")}


def _told(row: ReceiverRow) -> dict[str, Any]:
    """What the record holds of it: no secret, and of an address its host."""
    wants = Wants.read(row.rules).as_json()
    return {"name": row.name, "kind": row.kind, "target": shown(row.kind, row.target), **wants}


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


def _refused(field: str, message: str) -> InvalidChange:
    return InvalidChange(f"{field} {message}. Nothing was changed.", (FieldError(field, message),))


# --- Messages that a person asks for: a test, one of the log now or again, all that were given up.

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
        _sending_record(session, row, author, "tested", {"delivery": made})
    delivery_queue.enqueue_due(engine)
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
            delivery_queue.send_now(session, old)
            _sending_record(session, row, author, "sent_now", {"delivery": delivery_id})
            made = delivery_id
        else:
            made = _again(session, row, old)
            _sending_record(
                session, row, author, "replayed", {"delivery": made, "replay_of": old.replay_of or delivery_id}
            )
    delivery_queue.enqueue_due(engine)
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
        _sending_record(session, row, author, "replayed_all", {"deliveries": len(made)})
    delivery_queue.enqueue_due(engine)
    return made


def dismiss(engine: Engine, slug: str, receiver_id: int, author: str) -> int:
    """What was given up needs nobody any more; it stays in the log. How many. Raises NotFound, InvalidChange."""
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
    if wait := projects.use(session, row.project_id, what, amount, most=most, within=within):
        words = "a minute" if within <= timedelta(minutes=1) else "an hour"
        told = f"This would be more than {most:,} {what.partition(' of ')[0]} {words}, the limit"
        whose = "of a receiver" if " of " in what else "of a project"
        raise TooManyMessages(f"{told} {whose}. Nothing was sent. Try again in {wait} s.", retry_after=wait)


def _sending_record(session: Session, row: ReceiverRow, author: str, action: str, after: Mapping[str, Any]) -> None:
    audit.record(
        session, who=author, subject="receiver", subject_id=row.id or 0, action=action, project_id=row.project_id,
        after=after, note=row.name,
    )  # fmt: skip
